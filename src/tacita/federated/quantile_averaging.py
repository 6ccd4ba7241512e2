r"""Federated averaging whose threshold follows a quantile of the clients' update norms, estimated privately.

Place: estimators -> [federated.quantile_averaging] -> simulation. The threshold is a function of releases.
Source: Andrew et al. (2021), "Differentially Private Learning with Adaptive Clipping",
https://arxiv.org/abs/1905.03871, Algorithm 1. Differs from it in three points: a message is divided by the threshold,
so that its bound is the same in every round; both noises are one, with the count in units of its share; and the
estimated share of unclipped updates is kept in [0, 1], so that a round changes the threshold by a public factor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.adaptive_clipping import followed
from tacita.clipping import FlatClipper
from tacita.estimators import Estimator
from tacita.federated.algorithms import FederatedAlgorithm, Gradient, ServerState, Tensors
from tacita.federated.clipped_difference import State, clipped_message, finite_or_zero
from tacita.federated.local_training import updated
from tacita.federated.server_adam import ServerAdam, stepped
from tacita.gradients.engine import Shapes
from tacita.gradients.weighted_sums import group_norms

THRESHOLD, UNCLIPPED = "the clipping threshold", "the share of unclipped updates"  # no parameter has such a name
BALL = FlatClipper(max_grad_norm=1.0)


@dataclass(frozen=True, kw_only=True)
class QuantileAveraging(FederatedAlgorithm):
    r"""DP-FedAvg with quantile clipping: a client sends its clipped update, and whether it was clipped.

    A message is :math:`(\text{clip}_{C_t}(\Delta_i) / C_t,\; k (b_i - \tfrac12))` with :math:`b_i = 1` if
    :math:`\lVert\Delta_i\rVert \le C_t`. Its norm is at most :math:`R = \sqrt{1 + k^2/4}`, whatever the threshold is:
    one Gaussian query of contribution R a round. A share ``count_share`` of :math:`1/z^2` goes to the count:
    :math:`k^2/4 = \text{share} / (1 - \text{share})`. From the releases the server takes
    :math:`x' = x - \gamma C_t \bar\Delta` and :math:`C_{t+1} = C_t \exp(-\eta_C (\bar b - q))`.

    Attributes:
        threshold: The first threshold C_0; public.
        quantile: The share q in (0, 1) of updates that are to be below the threshold.
        threshold_lr: The step eta_C of the threshold's logarithm; 0.2 in the source.
        count_share: The share of the privacy that the count of unclipped updates gets, in (0, 1).
        lr: The server's step size.
        local_steps: Number of a client's steps in a round, >= 1.
        local_lr: Size of a client's steps.
        adam: Adam on the server; ``None`` for gradient descent along the mean update.
    """

    threshold: float
    quantile: float
    threshold_lr: float
    count_share: float
    lr: float
    local_steps: int
    local_lr: float
    adam: ServerAdam | None = None

    def __post_init__(self) -> None:
        _validate.threshold("threshold", self.threshold)
        for name in ("threshold_lr", "lr", "local_lr"):
            _validate.positive(name, getattr(self, name))
        for name in ("quantile", "count_share"):
            _validate.inside(name, getattr(self, name))
        _validate.count("local_steps", self.local_steps)

    @property
    def unit(self) -> float:
        """The factor k of the count."""
        return 2 * math.sqrt(self.count_share / (1 - self.count_share))

    @property
    def clipper(self) -> FlatClipper:  # type: ignore[override]
        """The ball of radius R that every message is in."""
        return FlatClipper(max_grad_norm=math.sqrt(1 + self.unit**2 / 4) * (1 + 1e-12))

    def message_shapes(self, shapes: Shapes) -> Shapes:
        return {**shapes, UNCLIPPED: torch.Size([1])}

    def start(self, params: Tensors) -> ServerState:
        like = next(iter(params.values()))
        return ServerState(dict(params), {}, {THRESHOLD: {"C": like.new_full((), self.threshold)}})

    def client_start(self, shapes: Shapes, lead: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> State:
        return {}

    def broadcast(self, server: ServerState) -> ServerState:
        return ServerState({**server.params, THRESHOLD: server.memory[THRESHOLD]["C"]}, {}, server.memory)

    def message(self, state: State, params: Tensors, gradient: Gradient, shapes: Shapes) -> tuple[dict, State]:
        model, threshold = _apart(params)
        update = updated(model, gradient, local_steps=self.local_steps, local_lr=self.local_lr)
        scaled = finite_or_zero({name: x / threshold for name, x in update.items()}, shapes)
        lead = next(scaled[name].ndim - len(shape) for name, shape in shapes.items())
        norms = group_norms(scaled, {"all": tuple(shapes)}, lead)  # (..., 1)
        sent = clipped_message(scaled, BALL, shapes)
        below = (norms <= 1).to(next(iter(sent.values())).dtype) - 0.5
        return clipped_message({**sent, UNCLIPPED: self.unit * below}, self.clipper, self.message_shapes(shapes)), state

    def receive(self, server: ServerState, mean: Tensors) -> ServerState:
        model, threshold = _apart(server.params)
        update = {name: threshold * mean[name] for name in model}
        params, memory = stepped(model, update, self.lr, self.adam, server.memory)
        below = mean[UNCLIPPED].squeeze() / self.unit + 0.5
        following = followed(threshold, below, quantile=self.quantile, lr=self.threshold_lr, first=self.threshold)
        return ServerState(params, {}, {**memory, THRESHOLD: {"C": following}})

    def divisor(self, num_clients: int, expected_clients: float) -> float:
        return expected_clients

    def estimator(self, divisor: float) -> Estimator:
        raise TypeError(
            "a threshold that adapts needs the clients' counts in every round, which an oracle over one client's data "
            "does not send: simulate it, or use FederatedAveraging."
        )


def _apart(params: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Return the model and the threshold of what was broadcast."""
    return {name: x for name, x in params.items() if name != THRESHOLD}, params[THRESHOLD]
