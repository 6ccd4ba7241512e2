"""Reservations: how many queries to pay for ahead, so that flushing to disk costs next to nothing.

Place: session -> [accounting.reservations] -> oracles. A reservation costs a flush; whatever of it is not used when the
process is killed counts as spent. The sizes are a public rule: sizes that followed the time of a query would write the
size of batches, and so the number of records, into a ledger that is shared.
"""

from tacita.accounting.session import Session

BLOCK = 1024  # queries a reservation: one flush a run for most runs, and under 2 % of one with queries of a millisecond


class Reservations:
    """Reserves queries of one session ahead of their use, ``BLOCK`` at a time.

    A plan of at most 1024 queries is one flush a run. A longer one is a flush (5 to 20 ms) every 1024 queries: at most
    2 % of the run's time if a query takes a millisecond. A kill over-reports at most one reservation.

    Args:
        session: An open session.

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

    def __init__(self, session: Session):
        self._session = session

    def cover(self, query: int) -> None:
        """Have ``query`` reserved on disk, and the rest of its block.

        Raises:
            BudgetExceededError: ``query`` is outside the plan.
            LedgerError: The disk refused; then no noise of ``query`` may be used.
        """
        session = self._session
        if not session.covered(query):
            block_end = (query // BLOCK + 1) * BLOCK
            last = max(query, min(block_end, session.planned_queries) - 1)
            session.reserve(min(query, session.reserved_queries), last)
