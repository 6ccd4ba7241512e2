"""The private gradient oracle: all that touches raw data is inside, what leaves it is private for good.

    data -> sampler -> engine -> estimator -> bounded values -> mechanism ──┃──> release
                                                                    ledger on the line

Place: every stage below -> [oracles.gradient_oracle] -> methods, training.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.accounting import Event, Ledger, Part, Session
from tacita.errors import LedgerError, ResumeError
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import Source
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.line import Line
from tacita.oracles.terms import Terms
from tacita.random import Randomness
from tacita.sampling import Sampler, as_sampler

_CHANGING: Any = object()  # in the place of a state that is being changed


@dataclass(frozen=True)
class Release:
    """What leaves an oracle: private for good, free to log, average, publish.

    Attributes:
        gradient: Estimate of the mean gradient, by parameter name: ``released`` divided by ``divisor``.
        released: The noisy blocks, at the level of the sum: block -> parameter name -> tensor.
        divisor: The public divisor (the expected batch size).
        noise_std: Standard deviation of the noise in ``released``, by block.
        session: The session that paid.
        query: Number of the query in its session.
    """

    gradient: dict[str, Tensor]
    released: Values
    divisor: float
    noise_std: Mapping[str, float]
    session: str
    query: int


class GradientOracle:
    """Answers queries for the gradient with bounded, noisy values, each paid for in the ledger.

    Building it checks every setting and registers its session; the first query opens it. Nothing of it prints data.

    Args:
        source: Makes engines from data (a network with its loss and records, say).
        estimator: What is computed above the line, with its sensitivity and event.
        mechanism: The noise: a :class:`GaussianMechanism`, say, or a :class:`CalibratedGaussian`, resolved here.
        sampler: How the records of a query are drawn.
        ledger: Pays for the queries; has the neighboring relation and the privacy unit.
        planned_queries: Number of queries the guarantee is for; a query past it raises.
        rows: The rows of ``source`` that take part; all by default.
        part: The part of a split these rows are.
        max_rows_per_unit: At most so many of the rows belong to one unit; the sampler must have the same cap.
        purpose: A word for the ledger.
        settings: More public settings to bind to the session's hash; of a session registered before, all of them.
        session: A session registered before (its event must be this oracle's), or one to resume.
        randomness: Only tests hand it in, or a resumed run its key; by default a fresh system key.

    Raises:
        UnsupportedEventError: No guarantee is proved for estimator x sampler x relation.
        BudgetExceededError: The session would pass the ledger's cap.
        LedgerError: ``session`` was registered for other settings.
        ValueError: A setting is wrong; the message names it and the way out.
    """

    def __init__(
        self,
        source: Source,
        *,
        estimator: Estimator,
        mechanism: Mechanism | CalibratedGaussian,
        sampler: Sampler,
        ledger: Ledger,
        planned_queries: int,
        rows: np.ndarray | None = None,
        part: Part | None = None,
        max_rows_per_unit: int = 1,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self.source, self.estimator, self.sampler, self.ledger = source, estimator, as_sampler(sampler), ledger
        self.planned_queries = _validate.count("planned_queries", planned_queries)
        self._rows = np.arange(source.num_rows) if rows is None else rows
        self._check_sampler(max_rows_per_unit)
        mechanism = self._resolved(mechanism, part, session)
        self.noise_std = self._noise_std(mechanism)
        self.mechanism = mechanism.on(estimator.steps(source.shapes), self.noise_std)
        self.event = self._event(self.mechanism)
        self.randomness = randomness or Randomness.system()
        self._more_settings = dict(settings or {})
        terms = Terms(
            payee="oracle",
            event=self.event,
            planned_queries=self.planned_queries,
            part=part,
            randomness=self.randomness,
        )
        if session is None:
            session = terms.register(ledger, purpose, {**self.settings, **self._more_settings})
        self._check_session(session, terms)
        self.line = Line(session, self.mechanism, self.noise_std, self.randomness)
        self._state: Any = estimator.initial_state(source.shapes)
        self._updated = _UpdateCheck()
        self._follow()

    @property
    def settings(self) -> dict[str, Any]:
        """The public settings that the privacy and the bits of a run depend on."""
        return {
            "estimator": repr(self.estimator),
            "mechanism": repr(self.mechanism),
            "sampler": repr(self.sampler),
            "planned_queries": self.planned_queries,
            "shapes": {name: list(shape) for name, shape in self.source.shapes.items()},
            "source": repr(self.source),
        }

    @property
    def session(self) -> Session:
        """The session of the ledger that pays."""
        return self.line.session

    @property
    def divisor(self) -> float:
        """The public divisor of the sum: the expected batch size."""
        return self.sampler.expected_batch_size

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over sensitivity."""
        return self.mechanism.noise_multiplier

    @property
    def remaining_queries(self) -> int:
        """Queries of the plan that are left."""
        return self.line.remaining_queries

    def query(self, params: Mapping[str, Tensor]) -> Release:
        """Draw the next batch, bound it, write the ledger, add noise, return the release.

        Args:
            params: The point, by parameter name; neither it nor the model is modified.

        Raises:
            BudgetExceededError: The plan is used up.
            ResumeError: A redone query does not match, and the event does not compose query by query.
        """
        query = self._pay(params)
        released = self.line.noisy(self._dtypes(params))
        # ---- below the line: may be logged, reused, published ----
        self._state = self.estimator.after(self._state, released)
        return Release(
            gradient=self.estimator.gradient(released, self.divisor),
            released=released,
            divisor=self.divisor,
            noise_std=self.noise_std,
            session=self.session.id,
            query=query,
        )

    def backward(self) -> Release:
        """One query at the model's own parameters; assigns (never adds to) their ``.grad``.

        The release's ``gradient`` and ``.grad`` may share memory: what the optimizer does to one shows in the other.

        Raises:
            RuntimeError: After the first step, a parameter that has a private gradient was not updated.
        """
        params = trainable(self._model())
        self._updated.before(params)
        release = self.query(params)
        for name, parameter in params.items():
            parameter.grad = release.gradient[name].to(parameter.dtype)
        self._updated.after(params)
        return release

    def ratchet(self) -> None:
        """Move on to the next key (at a checkpoint): what was drawn before can no longer be drawn again."""
        self.randomness.ratchet()
        self._follow()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs. ``estimator_state`` is private: never share it."""
        return {
            "session": self.session.id,
            "position": self.line.position,
            "generation": self.randomness.generation,
            "identity": self.line.identity,
            "estimator_state": copy.deepcopy(self._whole_state()),  # which the next query may change in place
        }

    @property
    def public_state(self) -> Any:
        """The estimator's state if it is a function of releases; ``None`` if it is private or there is none."""
        return copy.deepcopy(self.estimator.shareable(self._whole_state()))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`; redone queries follow the rule of :class:`~tacita.oracles.line.Line`."""
        if state["session"] != self.session.id:
            raise ValueError(
                f"the checkpoint is of session {state['session']!r}, this oracle's is {self.session.id!r}."
            )
        self.line.resume(state["position"], state["generation"], state["identity"])
        self._state = copy.deepcopy(state["estimator_state"])
        self._follow()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(estimator={self.estimator!r}, sampler={self.sampler!r}, "
            f"mechanism={self.mechanism!r}, planned_queries={self.planned_queries})"
        )

    def _bounded(self, params: Mapping[str, Tensor], query: int) -> tuple[Values, Any]:
        engine = self.source.engine(params, self._draw(query), query=query, seed=self._model_seed(query))
        return self.estimator.look(engine, self._whole_state())

    def _pay(self, params: Mapping[str, Tensor]) -> int:
        """The number of a query that counts; the line has its values, and what the estimator saw is remembered."""
        query = self.line.begin()
        values, seen = self._bounded(params, query)
        while not self._paid(query, values, seen):
            query = self.line.skip()
            values, seen = self._bounded(params, query)
        return query

    def _paid(self, query: int, values: Values, seen: Any) -> bool:
        """Pay and remember, both or neither; in between the state is none."""
        state = self._whole_state()
        self._state = None if state is None else _CHANGING
        try:
            paid = self.line.pay(query, values)
        except BaseException:
            if self.line.position <= query:  # it does not count: the state is still that before it
                self._state = state
            raise
        values.clear()  # the line alone holds them
        if paid:
            self._remember(state, seen)
        else:
            self._state = state
        return paid

    def _remember(self, state: Any, seen: Any) -> None:
        self._state = self.estimator.remember(state, seen)

    def _whole_state(self) -> Any:
        if self._state is _CHANGING:
            raise ResumeError(
                f"session {self.session.id!r} was interrupted while its estimator's state was changing, and half a "
                "change is none that its guarantee is for: load the last checkpoint."
            )
        return self._state

    def _dtypes(self, params: Mapping[str, Tensor]) -> dict[str, torch.dtype]:
        """What is released is rounded to, by name: that of sums over the parameter, float32 or better."""
        if not self.estimator.rounded_last:
            return {}
        return {name: torch.promote_types(p.dtype, torch.float32) for name, p in params.items()}

    def _draw(self, query: int) -> np.ndarray:
        return self._rows[self.sampler.draw(query, self.line.coins, len(self._rows))]

    def _model_seed(self, query: int) -> int:
        """256 secret bits for what the model and the data set draw themselves: dropout, augmentation."""
        return int.from_bytes(self.randomness.key.stream(self.session.id, "model", query).bytes(32), "big")

    def _follow(self) -> None:
        self.source.follow(self._draw, self._model_seed)

    def _model(self) -> nn.Module:
        model = getattr(self.source, "model", None)
        if model is None:
            raise TypeError("backward() needs a source with a model; ask query(params) instead.")
        return model

    def _resolved(
        self, mechanism: Mechanism | CalibratedGaussian, part: Part | None, session: Session | None
    ) -> Mechanism:
        if isinstance(mechanism, Mechanism):
            return mechanism
        if not isinstance(mechanism, CalibratedGaussian):
            raise TypeError(f"mechanism must be a Mechanism or a CalibratedGaussian, got {type(mechanism).__name__}.")
        return mechanism.resolve(
            lambda noise_multiplier: self._event(mechanism.at(noise_multiplier)),
            self.ledger.neighboring_relation,
            self.planned_queries,
            self.ledger.spends(part, before=session),
        )

    def _noise_std(self, mechanism: Mechanism) -> dict[str, float]:
        shapes = self.source.shapes
        sensitivity = self.estimator.sensitivity(self.ledger.neighboring_relation, shapes)
        return mechanism.noise_std(sensitivity, self.estimator.block_sizes(shapes))

    def _event(self, mechanism: Mechanism) -> Event:
        relation = self.ledger.neighboring_relation
        event = self.estimator.event(self.sampler, self._noise_std(mechanism), relation, self.source.shapes)
        return mechanism.event(event)

    def _check_sampler(self, max_rows_per_unit: int) -> None:
        self.estimator.check_batch(self.sampler.expected_batch_size, self.source.shapes)
        limit = self.sampler.max_queries
        if limit is not None and self.planned_queries > limit:
            raise ValueError(f"planned_queries must be <= {limit} with {self.sampler!r}, got {self.planned_queries}.")
        cap = getattr(self.sampler, "max_rows_per_unit", 1)
        if cap != max_rows_per_unit:
            raise ValueError(
                f"the sampler must have the records' cap: max_rows_per_unit is {cap} in the sampler and "
                f"{max_rows_per_unit} in the records. Use UnitPoissonSampler with records from split or cap_units."
            )
        public = self.ledger.neighboring_relation != "add_or_remove_one" or self.sampler.requires_public_count
        if public and self.sampler.num_records != len(self._rows):
            raise ValueError(
                f"num_records must be the number of records under {self.ledger.neighboring_relation} with "
                f"{type(self.sampler).__name__}, got {self.sampler.num_records}."
            )

    def _check_session(self, session: Session, terms: Terms) -> None:
        if not terms.met_by(session, {**self.settings, **self._more_settings}, self._more_settings):
            raise LedgerError(
                f"session {session.id!r} was registered for another event, number of queries, part of the records or "
                "other settings than this oracle's: build the oracle with those it was registered with."
            )


class _UpdateCheck:
    """Sees to it that the optimizer moves just the parameters that have a private gradient.

    An in-place update raises a parameter's version counter whatever the data are, so the check tells nothing of them.
    """

    def __init__(self) -> None:
        self._versions: dict[str, tuple[int, int]] | None = None
        self._done = False

    def after(self, params: Mapping[str, Tensor]) -> None:
        if self._versions is None:
            self._versions = {name: (id(p), p._version) for name, p in params.items()}

    def before(self, params: Mapping[str, Tensor]) -> None:
        if self._done or self._versions is None:
            return
        still = [name for name, p in params.items() if self._versions.get(name) == (id(p), p._version)]
        if still:
            raise RuntimeError(
                f"not updated after the first step: {', '.join(still)}. Give the optimizer all of model.parameters() "
                "that require a gradient, and step it after backward()."
            )
        self._done = True


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters a gradient is taken in, by name (a tied one once, under its first name)."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
