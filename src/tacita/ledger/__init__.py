"""The ledger: what writes, reads and verifies the record of every session, and the statement that rests on it."""

from tacita.ledger.hash_chain import Anchor, Verification
from tacita.ledger.journal import verify_file
from tacita.ledger.ledger import Ledger
from tacita.ledger.records import Seal, Share, settings_sha256
from tacita.ledger.session import Reservations, Session
from tacita.ledger.statement import Statement, statement

__all__ = [
    "Anchor",
    "Ledger",
    "Reservations",
    "Seal",
    "Session",
    "Share",
    "Statement",
    "Verification",
    "settings_sha256",
    "statement",
    "verify_file",
]
