r"""The rules of convolutions in one, two and three dimensions, and of transposed convolutions.

A convolution applies one matrix at every position, to the patch of the input under the kernel. The gradient of its
weight is a sum of outer products over positions, as for a linear layer. Where it is fast (channels in multiples of 8 on
a CPU), the gradient comes from a convolution in which each sample is a group of its own, and elsewhere from patches. A
transposed convolution has the weight gradient of a convolution that takes the output's gradient as its input, and the
input as its output's gradient. Tensors are (rows, images of one record, channels, *positions).

On a small image the Gram form takes the inner products of patches from those of pixels,
:math:`\sum_k p_{t + k} \cdot p_{s + k}` over the offsets k of the kernel. Pixels are fewer and narrower than patches,
so their products are cheap, and sums over k are taken one axis at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.rules.outer import (
    HELD,
    Gram,
    direct_norms,
    direct_squares,
    gram_is_cheaper,
    gram_of,
    measured_in_parts,
    outer_grads,
    radius,
    squares_of,
    squares_of_grams,
)
from tacita.gradients.rules.rounding import RowNorms, SquaredNorms, held, measure, totals
from tacita.gradients.rules.rule import Call, LayerRule, LayerUse, Parameters, RowWeights, squared_norm_of
from tacita.gradients.rules.transposed import TransposedRule

VECTOR = 8  # channels that a CPU kernel takes at once
PATCHES = 2**18  # elements of patches that are formed at once: they are read again while they are in a cache
ADDITION = 24  # multiplications of a matrix product that take as long as one addition of two windows
AT_ONCE = 2**19  # elements of gradients that are formed for their norms alone: they fit a cache and reuse memory
Ints = int | Sequence[int]


class ConvolutionRule(LayerRule):
    """Weight and bias of a convolution: any stride, padding, dilation and groups.

    Args:
        function: ``torch.nn.functional.conv1d``, ``conv2d`` or ``conv3d``.
        axes: Number of axes of positions.
    """

    def __init__(self, function: Callable[..., Tensor], axes: int) -> None:
        self.function, self.axes = function, axes

    def read(  # noqa: PLR0917 - the arguments of the torch function
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: str | Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> Call:
        kernel, apart = weight.shape[2:], self._by_axis(dilation)
        settings = SimpleNamespace(
            stride=self._by_axis(stride), pads=self._pads(padding, kernel, apart), dilation=apart, groups=groups
        )

        def run(x: Tensor, parameters: Parameters) -> Tensor:
            images = x.reshape(-1, *x.shape[-self.axes - 1 :])
            made = self.function(
                images, parameters["weight"], parameters.get("bias"), stride, padding, dilation, groups
            )
            return made.reshape(*x.shape[: -self.axes - 1], *made.shape[1:])

        return Call(input, {"weight": weight, "bias": bias}, run, settings)

    def split(self, use: LayerUse) -> list[LayerUse]:
        return [replace(use, x=_images(use.x, self.axes), grad=_images(use.grad, self.axes))]

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        found = {"weight": _weight_grads(use)} if "weight" in use.names else {}
        return found | ({"bias": _bias_grads(use)} if "bias" in use.names else {})

    def squared_norms(self, use: LayerUse) -> dict[str, SquaredNorms | Tensor]:
        found: dict[str, SquaredNorms | Tensor] = {"weight": _weight_squares(use)} if "weight" in use.names else {}
        if "bias" in use.names:
            use.kept["bias"] = _bias_grads(use)
            found["bias"] = held(use.kept["bias"])
        return found

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        kept = {n: weights.sum(use.kept[n]) for n in use.names if n in use.kept}
        if len(kept) == len(use.names):
            return kept
        bias_alone = "bias" in use.names and "bias" not in kept
        x, grad = use.weighted(weights) if bias_alone else use.weighted_once(weights)
        if "weight" in use.names and "weight" not in kept:
            kept["weight"] = _weight_grad(use, x.flatten(0, 1), grad.flatten(0, 1), use.settings.groups)
        if bias_alone:
            kept["bias"] = grad.flatten(3).sum(dim=(0, 1, 3))
        return kept

    def positions(self, use: LayerUse) -> int:
        return _positions(use)

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        bias = squared_norm_of(use.grad).mul_(_positions(use)).sqrt_()
        found = {"weight": _sum_of_products(use), "bias": bias}
        return {name: found[name] for name in use.names if name not in use.kept}

    def _by_axis(self, setting: Ints) -> tuple[int, ...]:
        return (setting,) * self.axes if isinstance(setting, int) else tuple(setting) * (self.axes // len(setting))

    def _pads(self, padding: str | Ints, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
        """Return the zeros before and after each axis; ``"same"`` puts one more after the axis if their sum is odd."""
        if padding == "same":
            totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            return [(total // 2, total - total // 2) for total in totals]
        both = self._by_axis(0 if isinstance(padding, str) else padding)
        return [(one, one) for one in both]


class TransposedConvolutionRule(TransposedRule):
    """Weight and bias of a transposed convolution: a convolution's with input and output gradient exchanged.

    Args:
        function: ``torch.nn.functional.conv_transpose1d``, ``conv_transpose2d`` or ``conv_transpose3d``.
        axes: Number of axes of positions.
    """

    def __init__(self, function: Callable[..., Tensor], axes: int) -> None:
        self.function, self.axes = function, axes
        self._plain = ConvolutionRule(function, axes)
        super().__init__(self._plain)

    def read(  # noqa: PLR0917 - the arguments of the torch function
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        dilation: Ints = 1,
    ) -> Call:
        call = self._plain.read(input, weight, bias, stride, padding, dilation, groups)
        extra = self._plain._by_axis(output_padding)
        if any(
            more >= step for more, step in zip(extra, call.settings.stride, strict=True)
        ):  # more than one rounds away
            pads = zip(call.settings.pads, extra, strict=True)
            call.settings.pads = [(before, after - more) for (before, after), more in pads]

        def run(x: Tensor, parameters: Parameters) -> Tensor:
            images = x.reshape(-1, *x.shape[-self.axes - 1 :])
            weight, bias = parameters["weight"], parameters.get("bias")
            made = self.function(images, weight, bias, stride, padding, output_padding, groups, dilation)
            return made.reshape(*x.shape[: -self.axes - 1], *made.shape[1:])

        return replace(call, run=run)


def _images(x: Tensor, axes: int) -> Tensor:
    """Return ``x`` as (rows, images, channels, *positions); it may lack the axis of images if there is one a record."""
    return x.reshape(len(x), -1, *x.shape[-axes - 1 :])


def _weight_squares(use: LayerUse) -> SquaredNorms | Tensor:
    shape, positions, groups = use.shapes["weight"], _positions(use), use.settings.groups
    room = max(HELD // 2**9, use.x[0].numel() + use.grad[0].numel())
    if use.x.shape[1] > 1 or shape.numel() <= room:
        use.kept["weight"] = _weight_grads(use)  # takes no more memory than its factors, and serves the sums
        return held(use.kept["weight"])
    if positions == 1 or gram_is_cheaper(positions, shape[1:].numel(), shape[0] // groups):
        return _of_groups(squares_of(_patches(use, use.x.flatten(0, 1)), _grouped(use, use.grad.flatten(0, 1))), groups)
    if _patch_gram_is_cheaper(use):
        height = max(1, 2 * AT_ONCE // (groups * _padded_pixels(use).numel() ** 2))
        parts = [_squares_from_pixels(part) for part in _in_parts(use, height)]
        if len(parts) == 1:
            return _of_groups(parts[0], groups)
        return torch.cat([totals([[part]])[0] for part in parts]).view(-1, groups).sum(dim=1)
    of_grads = measured_in_parts(_weight_grads(part) for part in _in_parts(use, max(1, AT_ONCE // shape.numel())))
    of_x, kernel = measure(use.x), shape[2:].numel()  # each pixel is in at most so many patches
    patches = of_x._replace(root=of_x.root * kernel**0.5 * (1 + 2.0**-50), added=of_x.added * kernel)
    return direct_squares(of_grads, patches, measure(use.grad), radius(positions, use.x.dtype), use.x.dtype)


def _of_groups(squares: SquaredNorms, groups: int) -> SquaredNorms | Tensor:
    """Return the squares of each record, whose groups have weights of their own."""
    return squares if groups == 1 else totals([[squares]])[0].view(-1, groups).sum(dim=1)


def _in_parts(use: LayerUse, height: int) -> list[LayerUse]:
    return [use.rows(slice(k, k + height)) for k in range(0, len(use.x), height)]


def _patch_gram_is_cheaper(use: LayerUse) -> bool:
    shape, settings, positions = use.shapes["weight"], use.settings, _positions(use)
    out = shape[0] // settings.groups
    taken = patch_gram_cost(_padded_pixels(use), shape[1], shape[2:], settings.stride, settings.dilation)
    return taken + positions**2 * out < positions * shape[1:].numel() * out


def _padded_pixels(use: LayerUse) -> torch.Size:
    return torch.Size(n + sum(both) for n, both in zip(use.x.shape[3:], use.settings.pads, strict=True))


def _squares_from_pixels(use: LayerUse) -> SquaredNorms:
    """Return the weight's squared norms, of each group, from inner products of pixels, for records of one image."""
    settings, groups, x, grad = use.settings, use.settings.groups, use.x.flatten(0, 1), use.grad.flatten(0, 1)
    pixels = F.pad(x, _flat(settings.pads)).reshape(len(x) * groups, -1, *_padded_pixels(use))

    def again(loose: Tensor) -> RowNorms:
        images = loose.view(-1, groups).any(dim=1)
        chosen = loose.view(-1, groups)[images].flatten()
        patches, grads = _patches(use, x[images].double()), _grouped(use, grad[images].double())
        return direct_norms(patches[chosen], grads[chosen])

    of_patches = patch_gram(pixels, use.shapes["weight"][2:], settings.stride, settings.dilation)
    return squares_of_grams(of_patches, gram_of(_grouped(use, grad)), again, roundings=1)


