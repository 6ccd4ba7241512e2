r"""Rounding of values to a few numbers, at random, so that their means are kept exactly.

Between two edges :math:`a \le x \le b` a value is rounded up with chance :math:`t = (x - a) / (b - a)`, so that the
mean of what it is rounded to is x. No rounding to *values* keeps the mean of the squares, too: it could not be random.
So two coins are tossed, and a row is counted by the number of those that came up, which stands for a pair of numbers:

.. math:: (a, a^2), \quad \left(\tfrac{a + b}{2}, a b\right), \quad (b, b^2)
   \quad\text{with chances}\quad (1 - t)^2,\; 2 t (1 - t),\; t^2,

whose mean is :math:`(x, x^2)`: two independent roundings :math:`y, z` of x have :math:`E (y + z)/2 = x` and
:math:`E y z = x^2`. Proof and use: docs/derivations/tables.md, section 3, *R2*.
"""

import numpy as np


def rounded(
    values: np.ndarray,  # (rows,)
    edges: np.ndarray,  # increasing
    coins: np.ndarray,  # (coins, rows), uniform in [0, 1)
) -> np.ndarray:
    """Return for each value coins x (the number of its lower edge) + (how many coins round it up), int64.

    Values outside the edges count as the nearest one.

    Example:
        >>> rounded(np.array([0.0, 2.5, 9.0]), np.array([0.0, 1.0, 4.0]), np.array([[0.4, 0.4, 0.4], [0.6, 0.6, 0.6]]))
        array([0, 3, 4])
    """
    values = np.clip(values, edges[0], edges[-1])
    lower = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    chance = (values - edges[lower]) / (edges[lower + 1] - edges[lower])
    return len(coins) * lower + (coins < chance).sum(axis=0)


def pairs(edges: np.ndarray) -> np.ndarray:
    """Return the value and the square that each number of :func:`rounded` with two coins stands for, (2, numbers).

    Example:
        >>> pairs(np.array([0.0, 1.0, 4.0]))
        array([[ 0. ,  0.5,  1. ,  2.5,  4. ],
               [ 0. ,  0. ,  1. ,  4. , 16. ]])
    """
    numbers = np.arange(2 * len(edges) - 1)
    lower, upper = edges[numbers // 2], edges[(numbers + 1) // 2]
    return np.stack([(lower + upper) / 2, lower * upper])
