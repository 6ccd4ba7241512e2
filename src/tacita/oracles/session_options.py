"""How an oracle is paid: the options that every oracle takes, and the session that follows from them.

Place: accounting -> [oracles.session_options] -> oracles. Everything but the key inside ``randomness`` is public.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacita import _validate
from tacita.accounting import Event, Part, Spend
from tacita.errors import LedgerError
from tacita.ledger import Ledger, Session, Share, settings_sha256
from tacita.ledger.session import BLOCK
from tacita.random import Randomness


@dataclass(frozen=True)
class SessionOptions:
    """The options of the session that pays for an oracle.

    Attributes:
        purpose: What the session is for (``"train"``, ``"score"``); appears in the statement.
        settings: More public settings to bind to the session's hash.
        session: A session that was registered before; ``None`` registers one.
        randomness: The key that coins and noise come from.
        planned_restarts: Number of sessions registered together with it, to take its place if it cannot be continued.
        reservation: Number of queries that are reserved on disk at once.
        share: The share to pay from, which was set aside before the first release; ``None`` pays from the whole budget.
    """

    purpose: str
    settings: Mapping[str, Any] | None
    session: Session | None
    randomness: Randomness
    planned_restarts: int = 0
    reservation: int = BLOCK
    share: Share | None = None

    def __post_init__(self) -> None:
        _validate.count("planned_restarts", self.planned_restarts, at_least=0)
        _validate.count("reservation", self.reservation)
        if self.share is not None and not isinstance(self.share, Share):
            raise TypeError(f"share must be what register_share returned, got {type(self.share).__name__}.")
        if self.share is not None and self.session is not None and self.session.share != self.share.id:
            raise LedgerError(
                f"session {self.session.id!r} is not paid from {self.share.id}: leave share out, or register the "
                "session with it."
            )

    def spends(self, ledger: Ledger, part: Part | None) -> list[Spend]:
        """Return what calibration has to add to: all that is planned before the session, or before it in its share."""
        share = self.share
        if share is None and self.session is not None and self.session.share is not None:
            share = next(one for one in ledger.shares if one.id == self.session.share)
        if share is None and self.session is None:
            ledger.check_in_time(part)  # else the message would be about noise, which is not what is wrong
        return ledger.spends(part, share=share, before=self.session)

    @property
    def more_settings(self) -> dict[str, Any]:
        """The caller's settings."""
        return dict(self.settings or {})

    def session_for(
        self,
        payee: str,
        ledger: Ledger,
        event: Event,
        *,
        planned_queries: int,
        part: Part | None,
        bound: Mapping[str, Any],
        or_to_these_alone: bool = False,
    ) -> Session:
        """Return the session that pays: a new one of ``ledger``, or the one that was handed in, if it fits.

        Args:
            payee: What is paid for, as messages call it: "oracle" or "test".
            ledger: Registers a new session.
            event: What the session spends.
            planned_queries: Number of queries that may be made.
            part: The part of a split that is read; ``None`` for all records.
            bound: The payee's own settings. A session is bound to these together with :attr:`settings`.
            or_to_these_alone: Also accept a session that is bound to :attr:`settings` alone.

        Raises:
            LedgerError: The session was registered for something else, or for secure randomness, and this is not.
        """
        bound = {**bound, **self.more_settings}
        session = self.session
        if session is None:
            return ledger.register(
                event,
                planned_queries=planned_queries,
                purpose=self.purpose,
                part=part,
                settings=bound,
                secure_randomness=self.randomness.secure,
                planned_restarts=self.planned_restarts,
                share=self.share,
            )
        registered = session.registration
        if registered.secure_randomness and not self.randomness.secure:
            raise LedgerError(
                f"session {session.id!r} was registered for secure randomness, and this {payee}'s is not."
            )
        of_settings = [settings_sha256(one) for one in ((bound, self.more_settings) if or_to_these_alone else (bound,))]
        same = (registered.event, registered.planned_queries, registered.part) == (event, planned_queries, part)
        if not (same and registered.settings_sha256 in of_settings):
            raise LedgerError(
                f"session {session.id!r} was registered for another event, number of queries, part of the records or "
                f"other settings than this {payee}'s: build the {payee} with those it was registered with."
            )
        return session