def _weight_grads(use: LayerUse) -> Tensor:
    """Return the per-sample gradients of the weight, (rows, *weight)."""
    shape, images = use.shapes["weight"], use.x.shape[1]
    x, grad = use.x.flatten(0, 1), use.grad.flatten(0, 1)
    by_kernel = x.device.type == "cpu" and x.dtype == torch.float32
    if by_kernel and (shape[0] // use.settings.groups) % VECTOR == 0 and shape[1] % VECTOR == 0:
        found = _from_kernel(use, x, grad)
    else:
        held = grad[0, 0].numel() * shape[1:].numel() * use.settings.groups
        height = max(1, PATCHES // max(1, held))
        pairs = zip(x.split(height), grad.split(height), strict=True)
        products = [outer_grads(_grouped(use, d), _patches(use, a)) for a, d in pairs]  # faster than their transposes
        found = torch.cat([one.mT for one in products]).view(len(x), *shape)
    return found if images == 1 else found.view(-1, images, *shape).sum(dim=1)


def _from_kernel(use: LayerUse, x: Tensor, grad: Tensor) -> Tensor:
    """Return the gradients of each image, from one convolution in which each image is a group of its own."""
    images, shape = len(x), use.shapes["weight"]
    together = replace(use, shapes={"weight": torch.Size([images * shape[0], *shape[1:]])})
    x = x.reshape(1, -1, *x.shape[2:])
    found = _weight_grad(together, x, grad.reshape(1, -1, *grad.shape[2:]), images * use.settings.groups)
    return found.view(images, *shape)


def _weight_grad(use: LayerUse, x: Tensor, grad: Tensor, groups: int) -> Tensor:
    """Return the weight's gradient, summed over the batch, by the kernel of an ordinary backward pass."""
    settings, shape = use.settings, use.shapes["weight"]
    x, padding = _padded(use, x)
    like = x.new_empty(1).expand(shape)
    axes = len(settings.stride)
    made: Any = torch.ops.aten.convolution_backward(
        grad, x, like, None, settings.stride, padding, settings.dilation, False, [0] * axes, groups,
        [False, True, False],
    )  # fmt: skip
    return made[1]


def _bias_grads(use: LayerUse) -> Tensor:
    return use.grad.flatten(3).sum(dim=(1, 3))


def _patches(use: LayerUse, x: Tensor) -> Tensor:
    """Return the patch under the kernel at each position: (images * groups, positions, in / groups * kernel)."""
    kernel, settings = use.shapes["weight"][2:], use.settings
    axes = len(kernel)
    windows = F.pad(x, _flat(settings.pads))
    for k in range(axes):
        size = settings.dilation[k] * (kernel[k] - 1) + 1
        windows = windows.unfold(2 + k, size, settings.stride[k])
    for k in range(axes):  # the windows' own axes come last
        windows = windows[(..., slice(None, None, settings.dilation[k]), *[slice(None)] * (axes - 1 - k))]
    windows = windows.permute(0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    return windows.reshape(len(x) * settings.groups, use.shapes["weight"][1:].numel(), -1).mT


def _grouped(use: LayerUse, grad: Tensor) -> Tensor:
    """Return the output gradient as (images * groups, positions, out / groups)."""
    return grad.reshape(len(grad) * use.settings.groups, -1, grad.shape[2:].numel()).mT


def _flat(pads: Sequence[tuple[int, int]]) -> list[int]:
    """Return the padding as ``F.pad`` takes it, the last axis first."""
    return [side for both in reversed(pads) for side in both]


def _padded(use: LayerUse, x: Tensor) -> tuple[Tensor, list[int]]:
    """Return the input, padded where needed, and the padding left to a kernel, which pads both sides alike."""
    pads = use.settings.pads
    if all(before == after for before, after in pads):
        return x, [before for before, _ in pads]
    return F.pad(x, _flat(pads)), [0] * len(pads)


def _positions(use: LayerUse) -> int:
    return use.grad.shape[1] * prod(use.grad.shape[3:])


def _sum_of_products(use: LayerUse) -> Tensor:
    r"""Bound :math:`\sum_t |a_t| |d_t|` from above, (rows,): Cauchy-Schwarz, each pixel being in at most k patches."""
    inputs, grads = squared_norm_of(use.x), squared_norm_of(use.grad)
    return inputs.mul_(use.shapes["weight"][2:].numel()).mul_(grads).sqrt_()


def patch_gram(pixels: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Gram:
    """Return the inner products of all pairs of patches, (images, positions, positions).

    ``pixels`` are (images, channels, *pixels), with the padding in place.

    A product of two pixels is rounded as in :func:`gram_of`, and passes at most one addition for each further offset
    along each axis.
    """
    sizes, axes = pixels.shape[2:], len(kernel)
    of_pixels = gram_of(pixels.flatten(2).mT)
    total = of_pixels.products.view(-1, *sizes, *sizes)
    for axis in reversed(range(axes)):
        length = _length(sizes[axis], kernel[axis], stride[axis], dilation[axis])
        windows = [_window(total, axis, axes, k * dilation[axis], length, stride[axis]) for k in range(kernel[axis])]
        total = windows[0].clone()
        for window in windows[1:]:
            total += window
    positions = total.shape[1 : 1 + axes].numel()
    terms = of_pixels.terms + sum(kernel) - axes
    return Gram(total.reshape(-1, positions, positions), of_pixels.width * prod(kernel), terms)


def patch_gram_cost(
    pixels: Sequence[int], channels: int, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> int:
    """Return what :func:`patch_gram` takes for one image, in multiplications of a matrix product."""
    sizes = list(pixels)
    total = prod(sizes) ** 2 * channels
    for axis in reversed(range(len(kernel))):
        sizes[axis] = _length(sizes[axis], kernel[axis], stride[axis], dilation[axis])
        total += ADDITION * kernel[axis] * prod(sizes) ** 2
    return total


def _length(size: int, kernel: int, stride: int, dilation: int) -> int:
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def _window(gram: Tensor, axis: int, axes: int, start: int, length: int, stride: int) -> Tensor:  # noqa: PLR0917
    """Return the entries whose both pixels lie ``start`` after a position's first one along ``axis``."""
    chosen: list[slice] = [slice(None)] * gram.ndim
    chosen[1 + axis] = chosen[1 + axes + axis] = slice(start, start + (length - 1) * stride + 1, stride)
    return gram[tuple(chosen)]
