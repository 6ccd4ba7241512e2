r"""Federated algorithms as pairs of pure functions: what a client does, and what the server does.

Place: estimators -> [federated.algorithms] -> simulation, clients. A client's state is private; the server's is a
function of releases alone. Every function takes leading axes, so that one call serves one client or all of them.
Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", Algorithms 1 to 3 (in the
indexing of the main text: the server moves first, and the first message is noised like every other); McMahan et al.
(2018), https://arxiv.org/abs/1710.06963, for federated averaging.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacita import _validate
from tacita.clipping import FlatClipper, PerLayerClipper
from tacita.estimators import Estimator
from tacita.federated.clipped_difference import (
    ClippedDifference,
    ClippedMean,
    State,
    clipped_difference,
    clipped_message,
    no_messages,
)
from tacita.federated.local_training import LocalTraining, updated
from tacita.federated.server_adam import Memory, ServerAdam, stepped
from tacita.gradients.engine import GradientSource, Shapes

Tensors = Mapping[str, Tensor]
Gradient = Callable[[Tensors], dict[str, Tensor]]  # a client's gradient at a point; private


@dataclass(frozen=True)
class ServerState:
    """What the server knows: the model, and its estimate of the mean gradient. Both are functions of releases.

    Attributes:
        params: The model x, by parameter name.
        estimate: The estimate g of the mean gradient; empty for an algorithm without one.
        memory: What else the server remembers, by kind: Adam's moments, a threshold that adapts.
    """

    params: dict[str, Tensor]
    estimate: dict[str, Tensor]
    memory: Memory = field(default_factory=dict)


class FederatedAlgorithm(ABC):
    """A client's part and the server's part of a federated algorithm, as pure functions.

    A round is: :meth:`broadcast`, then :meth:`message` on each client, then :meth:`receive` with the sum of the noisy
    messages over :meth:`divisor`.
    """

    clipper: FlatClipper | PerLayerClipper

    def __init_subclass__(cls) -> None:
        _validate.check_no_promise_inherited(cls, "Derive it from FederatedAlgorithm, and bound its own messages.")

    @abstractmethod
    def start(self, params: Tensors) -> ServerState:
        """Return the server's state before the first round."""

    @abstractmethod
    def client_start(self, shapes: Shapes, lead: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> State:
        """Return a client's state before the first round, a constant; empty if it remembers nothing."""

    @abstractmethod
    def broadcast(self, server: ServerState) -> ServerState:
        """Return the state whose ``params`` are broadcast."""

    @abstractmethod
    def message(self, state: State, params: Tensors, gradient: Gradient, shapes: Shapes) -> tuple[dict, State]:
        """Return the client's message without noise, and its state once the server has acknowledged it.

        Args:
            state: The client's state, not changed. Private.
            params: What was broadcast.
            gradient: Returns the client's gradient at a point. Private.
            shapes: Shapes of the parameters, by name.
        """

    @abstractmethod
    def receive(self, server: ServerState, mean: Tensors) -> ServerState:
        """Return the server's state after a round, given the sum of the noisy messages over :meth:`divisor`."""

    @abstractmethod
    def divisor(self, num_clients: int, expected_clients: float) -> float:
        """Return the public divisor of the sum of messages."""

    @abstractmethod
    def estimator(self, divisor: float) -> Estimator:
        """Return the estimator of a client's oracle over its own data; ``divisor`` is that of its gradients."""

    def client_source(self, source: GradientSource, divisor: float) -> GradientSource:
        """Return the source of a client's oracle, given that of its gradients."""
        return source

    @property
    def feeds_back(self) -> bool:
        """Whether a client's state depends on its noisy message, so that every client's own noise must be drawn."""
        return False

    def after(self, state: State, sent: Tensors) -> State:
        """Return a client's state once its message and the noise on it are known; unchanged by default."""
        return state

    def message_shapes(self, shapes: Shapes) -> Shapes:
        """Return the shapes of what a client sends, by name: by default those of the parameters."""
        return shapes


@dataclass(frozen=True, kw_only=True)
class ClipSGD(FederatedAlgorithm):
    r"""Clip-SGD (Algorithm 1): :math:`c_i = \text{clip}_C(G_i(x))`, :math:`x' = x - \gamma \frac1n \sum_i c_i`.

    Attributes:
        clipper: Clips a client's whole gradient.
        lr: The step size gamma.
        adam: Adam on the server; ``None`` for gradient descent.
    """

    clipper: FlatClipper | PerLayerClipper
    lr: float
    adam: ServerAdam | None = None

    def __post_init__(self) -> None:
        _validate.positive("lr", self.lr)

    def start(self, params: Tensors) -> ServerState:
        return ServerState(dict(params), {})

    def client_start(self, shapes: Shapes, lead: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> State:
        return {}

    def broadcast(self, server: ServerState) -> ServerState:
        return server

    def message(self, state: State, params: Tensors, gradient: Gradient, shapes: Shapes) -> tuple[dict, State]:
        return clipped_message(gradient(params), self.clipper, shapes), state

    def receive(self, server: ServerState, mean: Tensors) -> ServerState:
        params, memory = stepped(server.params, mean, self.lr, self.adam, server.memory)
        return ServerState(params, {}, memory)

    def divisor(self, num_clients: int, expected_clients: float) -> float:
        return expected_clients

    def estimator(self, divisor: float) -> Estimator:
        return ClippedMean(clipper=self.clipper, divisor=divisor)


@dataclass(frozen=True, kw_only=True)
class Clip21SGDM(FederatedAlgorithm):
    r"""Clip21-SGDM (Algorithm 3); Clip21-SGD (Algorithm 2) is ``momentum_weight=1``.

    The server sends :math:`x' = x - \gamma g`; a client sends :math:`u_i + \omega_i` with :math:`u_i =
    \text{clip}_C(v_i' - g_i)` and moves its shift by :math:`u_i` *without* noise; the server sets
    :math:`g' = g + \frac1n \sum_i c_i`. Clients that do not take part keep v and g, and n stays the divisor, so that
    g less the mean of the shifts is the mean of all noise so far.

    Attributes:
        clipper: Clips a message; its thresholds are C.
        lr: The step size gamma.
        momentum_weight: The weight beta in (0, 1] of the new gradient: torch's momentum is 1 - beta.
        adam: Adam on the server, applied to the estimate g; ``None`` for gradient descent.
    """

    clipper: FlatClipper | PerLayerClipper
    lr: float
    momentum_weight: float
    adam: ServerAdam | None = None

    def __post_init__(self) -> None:
        _validate.positive("lr", self.lr)
        _validate.probability("momentum_weight", self.momentum_weight)

    def start(self, params: Tensors) -> ServerState:
        return ServerState(dict(params), {name: torch.zeros_like(x) for name, x in params.items()})

    def client_start(self, shapes: Shapes, lead: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> State:
        return no_messages(shapes, lead, dtype)

    def broadcast(self, server: ServerState) -> ServerState:
        params, memory = stepped(server.params, server.estimate, self.lr, self.adam, server.memory)
        return ServerState(params, server.estimate, memory)

    def message(self, state: State, params: Tensors, gradient: Gradient, shapes: Shapes) -> tuple[dict, State]:
        return clipped_difference(
            state, gradient(params), momentum_weight=self.momentum_weight, clipper=self.clipper, shapes=shapes
        )

    def receive(self, server: ServerState, mean: Tensors) -> ServerState:
        moved = {name: g + mean[name] for name, g in server.estimate.items()}
        return ServerState(server.params, moved, server.memory)

    def divisor(self, num_clients: int, expected_clients: float) -> float:
        return float(num_clients)

    def estimator(self, divisor: float) -> Estimator:
        return ClippedDifference(clipper=self.clipper, momentum_weight=self.momentum_weight, divisor=divisor)


@dataclass(frozen=True, kw_only=True)
class FederatedAveraging(FederatedAlgorithm):
    r"""Federated averaging with clipped updates (DP-FedAvg), the baseline that everyone knows.

    A client takes ``local_steps`` steps of size ``local_lr`` from the broadcast model x to :math:`x_i` and sends
    :math:`\text{clip}_C(x - x_i)`; the server subtracts ``lr`` times the mean.

    Attributes:
        clipper: Clips a client's whole update.
        lr: The server's step size; 1 averages the clients' models where nothing is clipped.
        local_steps: Number of a client's steps in a round, >= 1.
        local_lr: Size of a client's steps.
        adam: Adam on the server; ``None`` for gradient descent along the mean update.
    """

    clipper: FlatClipper | PerLayerClipper
    lr: float
    local_steps: int
    local_lr: float
    adam: ServerAdam | None = None

    def __post_init__(self) -> None:
        _validate.positive("lr", self.lr)
        _validate.positive("local_lr", self.local_lr)
        _validate.count("local_steps", self.local_steps)

    start, client_start, broadcast = ClipSGD.start, ClipSGD.client_start, ClipSGD.broadcast
    receive, divisor = ClipSGD.receive, ClipSGD.divisor

    def message(self, state: State, params: Tensors, gradient: Gradient, shapes: Shapes) -> tuple[dict, State]:
        update = updated(params, gradient, local_steps=self.local_steps, local_lr=self.local_lr)
        return clipped_message(update, self.clipper, shapes), state

    def client_source(self, source: GradientSource, divisor: float) -> GradientSource:
        return LocalTraining(source, local_steps=self.local_steps, local_lr=self.local_lr, divisor=divisor)

    def estimator(self, divisor: float) -> Estimator:
        return ClippedMean(clipper=self.clipper, divisor=1.0)  # of the one update of client_source
