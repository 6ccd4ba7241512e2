r"""A client's message in Clip21-SGDM: the clipped difference between its momentum and what it has sent so far.

Place: gradients, clipping -> [estimators.clipped_difference] -> mechanisms. Momentum and shift are private for good.
Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", Algorithms 1 to 3.
Differs from it in three points: noise is added to every message, the first one included; a record whose gradient is not
finite counts as zero; the mean gradient has a public divisor. Proof: docs/derivations/clip21.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation
from tacita.clipping import FlatClipper, PerLayerClipper
from tacita.estimators.estimator import Estimator, Values
from tacita.federated.client_messages import ClientMessagesEvent, ClippedSamplesEvent
from tacita.gradients.engine import Engine, Groups, Shapes
from tacita.gradients.weighted_sums import group_norms, round_down, with_room
from tacita.sampling import Sampler

Tensors = Mapping[str, Tensor]
MOST_OF_A_RECORD = 2.0**400  # 2.6e120, of a record's threshold, also over the divisor: 1e30 of them have a finite norm
MessageClipper = FlatClipper | PerLayerClipper  # projections onto a ball, or onto a product of balls
State = dict[str, Any]  # "momentum" and "shift": name -> (..., *param), float64


def clipped_message(vector: Tensors, clipper: MessageClipper, shapes: Shapes) -> dict[str, Tensor]:
    r"""Project ``vector`` (..., \*param) onto the ball of ``clipper``, or onto one ball for each layer.

    Guarantee: the norm of each group is at most its threshold, rounding included. A group whose norm is not finite
    becomes zeros.

    Example:
        >>> from tacita.clipping import FlatClipper
        >>> clipped_message({"x": torch.tensor([3.0, 4.0])}, FlatClipper(max_grad_norm=1.0), {"x": torch.Size([2])})
        {'x': tensor([0.6000, 0.8000])}
    """
    groups = clipper.groups(shapes)
    weights = clipper.weights(group_norms(vector, groups, _lead(vector, shapes)))
    return {
        name: _times(vector[name], weights[..., column], len(shapes[name]))
        for column, names in enumerate(groups.values())
        for name in names
    }


def averaged(momentum: Tensors, gradient: Tensors, weight: float) -> dict[str, Tensor]:
    r"""Return :math:`(1 - \beta) v + \beta G`; ``weight`` is that of the new gradient, and 1 returns it as it is."""
    if weight == 1:
        return dict(gradient)
    return {name: (1 - weight) * v + weight * gradient[name] for name, v in momentum.items()}


def clipped_difference(
    state: State, gradient: Tensors, *, momentum_weight: float, clipper: MessageClipper, shapes: Shapes
) -> tuple[dict[str, Tensor], State]:
    r"""Return a client's message without noise, and its next state: steps 2a, 2c and 2d of Algorithm 3.

    :math:`v' = (1-\beta) v + \beta G`, :math:`u = \text{clip}_C(v' - g)`, :math:`g' = g + u`. The shift moves by the
    message *without* its noise.

    Args:
        state: "momentum" v and "shift" g, (..., \*param) by name. Private; not changed.
        gradient: The client's gradient G, likewise.
        momentum_weight: beta in (0, 1], the weight of the new gradient; 1 is Clip21-SGD.
        clipper: Its ``max_grad_norm`` is C.
        shapes: Shapes of the parameters, by name.
    """
    old = {kind: {name: x.to(gradient[name].device) for name, x in held.items()} for kind, held in state.items()}
    momentum = averaged(old["momentum"], gradient, momentum_weight)
    apart = {name: v - old["shift"][name] for name, v in momentum.items()}
    message = clipped_message(apart, clipper, shapes)
    shift = {name: g + message[name] for name, g in old["shift"].items()}
    return message, {"momentum": momentum, "shift": shift}


def no_messages(shapes: Shapes, lead: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> State:
    """Return the state of a client that has sent nothing: zeros, which no data decide."""
    return {
        kind: {name: torch.zeros(*lead, *shape, dtype=dtype) for name, shape in shapes.items()}
        for kind in ("momentum", "shift")
    }


@dataclass(frozen=True, kw_only=True)
class ClippedMean(Estimator):
    r"""The message of Clip-SGD: a client's mean gradient, clipped as a whole, :math:`\text{clip}_C(G)`.

    Guarantee: that of :class:`ClippedDifference`. One record can turn the mean around, so the message moves by up to
    2 C. No sampling amplifies what is charged here.

    Attributes:
        clipper: Clips the message; ``max_grad_norm`` is the threshold C.
        divisor: Public divisor of the sum of the records' gradients, > 0.
    """

    clipper: MessageClipper
    divisor: float

    def __post_init__(self) -> None:
        _check(self)

    @property
    def any_change(self) -> bool:
        return True

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return _apart(self.clipper, shapes)

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        return _messages_event(self.clipper, noise_std, relation, shapes)

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return _sizes(self.clipper.groups(shapes), shapes)

    def __call__(self, engine: Engine, state: None) -> tuple[Values, None]:
        gradient = mean_gradient(engine, self.divisor)
        return _by_block(clipped_message(gradient, self.clipper, engine.shapes), self.clipper, engine.shapes), state

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return _message_of(released)


@dataclass(frozen=True, kw_only=True)
class ClippedDifference(Estimator):
    r"""The message of Clip21-SGDM: :math:`\text{clip}_C(v - g)`, of the client's momentum v and its shift g.

    A client is an oracle over its own data: each query is one message, and the release is what the client sends. The
    server adds the mean of the messages to its estimate of the gradient. ``noise_multiplier`` is the noise over 2 C,
    which is half of the paper's noise-clipping ratio.

    Guarantee: two *arbitrary* data sets of the client, also of different length, move a message by at most 2 C,
    whatever the messages and the broadcasts before it were. So T messages are one Gaussian query of
    :math:`\mu = 2 C \sqrt T / s` under every relation and every sampler. The number of rows is not compared with the
    sampler's, and is not public. No sampling amplifies: a record that was drawn once, in the first query, may saturate
    all messages. With ``sample_clipper`` each record's gradient is clipped too, and the session is charged by the
    number of draws of a record (:class:`~tacita.federated.ClippedSamplesEvent`): that guarantee is one of single
    records under the ledger's relation.

    Attributes:
        clipper: Clips the message; ``max_grad_norm`` is the threshold C (or one for each layer).
        momentum_weight: beta in (0, 1], the weight of the new gradient: torch's momentum is 1 - beta. 1 is Clip21-SGD.
        divisor: Public divisor of the sum of the records' gradients, > 0: the expected batch size for a mean.
        sample_clipper: Clips each record's gradient; ``None`` clips none.

    Example:
        >>> from tacita.gradients.given import GivenEngine
        >>> estimator = ClippedDifference(clipper=FlatClipper(max_grad_norm=1.0), momentum_weight=0.5, divisor=1.0)
        >>> rows = GivenEngine(torch.tensor([[4.5]]))
        >>> values, state = estimator(rows, estimator.initial_state(rows.shapes))
        >>> [round(block["theta"].item(), 6) for block in (values["all"], state["momentum"], state["shift"])]
        [1.0, 2.25, 1.0]
    """

    clipper: MessageClipper
    momentum_weight: float
    divisor: float
    sample_clipper: FlatClipper | None = None

    def __post_init__(self) -> None:
        _check(self)
        _validate.probability("momentum_weight", self.momentum_weight)
        if not isinstance(self.sample_clipper, FlatClipper | None):
            raise TypeError(f"sample_clipper must be a FlatClipper or None, got {type(self.sample_clipper).__name__}.")
        if self.sample_clipper is not None:
            check_sums_are_finite(self.sample_clipper.max_grad_norm, self.divisor)

    @property
    def any_change(self) -> bool:
        return self.sample_clipper is None

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return _apart(self.clipper, shapes)

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        if self.sample_clipper is None:
            return _messages_event(self.clipper, noise_std, relation, shapes)
        bounds = torch.tensor(list(self.clipper.max_contribution(shapes).values()), dtype=torch.float64)
        return ClippedSamplesEvent(
            relation=relation,
            sampling=sampler.law,
            max_message_norm=float(bounds.norm()) * (1 + 1e-12),
            max_sample_norm=self.sample_clipper.max_grad_norm,
            momentum_weight=self.momentum_weight,
            divisor=self.divisor,
            noise_std=min(noise_std.values()),
        )

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return _sizes(self.clipper.groups(shapes), shapes)

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> State:
        return no_messages(shapes, lead)

    def __call__(self, engine: Engine, state: State) -> tuple[Values, State]:
        message, following = clipped_difference(
            state,
            mean_gradient(engine, self.divisor, self.sample_clipper),
            momentum_weight=self.momentum_weight,
            clipper=self.clipper,
            shapes=engine.shapes,
        )
        return _by_block(message, self.clipper, engine.shapes), following

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return _message_of(released)


def mean_gradient(engine: Engine, divisor: float, sample_clipper: FlatClipper | None = None) -> dict[str, Tensor]:
    """Return the sum of the batch's gradients over a public divisor, float64; zeros where it is not finite."""

    def finite(norms: Tensor) -> Tensor:
        return norms.isfinite().to(norms.dtype)

    rule = finite if sample_clipper is None else sample_clipper.weights
    (total,) = engine.weighted_sums(rule, {"all": tuple(engine.shapes)}).values
    return finite_or_zero({name: total[name].double() / divisor for name in engine.shapes}, engine.shapes)


