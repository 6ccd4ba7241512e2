r"""Binomial counts with an exact law, drawn from a stream bit by bit.

A fair bit costs one bit of the stream. For another chance p, a bit's uniform number is compared with the binary digits
of p, all bits at once: at each digit, the numbers that are still equal to p divide by a fair bit each. A float has
finitely many digits, so the law is exactly Binomial(n, p), whatever n, and about 2 n bits are read.
"""

import numpy as np

from tacita._stream import Stream

_PIECE = 2**20  # bytes at once


class _Bits:
    """Fair bits of a stream, each used once."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._position = stream, 0  # in bytes

    def ones(self, count: int) -> int:
        """Return how many of the next ``count`` bits are one."""
        found = 0
        while count > 0:
            size = min(_PIECE, -(-count // 8))
            bits = int.from_bytes(self._stream.bytes(size, self._position), "little")
            found += (bits >> max(0, 8 * size - count)).bit_count()
            self._position += size
            count -= 8 * size
        return found


def binomials(stream: Stream, count: int, trials: int, probability: float) -> np.ndarray:
    """Draw ``count`` numbers of ones among ``trials`` bits, int64, from the beginning of ``stream``.

    Example:
        >>> from tacita.random import Key
        >>> draws = binomials(Key.insecure(0).stream("noise"), 1000, 36, 0.5)
        >>> draws.dtype, bool(abs(draws.mean() - 18) < 0.5), bool(abs(draws.var() - 9) < 2)
        (dtype('int64'), True, True)
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must be in [0, 1], got {probability}.")
    bits = _Bits(stream)
    return np.array([_binomial(bits, trials, float(probability)) for _ in range(count)], np.int64)


def _binomial(bits: _Bits, trials: int, probability: float) -> int:
    numerator, denominator = probability.as_integer_ratio()
    if denominator == 1:
        return trials * numerator
    below, tied = 0, trials
    for digit in range(denominator.bit_length() - 2, -1, -1):
        zeros = bits.ones(tied)
        if numerator >> digit & 1:
            below, tied = below + zeros, tied - zeros
        else:
            tied = zeros
        if not tied:
            break
    return below
