r"""Noisy SGD as published: sums of gradients that are not clipped, private only if a bound holds that nobody enforces.

Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need: Private Second-Order Convergence of Noisy SGD",
Algorithm 2. Differs from it in what it claims: delta is :math:`\delta + (1 + e^\epsilon) p`, not :math:`2 \delta`,
under a condition that the statement prints. Proof, and what fails in the paper: docs/derivations/noisy-sgd.md.

Wherever the paper's argument holds, :class:`~tacita.ClippedSum` with the same bound takes the same path, needs no
condition and keeps delta. Use that one; this one is here to be compared with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tacita import _validate
from tacita.accounting import ConditionalEvent, CoupledEvent, Event, NeighboringRelation, gaussian_sum_event, moved
from tacita.estimators import Estimator, Values
from tacita.gradients import Engine, Shapes
from tacita.sampling import Sampler

GRADIENT = "all"  # the block, named as a flat clipper's, and so gets the same noise


@dataclass(frozen=True, kw_only=True)
class UnclippedSum(Estimator):
    r"""Sum of unclipped per-sample gradients :math:`\sum_i g_i`; a row whose norm is not finite counts as zero.

    Guarantee: *if*, on every data set, with probability at least 1 - :math:`p` no gradient of the run is longer than
    :math:`C`, the session differs from that of the clipped sum with threshold :math:`C` with probability at most
    :math:`p`. Here :math:`C` is ``declared_max_grad_norm`` and :math:`p` is ``failure_probability``. Where the clipped
    sum is :math:`(\epsilon, \delta)`-private this one is :math:`(\epsilon, \delta + (1 + e^\epsilon) p)`-private.
    Without the condition nothing is claimed: one record with a long gradient moves the sum by its length.

    Whether the bound holds along a run is itself private, and is not shown.

    Attributes:
        declared_max_grad_norm: C, finite and >= 2^-40, in the gradient's units: a public constant, never a number
            observed in the run.
        failure_probability: p in [0, 1), for the whole run.
        because: Why the bound holds, for the statement.
    """

    declared_max_grad_norm: float
    failure_probability: float
    because: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "declared_max_grad_norm", _validate.threshold("declared_max_grad_norm", self.declared_max_grad_norm)
        )
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
        return {GRADIENT: moved(relation) * self.declared_max_grad_norm}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        event = gaussian_sum_event(sampler.law, (self.declared_max_grad_norm,), (noise_std[GRADIENT],), relation)
        if self.failure_probability:
            event = CoupledEvent(relation=relation, inner=event, failure_probability=self.failure_probability)
        return ConditionalEvent(relation=relation, inner=event, condition_text=self.condition)

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return {GRADIENT: sum(shape.numel() for shape in shapes.values())}

    def __call__(self, engine: Engine, state: None) -> tuple[Values, None]:
        sums = engine.weighted_sums(lambda norms: norms.isfinite().to(norms.dtype), {GRADIENT: tuple(engine.shapes)})
        return {GRADIENT: sums.values[0]}, state

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return {name: noisy / divisor for name, noisy in released[GRADIENT].items()}
