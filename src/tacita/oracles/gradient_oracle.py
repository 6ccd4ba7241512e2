"""The private gradient oracle. Everything that touches raw data is inside it; what leaves it is private for good.

    data -> sampler -> engine -> estimator -> bounded values -> mechanism ──┃──> release
                                                                    ledger on the line

Place: every stage below -> [oracles.gradient_oracle] -> methods, training.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tacita import _validate
from tacita._row_numbers import RowNumbers
from tacita.accounting import Event, Part
from tacita.errors import LedgerError
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import GradientSource
from tacita.ledger import Ledger, Session, Share
from tacita.ledger.session import BLOCK
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.gate import ReleaseGate, answer
from tacita.oracles.payment import Payment, SessionPlan
from tacita.oracles.query_draws import QueryDraws
from tacita.oracles.records import OracleData
from tacita.oracles.updates import Updates, complex_refused, names_of, trainable
from tacita.random import Randomness
from tacita.sampling import Sampler, as_sampler


@dataclass(frozen=True)
class Release:
    """The answer to one query, which is private for good: it may be logged, averaged and published.

    Attributes:
        gradient: Estimate of the mean gradient by parameter name, which is ``released`` divided by ``divisor``.
        released: The noisy blocks, at the level of the sum: block -> parameter name -> tensor, where they were bounded.
        divisor: The public divisor (the expected batch size).
        noise_std: Standard deviation of the noise in ``released``, by block; of its fresh part, if it is correlated.
        session: The session that paid.
        query: Number of the query in its session.
    """

    gradient: dict[str, Tensor] = field(repr=False)  # a notebook shows what a cell ends with
    released: Values = field(repr=False)
    divisor: float
    noise_std: Mapping[str, float]
    session: str
    query: int


class Stages(NamedTuple):
    """The stages of an oracle that draw, pay and add noise."""

    ledger: Ledger
    mechanism: Mechanism
    noise_std: Mapping[str, float]
    event: Event
    gate: ReleaseGate
    draws: QueryDraws


class Queryable(Protocol):
    """What every gradient oracle has, and all that a method below the line needs of it."""

    def query(self, params: Mapping[str, Tensor], /) -> Release:
        """Return a private gradient at ``params``."""
        ...


class GradientOracle:
    """Answers each query for the gradient with bounded, noisy values that are paid for in the ledger.

    The constructor checks every setting and registers the session, which the first query opens. No data are printed.

    Args:
        source: Makes engines from data, such as a network with its loss and records.
        estimator: Computes the bounded values; states their sensitivity and the event of the session.
        mechanism: Adds the noise: a :class:`GaussianMechanism`, for example, or a :class:`CalibratedGaussian`, whose
            noise multiplier is found here.
        sampler: Draws the records of a query.
        ledger: Pays for the queries; sets the neighboring relation and the privacy unit.
        planned_queries: Number of queries that the guarantee covers. A query beyond them raises.
        rows: The rows of ``source`` that take part; all by default.
        part: The part of a split that these rows form.
        max_rows_per_unit: The largest number of these rows that belong to one unit. The sampler must have the same cap.
        purpose: What the session is for (``"train"``, ``"score"``); appears in the statement.
        settings: More public settings to bind to the session's hash. For a session that was registered before, these
            are all of its settings.
        session: A session that was registered before, with the event of this oracle, or one to resume.
        share: What pays (:meth:`tacita.Ledger.register_share`); a calibrated mechanism's target is then the share's.
        randomness: The key that coins and noise come from; by default a new one from the system. A resumed run hands
            in its own; otherwise only tests do.
        reservation: Largest number of queries that are reserved on disk at once, >= 1. It is public. A killed process
            may over-report what it spent by so many queries, though not by more than it had made, or 16.

    Raises:
        UnsupportedEventError: No guarantee is proved for estimator x sampler x relation.
        BudgetExceededError: The session would pass the ledger's cap.
        ResumeError: ``session`` was registered with other settings, for another model or loss say.
        ValueError: A setting is wrong; the message names it and the way out.
    """

    def __init__(
        self,
        source: GradientSource,
        *,
        estimator: Estimator,
        mechanism: Mechanism | CalibratedGaussian,
        sampler: Sampler,
        ledger: Ledger | None,
        planned_queries: int,
        rows: np.ndarray | RowNumbers | None = None,
        part: Part | None = None,
        max_rows_per_unit: int = 1,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        share: Share | None = None,
        randomness: Randomness | None = None,
        reservation: int = BLOCK,
    ) -> None:
        data = OracleData(source, rows, part, max_rows_per_unit)
        payment = Payment(ledger, purpose, settings, session, share, randomness, reservation)
        self._build(SessionPlan(data, estimator, sampler, payment, planned_queries), mechanism)

    def _build(self, plan: SessionPlan, mechanism: Mechanism | CalibratedGaussian) -> None:
        """Check every setting, find the session that pays, and wire the stages: every constructor ends here."""
        data, estimator, payment = plan.data, plan.estimator, plan.payment
        with data.source.ranks.fail_together():
            self._data, self._payment = data, payment
            self.randomness: Randomness = payment.randomness
            self.source, self.estimator, self.sampler = data.source, estimator, as_sampler(plan.sampler)
            self._divisor = self.sampler.expected_batch_size
            self.planned_queries = _validate.count("planned_queries", plan.planned_queries)
            self._updates = Updates()
            self._rounded_last, self._bounds = estimator.rounded_last, repr(estimator)
            stages = data.source.ranks.stages(partial(_stages, self._plan, mechanism), self._plan, mechanism)
            self.ledger, self.mechanism, self.noise_std, self.event, self.gate, self.draws = stages

    @property
    def settings(self) -> dict[str, Any]:
        """The public settings that decide the privacy and the bits of a run."""
        return self._plan.settings(self.mechanism)

    @property
    def _plan(self) -> SessionPlan:
        """What the session is going to release, from which its noise and its event follow."""
        return SessionPlan(self._data, self.estimator, self.sampler, self._payment, self.planned_queries)

    @property
    def session(self) -> Session:
        """The session of the ledger that pays."""
        return self.gate.session

    @property
    def divisor(self) -> float:
        """The public divisor of the sum: the expected batch size."""
        return self._divisor

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over sensitivity."""
        return self.mechanism.noise_multiplier

    @property
    def remaining_queries(self) -> int:
        """Number of planned queries that are left."""
        return self.gate.remaining_queries

    def query(self, params: Mapping[str, Tensor]) -> Release:
        """Draw the next batch, bound it, write the ledger, add noise, return the release.

        Args:
            params: The point at which to take the gradient, by parameter name. Neither it nor the model is modified.
                A layer's shards of FSDP2 are gathered where it is computed.

        Raises:
            BudgetExceededError: The plan is used up.
            LedgerError: A threshold was changed since the session was paid for.
            ResumeError: A redone query does not match, and the event does not compose query by query.
            RuntimeError: The model, the loss or the data set queried this oracle within a query.
            ValueError: A parameter is complex.
        """
        if any(p.is_complex() for p in params.values()):
            raise complex_refused(params)
        with self.gate.lock, self.source.ranks.fail_together(), self.gate.turn():

            def bounded(number: int) -> tuple[Values, Any]:
                query, rows, seed = self.draws.planned(number, params)
                engine = self.source.engine(params, rows, query=query, seed=seed)
                self._check_bounds()
                values, update = self.estimator.bound(engine, self.gate.state)
                self._check_bounds()  # user code ran meanwhile
                return values, update

            # The ledger is written before the noise is added: from then on the query counts.
            query, released, _ = answer(self.gate, bounded, self._dtypes(params) if self._rounded_last else None)
        # ---- below the line: may be logged, reused, published ----
        divisor = self.divisor
        gradient = self.estimator.gradient(released, divisor)
        return Release(
            gradient={name: _at_home(g, params.get(name)) for name, g in gradient.items()},
            released=released,
            divisor=divisor,
            noise_std=self.noise_std,
            session=self.gate.session_id,
            query=query,
        )

    def backward(self, *, updates: Iterable[Tensor] | None = None) -> Release:
        """Make one query at the model's own parameters, and assign the gradient to their ``.grad``.

        The release's ``gradient`` and ``.grad`` may share memory, so that an optimizer that changes one may change the
        other. The last ``.grad`` is gone before the query begins, which uses its memory: if the query raises, it is
        ``None``. Where FSDP2 has sharded the model, ``.grad`` is this rank's shard, and so is what the release holds
        (docs/process-group.md).

        By default every parameter must be updated before the next call. This is checked until each of them was updated
        once. ``updates=`` names the parameters that the next step updates, for several optimizers that take turns. The
        ``.grad`` of all others becomes ``None``, so that no other optimizer uses it. Several releases make one step
        if you add up what :meth:`query` returns.

        Args:
            updates: Parameters of the model, such as ``decoder.parameters()``; ``None`` means all.

        Raises:
            RuntimeError: After the first step, a parameter that has a private gradient was not updated.
            TypeError: The source has no model.
            ValueError: ``updates`` is empty, or holds something that is not a trainable parameter of the model.

        Example:
            >>> import torch, tacita
            >>> model = torch.nn.Linear(3, 1)
            >>> oracle = tacita.ClippedGradientOracle(
            ...     model, lambda model, batch: model(batch[0]).squeeze(1), (torch.ones(100, 3),),
            ...     ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
            ...     sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=100),
            ...     clipper=tacita.FlatClipper(max_grad_norm=1.0),
            ...     mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), planned_queries=4)
            >>> release = oracle.backward(updates=[model.bias])
            >>> torch.equal(model.bias.grad, release.gradient["bias"])
            True
            >>> model.weight.grad is None, oracle.remaining_queries
            (True, 3)
        """
        if self.source.model is None:
            raise TypeError("backward() needs a source with a model; ask query(params) instead.")
        with self.randomness.query_lock, self.source.ranks.fail_together():
            params = trainable(self.source.model)
            named = [*params] if updates is None else names_of(updates, params)
            if updates is not None:
                self.source.ranks.check_equal("updates", repr(named).encode())
            self._updates.check(params)
            for parameter in params.values():
                parameter.grad = None  # the next one replaces it, and the query needs its memory
            release = self.query(params)
            whole = {name: release.gradient[name].to(params[name].dtype) for name in named}
            own = {name: self.source.ranks.shard(gradient, params[name]) for name, gradient in whole.items()}
            self._updates.assign(params, own)
        return release

    def retrace(self) -> None:
        """Write the model and the loss down anew at the next query, after a change of them that is meant.

        They were run once, before any record was read, and a query runs what was written down. A query after a change
        of a plain attribute (a rate, a scale) raises; this accepts the change. No data is used, and nothing is spent.
        It has no effect with ``method="loop"``.
        """
        self.source.retrace()

    def ratchet(self) -> None:
        """Move on to the next key at a checkpoint, so that nothing drawn before can be drawn again."""
        self.gate.advance_key(self.randomness.generation + 1)

    def checkpoint(self, write: Callable[[dict[str, Any]], Any], key: Path) -> None:
        """Save a run with this oracle, then move on to the next key (:meth:`tacita.oracles.ReleaseGate.checkpoint`)."""
        self.gate.checkpoint(write, key)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs. ``estimator_state`` is private: never share it. Rank 0 alone has it."""
        return self.gate.state_dict()

    @property
    def public_state(self) -> Any:
        """The estimator's state where it is a function of releases; ``None`` if it is private or there is none."""
        with self.randomness.query_lock:
            return copy.deepcopy(self.estimator.shareable(self.gate.state))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`. :class:`~tacita.oracles.gate.ReleaseGate` says how queries are redone.

        With a process group every rank calls this; only rank 0's ``state`` is read, and the others take it over.
        """
        with self.randomness.query_lock, self.source.ranks.fail_together():
            self.gate.load_state_dict(state)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(estimator={self.estimator!r}, sampler={self.sampler!r}, "
            f"mechanism={self.mechanism!r}, planned_queries={self.planned_queries})"
        )

    def _check_bounds(self) -> None:
        """Raise ``LedgerError`` if the estimator is not what it was when the noise was derived from its bounds."""
        if repr(self.estimator) != self._bounds:
            raise LedgerError(
                "the estimator (its clipping thresholds, say) was changed after the oracle was built, and its noise "
                "and what the session pays for are those of the earlier one: build another oracle."
            )

    def _dtypes(self, params: Mapping[str, Tensor]) -> dict[str, torch.dtype]:
        """Return the dtype that each released tensor is rounded to, by parameter name: float32 or better."""
        return {name: torch.promote_types(p.dtype, torch.float32) for name, p in params.items()}


def _at_home(gradient: Tensor, parameter: Tensor | None) -> Tensor:
    """Return a gradient on its parameter's device, which may lack the dtype that it was bounded in."""
    if parameter is None or gradient.device == parameter.device:
        return gradient
    return gradient.to(parameter.device, torch.promote_types(parameter.dtype, torch.float32))


def _stages(plan: SessionPlan, mechanism: Mechanism | CalibratedGaussian) -> Stages:
    """Check the plan, find the session that pays, and build what draws, pays and adds noise."""
    ledger, payment, estimator, source = plan.payment.ledger, plan.payment, plan.estimator, plan.data.source
    if not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be a Ledger on rank 0, which pays, got {type(ledger).__name__}.")
    plan.check()
    resolved = plan.resolved(mechanism)
    noise_std, event = plan.noise_std(resolved), plan.event(resolved)
    gate = ReleaseGate(
        plan.session(event, resolved),
        resolved,
        noise_std,
        payment.randomness,
        payment.reservation,
        estimator=estimator,
        state=estimator.initial_state(source.shapes),
    )
    draws = QueryDraws(plan.data, plan.sampler, gate)
    source.follow(draws)
    return Stages(ledger, resolved, noise_std, event, gate, draws)
