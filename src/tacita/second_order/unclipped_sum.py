r"""The sum of unclipped per-sample gradients, which is private only if a bound on them holds that is not enforced.

Place: gradients -> [estimators.unclipped_sum] -> mechanisms.
Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need: Private Second-Order Convergence of Noisy SGD",
Algorithm 2. Differs from it in what it claims: delta is :math:`\delta + (1 + e^\epsilon) p`, not :math:`2 \delta`,
under a condition that the statement prints. Proof, and what fails in the paper: docs/derivations/noisy-sgd.md.

Wherever the paper's argument holds, :class:`~tacita.ClippedSum` with the same bound takes the same path, needs no
condition and keeps delta. Use that one; this one is here to be compared with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import ConditionalEvent, CoupledEvent, Event, NeighboringRelation, gaussian_sum_event, moved
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import Engine, Shapes
from tacita.sampling import Sampler

GRADIENT, MONITOR = "all", "monitor"  # blocks; the first is named as a flat clipper's, and so gets the same noise


@dataclass(frozen=True, kw_only=True)
class UnclippedSum(Estimator):
    r"""Sum of unclipped per-sample gradients :math:`\sum_i g_i`; a row whose norm is not finite counts as zero.

    Guarantee: *if*, on every data set, with probability at least 1 - :math:`p` no gradient of the run is longer than
    :math:`C`, the session differs from that of the clipped sum with threshold :math:`C` with probability at most
    :math:`p`. Here :math:`C` is ``declared_max_grad_norm`` and :math:`p` is ``failure_probability``. Where the clipped
    sum is :math:`(\epsilon, \delta)`-private this one is :math:`(\epsilon, \delta + (1 + e^\epsilon) p)`-private.
    Without the condition nothing is claimed: one record with a long gradient moves the sum by its length.

    Whether the bound holds along a run is itself private, and is not shown. With ``monitor_weight`` w > 0 the number of
    rows longer than C, times w C, is released as a block of its own, with the same noise as the others: see
    :meth:`exceeded`. ``debug_monitor`` counts these rows without noise; then the statement says that nothing is
    private.

    Attributes:
        declared_max_grad_norm: C, finite and >= 2^-40, in the gradient's units: a public constant, never a number
            observed in the run.
        failure_probability: p in [0, 1), for the whole run.
        because: Why the bound holds, for the statement.
        monitor_weight: w >= 0; noise grows by :math:`\sqrt{1 + w^2}`, and the count's own noise is that over w C.
        debug_monitor: Count exactly, in :attr:`UnclippedGradientOracle.exceeded`.
    """

    declared_max_grad_norm: float
    failure_probability: float
    because: str = ""
    monitor_weight: float = 0.0
    debug_monitor: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "declared_max_grad_norm", _validate.threshold("declared_max_grad_norm", self.declared_max_grad_norm)
        )
        object.__setattr__(self, "monitor_weight", _validate.non_negative("monitor_weight", self.monitor_weight))
        if isinstance(self.failure_probability, bool) or not 0 <= self.failure_probability < 1:
            raise ValueError(f"failure_probability must be in [0, 1), got {self.failure_probability!r}.")
        _validate.one_line("because", self.because, "why the bound holds")

    @property
    def condition(self) -> str:
        """The condition of the guarantee, for the statement."""
        but = f" but with probability {self.failure_probability:g}" if self.failure_probability else ""
        why = f"declared because {self.because}" if self.because else "declared without a reason"
        return (
            f"every record's gradient has an L2 norm of at most {self.declared_max_grad_norm:g} at every point of the "
            f"run, on every data set that is protected,{but} ({why})"
        )

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        """Return the sensitivity under the condition; without it there is no bound."""
        return {block: moved(relation) * bound for block, bound in self._bounds.items()}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        bounds, noise = tuple(self._bounds.values()), tuple(noise_std[block] for block in self._bounds)
        if self.debug_monitor:  # one more count, without noise
            bounds, noise = (*bounds, 1.0), (*noise, 0.0)
        event = gaussian_sum_event(sampler.law, bounds, noise, relation)
        if self.failure_probability:
            event = CoupledEvent(relation=relation, inner=event, failure_probability=self.failure_probability)
        return ConditionalEvent(relation=relation, inner=event, condition_text=self.condition)

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        sizes = {GRADIENT: sum(shape.numel() for shape in shapes.values()), MONITOR: 1}
        return {block: sizes[block] for block in self._bounds}

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> Tensor | None:
        return torch.zeros(lead, dtype=torch.int64) if self.debug_monitor else None

    def __call__(self, engine: Engine, state: Tensor | None) -> tuple[Values, Tensor | None]:
        sums = engine.weighted_sums(lambda norms: norms.isfinite().to(norms.dtype), {GRADIENT: tuple(engine.shapes)})
        longer = (sums.norms.isfinite() & (sums.norms > self.declared_max_grad_norm)).sum(dim=-2)  # (..., 1)
        (counted,) = engine.over_ranks([{"exceeded": longer}])  # norms are of this rank's rows
        longer = counted["exceeded"]
        values = {GRADIENT: sums.values[0]}
        if self.monitor_weight:
            values[MONITOR] = {"exceeded": longer.to(sums.norms.dtype) * self._bounds[MONITOR]}
        return values, None if state is None else state + longer.squeeze(-1).to(state.device)

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return {name: noisy / divisor for name, noisy in released[GRADIENT].items()}

    def exceeded(self, released: Values) -> Tensor:
        r"""Return the noisy number of rows of one query that were longer than C, from its release.

        This is post-processing. The noise has the standard deviation
        ``noise_std["monitor"] / (monitor_weight declared_max_grad_norm)``.
        """
        if not self.monitor_weight:
            raise ValueError("monitor_weight must be > 0 for a count of the rows beyond the bound, got 0.")
        return released[MONITOR]["exceeded"].squeeze(-1) / self._bounds[MONITOR]

    @property
    def _bounds(self) -> dict[str, float]:
        """The largest L2 norm that one record adds to each block, under the condition."""
        bounds = {GRADIENT: self.declared_max_grad_norm}
        return {**bounds, MONITOR: self.monitor_weight * bounds[GRADIENT]} if self.monitor_weight else bounds
