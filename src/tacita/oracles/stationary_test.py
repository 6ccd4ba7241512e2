r"""The private choice of a second-order stationary point: many candidates tested, one epsilon.

    data -> engine -> stationarity query -> one number -> AboveThreshold ──┃──> accept or reject
                                                            ledger on the line

Place: every stage below -> [oracles.stationary_test] -> methods, certificates. Nothing but answers leaves.
Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need", section 3.4, whose noise is 4 to 8 times too
small for its epsilon; corrected in docs/derivations/noisy-sgd.md.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.accounting import ConditionalEvent, CoupledEvent, Event, Ledger, Part, Session
from tacita.errors import BudgetExceededError, LedgerError, ResumeError
from tacita.estimators.stationarity_query import StationarityQuery
from tacita.gradients import NetworkSource
from tacita.mechanisms.above_threshold import AboveThreshold
from tacita.oracles.certificate import StationaryCertificate
from tacita.oracles.line import Line
from tacita.oracles.records import data_and_rows
from tacita.oracles.terms import Terms
from tacita.random import Randomness

ANSWER, PASSES = "answer", "passes"  # block and name of what leaves


class StationaryTest:
    r"""Tests points until one is :math:`\alpha`-second-order stationary, and says no more than which.

    A point passes if :math:`q + \text{Lap}(4s/\epsilon) \le 1 + a + \text{Lap}(2s/\epsilon)`, the second draw made once
    for all points; q is :class:`~tacita.StationarityQuery`'s value over all records, s its sensitivity. The session
    ends with the first point that passes.

    Guarantee: ``epsilon``, pure, for all answers together, however many points are rejected, *if* no record's loss has
    a Hessian of norm above ``declared_max_hessian_norm`` at any point tested: so the statement prints a condition and
    no unconditional epsilon. Points may be any that depend on the data through releases only (iterates of a private
    run). Where the eigen-solver is random, :math:`(1 + e^\epsilon)` of ``solver_failure_probability`` adds to delta.

    Accuracy: but with ``failure_probability``, every point with :math:`q \le 1` passes and none with :math:`q > 1 + 2a`
    does. a is public: :attr:`slack`.

    Build it before the first query of the training session: the ledger refuses sessions registered after a release. A
    model that draws (dropout) is refused, whatever the data: build and test in ``model.eval()``. What ``dataset[i]``
    draws (augmentation) is the same for gradient and Hessian; what ``collate_fn`` draws must be drawn item by item.

    Args:
        model, loss_fn, dataset: As in :class:`~tacita.ClippedGradientOracle`.
        ledger: Pays; its relation sets the sensitivity.
        num_records: The public divisor; under add_or_remove_one it may be a guess.
        epsilon: What the session spends, > 0.
        alpha, hessian_lipschitz: What is asked of a point: gradient below alpha, eigenvalues above -sqrt(rho alpha).
        max_grad_norm: Each record's gradient is clipped at this before the mean is taken.
        declared_max_hessian_norm: Bound on every record's Hessian (not on the mean's): a public constant.
        because: Why it holds, for the statement.
        max_tests: How many points may be tested.
        failure_probability: Of the accuracy.
        eigenvalue_error: By how much a computed eigenvalue may be too large; it adds to the sensitivity. 0 computes
            exact ones (up to 1000 parameters).
        solver_failure_probability: Chance that some eigenvalue of the session is off by more; needed where it is
            random.
        max_slack: The largest a that is accepted; at 1/2 an accepted point is 4 alpha-stationary.
        collate_fn, method, max_physical_batch_size: As in :class:`~tacita.ClippedGradientOracle`.
        purpose, settings, session, randomness: As in :class:`~tacita.GradientOracle`.

    Raises:
        ValueError: A setting is wrong, or the answers would be too noisy; the message names it and the way out.
        ResumeError: ``session`` was opened by an earlier run: a test is one session, and is not continued.
        UnsupportedModuleError: The model draws at random, as far as its modules and synthetic rows show.

    Example:
        >>> import torch, tacita
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> data = (torch.zeros(1000, 2), torch.zeros(1000))
        >>> test = tacita.StationaryTest(
        ...     model, lambda model, batch: (model(batch[0])[:, 0] - batch[1]).square() / 2, data,
        ...     ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row"), num_records=1000,
        ...     epsilon=2.0, alpha=0.5, hessian_lipschitz=1.0, max_grad_norm=1.0, declared_max_hessian_norm=1.0,
        ...     because="features are in the unit ball", max_tests=10, failure_probability=0.05)
        >>> test.test({"weight": torch.zeros(1, 2)})
        True
        >>> certificate = test.certificate()
        >>> round(test.slack, 3), round(certificate.gradient_norm, 3), round(certificate.certified_alpha, 3)
        (0.096, 0.596, 0.71)
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        dataset: Any,
        *,
        ledger: Ledger,
        num_records: int,
        epsilon: float,
        alpha: float,
        hessian_lipschitz: float,
        max_grad_norm: float,
        declared_max_hessian_norm: float,
        because: str = "",
        max_tests: int,
        failure_probability: float,
        eigenvalue_error: float = 0.0,
        solver_failure_probability: float = 0.0,
        max_slack: float = 0.5,
        collate_fn: Callable[[list], Any] | None = None,
        method: str = "auto",
        max_physical_batch_size: int | None = None,
        purpose: str = "select",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        data, taken = data_and_rows(dataset)
        self.ledger = ledger
        self.max_tests = _validate.count("max_tests", max_tests)
        self.failure_probability = _validate.delta("failure_probability", failure_probability)
        self.source = NetworkSource(
            model, loss_fn, data, collate_fn=collate_fn, method=method, max_physical_batch_size=max_physical_batch_size
        )
        self.source.check_draws_nothing()
        self._rows = np.arange(self.source.num_rows) if taken["rows"] is None else taken["rows"]
        self._because = _one_line("because", because)
        self.query = self._stated(
            StationarityQuery(
                alpha=alpha,
                hessian_lipschitz=hessian_lipschitz,
                max_grad_norm=max_grad_norm,
                declared_max_hessian_norm=declared_max_hessian_norm,
                num_records=num_records,
                eigenvalue_error=eigenvalue_error,
                solver_failure=_failure(solver_failure_probability) / self.max_tests,
            )
        )
        self.mechanism = AboveThreshold(
            epsilon=_validate.positive("epsilon", epsilon),
            sensitivity=self.query.sensitivity(ledger.neighboring_relation, taken["max_rows_per_unit"]),
        )
        self._check_slack(max_slack)
        self.event = self._event()
        self.randomness = randomness or Randomness.system()
        terms, bound = self._terms(taken["part"]), {**self.settings, **(settings or {})}
        if session is None:
            session = terms.register(ledger, purpose, bound)
        self._check_session(session, terms, bound)
        self._line = Line(session, self._compare, {}, self.randomness)
        self._threshold_draw = float(self.randomness.session_key(session.id).stream("threshold").laplaces(1)[0])
        self._accepted: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The public settings that the session is bound to."""
        return {
            "query": repr(self.query),
            "mechanism": repr(self.mechanism),
            "threshold": self.threshold,
            "max_tests": self.max_tests,
            "shapes": {name: list(shape) for name, shape in self.source.shapes.items()},
            "source": repr(self.source),
        }

    @property
    def slack(self) -> float:
        """a: by how much an answer may be wrong, in units of alpha and of sqrt(rho alpha). Public."""
        return self.mechanism.accuracy(self.max_tests, self.failure_probability)

    @property
    def threshold(self) -> float:
        """What values are compared with: 1 + a."""
        return 1.0 + self.slack

    @property
    def session(self) -> Session:
        """The session of the ledger that pays."""
        return self._line.session

    @property
    def remaining_tests(self) -> int:
        """How many more points may be tested; 0 once one was accepted."""
        return 0 if self._accepted is not None else self._line.remaining_queries

    @property
    def accepted(self) -> int | None:
        """Number of the test that accepted, from 0; ``None`` so far."""
        return self._accepted

    def test(self, params: Mapping[str, Tensor]) -> bool:
        """Whether the point is accepted; if it is, the test is over.

        Args:
            params: The point, by parameter name; it may depend on the data through releases only.

        Raises:
            BudgetExceededError: A point was accepted already, or ``max_tests`` were rejected.
            ResumeError: Another test, built on the same session, asked before.
            UnsupportedModuleError: The model was put into a mode in which it draws at random.
        """
        if self._accepted is not None:
            raise BudgetExceededError(
                f"max_tests: test {self._accepted + 1} accepted a point, which ends the session. Register a new test "
                "for more, at full cost."
            )
        self.source.check_draws_nothing()
        number = self._line.begin()
        self._check_alone(number)
        value = torch.tensor([self._value(params, number)], dtype=torch.float64)
        released = self._line.release(number, {ANSWER: {PASSES: value}})
        # ---- below the line ----
        assert released is not None, "a number without a line is always released"
        passes = bool(released[ANSWER][PASSES])
        if passes:
            self._accepted = number
        if not self.remaining_tests:
            self.session.close()
        return passes

    def first_accepted(self, points: Iterable[Mapping[str, Tensor]]) -> int | None:
        """Position of the first of ``points`` that is accepted; ``None`` if none is, or no test is left."""
        for position, params in enumerate(points):
            if not self.remaining_tests:
                return None
            if self.test(params):
                return position
        return None

    def certificate(self) -> StationaryCertificate:
        """What is known of the accepted point.

        Raises:
            ValueError: No point was accepted.
        """
        if self._accepted is None:
            raise ValueError("test: no point was accepted, so there is nothing to certify.")
        query, excess = self.query, 1 + 2 * self.slack
        return StationaryCertificate(
            gradient_norm=excess * query.alpha,
            eigenvalue=-excess * query.curvature_limit - query.eigenvalue_error,
            alpha=query.alpha,
            hessian_lipschitz=query.hessian_lipschitz,
            slack=self.slack,
            failure_probability=self.failure_probability + query.solver_failure * self.max_tests,
            max_grad_norm=query.max_grad_norm,
            num_records=query.num_records,
            conditions=(self._condition,),
            session=self.session.id,
            test=self._accepted,
            max_tests=self.max_tests,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(query={self.query!r}, mechanism={self.mechanism!r}, max_tests={self.max_tests})"

    # Above the line.

    def _value(self, params: Mapping[str, Tensor], number: int) -> float:
        key, session = self.randomness.key, self.session.id
        seed = int.from_bytes(key.stream(session, "model", number).bytes(32), "big")
        engine = self.source.engine(params, self._rows, query=number, seed=seed)
        dim = sum(shape.numel() for shape in self.source.shapes.values())
        start = key.stream(session, "solver", number).normals(dim, dtype=torch.float64)
        return self.query(engine, start)

    def _check_alone(self, number: int) -> None:
        """A test never redoes a number: one that has its line already was another test's."""
        if self.session.lookup(number) is not None:
            raise ResumeError(
                f"session {self.session.id!r} is another test's, which has asked already: a test is one session. Go on "
                "with that one, or register a new one at full cost."
            )

    def _compare(
        self, values: Mapping[str, Mapping[str, Tensor]], _noise_std: Any, noise: Any
    ) -> dict[str, dict[str, Tensor]]:
        """On the line: the answer in place of the value."""
        draw = float(noise.stream(ANSWER).laplaces(1)[0])
        passes = self.mechanism(
            float(values[ANSWER][PASSES]),
            threshold=self.threshold,
            threshold_draw=self._threshold_draw,
            query_draw=draw,
        )
        return {ANSWER: {PASSES: torch.tensor([bool(passes)])}}

    # Built once.

    @property
    def _condition(self) -> str:
        query = self.query
        why = f"declared because {self._because}" if self._because else "declared without a reason"
        at_most = ""
        if query.solver_failure and self.ledger.neighboring_relation == "add_or_remove_one":
            at_most = f", and there are at most {query.num_records} records"
        return (
            f"every record's loss has a Hessian of spectral norm at most {query.declared_max_hessian_norm:g} at every "
            f"point that is tested{at_most} ({why})"
        )

    def _event(self) -> Event:
        relation = self.ledger.neighboring_relation
        event: Event = self.mechanism.event(relation)
        if self.query.solver_failure:
            failure = self.query.solver_failure * self.max_tests
            event = CoupledEvent(relation=relation, inner=event, failure_probability=failure)
        return ConditionalEvent(relation=relation, inner=event, condition_text=self._condition)

    def _stated(self, query: StationarityQuery) -> StationarityQuery:
        """``query`` if it can be computed as it states; without a failure where nothing is random."""
        public = self.ledger.neighboring_relation != "add_or_remove_one"
        if public and query.num_records != len(self._rows):
            raise ValueError(
                f"num_records must be the number of records under {self.ledger.neighboring_relation}, "
                f"got {query.num_records}."
            )
        dim = sum(shape.numel() for shape in self.source.shapes.values())
        query.steps(dim)
        if query.is_exact(dim):
            return StationarityQuery(**{**vars(query), "solver_failure": 0.0})
        if not query.solver_failure:
            raise ValueError(
                f"solver_failure_probability must be in (0, 1) where eigenvalues are not exact ({dim} parameters), "
                "got 0.0: the solver is random, and its failures are paid for in delta. A hundredth of delta will do."
            )
        return query

    def _check_slack(self, max_slack: float) -> None:
        if not self.slack <= _validate.positive("max_slack", max_slack):
            raise ValueError(
                f"max_slack is {max_slack:g}, and answers would be off by up to {self.slack:.3g} (times alpha, and "
                "times sqrt(rho alpha)). Give a larger alpha or epsilon, fewer max_tests, a smaller eigenvalue_error, "
                "or more records; or accept it by a larger max_slack."
            )

    def _terms(self, part: Part | None) -> Terms:
        return Terms(
            payee="test",
            event=self.event,
            planned_queries=self.max_tests,
            part=part,
            randomness=self.randomness,
        )

    def _check_session(self, session: Session, terms: Terms, settings: Mapping[str, Any]) -> None:
        if session.opened:
            raise ResumeError(
                f"session {session.id!r} was opened by an earlier run, and a test is not continued: what it rejected "
                "would be tested again. Register a new one at full cost."
            )
        if not terms.met_by(session, settings):
            raise LedgerError(
                f"session {session.id!r} was registered for another test than this: build it with the settings that "
                "it was registered with."
            )


def _failure(probability: float) -> float:
    if isinstance(probability, bool) or not 0 <= probability < 1:
        raise ValueError(f"solver_failure_probability must be in [0, 1), got {probability!r}.")
    return float(probability)


def _one_line(name: str, text: str) -> str:
    if not isinstance(text, str) or "\n" in text:
        raise ValueError(f"{name} must say in one line why the bound holds, got {text!r}.")
    return text
