"""Budgets: how long a session of given noise may be. Calibration has the length and finds the noise.

Place: accountant -> [accounting.budget]. What it returns has been accounted, and is within the budget.
"""

import math
from bisect import bisect

from tacita import _validate
from tacita.accounting.accountant import epsilon
from tacita.accounting.events import Event, Spend


def most_queries(event: Event, max_epsilon: float, delta: float, *, at_most: int) -> int:
    """Return the largest number of queries, up to ``at_most``, that a session of given noise can plan within a budget.

    Guarantee: accounting for ``event`` with so many queries gives at most ``max_epsilon``; 0 means that one costs more.

    Args:
        event: What a session of this noise spends, as its oracle states.
        max_epsilon: >= 0, for the session alone; ``inf`` allows ``at_most``.
        delta: In (0, 1).
        at_most: Number of queries that are wanted, >= 1.

    Example:
        >>> from tacita.accounting import PoissonLaw, gaussian_sum_event
        >>> event = gaussian_sum_event(PoissonLaw(0.01), (1.0,), (1.5,), "add_or_remove_one")
        >>> most_queries(event, 1.0, 1e-5, at_most=10_000)
        1178
    """
    if not max_epsilon >= 0:
        raise ValueError(f"max_epsilon must be >= 0, got {max_epsilon!r}.")
    tried = range(1, _validate.count("at_most", at_most) + 1)
    _validate.delta("delta", delta)
    return bisect(tried, max_epsilon, key=lambda queries: _epsilon(Spend(event, queries), delta))


def _epsilon(spend: Spend, delta: float) -> float:
    try:
        return epsilon([spend], delta).epsilon
    except ArithmeticError:  # no accountant resolves so little noise, or so small a delta
        return math.inf
