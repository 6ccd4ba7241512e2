r"""The ghost rule of group normalisation, where the mean and the deviation of the forward pass serve the gradients.

With the mean m and the reciprocal deviation r of a record's group, a channel's scale has the gradient
:math:`r (\sum_t d_t x_t - m \sum_t d_t)`, and its shift :math:`\sum_t d_t`. The kernel of an ordinary backward pass
takes both sums in one reading; each record's channels are channels of one image to it. What the sums add is what it
returns. A call that it does not serve has the rule of ``normalization.py``. Derivation of the radius:
docs/derivations/ghost_norms.md.
"""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.ghost.normalization import GROUP_NORM
from tacita.gradients.ghost.rounding import LONGEST_WORST_CASE, add_radius, gamma, squared_row_norms
from tacita.gradients.ghost.rule import Call, LayerRule, LayerUse, Parameters, squared_norm_of

SLACK = 1.01  # for the roundings of mean and deviation themselves


@dataclass(frozen=True, repr=False, eq=False)
class ChannelMoments:
    """Mean and reciprocal deviation of each group of each row of one input, as the forward pass computed them."""

    x: Tensor
    mean: Tensor
    rstd: Tensor

    def are_of(self, x: Tensor) -> bool:
        """Return whether ``x`` is the input itself, and neither some rows of it nor a copy."""
        mine = self.x
        same_memory = mine.untyped_storage()._cdata == x.untyped_storage()._cdata and mine.dtype == x.dtype
        same_place = mine.storage_offset() == x.storage_offset() and mine.stride() == x.stride()
        return same_memory and same_place and mine.shape == x.shape


class GroupNormRule(LayerRule):
    """Scale and shift of ``torch.nn.functional.group_norm``, for inputs (batch, images, channels, *positions)."""

    def read(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Call:
        settings = SimpleNamespace(groups=num_groups, eps=eps, moments=None)

        def run(x: Tensor, parameters: Parameters) -> Tensor:
            return _normalised(x, parameters.get("weight"), parameters.get("bias"), settings)

        return Call(input, {"weight": weight, "bias": bias}, run, settings)

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        found = _from_moments(use)
        return GROUP_NORM.grads(use) if found is None else {name: found[name] for name in use.names}

    def squared_norms(self, use: LayerUse, *, rounding_margin: bool = True) -> dict[str, Tensor]:
        grads = _from_moments(use)
        if grads is None:
            return GROUP_NORM.squared_norms(use, rounding_margin=rounding_margin)
        use.kept.update({name: grads[name] for name in use.names})
        squares = {n: squared_norm_of(use.kept[n], rounding_margin=rounding_margin) for n in use.names}
        if not rounding_margin or _positions(use) > LONGEST_WORST_CASE:
            return squares
        radii = _radii(use)
        return {name: add_radius(square, radii[name]) for name, square in squares.items()}

    def radius(self, use: LayerUse) -> dict[str, Tensor]:
        """Bound the rounding of the gradient, plus that of :meth:`sums`, which adds the rounded gradient."""
        if _from_moments(use) is None:
            return GROUP_NORM.radius(use)
        added = super().radius(use)
        radii = _radii(use) if _positions(use) <= LONGEST_WORST_CASE else {}
        return {name: added[name] + radii.get(name, 0.0) for name in use.names}


GROUP_NORM_RULE = GroupNormRule()


def _normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, settings: Any) -> Tensor:
    """Normalise ``x``, and remember its moments where they serve: on a CPU, with several positions a record."""
    flat, positions = x.flatten(0, 1), math.prod(x.shape[3:])
    serves = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.shape[1] == 1 < positions
    if not serves or torch.is_autocast_enabled("cpu") or x.shape[2] % settings.groups:
        return F.group_norm(flat, settings.groups, weight, bias, settings.eps).view(x.shape)
    rows, channels = flat.shape[:2]
    made, mean, rstd = torch.native_group_norm(
        flat.contiguous(), weight, bias, rows, channels, positions, settings.groups, settings.eps
    )
    settings.moments = ChannelMoments(x.detach(), mean.detach(), rstd.detach())
    return made.view(x.shape)


def _from_moments(use: LayerUse) -> dict[str, Tensor] | None:
    """Return the gradients of scale and shift, (rows, channels), where the input's moments are known."""
    moments: ChannelMoments | None = use.settings.moments
    if moments is None or not moments.are_of(use.x):
        return None
    rows, channels, positions = len(use.x), use.x.shape[2], _positions(use)
    x, grad = (_in_order(t, 1, rows * channels, positions) for t in (use.x, use.grad))
    _, scale, shift = torch.ops.aten.native_group_norm_backward(
        grad, x, moments.mean.view(1, -1), moments.rstd.view(1, -1), x.new_ones(rows * channels),
        1, rows * channels, positions, rows * use.settings.groups, [False, True, True],
    )  # fmt: skip
    return {"weight": scale.view(rows, channels), "bias": shift.view(rows, channels)}


def _in_order(tensor: Tensor, *shape: int) -> Tensor:
    """Reshape a tensor and lay it out in order: the kernel knows no strides, and would read on into other records."""
    return tensor.reshape(shape).contiguous()


def _radii(use: LayerUse) -> dict[str, Tensor]:
    r"""Bound the rounding of both gradients in norm, (rows,), float64.

    A sum over T positions is off by at most :math:`\gamma_T` times the sum of its terms' sizes, so a channel's scale by
    :math:`\gamma_{T+6} \, r (\lVert d \rVert \lVert x \rVert + |m| \sqrt{T} \lVert d \rVert)`. The group's n
    inputs have squares that add up to at most :math:`n (r^{-2} + m^2)`, those of one channel to no more.
    """
    rows, channels, positions = len(use.x), use.x.shape[2], _positions(use)
    squares = squared_row_norms(use.grad.reshape(rows, channels, positions))
    offset = (use.settings.moments.mean.double() * use.settings.moments.rstd.double()).view(rows, -1, 1)
    width = positions * channels // use.settings.groups
    of_group = SLACK * math.sqrt(width) * (1 + offset.square()).sqrt() + math.sqrt(positions) * offset.abs()
    weighed = squares.view(rows, use.settings.groups, -1) * of_group.square()
    factor = gamma(positions + 6, use.grad.dtype)
    return {
        "weight": factor * weighed.flatten(1).sum(dim=1).sqrt(),
        "bias": factor * math.sqrt(positions) * squares.sum(dim=1).sqrt(),
    }


def _positions(use: LayerUse) -> int:
    return math.prod(use.x.shape[3:])
