"""What the three kinds of error feedback have in common: their settings, and the sums they are made of.

Place: the ground of error feedback.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tacita import _validate
from tacita.clipping import Clipper, FlatClipper
from tacita.estimators.error_feedback.error import State, copied, injected, no_error, succeeding
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import Engine, Shapes
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.sampling import Sampler

SUM = "gradient"  # the block of the clipped sum
RESIDUAL = "residual"  # the block of the clipped residuals, where they are released


@dataclass(frozen=True, kw_only=True)
class Feedback(ABC):
    r"""Settings of error feedback; subclasses say what is hidden, what is bounded and what is released.

    Norms of the error are in units of the *mean* gradient, as in the paper: they are multiplied by the public divisor
    in one place, the estimator.

    Attributes:
        max_feedback_norm: Threshold :math:`C_2`: what is added to a mean gradient has at most this norm. No clipping
            bias is left at a fixed point if it is at least the clipper's ``max_grad_norm``.
        leak: Share :math:`\lambda` of the error that is forgotten in a query, in [0, 1):
            :math:`(1 - \lambda)(e - \text{clip}(e, C_2))` is kept.
        anti_windup: Threshold that the error itself is clipped to after each query; ``inf`` for none. Without it the
            error grows as long as the mean residual is longer than :math:`C_2`, and takes as long to unwind.
    """

    max_feedback_norm: float
    leak: float = 0.0
    anti_windup: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_feedback_norm", self._checked_norm(self.max_feedback_norm))
        if isinstance(self.leak, bool) or not 0 <= self.leak < 1:
            raise ValueError(f"leak must be in [0, 1), got {self.leak!r}. A leak of 1 remembers nothing.")
        if isinstance(self.anti_windup, bool) or not self.anti_windup >= self.max_feedback_norm:
            raise ValueError(
                f"anti_windup must be >= max_feedback_norm = {self.max_feedback_norm:g}, got {self.anti_windup!r}. "
                "A smaller error is injected whole: lower max_feedback_norm in its place."
            )

    @abstractmethod
    def estimator(self, clipper: Clipper, divisor: float) -> "FeedbackSum":
        """The estimator with these settings, for sums that are divided by the public ``divisor``."""

    def allocated(self, mechanism: Mechanism | CalibratedGaussian) -> Mechanism | CalibratedGaussian:
        """The mechanism, its noise shared between the blocks as these settings want it."""
        return mechanism

    def _checked_norm(self, norm: float) -> float:
        """``max_feedback_norm``; here it may be infinite: the whole error is injected."""
        if isinstance(norm, bool) or not norm >= 0:
            raise ValueError(f"max_feedback_norm must be a number >= 0, got {norm!r}.")
        return float(norm)


@dataclass(frozen=True)
class FeedbackSum(Estimator):
    """A clipped sum with part of a remembered error added to it, at the level of the sum.

    Attributes:
        clipper: Bounds each sample's gradient.
        feedback: What is remembered and injected.
        divisor: The public divisor of the sampler, by which the norms of ``feedback`` are multiplied.
    """

    clipper: Clipper
    feedback: Feedback
    divisor: float

    def __post_init__(self) -> None:
        _validate.positive("divisor", self.divisor)

    @property
    def max_feedback(self) -> float:
        """Largest norm of what is injected into the sum."""
        return self.divisor * self.feedback.max_feedback_norm

    @property
    def max_error(self) -> float:
        """Largest norm of the error of the sum."""
        return self.divisor * self.feedback.anti_windup

    def groups(self, shapes: Shapes) -> dict[str, tuple[str, ...]]:
        """All parameters under one threshold."""
        return {SUM: tuple(shapes)}

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return {SUM: sum(shape.numel() for shape in shapes.values())}

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> State:
        return no_error(shapes, lead, torch.float32)

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return {name: noisy / divisor for name, noisy in released[SUM].items()}

    def sums(self, engine: Engine, rule) -> tuple[dict[str, Tensor], ...]:
        """One sum for each weight array of ``rule``, from one pass."""
        return engine.weighted_sums(rule, self.groups(engine.shapes)).values

    def contribution(self, shapes: Shapes) -> float:
        """Largest norm one record adds to the clipped sum."""
        (bound,) = self.clipper.max_contribution(shapes).values()
        return bound

    def kept(self, share: Tensor) -> Tensor:
        """Which share of the error stays when ``share`` of it is injected."""
        return (1 - self.feedback.leak) * (1 - share)

    def check_divisor(self, sampler: Sampler) -> None:
        """Raise ``ValueError`` unless the estimator was built for this sampler's divisor."""
        if sampler.expected_batch_size != self.divisor:
            raise ValueError(
                f"divisor must be the sampler's expected batch size, {sampler.expected_batch_size:g}, got "
                f"{self.divisor:g}. ErrorFeedbackOracle sees to it."
            )


class Leftover(NamedTuple):
    """What a query leaves for a hidden error: ``kept`` times the error that it saw, plus the batch's residuals."""

    residuals: dict[str, Tensor]
    kept: Tensor


class HiddenFeedbackSum(FeedbackSum):
    """A feedback sum whose error is hidden: known as soon as the query is, whatever is released.

    A whole error in memory twice is what a step of a large model cannot afford: so :meth:`look` only reads it, and
    :meth:`remember` changes it in place.
    """

    @abstractmethod
    def look(self, engine: Engine, state: State) -> tuple[Values, Leftover]:
        """The values, and what they leave for the error."""

    def shifted(self, clipped: dict[str, Tensor], state: State, share: Tensor) -> Values:
        """The clipped sum plus ``share`` of the error; in float64, and ``clipped`` emptied, if it is rounded last.

        As long as the errors of two worlds differ, so do the roundings of their sums, in every query and not in the
        record's own alone: where a query is not charged with more than that, the noise is added first.
        """
        if self.rounded_last:
            clipped = {name: clipped.pop(name).double() for name in [*clipped]}
        return {SUM: injected(clipped, state["error"], share)}

    def remember(self, state: State, seen: Leftover) -> State:
        """The next state, in the memory of ``state``; empties ``seen``."""
        following = succeeding(seen.residuals, state["error"], seen.kept, self.max_error)
        return {**following, "query": state["query"] + 1}

    def __call__(self, engine: Engine, state: State) -> tuple[Values, State]:
        values, seen = self.look(engine, state)
        return values, self.remember(copied(state), seen)


def residual_weights(weights: Tensor, norms: Tensor) -> Tensor:
    """Weights of what clipping removes, ``1 - weights``; 0 for a norm that is not finite."""
    return torch.where(norms.isfinite(), 1 - weights, 0.0)


def check_projection(clipper: Clipper, feedback: str) -> None:
    """Raise ``ValueError`` unless ``clipper`` projects the whole gradient onto one ball."""
    if not isinstance(clipper, FlatClipper):
        raise ValueError(
            f"clipper must be a FlatClipper with {feedback}, got {type(clipper).__name__}: the guarantee rests on "
            "residuals of a projection onto one ball."
        )
