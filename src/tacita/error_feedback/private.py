r"""DiceSGD: a hidden, noise-free error of the clipped sum, part of which is added to every sum.

Place: gradients, clipping -> [estimators.error_feedback.private] -> mechanisms. The error is private for good.
Source: Zhang, Bu, Wu, Hong, "Differentially Private SGD Without Clipping Bias: An Error-Feedback Approach" (DiceSGD),
Algorithm 2.
Differs from it in three points: noise and accounting, whose published formulas are not private; the form of line 6
without cancellation; and that a sample whose norm is not finite counts as zero in both sums.
Proofs: docs/derivations/dicesgd.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, moved
from tacita.clipping import AutomaticClipper, Clipper, FlatClipper
from tacita.error_feedback.error import State, share_of_norm, share_within
from tacita.error_feedback.feedback import SUM, Feedback, HiddenFeedbackSum, Leftover, residual_weights
from tacita.error_feedback.proved_events import hidden_error_event
from tacita.estimators.estimator import Values
from tacita.gradients.engine import Engine, Shapes
from tacita.sampling import Sampler


@dataclass(frozen=True, kw_only=True)
class PrivateFeedback(Feedback):
    r"""The paper's algorithm: the error is hidden, never noised, and injected as it is.

    Guarantee: one record moves a query's sum by at most :math:`C_1 + 2 b C_2` (b the public divisor), *whether or not
    it is in the batch*, once it has been drawn. Under Poisson sampling and add_or_remove_one or zero_out_one the first
    part is amplified; elsewhere nothing is. Whatever :math:`C_2`, the error channel's signal stays below half of ``mu``
    times its noise: a baseline for research, not a recommendation. See :class:`ReleasedFeedback`.

    Attributes:
        max_feedback_norm: Threshold :math:`C_2` of what is injected, finite, in units of the mean gradient.
        every: Inject in queries ``every``, 2 ``every``, ... only (counted from 1); the others are plain clipped sums.
        normalised: Inject :math:`C_2 e / \lVert e \rVert` whatever the length of e, as the paper's automatic variant
            does. It has no fixed point unless all gradients are aligned there, and chatters.
        first_draw: Account by the first draw, the tight way: about 14 % less noise, Rényi curves only.
        leak, anti_windup: See :class:`Feedback`.
    """

    every: int = 1
    normalised: bool = False
    first_draw: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "every", _validate.count("every", self.every))

    def estimator(self, clipper: Clipper, divisor: float) -> "HiddenErrorSum":
        return HiddenErrorSum(clipper, self, divisor)

    def _checked_norm(self, norm: float) -> float:
        hint = "With a hidden error the noise grows with it; only bounded or released residuals leave it free."
        return _validate.non_negative("max_feedback_norm", norm, hint=hint)


@dataclass(frozen=True)
class HiddenErrorSum(HiddenFeedbackSum):
    r"""One query of DiceSGD at the level of the sum: :math:`\sum_i w_i g_i + \text{clip}(E, b C_2)`.

    The state is private: it may stand in a run's own checkpoint, and nowhere else.

    Attributes:
        clipper: ``FlatClipper``, or ``AutomaticClipper`` for the automatic variant (only the samples are normalised
            then, so that the fixed point is kept).
        feedback: The settings.
        divisor: The public divisor b.
    """

    feedback: PrivateFeedback

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.clipper, FlatClipper | AutomaticClipper):
            raise ValueError(
                f"clipper must be a FlatClipper or an AutomaticClipper with PrivateFeedback, got "
                f"{type(self.clipper).__name__}."
            )

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return {SUM: moved(relation) * self.contribution(shapes) + 2 * self.max_feedback}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        self.check_divisor(sampler)
        return hidden_error_event(
            sampler.law,
            relation,
            max_contribution=self.contribution(shapes),
            max_error_change=2 * self.max_feedback,
            noise_std=noise_std[SUM],
            every=self.feedback.every,
            first_draw=self.feedback.first_draw,
        )

    @property
    def rounded_last(self) -> bool:
        """Where a query is charged with less for the error than for a record: rounding is little beside a record."""
        return 0 < self.max_feedback < self.contribution({})  # one threshold, whatever the shapes

    def bound(self, engine: Engine, state: State) -> tuple[Values, Leftover]:
        clipped, residuals = self._clipped_and_residuals(engine)
        share = self._share(state, state["query"] + 1, next(iter(residuals.values())).dtype)
        return self.shifted(clipped, state, share), Leftover(residuals, self.kept(share))

    def _clipped_and_residuals(self, engine: Engine) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        if isinstance(self.clipper, FlatClipper):
            clipped, residuals = self.sums(engine, self._weights_and_rest)
            return clipped, residuals
        clipped, unclipped = self.sums(engine, self._weights_and_ones)  # a weight above 1 leaves a negative rest
        return clipped, {name: total.sub_(clipped[name]) for name, total in unclipped.items()}

    def _weights_and_rest(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.clipper.weights(norms)
        return weights, residual_weights(weights, norms)

    def _weights_and_ones(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        return self.clipper.weights(norms), norms.isfinite().to(norms.dtype)

    def _share(self, state: State, query: int, dtype: torch.dtype) -> Tensor:
        due = query % self.feedback.every == 0
        share = share_of_norm if self.feedback.normalised else share_within
        return share(state["norm"], self.max_feedback if due else 0.0, dtype)
