"""Apply the lines of a ledger that is read back, each under the rules that it was written under.

A damaged line raises a :class:`LedgerError` that names the line, whatever it makes fail.
"""

import re
from collections.abc import Iterable

from tacita.errors import LedgerError, TacitaError
from tacita.ledger.hash_chain import SEAL, Anchor, Entry
from tacita.ledger.registration import TERMS, LedgerTerms, Registration, typed
from tacita.ledger.registry import SessionRegistry
from tacita.ledger.seal import Seal

_ENVELOPE = {"v", "seq", "prev", "kind", "session"}
_REGISTER = {*TERMS, *Registration.__dataclass_fields__, "ledger"} - {"id"}
_FIELDS: dict[str, dict[str, type]] = {
    "open": {},
    "withdraw": {},
    "reserve": {"first": int, "last": int},
    "give_back": {"first": int, "last": int},
    "query": {"number": int, "fingerprint": str},
    "close": {"queries_made": int},
}
_LONGEST_REASON = 500  # characters


def replay(entries: Iterable[Entry], registry: SessionRegistry, name: str) -> Seal | None:
    """Apply ``entries`` to an empty ``registry``; return the seal, if they end with one.

    Args:
        entries: The lines, oldest first; their hash chain was checked before.
        registry: The registry that they are applied to.
        name: The file's name, for error messages.

    Raises:
        LedgerError: This version would not have written one of the lines.
    """
    seal = None
    for number, entry in enumerate(entries, start=1):
        with line_of(name, number):
            if seal is not None:
                raise LedgerError("it follows the seal, after which nothing may be added.")
            if entry["kind"] == SEAL:
                seal = _seal(entry, registry)
            elif entry["kind"] == "register":
                _register(entry, registry)
            else:
                _change(entry, registry)
    for session in registry.all:
        session._left_by_another_process()
    return seal


def _seal(entry: Entry, registry: SessionRegistry) -> Seal:
    if set(entry) != _ENVELOPE | Seal.FIELDS or entry["session"]:
        raise LedgerError("a seal with other fields.")
    registry.check_sealable()
    return Seal.from_fields(entry, Anchor(entry["seq"], entry["prev"]))


def _register(entry: Entry, registry: SessionRegistry) -> None:
    if set(entry) - {"filter"} != _ENVELOPE | _REGISTER:
        raise LedgerError("a register line with other fields.")
    differences = LedgerTerms.of(entry).differences(registry.terms)
    if differences:
        raise LedgerError(f"it was written with another {differences} than this ledger is opened with.")
    _read_id(entry["ledger"], registry)
    registration = Registration.from_fields(entry["session"], entry)
    if registration.id != registry.next_id(registration.purpose):
        raise LedgerError(f"session {registration.id!r} is out of turn.")
    registry.check(registration)
    registry.add(registration)


def _change(entry: Entry, registry: SessionRegistry) -> None:
    kind, types = entry["kind"], _FIELDS[entry["kind"]]
    if set(entry) != _ENVELOPE | set(types):
        raise LedgerError(f"a {kind} line with other fields.")
    fields = {name: typed(entry, name, wanted) for name, wanted in types.items()}
    registry.sessions[entry["session"]]._change(kind, fields, read_back=True)


def _read_id(ledger: object, registry: SessionRegistry) -> None:
    if not (isinstance(ledger, str) and re.fullmatch(r"[0-9a-f]{32}", ledger)):
        raise LedgerError("ledger must be 32 hexadecimal digits.")
    if registry.sessions and ledger != registry.id:
        raise LedgerError("it is a line of another ledger.")
    registry.id = ledger


class line_of:
    """Turn any error that a damaged line causes into a :class:`LedgerError` that names the line."""

    def __init__(self, name: str, number: int):
        self._where = f"{name}, line {number}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, KeyError):
            raise LedgerError(f"{self._where}: it lacks a field, or names an unknown kind or session.") from None
        if isinstance(error, TacitaError | ValueError | TypeError | AttributeError | OverflowError | RecursionError):
            why = " ".join(str(error).split())[:_LONGEST_REASON]  # a quoted value may be of any length
            raise LedgerError(f"{self._where}: {why}") from None
