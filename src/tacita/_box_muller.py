"""Box and Muller's normals from uniform words, in float64.

Word i of the first half of a block gives a radius, and its partner in the second half an angle; value i is the radius
times the cosine, and its partner's the radius times the sine. How far the laws are from the normal one:
docs/derivations/noise.md.

Source: Box and Muller (1958), https://doi.org/10.1214/aoms/1177706645.
"""

import math
from collections.abc import Callable

import numpy as np
import torch

PAIR = 512  # normals i and i + 512 of a block of 1024 come from one pair of words
BLOCK = 2 * PAIR
CHUNK64 = 64 * BLOCK  # values of one pass of operations: many for a call, few enough for the cache

Fill = Callable[[np.ndarray], None]  # writes the next bytes of a stream into a contiguous uint8 array


class _Scratch:
    """Memory for one chunk, which is one thread's alone meanwhile."""

    def __init__(self) -> None:
        self.words = np.empty(CHUNK64, np.dtype("<i8"))
        self.radius, self.angle, self.product = np.empty((3, CHUNK64 // 2))


_idle: list[_Scratch] = []  # kept, as fresh memory costs more than the arithmetic


def fill_float64(out: np.ndarray, fill: Fill) -> None:
    """Fill ``out``, a number of whole blocks, with float64 normals (or these rounded, as its dtype says).

    Args:
        out: Contiguous, 1-D.
        fill: Gives the words, of 64 bits.
    """
    try:
        scratch = _idle.pop()  # atomic, as append is
    except IndexError:
        scratch = _Scratch()
    for start in range(0, len(out), CHUNK64):
        _chunk64(out[start : start + CHUNK64], fill, scratch)
    _idle.append(scratch)


def _chunk64(out: np.ndarray, fill: Fill, scratch: _Scratch) -> None:
    """Fill at most one chunk.

    Every operation is IEEE arithmetic or runs over whole vector registers in one thread, so that a value's bits depend
    on its two words alone.
    """
    half = len(out) // 2
    words, radius, angle = scratch.words[: 2 * half], scratch.radius[:half], scratch.angle[:half]
    product = scratch.product[:half]
    fill(words.view(np.uint8))
    np.right_shift(words, 11, out=words)  # arithmetic: 53 signed bits, in [-2^52, 2^52)
    pairs = words.reshape(-1, 2, PAIR)
    np.copyto(radius.reshape(-1, PAIR), pairs[:, 0])
    np.copyto(angle.reshape(-1, PAIR), pairs[:, 1])
    radius += 2.0**52 + 1  # in [1, 2^53], exact
    radius *= 2.0**-53
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    angle *= math.pi * 2.0**-52
    values = out.reshape(-1, 2, PAIR)
    for column, function in enumerate((torch.cos, torch.sin)):  # torch's are vectorised in float64, NumPy's are not
        function(torch.from_numpy(angle), out=torch.from_numpy(product))
        product *= radius
        np.copyto(values[:, column], product.reshape(-1, PAIR), casting="same_kind")
