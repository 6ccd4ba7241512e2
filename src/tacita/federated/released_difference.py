r"""A client's message in Clip21-SGDM that feeds back what was released: the shift moves by the message and its noise.

Place: gradients, clipping -> [estimators.released_difference] -> mechanisms. The shift is a function of releases, the
momentum is private.
Source: a variant of "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", Algorithm 3,
whose shift moves without the noise. No convergence is proved. Proof of the guarantee: docs/derivations/clip21.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation
from tacita.estimators.estimator import Estimator, Values
from tacita.federated import clipped_difference as messages
from tacita.gradients.engine import Engine, Shapes
from tacita.sampling import Sampler


def difference_to_released(
    state: messages.State, gradient: Mapping[str, Tensor], *, momentum_weight: float, clipper: Any, shapes: Shapes
) -> tuple[dict[str, Tensor], messages.State]:
    r"""Return :math:`\text{clip}_C(v' - g)` without noise, and the state with v'; g moves once the noise is known."""
    momentum = messages.averaged(state["momentum"], gradient, momentum_weight)
    apart = {name: v - state["shift"][name] for name, v in momentum.items()}
    return messages.clipped_message(apart, clipper, shapes), {"momentum": momentum, "shift": state["shift"]}


def fed_back(state: messages.State, sent: Mapping[str, Tensor]) -> messages.State:
    """Return the state after a message: its shift has moved by what was sent, noise included."""
    return {"momentum": state["momentum"], "shift": {name: g + sent[name] for name, g in state["shift"].items()}}


@dataclass(frozen=True, kw_only=True)
class ReleasedDifference(Estimator):
    r"""The message :math:`\text{clip}_C(v - g)`, where g is the sum of all messages *with* their noise.

    Client and server then agree on g, and the noise of earlier rounds is taken back by up to C a round, where it adds
    up for good in :class:`ClippedDifference`.

    Guarantee: that of :class:`ClippedDifference`; T messages are one Gaussian query of :math:`\mu = 2 C \sqrt T / s`
    for any change of the client's data.

    Attributes:
        clipper: Clips the message; ``max_grad_norm`` is the threshold C (or one for each layer).
        momentum_weight: beta in (0, 1], the weight of the new gradient. With 1 no private state is left.
        divisor: Public divisor of the sum of the records' gradients, > 0.
    """

    clipper: messages.MessageClipper
    momentum_weight: float
    divisor: float

    def __post_init__(self) -> None:
        messages.check_message(self.clipper)
        _validate.positive("divisor", self.divisor)
        _validate.probability("momentum_weight", self.momentum_weight)

    @property
    def any_change(self) -> bool:
        return True

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return messages.ClippedMean(clipper=self.clipper, divisor=1.0).sensitivity(relation, shapes)

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        return messages.ClippedMean(clipper=self.clipper, divisor=1.0).event(sampler, noise_std, relation, shapes)

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return messages.ClippedMean(clipper=self.clipper, divisor=1.0).block_sizes(shapes)

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> messages.State:
        return messages.no_messages(shapes, lead)

    def __call__(self, engine: Engine, state: messages.State) -> tuple[Values, messages.State]:
        message, following = difference_to_released(
            state,
            messages.mean_gradient(engine, self.divisor),
            momentum_weight=self.momentum_weight,
            clipper=self.clipper,
            shapes=engine.shapes,
        )
        groups = self.clipper.groups(engine.shapes)
        return {block: {name: message[name] for name in names} for block, names in groups.items()}, following

    def after(self, state: messages.State, released: Values) -> messages.State:
        return fed_back(state, self.gradient(released, 1.0))

    def shareable(self, state: messages.State) -> Any:
        return {"shift": state["shift"]}  # the momentum has seen raw gradients

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return {name: noisy for block in released.values() for name, noisy in block.items()}
