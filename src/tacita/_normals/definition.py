r"""The definition of float32 normals: from words of 32 bits, by operations that every processor rounds alike.

A pair of normals is :math:`r (\pm c, s)` or :math:`r (s, \pm c)`, made of three words: 63 bits give :math:`u \in (0, 1)`
and :math:`r = \sqrt{-2 \ln u}`; 32 bits give one of four quarters of the circle, and within it :math:`c = \cos t` and
:math:`s = \sin t` with :math:`|t| \le \pi/4`. Logarithm, cosine, sine and root are written out in float32 as sums and
products, each rounded by itself as IEEE 754 says, and operations on int32. So NumPy, PyTorch on any device, C++ and
Triton give the same bits, and a kernel is right if its bits are those of :func:`pairs`.

Law and errors: docs/derivations/noise.md.
Source: Box and Muller (1958), https://doi.org/10.1214/aoms/1177706645. The words are ChaCha20's (RFC 8439).
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

LANES = 64  # blocks of ChaCha20, of 16 words, that make up a group; a power of two, so that no group meets 2^32
PAIRS = 5  # of three words; the last word of a block is not used
GROUP = 2 * PAIRS * LANES  # normals of a group: value (pair, cosine or sine, block) in this order

# Coefficients from the highest power down, each rounded to float32 before the lower ones were fitted.
LOGARITHM = (  # -2 ln(1 - x) / x for x in [0, 1/2]
    3.486881732940674,
    -4.9528985023498535,
    3.941861391067505,
    -1.1845371723175049,
    0.6801363825798035,
    0.35174909234046936,
    0.5037372708320618,
    0.6665264964103699,
    1.0000017881393433,
    2.0,
)
COSINE = (0.0008935071527957916, -0.020855240523815155, 0.25366851687431335, -1.2337005138397217, 1.0)  # cos(pi/2 sqrt g)
SINE = (-0.0045560323633253574, 0.0796605572104454, -0.6459611058235168, 1.570796251296997)  # sin(pi/2 sqrt g) / sqrt g
TWO_LN2 = 1.3862943611198906
SEED, FACTOR, SUMMAND = 0x5F1FFFF9, 0.703952253, 2.38924456  # of 1/sqrt, to 6.5e-4 (Kadlec 2010)

_CHUNK = 64  # groups of one pass of operations, whose memory stays in the cache; a power of two
_ZEROS = memoryview(bytes(64 * LANES * _CHUNK))

Array = Any  # np.ndarray, or a Tensor on any device
Fill = Callable[[bytes, int, np.ndarray], None]  # (key, first group, float32 values of whole groups to write)


def fill(key: bytes, first: int, out: np.ndarray) -> None:
    """Fill ``out``, whole groups, with the normals of ``key`` from group ``first`` on."""
    last, values = first + len(out) // GROUP, out.reshape(-1, PAIRS, 2, LANES)
    for start in range(first // _CHUNK * _CHUNK, last, _CHUNK):
        begin, end = max(start, first), min(start + _CHUNK, last)
        chunk = values[begin - first : end - first]
        chunk[:, :, 0], chunk[:, :, 1] = pairs(*words(key, begin, end - begin))


def words(key: bytes, first: int, groups: int) -> np.ndarray:
    """Return the words for the pairs of groups that do not meet block 2^32, int32 (3, groups, PAIRS, LANES).

    Word j of block i is that of ChaCha20 with the counter i mod 2^32 and the nonce (i div 2^32, 0, 0). Pair p takes the
    words 3 p to 3 p + 2.
    """
    blocks = np.empty((groups, LANES, 16), np.dtype("<i4"))
    cipher = Cipher(algorithms.ChaCha20(key, struct.pack("<QQ", first * LANES, 0)), None).encryptor()
    cipher.update_into(_ZEROS[: blocks.nbytes], blocks.reshape(-1).view(np.uint8).data)
    return blocks[..., : 3 * PAIRS].reshape(groups, LANES, PAIRS, 3).transpose(3, 0, 2, 1).copy()


def gives_the_bits(kernel: Fill) -> bool:
    """Return whether a kernel has the bits of the definition in two groups, one on either side of block 2^32."""
    key, first = bytes(range(32)), 2**32 // LANES - 1
    ours, its = np.empty((2, 2 * GROUP), np.float32)
    fill(key, first, ours)
    kernel(key, first, its)
    return ours.tobytes() == its.tobytes()


def pairs(high: Array, low: Array, angle: Array) -> tuple[Array, Array]:
    """Return the pair of normals of each three words, int32 of any shape; the words are overwritten."""
    real, whole = _dtypes(high)
    mirrored = high >> 31  # all ones where u > 1/2, which is 1 - v then, and v otherwise
    high ^= mirrored
    low ^= mirrored
    low >>= 1
    low &= 0x7FFFFFFF
    v = _float(low)
    v += 0.5
    v *= 2.0**-31
    v += _float(high)  # in units of 2^-32
    bits = v.view(whole)
    x = bits & 0x7FFFFF
    x |= 0x3F000000  # y in [1/2, 1) with v = y 2^-k
    x = (1.0 - x.view(real)).view(whole)
    k = 158 - (bits >> 23)
    k &= ~mirrored
    v *= 2.0**-32
    x ^= bits  # of v, which is x where u = 1 - v
    x &= ~mirrored
    x ^= bits
    square = _polynomial(x.view(real), LOGARITHM)
    square *= x.view(real)
    k = _float(k)
    k *= TWO_LN2
    square += k
    root = _root(square)
    t = angle << 2
    t >>= 2
    t = _float(t)
    t *= 2.0**-30
    g = t * t
    cosine = _polynomial(g, COSINE)
    cosine *= root
    sine = _polynomial(g, SINE)
    sine *= t
    sine *= root
    first, second = cosine.view(whole), sine.view(whole)
    first ^= angle & -(2**31)
    angle <<= 1
    angle >>= 31
    angle &= first ^ second  # all ones where the two change places
    first ^= angle
    second ^= angle
    return cosine, sine


def _root(square: Array) -> Array:
    """Return the square root by three steps of Newton's: a device's own root may be rounded in a way of its own."""
    real, whole = _dtypes(square)
    inverse = (SEED - (square.view(whole) >> 1)).view(real)
    step = inverse * inverse
    step *= square
    step = SUMMAND - step
    inverse *= FACTOR
    inverse *= step
    step = inverse * inverse
    step *= square * 0.5
    step = 1.5 - step
    inverse *= step
    root = square * inverse
    rest = square - root * root
    inverse *= 0.5
    rest *= inverse
    root += rest
    return root


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    value = x * coefficients[0]
    value += coefficients[1]
    for coefficient in coefficients[2:]:
        value *= x
        value += coefficient
    return value


def _float(x: Array) -> Array:
    return x.astype(np.float32) if isinstance(x, np.ndarray) else x.to(torch.float32)


def _dtypes(x: Array) -> tuple[Any, Any]:
    return (np.float32, np.int32) if isinstance(x, np.ndarray) else (torch.float32, torch.int32)
