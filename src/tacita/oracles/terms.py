"""The terms of a session: one list for the session that an oracle registers, and for the one that it is handed.

Place: accounting -> [oracles.terms] -> oracles. All of it is public.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacita.accounting import Event, Ledger, Part, Session, settings_sha256
from tacita.errors import LedgerError
from tacita.random import Randomness


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the session that pays for an oracle must be for.

    Attributes:
        payee: What is paid for, as messages call it: "oracle" or "test".
        event: What is spent.
        planned_queries: Queries that may be made.
        part: The part of a split that is read; ``None`` is all records.
        randomness: Where the noise comes from.
    """

    payee: str
    event: Event
    planned_queries: int
    part: Part | None
    randomness: Randomness

    def register(self, ledger: Ledger, purpose: str, settings: Mapping[str, Any]) -> Session:
        """A new session of ``ledger`` on these terms."""
        return ledger.register(
            self.event,
            planned_queries=self.planned_queries,
            purpose=purpose,
            part=self.part,
            settings=settings,
            secure_randomness=self.randomness.secure,
        )

    def met_by(self, session: Session, *settings: Mapping[str, Any]) -> bool:
        """Whether ``session`` was registered on these terms, for one of ``settings``.

        Raises:
            LedgerError: It was registered for secure randomness, and this is not.
        """
        bound = session.registration.settings_sha256 in [settings_sha256(each) for each in settings]
        if session.registration.secure_randomness and not self.randomness.secure:
            raise LedgerError(
                f"session {session.id!r} was registered for secure randomness, and this {self.payee}'s is not."
            )
        planned = session.planned_queries == self.planned_queries
        return bound and planned and session.event == self.event and session.part == self.part
