r"""Inner products of patches, from inner products of pixels: the Gram form of a convolution on a small image.

Two patches have the inner product :math:`\sum_k p_{t + k} \cdot p_{s + k}` over the offsets k of the kernel. Pixels are
fewer and narrower than patches, so their products are cheap, and sums over k are taken one axis at a time.

Tensors are (images, channels, *pixels), with the padding in place. Everything here is private.
"""

from collections.abc import Sequence
from math import prod

from torch import Tensor

from tacita.gradients.rules.outer import Gram, gram_of

ADDITION = 24  # multiplications of a matrix product that take as long as one addition of two windows


def patch_gram(pixels: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Gram:
    """Return the inner products of all pairs of patches, (images, positions, positions).

    A product of two pixels is rounded as in :func:`gram_of`, and passes at most one addition for each further offset
    along each axis.
    """
    sizes, axes = pixels.shape[2:], len(kernel)
    of_pixels = gram_of(pixels.flatten(2).mT)
    total = of_pixels.products.view(-1, *sizes, *sizes)
    for axis in reversed(range(axes)):
        length = _positions(sizes[axis], kernel[axis], stride[axis], dilation[axis])
        windows = [_window(total, axis, axes, k * dilation[axis], length, stride[axis]) for k in range(kernel[axis])]
        total = windows[0].clone()
        for window in windows[1:]:
            total += window
    positions = total.shape[1 : 1 + axes].numel()
    terms = of_pixels.terms + sum(kernel) - axes
    return Gram(total.reshape(-1, positions, positions), of_pixels.width * prod(kernel), terms)


def cost(
    pixels: Sequence[int], channels: int, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> int:
    """Return what :func:`patch_gram` takes for one image, in multiplications of a matrix product."""
    sizes = list(pixels)
    total = prod(sizes) ** 2 * channels
    for axis in reversed(range(len(kernel))):
        sizes[axis] = _positions(sizes[axis], kernel[axis], stride[axis], dilation[axis])
        total += ADDITION * kernel[axis] * prod(sizes) ** 2
    return total


def _positions(size: int, kernel: int, stride: int, dilation: int) -> int:
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def _window(gram: Tensor, axis: int, axes: int, start: int, length: int, stride: int) -> Tensor:  # noqa: PLR0917
    """Return the entries whose both pixels lie ``start`` after a position's first one along ``axis``."""
    chosen: list[slice] = [slice(None)] * gram.ndim
    chosen[1 + axis] = chosen[1 + axes + axis] = slice(start, start + (length - 1) * stride + 1, stride)
    return gram[tuple(chosen)]
