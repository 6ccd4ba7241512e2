"""The hash chain: lines of JSON, each with the hash of the line before, and anchors that show removed lines.

This module takes bytes and opens no file. A line is the canonical JSON of an object with ``v`` (format), ``seq``
(0, 1, ...), ``prev`` (SHA-256 of the line before, 64 zeros for the first), ``kind``, ``session`` and the fields of its
kind.
"""

import hashlib
import json
import re
from binascii import hexlify
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tacita._counted import counted
from tacita.errors import LedgerError

VERSION = 1
GENESIS = "0" * 64
PLACE = {"v", "seq", "prev"}  # the fields of a line that are the chain's
SEAL = "seal"  # the kind of the last line of a finished run
_OPENING = b'{"event":{"'  # every first line begins so: a register record with its keys in order
_QUERY = re.compile(  # nearly every line is a query's; one of this shape is its own canonical form
    rb'{"fingerprint":"(\w*)","kind":"query","number":(0|[1-9]\d{0,17}),"prev":"(\w*)","seq":(0|[1-9]\d{0,17}),'
    rb'"session":"([\w.-]*)","v":1}'
)
_LINE = b'{"fingerprint":"%b","kind":"query","number":%d,"prev":"%b","seq":%d,"session":"%b","v":1}'
_BEGIN = _LINE.index(b"%b")  # where the fingerprint begins
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)
Entry = dict[str, Any]


def canonical(value: Any) -> bytes:
    """Return ``value`` as JSON in the one form that hashes are taken of: keys sorted, no spaces, ASCII.

    Example:
        >>> canonical({"b": 1.5, "a": [True, None]})
        b'{"a":[true,null],"b":1.5}'
    """
    return _JSON.encode(value).encode("ascii")


