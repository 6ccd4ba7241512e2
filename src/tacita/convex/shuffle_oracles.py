r"""Gradient oracles of the shuffle model, where no curator is trusted: each user adds noise bits before the sum.

    data -> sampler -> engine -> bounded, in whole steps -> noise bits of each user ──┃──> counts -> estimate
                                                               ledger on the line

Place: gradients, sampling, accounting, oracles.gate -> [oracles.shuffled] -> methods. Nothing but counts leaves.
Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Algorithms 10
and 13; corrected in docs/derivations/shuffle.md. An oracle plays users, shuffler and analyzer in one process: a count
of ones is all that the analyzer learns, so the bits are counted and not shuffled. :class:`~tacita.convex.ShuffleRound`
has the three parts with their messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from tacita import _validate
from tacita._row_numbers import RowNumbers
from tacita.accounting import Part, Spend
from tacita.accounting import epsilon as epsilon_of
from tacita.convex.shuffle_calibration import Calibration, NoiseBits, scalar_grid, vector_grid
from tacita.convex.shuffled_sum_event import ShuffledSumEvent
from tacita.convex.shuffled_sums import ShuffledSums, UserNoise, calibrated, dim_of, group_size
from tacita.gradients.engine import GradientSource
from tacita.ledger import Ledger, Session
from tacita.ledger.session import BLOCK as RESERVED
from tacita.oracles.gate import ReleaseGate, answer
from tacita.oracles.gradient_oracle import Release
from tacita.oracles.payment import Payment, check_sampling, under_conditions
from tacita.oracles.query_draws import QueryDraws
from tacita.oracles.records import OracleData, check_units
from tacita.random import Randomness
from tacita.sampling import Sampler, as_sampler

BLOCK = "all"


@dataclass(frozen=True)
class _ShufflePlan:
    """Which users are asked, how often, and the guarantee that their noise bits are calibrated to."""

    sampler: Sampler
    planned_queries: int
    target_epsilon: float
    target_delta: float
    calibration: Calibration


class _ShuffleOracle(ABC):
    """What both shuffle oracles do; each says how users bound their gradients."""

    l2_bounded: ClassVar[bool]  # whether a gradient is scaled to an L2 norm; else each coordinate is clamped

    def __init__(
        self,
        data: OracleData,
        payment: Payment,
        plan: _ShufflePlan,
        *,
        half_range: float,
        num_groups: int,
        grid: int | None,
        honest_fraction: float,
    ) -> None:
        self._data, self.source, self.ledger = data, data.source, payment.ledger
        users = group_size(plan.sampler, _validate.count("num_groups", num_groups))
        steps = self._default_grid(users) if grid is None else grid
        sums = ShuffledSums(
            half_range=half_range,
            l2_bounded=self.l2_bounded,
            num_groups=num_groups,
            users=users,
            bits=NoiseBits(grid=steps, noise_bits=1, bit_prob=0.5),  # until they are calibrated below
            honest_fraction=honest_fraction,
        )
        self.planned_queries = _validate.count("planned_queries", plan.planned_queries)
        self.sampler, self.randomness = as_sampler(plan.sampler), payment.randomness
        self._check(plan.target_delta)
        epsilon, delta, calibration = plan.target_epsilon, plan.target_delta, plan.calibration
        inner = calibrated(
            self._event(sums), queries=self.planned_queries, epsilon=epsilon, delta=delta, calibration=calibration
        )
        spent = epsilon_of([Spend(inner, self.planned_queries)], delta).epsilon
        if not spent <= epsilon:
            raise ValueError(
                f'calibration="{calibration}" does not reach epsilon {epsilon:g} here, but {spent:g}: use "least".'
            )
        self.sums = replace(sums, bits=NoiseBits(grid=inner.grid, noise_bits=inner.noise_bits, bit_prob=inner.bit_prob))
        self.event = under_conditions(inner, self.source.conditions)
        session = payment.session_for(
            "oracle",
            self.event,
            planned_queries=self.planned_queries,
            part=data.part,
            bound=self.settings,
            or_to_these_alone=True,
        )
        self.noise_std = {BLOCK: self.sums.noise_std}
        self.gate = ReleaseGate(session, UserNoise(self.sums), self.noise_std, self.randomness, payment.reservation)
        self.draws = QueryDraws(data, self.sampler, self.gate)
        self.source.follow(self.draws)

    @property
    def settings(self) -> dict[str, Any]:
        """The public settings that decide the privacy and the bits of a run."""
        return {
            "sums": repr(self.sums),
            "sampler": repr(self.sampler),
            "planned_queries": self.planned_queries,
            "shapes": {name: list(shape) for name, shape in self.source.shapes.items()},
            "source": repr(self.source),
        }

    @property
    def session(self) -> Session:
        """The session of the ledger that pays."""
        return self.gate.session

    @property
    def divisor(self) -> float:
        """The public number of users of a query."""
        return self.sampler.expected_batch_size

    @property
    def remaining_queries(self) -> int:
        """Number of planned queries that are left."""
        return self.gate.remaining_queries

    def query(self, params: Mapping[str, Tensor]) -> Release:
        """Ask the next batch of users, write the ledger, count the ones, and return the release.

        Args:
            params: The point at which users take their gradients, by parameter name; not modified.

        Raises:
            BudgetExceededError: The plan is used up.
            ResumeError: A redone query does not match, and the event does not compose query by query.
        """
        with self.gate.lock, self.gate.turn():

            def bounded(query: int) -> tuple[dict[str, Any], None]:
                engine = self.source.engine(params, self.draws.batch(query), query=query, seed=self.draws.seed(query))
                return {BLOCK: self.sums.steps(engine, self.gate.query_stream("rounding", query))}, None

            query, noisy, _ = answer(self.gate, bounded)
        # ---- below the line: may be logged, reused, published ----
        released = {name: self.sums.estimate(count) for name, count in noisy[BLOCK].items()}
        return Release(
            gradient={name: noisy / self.divisor for name, noisy in released.items()},
            released={BLOCK: released},
            divisor=self.divisor,
            noise_std=self.noise_std,
            session=self.session.id,
            query=query,
        )

    def ratchet(self) -> None:
        """Move on to the next key at a checkpoint, so that nothing drawn before can be drawn again."""
        self.gate.advance_key(self.randomness.generation + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs; nothing in it is private."""
        return self.gate.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`. :class:`~tacita.oracles.ReleaseGate` says how queries are redone."""
        self.gate.load_state_dict(state)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(sums={self.sums!r}, sampler={self.sampler!r}, "
            f"planned_queries={self.planned_queries})"
        )

    # Built once.

    @abstractmethod
    def _default_grid(self, users: int) -> int:
        """Return the number of grid steps of a coordinate's range, for groups of ``users``."""

    def _check(self, delta: float) -> None:
        """Raise ``ValueError`` or ``UnsupportedEventError`` unless sampler, records and relation fit together."""
        check_units(self.ledger.neighboring_relation, self._data.max_rows_per_unit)
        check_sampling(self.sampler, self._data, self.planned_queries, public_count=True)
        _validate.delta_below("target_delta", delta, self._data.num_rows)
        if self.source.ranks.size > 1:
            raise ValueError("process_group must be None: users add their noise themselves, on one rank.")

    def _event(self, sums: ShuffledSums) -> ShuffledSumEvent:
        return sums.bits.event(
            self.ledger.neighboring_relation,
            self.sampler.law,
            users=sums.users,
            coordinates=dim_of(self.source.shapes),
            l2_bounded=sums.l2_bounded,
            honest_fraction=sums.honest_fraction,
        )


class ShuffleMeanOracle1(_ShuffleOracle):
    r"""Mean gradients without a trusted curator: users clip to an L2 norm of C, and only a shuffler's output is seen.

    Each user scales their gradient to norm C, rounds it to a grid without bias, and adds b fair noise bits to each
    coordinate. The release is :math:`\frac{2C}{g}(Y - b s / 2) - s C` for the counts Y of ones; divided by the public
    number s of users it is an unbiased estimate of the mean of the clipped gradients.

    Guarantee: the shuffled messages of the session, and so its releases, are (``target_epsilon``,
    ``target_delta``)-DP under replace_one or zero_out_one, if ``honest_fraction`` of the users of each query add their
    noise, and nobody sees messages before they are shuffled. A message alone has little or no guarantee:
    :meth:`ShuffleRound.message_event <tacita.convex.ShuffleRound.message_event>` has it.

    Args:
        source: Makes engines from data, one record a user: ``tacita.NetworkSource(model, loss_fn, dataset)``.
        max_grad_norm: Clipping threshold C, in the gradient's units.
        target_epsilon, target_delta: What the whole session may spend.
        sampler: Batches of a public size: ``FullBatchSampler``, ``DisjointSampler`` or ``ShuffledEpochsSampler``.
            ``num_records`` must be a multiple of the number of batches.
        ledger: Pays; its relation is replace_one or zero_out_one.
        planned_queries: Number of queries that the guarantee covers.
        grid: Steps g of a coordinate's range [-C, C]; by default max(2, ceil(sqrt s), ceil(2 sqrt d)).
        honest_fraction: Share of a query's users whose noise is counted on; all others may drop out, or collude.
        calibration: ``"least"`` takes the least number of noise bits by this library's own proof; ``"hockey_stick"``
            calibrates each coordinate exactly, and ``"paper"`` by Lemma 56: both only where users are asked once.
        rows, part, purpose, settings, session, randomness, reservation: As in
            :class:`~tacita.GradientOracle`.

    Example:
        >>> import tacita, torch
        >>> from tacita.gradients.given import GivenSource
        >>> oracle = ShuffleMeanOracle1(
        ...     GivenSource(torch.tensor([[0.5, -0.5]]).repeat(2000, 1)), max_grad_norm=1.0, target_epsilon=2.0,
        ...     target_delta=1e-5, planned_queries=2,
        ...     ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one user"),
        ...     sampler=tacita.DisjointSampler(num_batches=2, num_records=2000))
        >>> release = oracle.query({"theta": torch.zeros(2)})
        >>> oracle.sums.bits, bool((release.gradient["theta"] - torch.tensor([0.5, -0.5])).abs().max() < 0.1)
        (NoiseBits(grid=32, noise_bits=21, bit_prob=0.5), True)
    """

    l2_bounded = True

    def __init__(
        self,
        source: GradientSource,
        *,
        max_grad_norm: float,
        target_epsilon: float,
        target_delta: float,
        sampler: Sampler,
        ledger: Ledger,
        planned_queries: int,
        grid: int | None = None,
        honest_fraction: float = 1.0,
        calibration: Calibration = "least",
        rows: np.ndarray | RowNumbers | None = None,
        part: Part | None = None,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        randomness: Randomness | None = None,
        reservation: int = RESERVED,
    ) -> None:
        super().__init__(
            OracleData(source, rows, part),
            Payment(ledger, purpose, settings, session, None, randomness, reservation),
            _ShufflePlan(sampler, planned_queries, target_epsilon, target_delta, calibration),
            half_range=_validate.threshold("max_grad_norm", max_grad_norm),
            num_groups=1,
            grid=grid,
            honest_fraction=honest_fraction,
        )

    def _default_grid(self, users: int) -> int:
        return vector_grid(users, dim_of(self.source.shapes))


class ShuffleMeanOracle2(_ShuffleOracle):
    r"""Medians of means without a trusted curator: coordinates are clamped, and heavy tails spoil few groups.

    The users of a batch form m groups of the same size, by their place in it. Each user clamps every coordinate to
    [-tau, tau], rounds it to a grid, and adds noise bits; the coordinate-wise median of the m groups' means is taken.
    A record is in one group, and may move every coordinate of it over its whole range.

    Guarantee: as for :class:`ShuffleMeanOracle1`, for each group: ``honest_fraction`` of its users add their noise.

    Args:
        source: As in :class:`ShuffleMeanOracle1`.
        max_coordinate: tau, in the gradient's units.
        num_groups: m >= 1; the number of users of a query must be a multiple of it.
        target_epsilon, target_delta, sampler, ledger, planned_queries, honest_fraction: As in
            :class:`ShuffleMeanOracle1`.
        grid: Steps of a coordinate's range [-tau, tau]; by default max(2, ceil(sqrt(s / m))).
        calibration: As in :class:`ShuffleMeanOracle1`. ``"paper"`` is the split of Algorithm 13, and is refused where
            its counts spend more than ``target_epsilon``.
        rows, part, purpose, settings, session, randomness, reservation: As in
            :class:`~tacita.GradientOracle`.
    """

    l2_bounded = False

    def __init__(
        self,
        source: GradientSource,
        *,
        max_coordinate: float,
        num_groups: int,
        target_epsilon: float,
        target_delta: float,
        sampler: Sampler,
        ledger: Ledger,
        planned_queries: int,
        grid: int | None = None,
        honest_fraction: float = 1.0,
        calibration: Calibration = "least",
        rows: np.ndarray | RowNumbers | None = None,
        part: Part | None = None,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        randomness: Randomness | None = None,
        reservation: int = RESERVED,
    ) -> None:
        super().__init__(
            OracleData(source, rows, part),
            Payment(ledger, purpose, settings, session, None, randomness, reservation),
            _ShufflePlan(sampler, planned_queries, target_epsilon, target_delta, calibration),
            half_range=_validate.threshold("max_coordinate", max_coordinate),
            num_groups=num_groups,
            grid=grid,
            honest_fraction=honest_fraction,
        )

    def _default_grid(self, users: int) -> int:
        return scalar_grid(users)
