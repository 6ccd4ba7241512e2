r"""Adaptive clipping: a threshold that follows a quantile of the gradient norms, at no cost in noise.

Place: gradients, clipping -> [adaptive_clipping] -> mechanisms. The threshold is a function of releases.
Sources: Andrew et al. (2021), "Differentially Private Learning with Adaptive Clipping",
https://arxiv.org/abs/1905.03871, Algorithm 1 (the rule for the threshold); Zou et al. (2026), SlaClip,
https://icml.cc/virtual/2026/poster/66390 (a clipped gradient leaves room in its ball for a count). Differs from both in
one point: the count is one continuous number that fills the room. Proof: docs/derivations/adaptive-clipping.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, gaussian_sum_event, moved
from tacita.clipping.flat import clip_weights
from tacita.errors import UnsupportedEventError
from tacita.estimators import Estimator, Values
from tacita.estimators.clipped_sum import MOST_CONTRIBUTION
from tacita.gradients.engine import Engine, Shapes
from tacita.sampling import Sampler

__all__ = ["AdaptiveClippedSum", "followed"]

FARTHEST = 1e6  # the threshold stays within this factor of the first one
SUM, BELOW = "all", "the number of small gradients"  # no parameter has such a name
ROOM = 0.866  # below sqrt(3) / 2: ROOM^2 b^2 + n^2 <= 1 for b = min(1, 2 (1 - n)), 0 <= n <= 1
State = dict[str, Tensor]


def followed(threshold: Tensor, below: Tensor, *, quantile: float, lr: float, first: float) -> Tensor:
    r"""Return the next threshold, :math:`C \exp(-\eta (\text{below} - q))`, within a factor of 10^6 of the first one.

    Args:
        threshold: C.
        below: A noisy share of the norms that are below it; clamped to [0, 1].
        quantile: The share q that is to be below.
        lr: The step eta of the threshold's logarithm.
        first: The first threshold.
    """
    moved_to = threshold * torch.exp(-lr * (below.clamp(0.0, 1.0) - quantile))
    return moved_to.clamp(first / FARTHEST, first * FARTHEST)


@dataclass(frozen=True, kw_only=True)
class AdaptiveClippedSum(Estimator):
    r"""A clipped sum in units of its threshold, which follows a quantile of the norms. The count costs no noise.

    With :math:`n_i = \lVert g_i \rVert / C_t` a record adds :math:`g_i / C_t \min(1, 1/n_i)` to the sum, of norm at
    most 1, and :math:`b_i = \min(1, 2 (1 - n_i)^+)` to a count: 1 for a gradient of at most half the threshold, 0 for
    one that is clipped. Since :math:`\min(1, n_i)^2 + \frac34 b_i^2 \le 1`, the count fits into the ball that the
    clipped gradient is in already, and both are one Gaussian query of sensitivity 1, whatever the threshold is. From
    the noisy share of small gradients follows :math:`C_{t+1} = C_t \exp(-\eta (\bar b - q))`.

    The gradient of a release is in units of the threshold: its noise is the same in each query, and the size of a step
    does not change with the threshold (:math:`C_t` times it is the mean gradient).

    Guarantee: one record that is added or removed moves the values by a vector of L2 norm at most 1; one that is
    replaced, by 2.

    Attributes:
        divisor: The sampler's expected batch size, by which the count is divided; public.
        max_grad_norm: The first threshold C_0, finite and >= 2^-20; public.
        quantile: The share q in (0, 1) of the gradients that are to be small.
        threshold_lr: The step eta of the threshold's logarithm, > 0.
    """

    divisor: float
    max_grad_norm: float = 1.0
    quantile: float = 0.5
    threshold_lr: float = 0.2

    def __post_init__(self) -> None:
        _validate.positive("divisor", self.divisor)
        object.__setattr__(self, "max_grad_norm", _validate.threshold("max_grad_norm", self.max_grad_norm))
        if not FARTHEST * 2.0**-40 <= self.max_grad_norm <= MOST_CONTRIBUTION / FARTHEST:
            raise ValueError(f"max_grad_norm must be in [1e-6, 1e19] to begin with, got {self.max_grad_norm:g}.")
        _validate.inside("quantile", self.quantile)
        _validate.positive("threshold_lr", self.threshold_lr)

    @property
    def in_words(self) -> str:
        """Say what the threshold follows, and what that costs."""
        return (
            f"max_grad_norm = adaptive: it begins at {self.max_grad_norm:g} and follows the gradients, so that a share "
            f"of {self.quantile:g} is small; the count of these costs no noise; gradients are in units of the threshold"
        )

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return {SUM: moved(relation)}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        if relation == "zero_out_one":
            raise UnsupportedEventError(
                "zero_out_one has no proved bound for a threshold that adapts, because a gradient of zero is counted "
                "as a small one: use add_or_remove_one, which costs the same."
            )
        if sampler.expected_batch_size != self.divisor:
            raise ValueError(
                f"divisor must be the sampler's expected batch size, {sampler.expected_batch_size:g}, got "
                f"{self.divisor:g}."
            )
        return gaussian_sum_event(sampler.law, (1.0,), (noise_std[SUM],), relation)

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return {SUM: 1 + sum(shape.numel() for shape in shapes.values())}

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> State:
        return {"threshold": torch.full(lead, self.max_grad_norm, dtype=torch.float64)}

    def __call__(self, engine: Engine, state: State) -> tuple[Values, State]:
        threshold = state["threshold"]
        rows = threshold[..., None, None]
        sums = engine.weighted_sums(lambda norms: clip_weights(rows, norms), {SUM: tuple(engine.shapes)})
        (clipped,), norms = sums.values, sums.norms.double()
        small = (2 - 2 * norms / rows.to(norms.device)).clamp(0.0, 1.0).nan_to_num(nan=0.0).sum(-2)  # (..., 1)
        (counted,) = engine.over_ranks([{BELOW: ROOM * small}])
        scaled = {
            name: x / threshold.to(x.device, x.dtype).view(threshold.shape + (1,) * (x.ndim - threshold.ndim))
            for name, x in clipped.items()
        }
        return {SUM: {**scaled, **counted}}, state

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return {name: noisy / divisor for name, noisy in released[SUM].items() if name != BELOW}

    def after(self, state: State, released: Values) -> State:
        below = released[SUM][BELOW].squeeze(-1).to(state["threshold"]) / (ROOM * self.divisor)
        settings = {"quantile": self.quantile, "lr": self.threshold_lr, "first": self.max_grad_norm}
        return {"threshold": followed(state["threshold"], below, **settings)}

    def shareable(self, state: State) -> State:
        return state
