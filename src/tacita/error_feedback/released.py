r"""Error feedback by a second, noisy block: the residuals are released, so that the error is public.

Place: gradients, clipping -> [estimators.error_feedback.released] -> mechanisms. Sums are private, the error is not.
Source: DiceSGD (see :mod:`tacita.error_feedback.private`) with each sample's residual clipped and noised.
Proof: docs/derivations/dicesgd.md, "Released residuals".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, moved
from tacita.clipping import Clipper
from tacita.error_feedback.bounded import bounded_residual_weights
from tacita.error_feedback.error import State, copied, injected, share_within, succeeding
from tacita.error_feedback.feedback import RESIDUAL, SUM, Feedback, FeedbackSum, check_projection
from tacita.error_feedback.proved_events import released_residual_event
from tacita.estimators.estimator import Values
from tacita.gradients.engine import Engine, Shapes
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.mechanisms.mechanism import Allocation, check_allocation
from tacita.sampling import Sampler


@dataclass(frozen=True, kw_only=True)
class ReleasedFeedback(Feedback):
    r"""The residuals :math:`\text{clip}(g - \text{clip}(g, C_1), C_3)` of the batch are released with their own noise.

    Guarantee: that of one Gaussian query of two blocks, of sensitivities :math:`C_1` and :math:`C_3`, amplified by
    sampling as a clipped sum is. The error is a function of releases: it may be published, and :math:`C_2` costs
    nothing.

    The noise of both blocks ends up in the parameters, one at once, one later. At a given guarantee their joint power
    :math:`s_1^2 + s_3^2` is least for :math:`s_1^2 : s_3^2 = C_1 : C_3`, and then equals that of plain clipping at
    :math:`C_1 + C_3`; so ``allocation`` is ``"least_power"`` unless said otherwise.

    Attributes:
        max_feedback_norm: Threshold :math:`C_2` of what is injected, in units of the mean gradient; ``inf`` for all of
            it.
        max_residual_norm: Threshold :math:`C_3` of one sample's residual, in the gradient's units.
        every: Ask for the residuals in queries ``every``, 2 ``every``, ... only (counted from 1).
        allocation: How the blocks share the noise, in place of the mechanism's own.
        leak, anti_windup: See :class:`Feedback`.
    """

    max_residual_norm: float
    every: int = 1
    allocation: Allocation = "least_power"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_residual_norm", _validate.threshold("max_residual_norm", self.max_residual_norm))
        object.__setattr__(self, "every", _validate.count("every", self.every))
        check_allocation(self.allocation)

    def estimator(self, clipper: Clipper, divisor: float) -> "ReleasedErrorSum":
        return ReleasedErrorSum(clipper, self, divisor)

    def allocated(self, mechanism: Mechanism | CalibratedGaussian) -> Mechanism | CalibratedGaussian:
        return replace(mechanism, allocation=self.allocation)


@dataclass(frozen=True)
class ReleasedErrorSum(FeedbackSum):
    r"""Two blocks: :math:`\sum_i \text{clip}(g_i, C_1) + \text{clip}(E, b C_2)` and the sum of the clipped residuals.

    The injected error is a function of earlier releases: it shifts the first block by a known vector, and its noisy
    release is the gradient as it stands. The residuals of a query are those of its own batch.

    Attributes:
        clipper: A ``FlatClipper``.
        feedback: The settings.
        divisor: The public divisor b.
    """

    feedback: ReleasedFeedback

    def __post_init__(self) -> None:
        super().__post_init__()
        check_projection(self.clipper, "ReleasedFeedback")

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        first, second = self.contribution(shapes), self.feedback.max_residual_norm
        return {SUM: moved(relation) * first, RESIDUAL: moved(relation) * second}

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        size = sum(shape.numel() for shape in shapes.values())
        return {SUM: size, RESIDUAL: size}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        self.check_divisor(sampler)
        return released_residual_event(
            sampler.law,
            relation,
            max_contribution=(self.contribution(shapes), self.feedback.max_residual_norm),
            noise_std=(noise_std[SUM], noise_std[RESIDUAL]),
            every=self.feedback.every,
        )

    def __call__(self, engine: Engine, state: State) -> tuple[Values, State]:
        due = (state["query"] + 1) % self.feedback.every == 0
        clipped, *residuals = self.sums(engine, self._both if due else self.clipper.weights)
        shifted = injected(clipped, state["error"], self._share(state))
        return {SUM: shifted, **({RESIDUAL: residuals[0]} if due else {})}, state

    def after(self, state: State, released: Values) -> State:
        """Return the state once the residuals are known, whose error is a function of releases."""
        noisy = released.get(RESIDUAL) or {name: x.new_zeros(()).expand_as(x) for name, x in released[SUM].items()}
        error = copied(state)["error"]
        following = succeeding(dict(noisy), error, self.kept(self._share(state)), self.max_error)
        return {**following, "query": state["query"] + 1}

    def shareable(self, state: State) -> State:
        return state

    def _share(self, state: State) -> Tensor:
        dtype = next(iter(state["error"].values())).dtype
        return share_within(state["norm"], self.max_feedback, dtype)

    def _both(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.clipper.weights(norms)
        return weights, bounded_residual_weights(weights, norms, self.feedback.max_residual_norm)
