"""The rule of ``nn.Conv2d``.

Place: ghost engine. A convolution is a linear layer on patches: see ``outer.py`` for the norms. Per-sample gradients
come from the weight-gradient kernel of a convolution with one group a sample, which on CPUs costs what an ordinary
backward pass does where the channels fill its vectors, and from patches elsewhere.
"""

from typing import Any

import torch
import torch.nn.grad
from torch import Tensor, nn
from torch.nn import functional as F

from tacita.gradients.ghost.outer import HELD, gram_is_cheaper, outer_grads, squared_norms, with_margin
from tacita.gradients.ghost.rounding import LONGEST_WORST_CASE, add_radius, gamma
from tacita.gradients.ghost.rule import LayerRule, LayerUse, RowWeights, squared_norm_of

_weight_kernel: Any = torch.nn.grad.conv2d_weight  # its annotations know square kernels only
VECTOR = 8  # channels that a CPU kernel takes at once


class Conv2dRule(LayerRule):
    """Weight and bias of a two-dimensional convolution: any stride, padding, dilation, groups and padding mode."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("weight", "bias")

    def misfit(self, use: LayerUse) -> str:
        return "" if use.x.ndim == 4 else "its input has no batch axis"

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        found = {"weight": _weight_grads(use)} if "weight" in use.names else {}
        return found | ({"bias": use.grad.sum(dim=(2, 3))} if "bias" in use.names else {})

    def squared_norms(self, use: LayerUse, *, rounding_margin: bool = True) -> dict[str, Tensor]:
        found = {"weight": _weight_squares(use, rounding_margin)} if "weight" in use.names else {}
        if "bias" in use.names:
            use.kept["bias"] = use.grad.sum(dim=(2, 3))
            squares = squared_norm_of(use.kept["bias"], rounding_margin=rounding_margin)
            worst_case = rounding_margin and _positions(use) <= LONGEST_WORST_CASE
            found["bias"] = add_radius(squares, _bias_radius(use)) if worst_case else squares
        return found

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        kept = {n: weights.sum(use.kept[n]) for n in use.names if n in use.kept}
        if len(kept) == len(use.names):
            return kept
        x, grad = use.weighted(weights)
        if "weight" in use.names and "weight" not in kept:
            kept["weight"] = _batch_weight_grad(use.module, x, grad)
        if "bias" in use.names and "bias" not in kept:
            kept["bias"] = grad.sum(dim=(0, 2, 3))
        return kept

    def radius(self, use: LayerUse) -> dict[str, Tensor | float]:
        twice = 2 * gamma(_positions(use) + 4, use.grad.dtype)
        return {"weight": twice * _sum_of_products(use), "bias": 2 * _bias_radius(use)}

    def positions(self, use: LayerUse) -> int:
        return _positions(use)

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        bias = squared_norm_of(use.grad).mul_(_positions(use)).sqrt_()
        found = {"weight": _sum_of_products(use), "bias": bias}
        return {name: found[name] for name in use.names if name not in use.kept}


def _weight_squares(use: LayerUse, rounding_margin: bool) -> Tensor:
    out_width, in_width = _widths(use.module)
    positions = _positions(use)
    if use.module.weight.numel() <= max(HELD // 2**10, use.x[0].numel() + use.grad[0].numel()):
        use.kept["weight"] = _weight_grads(use)  # takes no more room than its factors, and serves the sums
        squares = squared_norm_of(use.kept["weight"], rounding_margin=rounding_margin)
        if not rounding_margin or positions > LONGEST_WORST_CASE:
            return squares
        return with_margin(squares, _sum_of_products(use), positions, use.x.dtype)
    if positions == 1 or gram_is_cheaper(positions, in_width, out_width):
        patches, grads = _patches(use.module, use.x), _grouped(use.module, use.grad)
        squares = squared_norms(patches, grads, rounding_margin=rounding_margin)
        return squares.view(len(use.x), -1).sum(dim=1)
    height = max(1, HELD // use.module.weight.numel())
    blocks = [use.rows(slice(k, k + height)) for k in range(0, len(use.x), height)]
    squares = torch.cat([squared_norm_of(_weight_grads(b), rounding_margin=rounding_margin) for b in blocks])
    return with_margin(squares, _sum_of_products(use), positions, use.x.dtype) if rounding_margin else squares


def _weight_grads(use: LayerUse) -> Tensor:
    """Per-sample gradients of the weight, (rows, *weight)."""
    width = use.x.device.type == "cpu" and use.x.dtype == torch.float32 and _widths(use.module)[0] % VECTOR == 0
    if width and use.module.weight.shape[1] % VECTOR == 0:
        return _from_kernel(use.module, use.x, use.grad)
    held = use.grad[0, 0].numel() * use.module.weight.shape[1:].numel() * use.module.groups
    height = max(1, HELD // max(1, held))
    blocks = [use.rows(slice(k, k + height)) for k in range(0, len(use.x), height)]
    return torch.cat([_from_patches(block.module, block.x, block.grad) for block in blocks])


def _from_kernel(module: nn.Conv2d, x: Tensor, grad: Tensor) -> Tensor:
    """One convolution in which each sample is a group of its own."""
    rows, shape = len(x), module.weight.shape
    x, padding = _padded(module, x)
    found = _weight_kernel(
        x.reshape(1, -1, *x.shape[2:]),
        (rows * shape[0], *shape[1:]),
        grad.reshape(1, -1, *grad.shape[2:]),
        module.stride,
        padding,
        module.dilation,
        rows * module.groups,
    )
    return found.view(rows, *shape)


def _from_patches(module: nn.Conv2d, x: Tensor, grad: Tensor) -> Tensor:
    return outer_grads(_patches(module, x), _grouped(module, grad)).reshape(len(x), *module.weight.shape)


def _batch_weight_grad(module: nn.Conv2d, x: Tensor, grad: Tensor) -> Tensor:
    """The sum over the batch, by the kernel of an ordinary backward pass."""
    x, padding = _padded(module, x)
    return _weight_kernel(x, module.weight.shape, grad, module.stride, padding, module.dilation, module.groups)


def _patches(module: nn.Conv2d, x: Tensor) -> Tensor:
    """What the kernel meets at each position: (rows * groups, positions, in / groups * kernel)."""
    x = F.pad(x, _pads(module), mode=_pad_mode(module))
    (height, width), (down, right) = module.kernel_size, module.dilation
    windows = x.unfold(2, down * (height - 1) + 1, module.stride[0]).unfold(
        3, right * (width - 1) + 1, module.stride[1]
    )
    windows = windows[..., ::down, ::right].permute(0, 1, 4, 5, 2, 3)
    return windows.reshape(len(x) * module.groups, module.weight.shape[1:].numel(), -1).mT


def _grouped(module: nn.Conv2d, grad: Tensor) -> Tensor:
    """Output gradient as (rows * groups, positions, out / groups)."""
    return grad.reshape(len(grad) * module.groups, -1, grad.shape[2:].numel()).mT


def _pads(module: nn.Conv2d) -> list[int]:
    """Padding as ``F.pad`` takes it: left, right, top, bottom."""
    if module.padding == "same":  # an odd total pads the far side by one more
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    down, right = (0, 0) if isinstance(module.padding, str) else module.padding
    return [right, right, down, down]


def _padded(module: nn.Conv2d, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Input and the padding left to a kernel, which pads with zeros and on both sides alike."""
    left, right, top, bottom = pads = _pads(module)
    if module.padding_mode == "zeros" and left == right and top == bottom:
        return x, (top, left)
    return F.pad(x, pads, mode=_pad_mode(module)), (0, 0)


def _pad_mode(module: nn.Conv2d) -> str:
    return "constant" if module.padding_mode == "zeros" else module.padding_mode


def _widths(module: nn.Conv2d) -> tuple[int, int]:
    """Rows and columns of the matrix that each group applies to a patch."""
    return module.weight.shape[0] // module.groups, module.weight.shape[1:].numel()


def _positions(use: LayerUse) -> int:
    return use.grad.shape[2:].numel()


def _sum_of_products(use: LayerUse) -> Tensor:
    r"""Upper bound of :math:`\sum_t |a_t| |d_t|`, (rows,): Cauchy-Schwarz, each input pixel in at most k patches."""
    x = use.x
    if use.module.padding_mode != "zeros":
        x = F.pad(x, _pads(use.module), mode=_pad_mode(use.module))
    inputs, grads = (squared_norm_of(m) for m in (x, use.grad))
    patches = inputs.mul_(use.module.weight.shape[2:].numel())
    return patches.mul_(grads).sqrt_()


def _bias_radius(use: LayerUse) -> Tensor:
    positions = _positions(use)
    return squared_norm_of(use.grad).mul_(positions).sqrt_().mul_(gamma(positions + 4, use.grad.dtype))
