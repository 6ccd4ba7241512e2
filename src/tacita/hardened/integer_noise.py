r"""Integers with an exact law, drawn from a stream: rounded normals and discrete Gaussians.

Proofs: docs/derivations/hardened-noise.md.
Source: Box and Muller (1958), https://doi.org/10.1214/aoms/1177706645; Canonne, Kamath and Steinke (2020),
https://arxiv.org/abs/2004.00010, for the discrete Gaussian.

Each word of the stream holds the first digits of a real number. Its further digits lie 2^60 words later and are read
only if they are needed. Integers are computed in float64 with a bound of the error. An integer that is in doubt within
this bound is computed again in interval arithmetic, with more and more digits until it is certain. So a value is a
function of the digits alone: ideal digits give the exact law, including its tails, and every machine gives the same
value.
"""

import math
from collections.abc import Callable
from functools import lru_cache
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
REGION = 2**50  # words for one role in one attempt; an attempt has four roles
# The roles: words of u, first bits of the acceptance coins, their further digits, words of t.
RADIUS_WORDS, UNITS, MORE, ANGLE_WORDS = range(4)

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
    return _in_blocks(_rounded, stream, count, _checked(scale), offset)


def discrete_gaussians(stream: Stream, count: int, scale: float, offset: int = 0) -> np.ndarray:
    r"""Draw ``count`` integers, int64, with :math:`P(k) \propto e^{-k^2 / 2 \sigma^2}` and :math:`\sigma` = ``scale``.

    The law is exact. A rounded normal k is accepted with probability :math:`w_k / w_0`, where :math:`w_k =
    e^{-k^2/2\sigma^2} / \int_{k-1/2}^{k+1/2} e^{-y^2/2\sigma^2} dy`, and drawn again otherwise. Value i is a function
    of (key, ``offset`` + i) alone.

    Raises:
        ValueError: ``scale`` is negative, not finite, or above 2^36.
    """
    return _in_blocks(_discrete, stream, count, _checked(scale), offset)


def wrapped(whole: torch.Tensor) -> torch.Tensor:
    """Reduce int64 integers modulo 2^53 into [-2^52, 2^52), where float64 represents each of them.

    The reduction commutes with sums, including sums that wrapped at 2^64: a noisy sum, reduced, is the same whether the
    sum was reduced before or not. So it is post-processing of the release, however large the sum is.
    """
    return ((whole + 2**52) & (2**53 - 1)) - 2**52


def _checked(scale: float) -> float:
    if not 0 <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale must be in [0, 2^36], got {scale}: choose a coarser grid.")
    return float(scale)


