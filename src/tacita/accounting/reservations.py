"""Reservations: how many queries to pay for ahead, so that flushing to disk costs next to nothing.

Place: session -> [accounting.reservations] -> oracles. A reservation costs a flush; whatever of it is not used when the
process is killed is spent all the same. So: as few queries ahead as keep the time for flushes under 2 % of the run.
"""

import math
import time
from collections.abc import Callable

from tacita.accounting.session import Session

LARGEST_SHARE = 0.02
FIRST = 32  # before anything could be measured


class Reservations:
    r"""Reserves queries of one session ahead of their use.

    The time that flushes take is at most 2 % of the run's, or that of the first two flushes where this is more (runs
    of less than about a second). With :math:`F` seconds of flushes so far, :math:`f` the last of them, :math:`T` the
    run's time and :math:`t` a query's, the next reservation holds :math:`n` queries such that the flush after it can
    be afforded: :math:`F + f \le 0.02\,(T + n t)`. A kill over-reports at most one reservation.

    Args:
        session: An open session.
        clock: Seconds; tolerated if it stands still or goes back.

    Example:
        >>> from tacita.accounting import FullBatchGaussianEvent, Ledger
        >>> ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        >>> event = FullBatchGaussianEvent(relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> session.open()
        >>> Reservations(session).cover(0)
        >>> session.covered(0), session.covered(9)
        (True, True)
    """

    def __init__(self, session: Session, *, clock: Callable[[], float] = time.monotonic):
        self._session, self._clock = session, clock
        self._started = False
        self._last = 0.0
        self._elapsed = 0.0  # the run's time, steps back left out
        self._flushing = 0.0  # of it, in flushes
        self._flush = 0.0  # the last of them
        self._at_flush = 0.0, 0  # elapsed, and the query it was made for

    def cover(self, query: int) -> None:
        """Have ``query`` reserved on disk, and as many after it as pay.

        Raises:
            BudgetExceededError: ``query`` is outside the plan.
            LedgerError: The disk refused; then no noise of ``query`` may be used.
        """
        if self._session.covered(query):
            return
        ahead = self._ahead(query)
        last = max(query, min(query + ahead, self._session.planned_queries) - 1)
        self._tick()
        before = self._elapsed
        self._session.reserve(min(query, self._session.reserved_queries), last)
        self._tick()
        self._flush = self._elapsed - before
        self._flushing += self._flush
        self._at_flush = self._elapsed, query

    def _tick(self) -> None:
        now = self._clock()
        if self._started:
            self._elapsed += max(0.0, now - self._last)
        self._started, self._last = True, now

    def _ahead(self, query: int) -> int:
        if not self._started:
            return FIRST
        self._tick()
        since, made = self._elapsed - self._at_flush[0], query - self._at_flush[1]
        owed = (self._flushing + 2 * self._flush) / LARGEST_SHARE - self._elapsed
        if owed <= 0:
            return 1
        if since <= 0 or made <= 0:  # the clock was set back: the mean over the run
            since, made = self._elapsed - self._flushing, query
        if since <= 0 or made <= 0:
            return self._session.planned_queries
        return math.ceil(owed * made / since)
