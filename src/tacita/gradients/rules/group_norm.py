"""The rule of group normalisation, whose scale and shift enter as one copy a record where a fast kernel serves.

To the kernel, the channels of all records are the channels of one image, each with a scale and a shift of its own. One
backward pass then gives the gradient of the input and the per-sample gradients of scale and shift, in one reading of
both. A call that the kernel does not serve has the rule of ``normalization.py``.
"""

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from tacita.gradients.rules.normalization import GROUP_NORM, ScaleAndShiftRule
from tacita.gradients.rules.rule import Call, Parameters


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


GROUP_NORM_RULE = GroupNormRule(GROUP_NORM.function, GROUP_NORM.reader, GROUP_NORM.shared_axes)


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
