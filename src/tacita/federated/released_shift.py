"""Clip21-SGDM whose clients feed back what was released: shifts that client and server agree on.

Place: estimators -> [federated.released_shift] -> simulation, clients. Shifts are functions of releases.
"""

from dataclasses import dataclass

import torch

from tacita import _validate
from tacita.clipping import FlatClipper, PerLayerClipper
from tacita.estimators import Estimator
from tacita.federated.algorithms import Clip21SGDM, FederatedAlgorithm, Gradient, Tensors
from tacita.federated.clipped_difference import State
from tacita.federated.released_difference import ReleasedDifference, difference_to_released, fed_back
from tacita.federated.server_adam import ServerAdam
from tacita.gradients.engine import Shapes


@dataclass(frozen=True, kw_only=True)
class ReleasedShiftSGDM(FederatedAlgorithm):
    r"""Clip21-SGDM with :math:`g_i' = g_i + c_i`, the message *with* its noise.

    The server's estimate is the mean of the shifts, exactly, and the noise of earlier rounds is taken back by up to C a
    round, where that of :class:`Clip21SGDM` is a random walk. The guarantee is the same. No convergence is proved.

    Attributes:
        clipper, lr, momentum_weight, adam: As in :class:`Clip21SGDM`.
    """

    clipper: FlatClipper | PerLayerClipper
    lr: float
    momentum_weight: float
    adam: ServerAdam | None = None

    def __post_init__(self) -> None:
        _validate.positive("lr", self.lr)
        _validate.probability("momentum_weight", self.momentum_weight)

    start, client_start, divisor = Clip21SGDM.start, Clip21SGDM.client_start, Clip21SGDM.divisor
    broadcast, receive = Clip21SGDM.broadcast, Clip21SGDM.receive

    def message(
        self, state: State, params: Tensors, gradient: Gradient, shapes: Shapes
    ) -> tuple[dict[str, torch.Tensor], State]:
        return difference_to_released(
            state, gradient(params), momentum_weight=self.momentum_weight, clipper=self.clipper, shapes=shapes
        )

    @property
    def feeds_back(self) -> bool:
        return True

    def after(self, state: State, sent: Tensors) -> State:
        return fed_back(state, sent)

    def estimator(self, divisor: float) -> Estimator:
        return ReleasedDifference(clipper=self.clipper, momentum_weight=self.momentum_weight, divisor=divisor)
