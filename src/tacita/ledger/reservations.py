"""Reservations: queries are paid for ahead in groups, so that flushing to disk costs next to nothing.

A reservation costs one flush. The part that is not used counts as spent if the process is killed, and is given back
when the ledger is closed. The size is a public setting. A size that followed the duration of queries would reveal batch
sizes, and so the number of records, in a ledger that is shared.
"""

from tacita import _validate
from tacita.ledger.session import Session

BLOCK = 1024  # queries a reservation: most runs need one flush


class Reservations:
    """Reserves queries of one session ahead of their use, ``size`` at a time.

    A plan of at most 1024 queries needs one flush. A longer plan needs a flush (5 to 20 ms) every 1024 queries, which
    is at most 2 % of the run's time if a query takes a millisecond. A kill over-reports at most one reservation.

    Args:
        session: An open session.
        size: Queries a reservation, >= 1; a public number. Use 1 for a process that lives for one query and may be
            killed at any time, such as a federated client: it then pays only for what it made, at one flush a query.

    Example:
        >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
        >>> from tacita.ledger import Ledger
        >>> ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        >>> event = GaussianSumEvent(
        ...     relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(5.0,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> session.open()
        >>> Reservations(session).prepare(0)
        >>> session.is_reserved(0), session.is_reserved(9)
        (True, True)
    """

    def __init__(self, session: Session, size: int = BLOCK):
        self._session = session
        self._size = _validate.count("size", size)

    def prepare(self, query: int) -> None:
        """Reserve ``query`` on disk, with the rest of its group, and note that it is being drawn.

        Raises:
            BudgetExceededError: ``query`` is outside the plan.
            LedgerError: The line could not be put on disk; no noise of ``query`` may be used.
        """
        session = self._session
        if not session.is_reserved(query):
            block_end = (query // self._size + 1) * self._size
            last = max(query, min(block_end, session.planned_queries) - 1)
            session.reserve(min(query, session.reserved_queries), last, ahead=True)
        session.begin(query)
