r"""Integers with an exact law, drawn from a stream: rounded normals.

Proofs: docs/derivations/hardened-noise.md.
Source: Box and Muller (1958), https://doi.org/10.1214/aoms/1177706645.

Each word of the stream holds the first digits of a real number. Its further digits lie 2^60 words later and are read
only if they are needed. Integers are computed in float64 with a bound of the error. An integer that is in doubt within
this bound is computed again in interval arithmetic, with more and more digits until it is certain. So a value is a
function of the digits alone: ideal digits give the exact law, including its tails, and every machine gives the same
value.
"""

import math
from typing import Any

import numpy as np
import torch
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import to_int

from tacita import _validate
from tacita._box_muller import BLOCK, CHUNK64, PAIR
from tacita._normals import in_threads
from tacita._stream import LANE, PIECE, Stream

LARGEST_SCALE = 2.0**36  # for larger scales, float64 leaves many values in doubt
UNIT = 2.0**-53

# Bound of the error in float64, in units of 2^-53 times the scale: LINEAR r + INVERSE (1 + 2^-10 / u) / r.
LINEAR = 32.0
INVERSE = 2.5

_Found = tuple[np.ndarray, np.ndarray]  # integers, and which of them are in doubt


def rounded_normals(stream: Stream, count: int, scale: float, offset: int = 0) -> np.ndarray:
    r"""Draw ``count`` integers :math:`\lfloor \sigma z + 1/2 \rfloor`, int64, for real standard normals z, exactly.

    The law is :math:`P(k) = \Phi((k + 1/2)/\sigma) - \Phi((k - 1/2)/\sigma)` with :math:`\sigma` = ``scale``. Value i
    is a function of (key, ``offset`` + i) alone. An integer that does not fit int64 wraps.

    Raises:
        ValueError: ``scale`` is negative, not finite, or above 2^36.

    Example:
        >>> from tacita.random import Key
        >>> stream = Key.insecure(0).stream("noise")
        >>> draws = rounded_normals(stream, 1000, 0.5)
        >>> draws.dtype, bool((draws[900:] == rounded_normals(stream, 100, 0.5, offset=900)).all())
        (dtype('int64'), True)
    """
    if not 0 <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale must be in [0, 2^36], got {scale}: choose a coarser grid.")
    scale = float(scale)
    count = _validate.count("count", count, at_least=0)
    offset = _validate.count("offset", offset, at_least=0)
    first = offset // BLOCK * BLOCK
    covered = -(-(offset + count) // BLOCK) * BLOCK - first if count else 0  # whole blocks, piece by piece in threads
    out = np.zeros(covered, np.int64)

    def piece(start: int) -> None:
        _fill(stream, scale, first + start, out[start : start + PIECE])

    in_threads(piece, range(0, covered if scale else 0, PIECE))  # scale 0: all values are 0
    return out[offset - first : offset - first + count]


def wrapped(whole: torch.Tensor) -> torch.Tensor:
    """Reduce int64 integers modulo 2^53 into [-2^52, 2^52), where float64 represents each of them.

    The reduction commutes with sums, including sums that wrapped at 2^64: a noisy sum, reduced, is the same whether the
    sum was reduced before or not. So it is post-processing of the release, however large the sum is.
    """
    return ((whole + 2**52) & (2**53 - 1)) - 2**52


def _fill(stream: Stream, scale: float, first: int, out: np.ndarray) -> None:
    """Fill ``out``, whole blocks, with the values from ``first`` on."""
    for start in range(0, len(out), CHUNK64):
        values = out[start : start + CHUNK64]
        drawn = stream.words(len(values), first + start).view(np.int64)
        pairs, columns = drawn.reshape(-1, 2, PAIR), values.reshape(-1, 2, PAIR)
        found = _nearest(pairs[:, 0].reshape(-1), pairs[:, 1].reshape(-1), scale)
        for column, (integers, doubtful) in enumerate(found):
            columns[:, column] = integers.reshape(-1, PAIR)
            for place in np.flatnonzero(doubtful):
                row, lane = divmod(int(place), PAIR)
                of_u = first + start + row * BLOCK + lane
                columns[row, column, lane] = _refined(stream, of_u, of_u + PAIR, scale, sine=bool(column))


def _nearest(u_words: np.ndarray, t_words: np.ndarray, scale: float) -> list[_Found]:
    r"""Return, for each pair of words, the integers nearest to :math:`\sigma r \cos t` (and sin) and where in doubt.

    u consists of the first 63 bits m of its word and the digits that follow, so it is in [m, m + 1] 2^-63. t is
    :math:`\pi` times the signed word, with its digits, likewise.
    """
    u = (u_words.view(np.uint64) >> np.uint64(1)).view(np.int64) * 2.0**-63
    angle = t_words * (math.pi * 2.0**-63)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # u = 0 or 1: in doubt
        radius = np.log(u)
        np.abs(radius, out=radius)
        radius *= 2.0
        np.sqrt(radius, out=radius)
        bound = np.divide(2.0**-10, u, out=u)
        bound += 1.0
        bound /= radius
        bound *= INVERSE * UNIT * scale
        bound += radius * (LINEAR * UNIT * scale)
        radius *= scale
        return [
            _decided(function(torch.from_numpy(angle)).numpy(), radius, bound) for function in (torch.cos, torch.sin)
        ]


def _decided(values: np.ndarray, radius: np.ndarray, bound: np.ndarray) -> _Found:
    """Return the integers nearest to ``values * radius``, and where ``bound`` is too large for them to be certain."""
    values *= radius
    integers = np.rint(values)
    values -= integers  # exact
    np.abs(values, out=values)
    values += bound
    doubtful = ~(values < 0.5)  # written so that NaN is in doubt
    if doubtful.any():
        integers[doubtful] = 0.0
    return integers.astype(np.int64), doubtful


def _refined(stream: Stream, of_u: int, of_t: int, scale: float, *, sine: bool) -> int:
    """Return the integer nearest to the real value whose digits begin at words ``of_u`` and ``of_t``."""
    count = 1
    while True:
        iv = _interval(64 * count + 64)
        u, bits = _digits(stream, of_u, count)
        t, t_bits = _digits(stream, of_t, count)
        u, bits = u >> 1 if count == 1 else _without_bit(u, count), bits - 1
        if u:
            t = t - (1 << t_bits) if t >> (t_bits - 1) else t  # signed
            radius = iv.sqrt(-2 * iv.log(_between(iv, u, bits)))
            angle = iv.pi * _between(iv, t, t_bits - 1)
            below, above = (scale * radius * (iv.sin(angle) if sine else iv.cos(angle)) + iv.mpf(0.5))._mpi_
            if (lowest := to_int(below, "f")) == to_int(above, "f"):
                return (lowest + 2**63) % 2**64 - 2**63
        count += 1


def _without_bit(u: int, count: int) -> int:
    """Return the digits without the last bit of the first word, which the float64 path does not use."""
    rest = 64 * (count - 1)
    return (u >> (rest + 1) << rest) | (u & ((1 << rest) - 1))


def _digits(stream: Stream, place: int, count: int) -> tuple[int, int]:
    """Return the first ``count`` words of the real number that begins at ``place``, as one integer, and their bits."""
    value = 0
    for lane in range(count):
        value = (value << 64) | int(stream.words(1, place + lane * LANE)[0])
    return value, 64 * count


def _interval(precision: int) -> Any:
    """Create a context of interval arithmetic; another thread may change the precision of mpmath's shared one."""
    context = MPIntervalContext()
    context.prec = precision
    return context


def _between(iv: Any, digits: int, bits: int) -> Any:
    """Return the interval of all numbers whose first digits are these."""
    low, high = (iv.ldexp(iv.mpf(end), -bits) for end in (digits, digits + 1))
    return iv.mpf([low.a, high.b])
