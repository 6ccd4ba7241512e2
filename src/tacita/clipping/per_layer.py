"""Per-layer clipping: one threshold for each layer, so that a large gradient in one layer does not shrink the others.

Place: gradients -> [clipping.per_layer] -> estimators. Norms and weights are both private.
Source: McMahan et al. (2018), Section 2.1, https://arxiv.org/abs/1710.06963, also for the equal split C / sqrt(L).
Differs from it in one point: a layer's gradient whose norm is not finite counts as zero.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita._validate import FrozenDict, threshold
from tacita.clipping.clipper import Clipper
from tacita.clipping.flat import clip_weights


@dataclass(frozen=True, kw_only=True)
class PerLayerClipper(Clipper):
    r"""Weight each sample's gradient of layer :math:`l` by :math:`\min(1, C_l / \lVert g_{i,l} \rVert_2)`.

    A layer is a module that holds parameters: its weight and its bias share one threshold.

    Guarantee: one sample adds a vector of L2 norm at most :math:`C_l` to the weighted sum of layer :math:`l`, and so at
    most :math:`\sqrt{\sum_l C_l^2}` to that of all layers, whatever its gradient holds.

    Attributes:
        max_grad_norm: A number is the bound C on the *whole* gradient: each of the L layers gets
            :math:`C_l = C / \sqrt{L}`. A mapping gives each layer its own :math:`C_l`, by the dotted prefix of its
            parameters' names ("encoder.0", or "encoder" for everything in it). The longest prefix that fits counts.
            Every parameter must have one; "" stands for the rest.

    Example:
        >>> shapes = {"0.weight": torch.Size([2, 3]), "0.bias": torch.Size([2]), "1.weight": torch.Size([1, 2])}
        >>> PerLayerClipper(max_grad_norm={"0": 1.0, "1": 0.5}).groups(shapes)
        {'0': ('0.weight', '0.bias'), '1': ('1.weight',)}
    """

    max_grad_norm: float | Mapping[str, float]

    def __post_init__(self) -> None:
        if isinstance(self.max_grad_norm, Mapping):
            if not self.max_grad_norm:
                raise ValueError("max_grad_norm must name at least one layer, got an empty mapping.")
            given = self.max_grad_norm.items()
            checked = FrozenDict({layer: threshold(f"max_grad_norm[{layer!r}]", c) for layer, c in given})
        else:
            checked = threshold("max_grad_norm", self.max_grad_norm)
        object.__setattr__(self, "max_grad_norm", checked)

    def groups(self, shapes: Mapping[str, torch.Size]) -> dict[str, tuple[str, ...]]:
        if not isinstance(self.max_grad_norm, Mapping):
            layers = dict.fromkeys(_module_of(name) for name in shapes)
            return {layer: tuple(n for n in shapes if _module_of(n) == layer) for layer in layers}
        owner = {name: _longest_prefix(name, self.max_grad_norm) for name in shapes}
        groups = {layer: tuple(n for n in shapes if owner[n] == layer) for layer in self.max_grad_norm}
        for layer, names in groups.items():
            if not names:
                raise ValueError(f"max_grad_norm[{layer!r}] names no parameter. Layers: {_layers_of(shapes)}.")
        return groups

    def weights(self, norms: Tensor) -> Tensor:
        return clip_weights(
            torch.tensor(self._thresholds(norms.shape[-1]), dtype=torch.float64).to(norms.device), norms
        )

    def max_contribution(self, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        groups = self.groups(shapes)
        return dict(zip(groups, self._thresholds(len(groups)), strict=True))

    def _thresholds(self, num_groups: int) -> list[float]:
        """Return each group's C_l, in the order of :meth:`groups`."""
        if isinstance(self.max_grad_norm, Mapping):
            return list(self.max_grad_norm.values())
        return [self.max_grad_norm / math.sqrt(num_groups)] * num_groups


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _longest_prefix(parameter: str, layers: Mapping[str, float]) -> str:
    owners = [layer for layer in layers if layer in ("", parameter) or parameter.startswith(f"{layer}.")]
    if not owners:
        raise ValueError(f'max_grad_norm has no entry for the parameter {parameter!r}. "" stands for the rest.')
    return max(owners, key=len)


def _layers_of(shapes: Mapping[str, torch.Size]) -> str:
    return ", ".join(repr(layer) for layer in dict.fromkeys(_module_of(name) for name in shapes))
