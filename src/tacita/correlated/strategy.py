r"""Correlated noise: how much of it a running sum keeps, and how far one record moves a session under it.

The noise of query t is :math:`s \sum_{j < p} r_j z_{t-j}`, with fresh standard normals z and the *coefficients* r of
:math:`(1 - x)^\gamma`, cut after p (the *bands*; :math:`\gamma` is the *power*). Most of the noise of one query is
taken back by the next ones. One band is independent noise, two are DP-lambda-CGD, and the power 1/2 is BISR. The
releases are as private as those of :math:`C S + s z`, where S are the sums and C is the inverse of the triangular
Toeplitz matrix with first column r; its own first column c is what this file calls *column*.

With a banded *matrix* (BandMF) it is c that is cut after p, the coefficients of :math:`(1 - x)^{-\gamma}`. All draws so
far then have a part in the noise of a query.

Proofs: docs/derivations/correlated-noise.md. Sources: BISR, https://arxiv.org/abs/2505.12128; DP-lambda-CGD,
https://arxiv.org/abs/2601.22334; BandMF, https://arxiv.org/abs/2306.08153; Kalinin and Lampert (2024),
https://arxiv.org/abs/2405.13763.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter

from tacita import _validate
from tacita.errors import UnsupportedEventError

ROUNDED_UP = 1 + 1e-9
POWERS = tuple(i / 20 for i in range(1, 20))


def coefficients(bands: int, power: float) -> np.ndarray:
    """Return the weights of the last ``bands`` draws in a query's noise, its own first: 1, then negative numbers.

    Example:
        >>> coefficients(4, 0.5).tolist()
        [1.0, -0.5, -0.125, -0.0625]
    """
    _validate.count("bands", bands)
    _validate.inside("power", power)
    return _series(bands, power)


def matrix_bands(bands: int, power: float) -> np.ndarray:
    """Return the bands of a banded matrix: how much of a contribution each whitened release shows, 1 and falling.

    Example:
        >>> matrix_bands(4, 0.5).tolist()
        [1.0, 0.5, 0.375, 0.3125]
    """
    return _series(bands, -power)


def _series(length: int, power: float) -> np.ndarray:
    """Return the first coefficients of (1 - x)^power."""
    j = np.arange(1, length)
    return np.cumprod(np.append(1.0, (j - 1 - power) / j))


def _inverse(series: np.ndarray, length: int) -> np.ndarray:
    return np.asarray(lfilter([1.0], series, np.eye(1, length)[0]))


@lru_cache(maxsize=64)
def column(bands: int, power: float, queries: int, banded_matrix: bool = False) -> np.ndarray:
    """Return how much of a contribution each of ``queries`` whitened releases shows, from its own on; rounded up."""
    if banded_matrix:
        exact = np.pad(matrix_bands(min(bands, queries), power), (0, max(0, queries - bands)))
    else:
        exact = _inverse(coefficients(bands, power), queries)  # all terms are positive
    return exact * (1 + bands * (queries + bands) * 2.0**-51)


class Factorization(NamedTuple):
    """The matrix of the whitened releases and its inverse, that of the noise: which of both has bands, and how many."""

    bands: int
    power: float
    banded_matrix: bool = False

    @property
    def words(self) -> str:
        return f"{self.bands} bands{' of the matrix' if self.banded_matrix else ''}, power {self.power:.6g}"

    def column(self, queries: int) -> np.ndarray:
        """Return the first column of the matrix, rounded up."""
        return column(self.bands, self.power, queries, self.banded_matrix)

    def weights(self, queries: int) -> np.ndarray:
        """Return the weights of the last draws in the noise of the last of ``queries`` queries, its own first."""
        if self.banded_matrix:
            return _inverse(matrix_bands(self.bands, self.power), queries)
        return coefficients(self.bands, self.power)[:queries]


def movement(column: np.ndarray, separation: int, most_draws: int) -> np.ndarray:
    """Return how far a record moves each whitened release, if it is in every ``separation``-th one from the first on.

    Args:
        column: Of all releases of the session.
        separation: Queries from one draw of the record to the next.
        most_draws: Largest number of its draws.
    """
    cycles = -(-len(column) // separation)
    turns = np.zeros((cycles, separation))
    turns.ravel()[: len(column)] = column
    turns = turns.cumsum(axis=0)
    turns[most_draws:] -= turns[: max(0, cycles - most_draws)].copy()
    return turns.ravel()[: len(column)]


def sensitivity(column: np.ndarray, separation: int, most_draws: int) -> float:
    """Return the L2 norm by which a record moves the whitened releases, per unit of its largest contribution.

    It holds for every set of at most ``most_draws`` queries of which any two are at least ``separation`` apart.

    Raises:
        UnsupportedEventError: The column rises or has a negative entry: other sets of queries may then be worse.
    """
    if (np.diff(column, append=0.0) > 0).any():
        raise UnsupportedEventError(
            "no sensitivity is proved for noise whose column rises or is negative: draws further apart than the "
            "separation could move more."
        )
    return float(np.linalg.norm(movement(column, separation, most_draws))) * ROUNDED_UP


def left_error(weights: np.ndarray, queries: int) -> float:
    """Return what the noise of ``queries`` queries leaves in the last iterate of gradient descent, over s.

    It is a geometric mean over losses that are flat to steep: the curvature times the learning rate is 0, 1/T, 10/T and
    100/T (at most 1/2).

    Args:
        weights: Of the last draws in the noise of a query, its own first.
        queries: T.
    """
    draws = np.pad(weights[:queries], (0, max(0, queries - len(weights))))
    curvatures = (0.0, 1 / queries, 10 / queries, min(0.5, 100 / queries))
    each = [np.linalg.norm(lfilter([1.0], [1.0, curvature - 1], draws)) for curvature in curvatures]
    return math.exp(float(np.log(each).mean()))


def recommended_power(queries: int, separation: int, bands: int = 2) -> float:
    """Return the power with the least error at equal privacy, on average over losses that are flat to steep.

    The error is that of the last iterate of gradient descent (:func:`left_error`), without amplification: for records
    that drew their groups in secret :func:`recommended_noise` does better. The power that is best for plain sums is
    larger, and can be worse than independent noise where the loss is steep.

    Args:
        queries: Planned queries T.
        separation: Queries from one draw of a record to the next; ``queries`` in one pass.
        bands: Of the noise, at least 2. More than 16 gain little.

    Example:
        >>> recommended_power(1000, separation=1000), recommended_power(500, separation=100, bands=8)
        (0.9, 0.6)
    """
    _validate.count("queries", queries)
    _validate.count("separation", separation)
    _validate.count("bands", bands, at_least=2)

    def cost(power: float) -> float:
        moved = sensitivity(column(bands, power, queries), separation, -(-queries // separation))
        return moved * left_error(coefficients(bands, power), queries)

    return min(POWERS, key=cost)