def finite_or_zero(vector: Tensors, shapes: Shapes) -> dict[str, Tensor]:
    r"""Return ``vector`` (..., \*param), or zeros where its norm is not finite: a momentum never forgets a NaN."""
    lead = _lead(vector, shapes)
    finite = group_norms(vector, {"all": tuple(shapes)}, lead).isfinite().squeeze(-1)
    return {name: torch.where(_wide(finite, len(shape)), vector[name], 0.0) for name, shape in shapes.items()}


def _lead(vector: Tensors, shapes: Shapes) -> int:
    """Return the number of axes before those of the parameters."""
    return next(vector[name].ndim - len(shape) for name, shape in shapes.items())


def _times(values: Tensor, weights: Tensor, axes: int) -> Tensor:
    """Return ``weights * values``; zeros where the weight is 0, whatever the values hold."""
    narrow = weights
    if values.dtype != weights.dtype:  # the room that weights have for roundings is one of their own dtype
        narrow = with_room(round_down(weights, values.dtype), values.dtype)
    column = _wide(narrow, axes)
    return torch.where(column > 0, column * values, 0.0)


def _wide(lead: Tensor, axes: int) -> Tensor:
    return lead.reshape(*lead.shape, *[1] * axes)


def check_message(clipper: MessageClipper) -> None:
    """Raise ``TypeError`` unless ``clipper`` projects onto balls."""
    if not isinstance(clipper, FlatClipper | PerLayerClipper):
        raise TypeError(
            f"clipper must be a FlatClipper or a PerLayerClipper, got {type(clipper).__name__}: a message is projected "
            "onto balls."
        )