def _in_blocks(
    fill: Callable[[Stream, float, int, np.ndarray], None], stream: Stream, count: int, scale: float, offset: int
) -> np.ndarray:
    """Compute whole blocks, piece by piece in threads, and return the values that were asked for."""
    count = _validate.count("count", count, at_least=0)
    offset = _validate.count("offset", offset, at_least=0)
    first = offset // BLOCK * BLOCK
    covered = -(-(offset + count) // BLOCK) * BLOCK - first if count else 0
    out = np.zeros(covered, np.int64)

    def piece(start: int) -> None:
        fill(stream, scale, first + start, out[start : start + PIECE])

    in_threads(piece, range(0, covered if scale else 0, PIECE))  # scale 0: all values are 0
    return out[offset - first : offset - first + count]


# Rounded normals.


def _rounded(stream: Stream, scale: float, first: int, out: np.ndarray) -> None:
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


def _nearest(u_words: np.ndarray, t_words: np.ndarray, scale: float, *, sine: bool = True) -> list[_Found]:
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
        functions = (torch.cos, torch.sin) if sine else (torch.cos,)
        return [_decided(function(torch.from_numpy(angle)).numpy(), radius, bound) for function in functions]


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


# Discrete Gaussians.


def _discrete(stream: Stream, scale: float, first: int, out: np.ndarray) -> None:
    """Fill ``out``, whole blocks, with the values from ``first`` on."""
    for start in range(0, len(out), CHUNK64):
        values = out[start : start + CHUNK64]
        _rounded(stream, scale, first + start, values)
        units = np.frombuffer(stream.bytes(2 * len(values), 8 * UNITS * REGION + 2 * (first + start)), "<u2")
        left = np.flatnonzero(_may_be_rejected_early(values, units, scale))
        if len(left):
            values[left] = _redrawn(stream, scale, first + start + left, values[left], units[left])


def _redrawn(stream: Stream, scale: float, places: np.ndarray, integers: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Accept or reject each value, whose coin begins with ``units``; redraw rejected ones until all are accepted."""
    integers, left, base = integers.copy(), np.arange(len(places)), 0
    digits = np.stack([units.astype(np.uint64), stream.words_at(MORE * REGION + places)])
    while len(left):
        more = base + MORE * REGION + places[left]
        left = left[~_accepted(stream, scale, more, integers[left], digits)]
        base += 4 * REGION
        integers[left] = _rounded_at(stream, scale, base, places[left])
        digits = stream.words_at(base + MORE * REGION + places[left])[None]
    return integers


def _may_be_rejected_early(integers: np.ndarray, units: np.ndarray, scale: float) -> np.ndarray:
    """Return where a coin that begins with these 16 bits may reject."""
    if _largest_rejection(np.array([max(int(integers.max()), -int(integers.min()))]), scale)[0] < 2.0**-17:
        return units == 2**16 - 1
    return _may_be_rejected(integers, (units + 1.0) * 2.0**-16, scale)


def _may_be_rejected(integers: np.ndarray, above: np.ndarray, scale: float) -> np.ndarray:
    """Return where a coin that is below ``above`` may reject."""
    return ~(above < (1 - 1e-12) - _largest_rejection(integers, scale))


def _largest_rejection(integers: np.ndarray, scale: float) -> np.ndarray:
    r"""Return an upper bound of the probability of rejection, up to rounding: :math:`k^2 / 8 \sigma^4`."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.where(integers == 0, 0.0, 0.5 * (integers / scale / scale / 2) ** 2)


def _rounded_at(stream: Stream, scale: float, base: int, places: np.ndarray) -> np.ndarray:
    """Return a rounded normal (from a cosine) for each of ``places``, for the attempt that begins at ``base``."""
    of_u, of_t = base + places, base + ANGLE_WORDS * REGION + places
    u, t = (stream.words_at(where).view(np.int64) for where in (of_u, of_t))
    integers, doubtful = _nearest(u, t, scale, sine=False)[0]
    for i in np.flatnonzero(doubtful):
        integers[i] = _refined(stream, int(of_u[i]), int(of_t[i]), scale, sine=False)
    return integers


def _accepted(stream: Stream, scale: float, more: np.ndarray, integers: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """Return whether each value's coin is below its probability of acceptance.

    The coin's digits begin with ``digits`` and continue from word ``more``.
    """
    coin = digits[0] * 2.0**-64 if len(digits) == 1 else (digits[0] + digits[1] * 2.0**-64) * 2.0**-16
    accepted = ~_may_be_rejected(integers, coin + 2.0**-50, scale)
    for k in np.unique(np.abs(integers[~accepted])):
        low, high = _chance(int(k), scale, 64)
        at_k = ~accepted & (np.abs(integers) == k)
        sure = at_k & (coin + 2.0**-50 < low)
        accepted |= sure
        for i in np.flatnonzero(at_k & ~sure & ~(coin - 2.0**-50 > high)):
            accepted[i] = _accepted_exactly(stream, scale, int(k), int(more[i]), digits[:, i].tolist())
    return accepted


def _accepted_exactly(stream: Stream, scale: float, k: int, more: int, begun: list[int]) -> bool:
    """Compare the coin with the probability of acceptance, using more digits until the answer is certain."""
    value, bits = (begun[0], 64) if len(begun) == 1 else ((begun[0] << 64) | begun[1], 80)
    lane = 1
    while True:
        iv = _interval(bits + 64)
        below, above = (_between(iv, value, bits) - _enclosed_chance(iv, k, scale))._mpi_
        if _sign(above) <= 0:
            return True
        if _sign(below) >= 0:
            return False
        value = (value << 64) | int(stream.words(1, more + lane * LANE)[0])
        bits, lane = bits + 64, lane + 1


def _sign(number: tuple) -> int:
    negative, mantissa = number[:2]
    return -1 if negative else int(mantissa != 0)


@lru_cache(maxsize=4096)
def _chance(k: int, scale: float, precision: int) -> tuple[float, float]:
    """Return bounds of the probability of acceptance, in float64."""
    chance = _enclosed_chance(_interval(precision), k, scale)
    return float(chance.a) - 2.0**-50, float(chance.b) + 2.0**-50


def _enclosed_chance(iv: Any, k: int, scale: float) -> Any:
    r"""Return an interval around the probability of acceptance, :math:`I_0 / I_k`.

    Here :math:`I_k = \int_0^1 \cosh(\kappa v) e^{-\eta v^2} dv`, :math:`\kappa = |k| / 2 \sigma^2` and :math:`\eta = 1
    / 8 \sigma^2`. The power series of the integrand is integrated term by term; after N terms, the rest is below
    :math:`\sum_{m \ge N} (\kappa + \eta)^m / m!`.
    """
    if k == 0:
        return iv.mpf(1)
    eta = 1 / (8 * iv.mpf(scale) ** 2)
    return _series(iv, iv.mpf(0), eta) / _series(iv, 4 * abs(k) * eta, eta)


def _series(iv: Any, kappa: Any, eta: Any) -> Any:
    size = float((kappa + eta).b)
    terms = 8
    while not (terms > 2 * size + 1 and _log2_tail(size, terms) < -iv.prec):
        terms *= 2
    cosh, gauss = [iv.mpf(1)], [iv.mpf(1)]
    for n in range(1, terms):
        cosh.append(cosh[-1] * kappa * kappa / ((2 * n - 1) * (2 * n)))
        gauss.append(-gauss[-1] * eta / n)
    total = iv.mpf(0)
    for n in range(terms):
        total += sum((cosh[i] * gauss[n - i] for i in range(n + 1)), iv.mpf(0)) / (2 * n + 1)
    rest = iv.ldexp(iv.mpf(1), math.ceil(_log2_tail(size, terms)))
    return total + iv.mpf([-rest.b, rest.b])


def _log2_tail(size: float, terms: int) -> float:
    """Return the logarithm of twice the first term, an upper bound of the sum of size^m / m! over m >= terms > 2 size.

    The logarithm is to base 2.
    """
    return (terms * math.log(size) - math.lgamma(terms + 1)) / math.log(2) + 1.01
