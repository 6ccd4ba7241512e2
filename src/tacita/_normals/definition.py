r"""The definition of float32 normals: from words of 32 bits, by operations that every processor rounds alike.

A pair of normals is :math:`r (\pm c, s)` or :math:`r (s, \pm c)`, made of three words: 63 bits give :math:`u \in (0,
1)` and :math:`r = \sqrt{-2 \ln u}`; 32 bits give one of four quarters of the circle, and within it :math:`c = \cos t`
and :math:`s = \sin t` with :math:`|t| \le \pi/4`. Logarithm, cosine, sine and root are written out in float32 as sums
and products, each rounded by itself as IEEE 754 says, and operations on int32. So NumPy, PyTorch on any device, C++
and Triton give the same bits.

Law and errors: docs/derivations/noise.md.
Source: Box and Muller (1958), https://doi.org/10.1214/aoms/1177706645. The words are ChaCha20's (RFC 8439).
"""

import struct
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
COSINE = (
    0.0008935071527957916,
    -0.020855240523815155,
    0.25366851687431335,
    -1.2337005138397217,
    1.0,
)  # cos(pi/2 sqrt g)
SINE = (-0.0045560323633253574, 0.0796605572104454, -0.6459611058235168, 1.570796251296997)  # sin(pi/2 sqrt g) / sqrt g
TWO_LN2 = 1.3862943611198906
SEED, FACTOR, SUMMAND = 0x5F1FFFF9, 0.703952253, 2.38924456  # of 1/sqrt, to 6.5e-4 (Kadlec 2010)

_CHUNK = 64  # groups of one pass of operations, whose memory stays in the cache; a power of two
_ZEROS = memoryview(bytes(64 * LANES * _CHUNK))

Array = Any  # np.ndarray, or a Tensor on any device


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


def pairs(high: Array, low: Array, angle: Array) -> tuple[Array, Array]:
    """Return the pair of normals of each three words, int32 of any shape."""
    real, whole = (np.float32, np.int32) if isinstance(high, np.ndarray) else (torch.float32, torch.int32)
    mirrored = high >> 31  # all ones where u > 1/2: it is 1 - v 2^-32 then, and v 2^-32 otherwise
    low = ((low ^ mirrored) >> 1) & 0x7FFFFFFF
    v = (_float(low) + 0.5) * 2.0**-31 + _float(high ^ mirrored)
    bits, scaled = v.view(whole), (v * 2.0**-32).view(whole)
    below = (1.0 - ((bits & 0x7FFFFF) | 0x3F000000).view(real)).view(whole)  # 1 - y, y in [1/2, 1), u = y 2^-k
    x = (below ^ ((below ^ scaled) & mirrored)).view(real)
    k = _float((158 - (bits >> 23)) & ~mirrored)
    square = _polynomial(x, LOGARITHM) * x + k * TWO_LN2
    inverse = (SEED - (square.view(whole) >> 1)).view(real)
    inverse = inverse * FACTOR * (SUMMAND - inverse * inverse * square)
    inverse = inverse * (1.5 - inverse * inverse * (square * 0.5))
    root = square * inverse  # a device's own root may be rounded in a way of its own
    root = root + (square - root * root) * (inverse * 0.5)
    t = _float((angle << 2) >> 2) * 2.0**-30
    g = t * t
    first = (_polynomial(g, COSINE) * root).view(whole) ^ (angle & -(2**31))
    second = (_polynomial(g, SINE) * t * root).view(whole)
    change = (first ^ second) & ((angle << 1) >> 31)  # all ones where the two change places
    return (first ^ change).view(real), (second ^ change).view(real)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    value = x * coefficients[0]
    value += coefficients[1]
    for coefficient in coefficients[2:]:
        value *= x
        value += coefficient
    return value


def _float(x: Array) -> Array:
    return x.astype(np.float32) if isinstance(x, np.ndarray) else x.to(torch.float32)
