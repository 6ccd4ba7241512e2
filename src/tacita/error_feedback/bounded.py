r"""Error feedback with bounded residuals: a record moves the whole transcript by a bound, however long it is.

Place: gradients, clipping -> [estimators.error_feedback.bounded] -> mechanisms. The error is private for good.
Source: DiceSGD (see :mod:`tacita.error_feedback.private`) with each sample's residual clipped before it is
remembered. Proof: docs/derivations/dicesgd.md, "Bounded residuals".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, moved
from tacita.clipping import Clipper
from tacita.clipping.flat import bounded_quotient
from tacita.error_feedback.error import State, no_error, share_within
from tacita.error_feedback.feedback import (
    SUM,
    Feedback,
    HiddenFeedbackSum,
    Leftover,
    check_projection,
    residual_weights,
)
from tacita.error_feedback.participation_sensitivity import checked_share, moved_by_shares, moved_when_clipped
from tacita.error_feedback.proved_events import bounded_residual_event
from tacita.estimators.estimator import Values
from tacita.gradients.engine import Engine, Shapes
from tacita.sampling import Sampler


@dataclass(frozen=True, kw_only=True)
class BoundedFeedback(Feedback):
    r"""A hidden error of clipped residuals :math:`\text{clip}(g - \text{clip}(g, C_1), C_3)`.

    Guarantee: a record that is drawn k times moves the whole transcript by at most :math:`\sqrt{k}\, C_1 + k\, C_3` in
    L2 (twice that under replace_one), whatever :math:`C_2` and the number of queries; so the session is one Gaussian
    query, or under Poisson sampling a mixture of them over k. No amplification by sampling is claimed.

    With ``max_feedback_norm=inf`` every query injects the share :math:`\rho` = ``injected_share`` of the error, and a
    record moves the transcript by less: in one pass by :math:`\sqrt{C_1^2 + \frac{\rho}{2 - \rho} C_3^2}`, which for a
    given :math:`C = C_1 + C_3` is least, :math:`C \sqrt{\rho/2}`, at :math:`C_1 = \rho\, C/2`.

    While the error is not saturated the remaining bias is that of plain clipping at :math:`C_1 + C_3`.

    Attributes:
        max_feedback_norm: Threshold :math:`C_2` of what is injected, in units of the mean gradient; ``inf`` for all of
            it. It costs nothing.
        max_residual_norm: Threshold :math:`C_3` of one sample's residual, in the gradient's units.
        injected_share: Share :math:`\rho` of the error that one query injects, in [1e-6, 1]. Less than 1 needs
            ``max_feedback_norm=inf``; a gradient is given back :math:`1/\rho` queries late on average.
        leak, anti_windup: See :class:`Feedback`.
    """

    max_residual_norm: float
    injected_share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_residual_norm", _validate.threshold("max_residual_norm", self.max_residual_norm))
        object.__setattr__(self, "injected_share", checked_share(self.injected_share))
        if self.injected_share < 1 and math.isfinite(self.max_feedback_norm):
            raise ValueError(
                f"max_feedback_norm must be inf with injected_share = {self.injected_share:g}, got "
                f"{self.max_feedback_norm:g}: a fixed share is guaranteed for an error that is not clipped."
            )

    def estimator(self, clipper: Clipper, divisor: float) -> "BoundedErrorSum":
        return BoundedErrorSum(clipper, self, divisor)


@dataclass(frozen=True)
class BoundedErrorSum(HiddenFeedbackSum):
    r"""One query at the level of the sum: :math:`\sum_i \text{clip}(g_i, C_1) + \text{clip}(E, b C_2)`.

    The error is held in float64: its rounding adds up over the session, and the bound on the transcript has no slack.

    Attributes:
        clipper: A ``FlatClipper``; other clippers are not projections, and the bound fails for them.
        feedback: The settings.
        divisor: The public divisor b.
    """

    feedback: BoundedFeedback

    def __post_init__(self) -> None:
        super().__post_init__()
        check_projection(self.clipper, "BoundedFeedback")

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        """Return the unit of the noise multiplier: what *one* participation moves in the whole session."""
        norms = (self.contribution(shapes), self.feedback.max_residual_norm)
        if self._fixed_share is None:
            return {SUM: moved(relation) * moved_when_clipped(1, *norms)}
        once = moved_by_shares(1, *norms, share=self._fixed_share, leak=self.feedback.leak, queries_per_epoch=1)
        return {SUM: moved(relation) * once}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        self.check_divisor(sampler)
        return bounded_residual_event(
            sampler.law,
            relation,
            max_contribution=self.contribution(shapes),
            max_residual=self.feedback.max_residual_norm,
            noise_std=noise_std[SUM],
            injected_share=self._fixed_share,
            leak=self.feedback.leak,
        )

    @property
    def _fixed_share(self) -> float | None:
        """The share of the error that every query injects; ``None`` if the error's length decides it."""
        return None if math.isfinite(self.max_feedback) else self.feedback.injected_share

    @property
    def rounded_last(self) -> bool:
        """Always: roundings add up over the queries, and the bound is one of the whole session."""
        return True

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> State:
        return no_error(shapes, lead, torch.float64)

    def bound(self, engine: Engine, state: State) -> tuple[Values, Leftover]:
        clipped, residuals = self.sums(engine, self._weights_and_residuals)
        share = self.feedback.injected_share * share_within(state["norm"], self.max_feedback, torch.float64)
        return self.shifted(clipped, state, share), Leftover(residuals, self.kept(share))

    def _weights_and_residuals(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.clipper.weights(norms)
        return weights, bounded_residual_weights(weights, norms, self.feedback.max_residual_norm)


def bounded_residual_weights(weights: Tensor, norms: Tensor, max_residual_norm: float) -> Tensor:
    r"""Return the weights of the clipped residuals: :math:`\min(1 - w, C_3 / \lVert g \rVert)`.

    The residual :math:`(1 - w) g` of a gradient that is longer than :math:`C_1` points along it, so clipping it is a
    weight, too. The quotient leaves room for the rounding of the product.
    """
    most = bounded_quotient(max_residual_norm, norms.double(), norms.dtype)
    return torch.minimum(residual_weights(weights, norms), most)
