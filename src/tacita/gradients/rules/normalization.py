"""The rules of layer, group and RMS normalisation.

Scale and shift are vectors. Their per-sample gradients are smaller than the activations, so they are held, and the sums
are taken from them.

The scale and shift of a group norm enter as one copy a record where a fast kernel serves. To the kernel, the channels
of all records are the channels of one image, each with a scale and a shift of its own. One backward pass then gives the
gradient of the input and the per-sample gradients of scale and shift, in one reading of both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.rules.rule import Call, LayerRule, LayerUse, Parameters


@dataclass(frozen=True)
class ScaleAndShiftRule(LayerRule):
    """A normalisation followed by a scale and a shift: sums over positions of ``grad * normalised`` and of ``grad``.

    Attributes:
        function: The torch function, called as ``function(x, weight, bias, settings)``.
        reader: Reads a call: ``reader(function, *arguments)``.
        shared_axes: (input, settings) -> axes of the input that share a scale, the batch axis not among them.
    """

    function: Callable[[Tensor, "Tensor | None", "Tensor | None", Any], Tensor]
    reader: Callable[..., Call]
    shared_axes: Callable[[Tensor, Any], tuple[int, ...]]

    def read(self, *args: Any, **kwargs: Any) -> Call:
        return self.reader(self.function, *args, **kwargs)

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        return {name: self._summed(use, self._terms(use, name)) for name in use.names}

    def _terms(self, use: LayerUse, name: str) -> Tensor:
        if name != "weight":
            return use.grad
        normalised = self.function(use.x, None, None, use.settings)
        return normalised.mul_(use.grad) if normalised.dtype == use.grad.dtype else normalised * use.grad

    def _summed(self, use: LayerUse, terms: Tensor) -> Tensor:
        axes = self.shared_axes(use.x, use.settings)
        summed = terms.sum(dim=axes) if axes else terms
        return summed.reshape(len(use.x), *use.shapes[use.names[0]])


def _call(function: Callable, x: Tensor, weight: Tensor | None, bias: Tensor | None, settings: Any) -> Call:
    def run(physical: Tensor, parameters: Parameters) -> Tensor:
        return function(physical, parameters.get("weight"), parameters.get("bias"), settings)

    return Call(x, {"weight": weight, "bias": bias}, run, settings)


def _read_layer_norm(  # noqa: PLR0917 - the arguments of the torch function
    function: Callable,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Call:
    return _call(function, input, weight, bias, SimpleNamespace(shape=tuple(normalized_shape), eps=eps))


def _read_rms_norm(
    function: Callable,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Call:
    return _call(function, input, weight, None, SimpleNamespace(shape=tuple(normalized_shape), eps=eps))


def _read_group_norm(  # noqa: PLR0917 - the arguments of the torch function
    function: Callable,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Call:
    return _call(function, input, weight, bias, SimpleNamespace(groups=num_groups, eps=eps))


def _group_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, settings: Any) -> Tensor:
    return F.group_norm(x.flatten(0, 1), settings.groups, weight, bias, settings.eps).view(x.shape)


def _before(x: Tensor, settings: Any) -> tuple[int, ...]:
    return tuple(range(1, x.ndim - len(settings.shape)))


class GroupNormRule(ScaleAndShiftRule):
    """Scale and shift of ``torch.nn.functional.group_norm``, for inputs (batch, images, channels, *positions)."""

    def read(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Call:
        call = super().read(input, num_groups, weight, bias, eps)

        def run(x: Tensor, parameters: Parameters) -> Tensor:
            return _folded(x, parameters, call) if _is_served(x, parameters, num_groups) else call.run(x, parameters)

        return Call(input, call.parameters, run, call.settings, call.copies)


def _is_served(x: Tensor, parameters: Parameters, groups: int) -> bool:
    """Return whether the kernel serves: on a CPU, in full precision, with several positions a record."""
    full = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    alike = all(p is None or (p.shape == x.shape[2:3] and p.dtype == x.dtype) for p in parameters.values())
    return full and alike and x.shape[2] % groups == 0 and math.prod(x.shape[3:]) > 1


def _folded(x: Tensor, parameters: Parameters, call: Call) -> Tensor:
    """Normalise ``x``, with one copy of scale and shift a record, which ``call`` remembers."""
    settings: SimpleNamespace = call.settings
    records, images, channels = x.shape[:3]
    for name, parameter in parameters.items():
        if parameter is not None:
            copy = parameter.expand(records, channels)
            call.copies[name] = copy if copy.requires_grad else copy.requires_grad_()
    of_channels = {name: _for_each_image(copy, images) for name, copy in call.copies.items()}
    rows, positions = records * images, math.prod(x.shape[3:])
    made, _, _ = torch.native_group_norm(
        _in_order(x, 1, rows * channels, positions), of_channels.get("weight"), of_channels.get("bias"),
        1, rows * channels, positions, rows * settings.groups, settings.eps,
    )  # fmt: skip
    return made.view(x.shape)


def _for_each_image(copy: Tensor, images: int) -> Tensor:
    """Return a parameter's copies, (records, channels), for the channels of all images, each record's side by side."""
    return copy.unsqueeze(1).expand(-1, images, -1).flatten()


def _in_order(tensor: Tensor, *shape: int) -> Tensor:
    """Reshape a tensor and lay it out in order: the kernel knows no strides, and would read on into other records."""
    return tensor.reshape(shape).contiguous()


LAYER_NORM = ScaleAndShiftRule(
    function=lambda x, weight, bias, s: F.layer_norm(x, s.shape, weight, bias, s.eps),
    reader=_read_layer_norm,
    shared_axes=_before,
)
RMS_NORM = ScaleAndShiftRule(
    function=lambda x, weight, bias, s: F.rms_norm(x, s.shape, weight, s.eps),
    reader=_read_rms_norm,
    shared_axes=_before,
)
GROUP_NORM = GroupNormRule(  # (batch, images of one record, channels, *positions)
    function=_group_norm, reader=_read_group_norm, shared_axes=lambda x, s: (1, *range(3, x.ndim))
)
