"""Box and Muller's normals from uniform words, in float64 and, at less than half the time, in float32.

Word i of the first half of a block gives a radius, and its partner in the second half an angle; value i is the radius
times the cosine, and its partner's the radius times the sine. How far the laws are from the normal one:
docs/derivations/noise.md.

Source: Box and Muller (1958), https://doi.org/10.1214/aoms/1177706645.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np
import torch

PAIR = 512  # normals i and i + 512 of a block of 1024 come from one pair of words
BLOCK = 2 * PAIR
CHUNK64 = 64 * BLOCK  # values of one pass of operations: many for a call, few enough for the cache
CHUNK32 = 128 * BLOCK  # with two threads of torch each takes half of an operation
EDGE = 2.0**-12  # a float32 uniform this near to 0 or 1 is computed anew, in float64 and with a second word

Fill = Callable[[np.ndarray], None]  # writes the next bytes of a stream into a contiguous uint8 array
Scratch = TypeVar("Scratch")
Second = Callable[[np.ndarray], np.ndarray]  # places of radius words -> a word of 64 bits for each


class _Scratch64:
    """Memory for one chunk, which is one thread's alone meanwhile."""

    def __init__(self) -> None:
        self.words = np.empty(CHUNK64, np.dtype("<i8"))
        self.radius, self.angle, self.product = np.empty((3, CHUNK64 // 2))


class _Scratch32:
    """Memory for one float32 chunk, as tensors with a row for each block, and as the arrays behind them."""

    def __init__(self) -> None:
        self.words = torch.empty(CHUNK32 // BLOCK, 2, PAIR, dtype=torch.int32)
        self.radius, self.angle, self.product = torch.empty(3, CHUNK32 // BLOCK, PAIR).unbind(0)
        self.bytes = self.words.view(-1).numpy().view(np.uint8)
        self.uniforms = self.radius.view(-1).numpy()
        self.spare = self.product.view(-1).numpy().view(bool)


class _Lender(Generic[Scratch]):
    """Lends scratch memory, and keeps it, as fresh memory costs more than the arithmetic."""

    def __init__(self, make: Callable[[], Scratch]) -> None:
        self._make, self._idle = make, list[Scratch]()

    @contextmanager
    def __call__(self) -> Iterator[Scratch]:
        try:
            scratch = self._idle.pop()  # atomic, as append is
        except IndexError:
            scratch = self._make()
        yield scratch
        self._idle.append(scratch)


_scratch64, _scratch32 = _Lender(_Scratch64), _Lender(_Scratch32)


def fill_float64(out: np.ndarray, fill: Fill) -> None:
    """Fill ``out``, a number of whole blocks, with float64 normals (or these rounded, as its dtype says).

    Args:
        out: Contiguous, 1-D.
        fill: Gives the words, of 64 bits.
    """
    with _scratch64() as scratch:
        for start in range(0, len(out), CHUNK64):
            _chunk64(out[start : start + CHUNK64], fill, scratch)


def _chunk64(out: np.ndarray, fill: Fill, scratch: _Scratch64) -> None:
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


def fill_float32(out: np.ndarray, first: int, fill: Fill, second: Second) -> None:
    """Fill ``out``, a number of whole blocks, with float32 normals.

    Args:
        out: Contiguous, 1-D, float32.
        first: Place of its first value in the stream.
        fill: Gives the words, of 32 bits.
        second: Gives the words that continue those of the radius, by their places in the stream.
    """
    edges = []
    with _scratch32() as scratch:
        for start in range(0, len(out), CHUNK32):
            places, words = _chunk32(out[start : start + CHUNK32], fill, scratch)
            if places.size:
                edges.append((places + start, words))
    if edges:
        places, words = (np.concatenate(parts) for parts in zip(*edges, strict=True))
        _continue_words(out, places, words, second(places + first))


def _chunk32(out: np.ndarray, fill: Fill, scratch: _Scratch32) -> tuple[np.ndarray, np.ndarray]:
    """Fill at most one chunk, by torch's own vectorised functions and threads.

    Returns:
        The places in ``out`` whose radius words lie at either end of their range, and the pairs of words, (places, 2).
    """
    blocks = len(out) // BLOCK
    words, radius, angle, product = scratch.words, scratch.radius, scratch.angle, scratch.product
    if blocks < len(words):
        words, radius, angle, product = words[:blocks], radius[:blocks], angle[:blocks], product[:blocks]
    fill(scratch.bytes[: 4 * len(out)])
    of_radius, of_angle = words.unbind(1)
    of_radius.bitwise_and_(2**31 - 1)
    radius.copy_(of_radius)
    radius.mul_(2.0**-31)
    uniforms = scratch.uniforms[: len(out) // 2]
    low, high = scratch.spare[: len(uniforms)], scratch.spare[len(uniforms) : 2 * len(uniforms)]
    np.less(uniforms, np.float32(EDGE), out=low)
    np.greater(uniforms, np.float32(1 - EDGE), out=high)
    edges = np.flatnonzero(np.logical_or(low, high, out=low))
    radius.log_().mul_(-2.0).sqrt_()
    angle.copy_(of_angle)
    angle.mul_(math.pi * 2.0**-31)
    cosines, sines = torch.from_numpy(out).view(blocks, 2, PAIR).unbind(1)
    torch.mul(torch.cos(angle, out=product), radius, out=cosines)
    torch.mul(torch.sin(angle, out=product), radius, out=sines)
    if not edges.size:
        return edges, edges
    rows, columns = edges // PAIR, edges % PAIR
    return rows * BLOCK + columns, words.numpy()[rows, :, columns]


def _continue_words(out: np.ndarray, places: np.ndarray, words: np.ndarray, second: np.ndarray) -> None:
    """Compute the pairs of normals at ``places`` anew, in float64 and from radius words that go on for 53 bits.

    31 bits would end the tail at 6.6 standard deviations, and float32 has few numbers near 1, where radii are small.
    """
    word = words[:, 0].astype(np.float64)
    rest = ((second >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    low = words[:, 0] < 2**30
    u = np.where(low, word + rest, 2.0**30) * 2.0**-31
    below_one = np.where(low, 0.5, (2.0**31 - word) - rest) * 2.0**-31
    radius = np.sqrt(-2 * np.where(low, np.log(u), np.log1p(-below_one)))
    angle = words[:, 1] * (math.pi * 2.0**-31)
    out[places], out[places + PAIR] = radius * np.cos(angle), radius * np.sin(angle)
