"""The common part of the three kinds of error feedback: their settings and their sums."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tacita import _validate
from tacita.clipping import Clipper, FlatClipper
from tacita.error_feedback.error import State, copied, injected, no_error, succeeding
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import Engine, Shapes
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.sampling import Sampler

SUM = "gradient"  # the block of the clipped sum
RESIDUAL = "residual"  # the block of the clipped residuals, where they are released


@dataclass(frozen=True, kw_only=True)
class Feedback(ABC):
    r"""Settings of error feedback. Subclasses decide what is hidden, what is bounded and what is released.

    Norms of the error are in units of the *mean* gradient, as in the paper. The estimator multiplies them by the public
    divisor.

    Attributes:
        max_feedback_norm: Threshold :math:`C_2`, the largest norm of the error that is added to a mean gradient. No
            clipping bias is left at a fixed point if it is at least the clipper's ``max_grad_norm``.
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
        """Return the estimator with these settings, for sums that are divided by the public ``divisor``."""

    def allocated(self, mechanism: Mechanism | CalibratedGaussian) -> Mechanism | CalibratedGaussian:
        """Return the mechanism with its noise shared between the blocks as these settings need it."""
        return mechanism

    def _checked_norm(self, norm: float) -> float:
        """Check ``max_feedback_norm``, which may be infinite here: then the whole error is injected."""
        if isinstance(norm, bool) or not norm >= 0:
            raise ValueError(f"max_feedback_norm must be a number >= 0, got {norm!r}.")
        return float(norm)


def as_feedback(feedback: object) -> Feedback:
    """Return ``feedback`` if it is one of the three kinds of settings.

    Raises:
        TypeError: It is something else, such as the name of a kind.
    """
    if isinstance(feedback, Feedback):
        return feedback
    got = repr(feedback) if isinstance(feedback, str) else type(feedback).__name__
    raise TypeError(
        "feedback must be a PrivateFeedback, a BoundedFeedback or a ReleasedFeedback with its settings, got "
        f"{got}. For example feedback=tacita.ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0)."
    )


@dataclass(frozen=True)
class FeedbackSum(Estimator):
    """A clipped sum with part of a remembered error added to it, at the level of the sum.

    Attributes:
        clipper: Bounds each sample's gradient.
        feedback: The settings of what is remembered and injected.
        divisor: The public divisor of the sampler, by which the norms of ``feedback`` are multiplied.
    """

    clipper: Clipper
    feedback: Feedback
    divisor: float

    def __post_init__(self) -> None:
        _validate.positive("divisor", self.divisor)

    @property
    def max_feedback(self) -> float:
        """The largest norm of the error that is injected into the sum."""
        return self.divisor * self.feedback.max_feedback_norm

    @property
    def max_error(self) -> float:
        """The largest norm of the error of the sum."""
        return self.divisor * self.feedback.anti_windup

    def groups(self, shapes: Shapes) -> dict[str, tuple[str, ...]]:
        """Return one group with all parameters."""
        return {SUM: tuple(shapes)}

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return {SUM: sum(shape.numel() for shape in shapes.values())}

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> State:
        return no_error(shapes, lead, torch.float32)

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return {name: noisy / divisor for name, noisy in released[SUM].items()}

    def sums(self, engine: Engine, rule) -> tuple[dict[str, Tensor], ...]:
        """Return one sum for each weight array of ``rule``, from one pass."""
        return engine.weighted_sums(rule, self.groups(engine.shapes)).values

    def contribution(self, shapes: Shapes) -> float:
        """Return the largest norm that one record adds to the clipped sum."""
        (bound,) = self.clipper.max_contribution(shapes).values()
        return bound

    def kept(self, share: Tensor) -> Tensor:
        """Return the share of the error that is kept when ``share`` of it is injected."""
        return (1 - self.feedback.leak) * (1 - share)

    def check_divisor(self, sampler: Sampler) -> None:
        """Raise ``ValueError`` unless the estimator was built for this sampler's divisor."""
        if sampler.expected_batch_size != self.divisor:
            raise ValueError(
                f"divisor must be the sampler's expected batch size, {sampler.expected_batch_size:g}, got "
                f"{self.divisor:g}. ErrorFeedbackOracle sees to it."
            )


class Leftover(NamedTuple):
    """The next hidden error of a query, in parts: ``kept`` times the present error, plus the batch's residuals."""

    residuals: dict[str, Tensor]
    kept: Tensor


class HiddenFeedbackSum(FeedbackSum):
    """A feedback sum whose error is hidden: the next error is known before the release.

    A large model cannot afford two copies of the error in memory. So :meth:`bound` only reads it, and :meth:`apply`
    changes it in place.
    """

    @abstractmethod
    def bound(self, engine: Engine, state: State) -> tuple[Values, Leftover]:
        """Return the values, and the parts of the next error."""

    def shifted(self, clipped: dict[str, Tensor], state: State, share: Tensor) -> Values:
        """Return the clipped sum plus ``share`` of the error; in float64, and ``clipped`` is emptied, if rounded last.

        As long as the errors of two neighbouring data sets differ, the roundings of their sums differ in every query,
        not only in those that draw the record. Where a query's charge does not cover that, the noise is added before
        the sum is rounded.
        """
        if self.rounded_last:
            clipped = {name: clipped.pop(name).double() for name in [*clipped]}
        return {SUM: injected(clipped, state["error"], share)}

    def apply(self, state: State, update: Leftover) -> State:
        """Return the next state, in the memory of ``state``; ``update`` is emptied."""
        following = succeeding(update.residuals, state["error"], update.kept, self.max_error)
        return {**following, "query": state["query"] + 1}

    def __call__(self, engine: Engine, state: State) -> tuple[Values, State]:
        values, update = self.bound(engine, state)
        return values, self.apply(copied(state), update)


def residual_weights(weights: Tensor, norms: Tensor) -> Tensor:
    """Return the weights of what clipping removes, ``1 - weights``; 0 for a norm that is not finite."""
    return torch.where(norms.isfinite(), 1 - weights, 0.0)


def check_projection(clipper: Clipper, feedback: str) -> None:
    """Raise ``ValueError`` unless ``clipper`` projects the whole gradient onto one ball."""
    if not isinstance(clipper, FlatClipper):
        raise ValueError(
            f"clipper must be a FlatClipper with {feedback}, got {type(clipper).__name__}: the guarantee rests on "
            "residuals of a projection onto one ball."
        )