def _check(estimator: ClippedMean | ClippedDifference) -> None:
    check_message(estimator.clipper)
    object.__setattr__(estimator, "divisor", _validate.positive("divisor", estimator.divisor))


def check_sums_are_finite(max_sample_norm: float, divisor: float) -> None:
    """Raise unless a client's sum of clipped gradients has a norm: one that has none counts as zero.

    One record more would then take away what all others have added, which is more than its own share.
    """
    if not max(max_sample_norm, max_sample_norm / divisor) <= MOST_OF_A_RECORD:
        raise ValueError(
            f"the threshold of a record's gradient must be at most 2^400 = {MOST_OF_A_RECORD:.2g}, also over the "
            f"divisor, got {max_sample_norm:g} over {divisor:g}: the norm of a sum would not be finite. Multiply the "
            "loss by a public number."
        )


def _apart(clipper: MessageClipper, shapes: Shapes) -> dict[str, float]:
    """Return how far apart two messages may be: 2 C for each block, whatever the relation."""
    return {block: 2 * bound for block, bound in clipper.max_contribution(shapes).items()}


def _messages_event(
    clipper: MessageClipper, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
) -> Event:
    bounds = clipper.max_contribution(shapes)
    return ClientMessagesEvent(
        relation=relation,
        max_contribution=tuple(bounds.values()),
        noise_std=tuple(noise_std[block] for block in bounds),
    )


def _sizes(groups: Groups, shapes: Shapes) -> dict[str, int]:
    return {block: sum(shapes[name].numel() for name in names) for block, names in groups.items()}


def _by_block(message: dict[str, Tensor], clipper: MessageClipper, shapes: Shapes) -> Values:
    return {block: {name: message[name] for name in names} for block, names in clipper.groups(shapes).items()}


def _message_of(released: Values) -> dict[str, Tensor]:
    return {name: noisy for block in released.values() for name, noisy in block.items()}
