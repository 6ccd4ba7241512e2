"""The rules of layer, group and RMS normalisation.

Scale and shift are vectors. Their per-sample gradients are smaller than the activations, so they are held, and the sums
are taken from them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

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
GROUP_NORM = ScaleAndShiftRule(  # (batch, images of one record, channels, *positions)
    function=_group_norm,
    reader=_read_group_norm,
    shared_axes=lambda x, s: (1, *range(3, x.ndim)),
)
