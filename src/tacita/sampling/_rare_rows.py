r"""Poisson sampling in time proportional to the batch: rare rows are found, not asked one by one.

Balls fall on the rows as a Poisson process, so that the numbers of balls on different rows are independent, and a row
is drawn if a ball falls on it: with chance :math:`1 - e^{-\lambda}` at a mean of :math:`\lambda` balls a row. The rows
are parted into cells of :math:`2^m`. A cell gets a Poisson number of balls of mean 8, each at a uniform place, and each
ball stays by a coin of chance :math:`2^m \lambda / 8`, which leaves a Poisson process of the wanted mean.

Place: random -> [sampling._rare_rows] -> sampling.poisson. Private. Derivation: docs/derivations/rare-rows.md.
"""

from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import floor

import numpy as np

from tacita._row_numbers import ChosenRows
from tacita._stream import Stream

LARGEST_RATE = 2.0**-6  # above it a coin for each row costs no more
_MEAN = 3  # 2^3 balls fall on a cell on average
_BALLS = 7  # fewer than 2^7 balls fall on a cell
_SMALLEST = 40  # 2^-40: a smaller rate has the cells of this one
_AT_ONCE = 2**14  # cells of one pass of operations
_MASSES = list(accumulate(range(1, 2**_BALLS), lambda mass, j: mass * 2**_MEAN / j, initial=Fraction(1)))
_BELOW = [floor(2**128 * mass / sum(_MASSES)) for mass in accumulate(_MASSES[:-1])]  # 2^128 P(at most 0, 1, ... balls)
_BELOW_HIGH = np.array([below >> 64 for below in _BELOW], np.uint64)


def rare_rows(stream: Stream, num_rows: int, rate: float) -> ChosenRows:
    r"""Return rows that are each chosen with probability ``rate``, independently; computed anew when they are read.

    The chance is at most ``rate``, and less by at most :math:`2^{-63}`. Whether row i is chosen does not depend on
    ``num_rows``.

    Args:
        stream: Serves nothing else; its :meth:`words <tacita.random.Stream.words>` are not read.
        num_rows: Number of rows.
        rate: In (0, ``LARGEST_RATE``].
    """
    keep, size = _process(rate)

    def chosen(first: int, count: int) -> np.ndarray:
        cells = np.arange(first >> size, -(-(first + count) >> size), dtype=np.uint64)
        rows = _fallen(stream, cells, keep, size) - first
        return rows[: np.searchsorted(rows, count)]

    return ChosenRows(num_rows, chosen, _AT_ONCE << size)


@lru_cache
def _process(rate: float) -> tuple[int, int]:
    """Return 2^64 times the chance that a ball stays, and the binary logarithm of a cell's rows."""
    q = Fraction(rate)
    mean = floor(2**64 * sum(q**i / i for i in range(1, 11)))  # of balls on a row: below -2^64 ln(1 - q)
    finer = min(64 - mean.bit_length(), _SMALLEST)  # 2^-finer is above the mean
    return mean << finer, finer + _MEAN


def _fallen(stream: Stream, cells: np.ndarray, keep: int, size: int) -> np.ndarray:
    """Return the rows of these cells on which a ball falls and stays, int64, ascending, each once."""
    words = stream.pairs(0, cells)
    balls = np.searchsorted(_BELOW_HIGH, words[:, 0], side="right")
    for i in np.flatnonzero(np.isin(words[:, 0], _BELOW_HIGH)):  # where 64 bits do not decide, 128 do
        balls[i] = bisect_right(_BELOW, int(words[i, 0]) << 64 | int(words[i, 1]))
    number = np.arange(balls.sum()) - np.repeat(balls.cumsum() - balls, balls)
    cell = np.repeat(cells, balls)
    words = stream.pairs(1, cell << np.uint64(_BALLS) | number.astype(np.uint64))
    rows = cell << np.uint64(size) | words[:, 1] >> np.uint64(64 - size)
    return np.unique(rows[words[:, 0] < np.uint64(keep)]).astype(np.int64)
