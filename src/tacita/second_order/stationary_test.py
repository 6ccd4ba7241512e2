r"""The private choice of a second-order stationary point: many candidates are tested for one epsilon.

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
from tacita.accounting import CoupledEvent, Event
from tacita.errors import BudgetExceededError, ResumeError
from tacita.gradients.functional import LossFn
from tacita.gradients.processes import refuse_sharded
from tacita.ledger import Ledger, Session, Share
from tacita.ledger.session import BLOCK
from tacita.oracles.gate import ReleaseGate, answer
from tacita.oracles.payment import Payment, under_conditions
from tacita.oracles.records import check_units, network_data
from tacita.random import Randomness
from tacita.second_order.above_threshold import AboveThreshold
from tacita.second_order.certificate import StationaryCertificate
from tacita.second_order.hessian import hessian_products
from tacita.second_order.stationarity_query import StationarityQuery
from tacita.second_order.threshold_answer import ANSWER, PASSES, ThresholdAnswer

LARGEST_SLACK = 0.5  # an accepted point is then 4 alpha-stationary


class StationaryTest:
    r"""Tests points until one is :math:`\alpha`-second-order stationary, and reveals only which one that is.

    A point passes if :math:`q + \text{Lap}(4s/\epsilon) \le 1 + a + \text{Lap}(2s/\epsilon)`. Here q is the value of
    :class:`~tacita.StationarityQuery` over all records and s its sensitivity; the second draw is made once for all
    points. The session ends with the first point that passes.

    Guarantee: pure ``epsilon`` for all answers together, however many points are rejected, *if* no record's loss has a
    Hessian of norm above ``declared_max_hessian_norm`` at any point that is tested. So the statement prints a condition
    and no unconditional epsilon. A point may depend on the data through releases only, as the iterates of a private run
    do. Where the eigen-solver is random, delta grows by :math:`(1 + e^\epsilon)` times
    ``solver_failure_probability``.

    Accuracy: with probability at least 1 - ``failure_probability``, every point with :math:`q \le 1` passes and no
    point with :math:`q > 1 + 2a` does. The number a is public: :attr:`slack`.

    Model and loss are run before any record is read, and what they compute of a record, its gradient and its Hessian's
    products, is written down. With ``method="loop"`` they run on one record at a time, many times slower.

    Build it before the first query of the training session, because the ledger refuses sessions registered after a
    release. A model that draws at random (dropout) is refused, whatever the data: build and test in ``model.eval()``.
    What ``dataset[i]`` draws (augmentation) is the same for gradient and Hessian; what ``collate_fn`` draws must be
    drawn item by item.

    Args:
        model, loss_fn, dataset: As in :class:`~tacita.ClippedGradientOracle`.
        ledger: Pays; its relation sets the sensitivity.
        num_records: The public divisor; under add_or_remove_one it may be a guess.
        epsilon: What the session spends, > 0.
        alpha, hessian_lipschitz: The accuracy asked of a point: a gradient below alpha, and eigenvalues above
            -sqrt(rho alpha).
        max_grad_norm: Threshold at which each record's gradient is clipped before the mean is taken.
        declared_max_hessian_norm: Bound on every record's Hessian (not on the mean Hessian): a public constant.
        because: Why the bound holds, for the statement.
        max_tests: The largest number of points that may be tested.
        failure_probability: Chance that the accuracy above fails.
        eigenvalue_error: By how much a computed eigenvalue may be too large; it adds to the sensitivity. With 0 the
            eigenvalues are exact (up to 1000 parameters).
        solver_failure_probability: Chance that an eigenvalue of the session is off by more; needed where the solver is
            random.
        collate_fn, method, max_physical_batch_size: As in :class:`~tacita.ClippedGradientOracle`.
        purpose, settings, session, share, randomness, reservation: As in ``GradientOracle``.

    Raises:
        ValueError: A setting is wrong, or the answers would be too noisy; the message names it and the way out.
        ResumeError: ``session`` was opened by an earlier run; a test cannot be continued.
        UnsupportedModuleError: The model draws at random, as far as its modules and synthetic rows show. Or its Hessian
            cannot be written down before records are read, and ``method`` is not ``"loop"``.

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
        loss_fn: LossFn,
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
        collate_fn: Callable[[list], Any] | None = None,
        method: str = "auto",
        max_physical_batch_size: int | None = None,
        purpose: str = "select",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        share: Share | None = None,
        randomness: Randomness | None = None,
        reservation: int = BLOCK,
    ) -> None:
        refuse_sharded(model, "StationaryTest")
        data = network_data(model, loss_fn, dataset, collate_fn, 0, method, max_physical_batch_size)
        payment = Payment(ledger, purpose, settings, session, share, randomness, reservation)
        self.ledger, self.source, self.randomness = ledger, data.source, payment.randomness
        self.max_tests = _validate.count("max_tests", max_tests)
        self.failure_probability = _validate.delta("failure_probability", failure_probability)
        self.source.check_draws_nothing()
        self._products = hessian_products(self.source)
        check_units(ledger.neighboring_relation, data.max_rows_per_unit)
        self._rows = np.arange(self.source.num_rows) if data.rows is None else data.rows
        self._because = _validate.one_line("because", because, "why the bound holds")
        self.query = self._stated(
            StationarityQuery(
                alpha=alpha,
                hessian_lipschitz=hessian_lipschitz,
                max_grad_norm=max_grad_norm,
                declared_max_hessian_norm=declared_max_hessian_norm,
                num_records=num_records,
                eigenvalue_error=eigenvalue_error,
                solver_failure=_validate.below_one("solver_failure_probability", solver_failure_probability)
                / self.max_tests,
            )
        )
        self.mechanism = AboveThreshold(
            epsilon=_validate.positive("epsilon", epsilon),
            sensitivity=self.query.sensitivity(ledger.neighboring_relation, data.max_rows_per_unit),
        )
        self._check_slack()
        self.event = self._event()
        _check_unopened(session)
        session = payment.session_for(
            "test", self.event, planned_queries=self.max_tests, part=data.part, bound=self.settings
        )
        self._answering = ThresholdAnswer(self.mechanism, self.threshold)
        self._gate = ReleaseGate(session, self._answering, {}, self.randomness, reservation)
        self._answering.threshold_draw = float(self._gate.session_key.stream("threshold").laplaces(1)[0])
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
        """The public number a: by how much an answer may be wrong, in units of alpha and of sqrt(rho alpha)."""
        return self.mechanism.accuracy(self.max_tests, self.failure_probability)

    @property
    def threshold(self) -> float:
        """The number that values are compared with: 1 + a."""
        return 1.0 + self.slack

    @property
    def session(self) -> Session:
        """The session of the ledger that pays."""
        return self._gate.session

    @property
    def remaining_tests(self) -> int:
        """Number of points that may still be tested; 0 once one was accepted."""
        return 0 if self._accepted is not None else self._gate.remaining_queries

    @property
    def accepted(self) -> int | None:
        """Number of the test that accepted, from 0; ``None`` if none has yet."""
        return self._accepted

    def test(self, params: Mapping[str, Tensor]) -> bool:
        """Return whether the point is accepted; the first acceptance ends the test.

        Args:
            params: The point, by parameter name; it may depend on the data through releases only.

        Raises:
            BudgetExceededError: A point was accepted already, or ``max_tests`` points were rejected.
            ResumeError: Another test that was built on the same session has tested a point.
            UnsupportedModuleError: The model was put into a mode in which it draws at random.
        """
        with self._gate.lock, self._gate.turn():
            if self._accepted is not None:
                raise BudgetExceededError(
                    f"max_tests: test {self._accepted + 1} accepted a point, which ends the session. Register a new "
                    "test for more, at full cost."
                )
            self.source.check_draws_nothing()

            def bounded(number: int) -> tuple[dict[str, Any], None]:
                self._check_alone(number)
                value = torch.tensor([self._value(params, number)], dtype=torch.float64)
                return {ANSWER: {PASSES: value}}, None

            number, released, _ = answer(self._gate, bounded)
            # ---- below the line ----
            passes = bool(released[ANSWER][PASSES])
            if passes:
                self._accepted = number
            if not self.remaining_tests:
                self.session.close()
        return passes

    def first_accepted(self, points: Iterable[Mapping[str, Tensor]]) -> int | None:
        """Return the position of the first of ``points`` that is accepted; ``None`` if none is, or no test is left."""
        for position, params in enumerate(points):
            if not self.remaining_tests:
                return None
            if self.test(params):
                return position
        return None

    def certificate(self) -> StationaryCertificate:
        """Return what is known of the accepted point.

        Raises:
            ValueError: No point was accepted.
        """
        if self._accepted is None:
            raise ValueError("test() has accepted no point, so there is nothing to certify.")
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
        seed = int.from_bytes(self._gate.query_stream("model", number).bytes(32), "big")
        engine = self.source.engine(params, self._rows, query=number, seed=seed)
        dim = sum(shape.numel() for shape in self.source.shapes.values())
        start = self._gate.query_stream("solver", number).normals(dim, dtype=torch.float64)
        return self.query(engine, start, self._products)

    def _check_alone(self, number: int) -> None:
        """Refuse a number that is in the ledger already: a test never redoes one, so another test wrote it."""
        if self.session.lookup(number) is not None:
            raise ResumeError(
                f"session {self.session.id!r} belongs to another test, which has tested a point already: a test is one "
                "session. Go on with that test, or register a new one at full cost."
            )

    # Built once.

    @property
    def _condition(self) -> str:
        return self.query.condition(self.ledger.neighboring_relation, self._because)

    def _event(self) -> Event:
        relation = self.ledger.neighboring_relation
        event: Event = self.mechanism.event(relation)
        if self.query.solver_failure:
            failure = self.query.solver_failure * self.max_tests
            event = CoupledEvent(relation=relation, inner=event, failure_probability=failure)
        return under_conditions(event, [*self.source.conditions, self._condition])

    def _stated(self, query: StationarityQuery) -> StationarityQuery:
        """Check that ``query`` can be asked as stated; return it without a failure where nothing is random."""
        public = self.ledger.neighboring_relation != "add_or_remove_one"
        if public and query.num_records != len(self._rows):
            raise ValueError(
                f"num_records must be the number of records under {self.ledger.neighboring_relation}, "
                f"got {query.num_records}. Pass len(data), or the number of its rows that take part."
            )
        return query.on(sum(shape.numel() for shape in self.source.shapes.values()))

    def _check_slack(self) -> None:
        if not self.slack <= LARGEST_SLACK:
            raise ValueError(
                f"the slack must be at most {LARGEST_SLACK:g}, and answers would be off by up to {self.slack:.3g} "
                "(times alpha, and times sqrt(rho alpha)). Give a larger alpha or epsilon, fewer max_tests, a smaller "
                "eigenvalue_error, or more records."
            )


def _check_unopened(session: Session | None) -> None:
    if session is not None and session.opened:
        raise ResumeError(
            f"session {session.id!r} was opened by an earlier run, and a test is not continued: what it rejected "
            "would be tested again. Register a new one at full cost."
        )