def sha256(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


class Anchor(NamedTuple):
    """How far a ledger had come at some moment. Kept elsewhere, it shows later edits and truncation.

    Attributes:
        count: Number of lines.
        head: SHA-256 of the last line; 64 zeros if there was none.
        name: Where this anchor was kept ("checkpoint", "statement", ...), for :class:`Verification`.
    """

    count: int
    head: str
    name: str = "given"


@dataclass(frozen=True)
class Verification:
    """The result of checking a ledger against one anchor.

    Attributes:
        anchor: The name of the anchor that was used: ``NAME.head.json``, or that of the anchor handed in.
        ok: Whether every line follows from the line before, and the anchor's line is where the anchor says.
        reason: What is wrong, in a few words; empty if ``ok``.
        sealed: Whether the last line is a seal, after which nothing was added and nothing may be.
    """

    anchor: str
    ok: bool
    reason: str = ""
    sealed: bool = False


class QueryRun(Entry):
    """Lines in a row, each of the next query of one session: the entry of the first, and ``fingerprints`` of all."""

    def each(self) -> Iterator[Entry]:
        """Yield the entries one by one, without their places in the chain, which were checked."""
        for k, fingerprint in enumerate(self["fingerprints"]):
            named = {"kind": "query", "session": self["session"], "number": self["number"] + k}
            yield {**named, "fingerprint": fingerprint, **dict.fromkeys(PLACE)}


@dataclass(frozen=True)
class LedgerLines:
    """The whole lines of a file, and the first fault of their chain. A torn last line is left out."""

    lines: list[bytes]
    entries: list[Entry]  # one a line, but for queries in a row
    size: int  # bytes of the whole lines
    fault: str
    torn: bool = False  # bytes follow the whole lines

    @property
    def sealed(self) -> bool:
        """Whether the last whole line is a seal."""
        return bool(self.entries) and self.entries[-1].get("kind") == SEAL

    @property
    def head(self) -> str:
        """SHA-256 of the last line."""
        return sha256(self.lines[-1]) if self.lines else GENESIS


def read(data: bytes) -> LedgerLines:
    """Split ``data`` into lines, check their chain, and leave out a torn last line.

    Raises:
        LedgerError: A line other than the last is not a JSON object as the journal writes it; or the only line is
            torn and does not begin as such an object.
    """
    *lines, tail = data.split(b"\n")
    size, entries, fault = len(data) - len(tail), list[Entry](), ""
    seq, previous = 0, GENESIS
    while seq < len(lines):
        run = _queries(lines, seq, previous)
        if run is not None:
            entries.append(run[0])
            seq, previous = seq + len(run[0]["fingerprints"]), run[1]
            continue
        entry = _parse(lines[seq])
        if entry is None and seq == len(lines) - 1 and not tail:
            tail = lines.pop()  # of full length, but not written: the machine stopped
            size -= len(tail) + 1
            break
        if entry is None:
            raise LedgerError(f"line {seq + 1} of the ledger is not one that tacita wrote.")
        fault = fault or _fault(entry, seq, previous)
        entries.append(entry)
        seq, previous = seq + 1, sha256(lines[seq])
    if not lines and not (tail.startswith(_OPENING[: len(tail)]) or not tail.strip(b"\0")):
        raise LedgerError("this is not a ledger.")  # so its only line must not be cut off as a torn one
    return LedgerLines(lines, entries, size, fault, torn=len(data) > size)


def _queries(lines: list[bytes], seq: int, previous: str) -> tuple[QueryRun, str] | None:
    """Return the queries in a row that begin at the line of place ``seq``, and the hash of their last line.

    A line is compared, byte for byte, with the only one that may follow, but for its fingerprint: with the next number
    and place, and the hash of the line before. That is its parsing and the check of its chain at once.

    Returns:
        ``None`` if the line there is no query's, or does not follow from the line before.
    """
    line = lines[seq]
    begun = _QUERY.fullmatch(line)
    if begun is None or begun[3].decode() != previous or int(begun[4]) != seq:
        return None
    number, session, fingerprints = int(begun[2]), begun[5], [begun[1]]
    stop, hashed = begun.end(1), hashlib.sha256
    digest = hexlify(hashed(line).digest())
    for k in range(1, len(lines) - seq):
        line = lines[seq + k]
        fingerprint = line[_BEGIN:stop]
        # Of a fingerprint of another length or with "_" another run begins, whose first line the pattern reads.
        if line != _LINE % (fingerprint, number + k, digest, seq + k, session) or not (
            fingerprint.isalnum() or stop == _BEGIN
        ):
            break
        fingerprints.append(fingerprint)
        digest = hexlify(hashed(line).digest())
    texts = b" ".join(fingerprints).decode().split(" ")
    return QueryRun(kind="query", session=session.decode(), number=number, fingerprints=texts), digest.decode()


def _parse(line: bytes) -> Entry | None:
    """Return the object of a line; ``None`` if it is not one in canonical form, which refuses repeated keys, too."""
    try:
        entry = json.loads(line, parse_constant=_no_constant)
        whole = isinstance(entry, dict) and canonical(entry) == line
    except (ValueError, RecursionError):
        return None
    return entry if whole else None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON.")  # another reader could not read such a line


def _fault(entry: Entry, seq: int, previous: str) -> str:
    """Describe how the chain breaks at a line; return an empty string if it does not."""
    if type(entry.get("v")) is not int or entry["v"] != VERSION:
        return f"line {seq + 1} is not of format version {VERSION}"
    if type(entry.get("seq")) is not int or entry["seq"] != seq:
        return f"line {seq + 1} carries another number: lines were removed, added or moved"
    if entry.get("prev") != previous:
        return f"line {seq + 1} does not follow from line {seq}: one of them was changed"
    return ""


def check_anchor(lines: list[bytes], anchor: Anchor) -> str:
    """Describe how ``lines`` contradict ``anchor``; return an empty string if they do not."""
    if len(lines) < anchor.count:
        return f"the ledger has {counted(len(lines), 'line')}, {anchor.name} counts {anchor.count}: lines were removed"
    head = sha256(lines[anchor.count - 1]) if anchor.count else GENESIS
    return "" if head == anchor.head else f"line {anchor.count} is not the one whose hash {anchor.name} holds"
