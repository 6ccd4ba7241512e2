"""The chain: lines of JSON, each with the hash of the one before, and anchors that show what was taken away.

Place: [accounting.chain] -> accounting.journal. Bytes in, verdicts out: it opens no file.

A line is the canonical JSON of an object with ``v`` (format), ``seq`` (0, 1, ...), ``prev`` (SHA-256 of the line
before, 64 zeros for the first), ``kind``, ``session`` and what the kind adds.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from tacita.errors import LedgerError

VERSION = 1
GENESIS = "0" * 64
_OPENING = b'{"event":{"'  # how every first line begins: a register line, keys in order
Entry = dict[str, Any]


def canonical(value: Any) -> bytes:
    """The one way to write ``value`` as JSON: keys sorted, no spaces, ASCII.

    Example:
        >>> canonical({"b": 1.5, "a": [True, None]})
        b'{"a":[true,null],"b":1.5}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def sha256(data: bytes) -> str:
    """SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


class Anchor(NamedTuple):
    """How far a ledger had come at some moment: kept elsewhere, it shows later edits and truncation.

    Attributes:
        count: Number of lines.
        head: SHA-256 of the last of them; 64 zeros if there was none.
        name: Where this anchor was kept ("checkpoint", "statement", ...); named by :class:`Verification`.
    """

    count: int
    head: str
    name: str = "given"


@dataclass(frozen=True)
class Verification:
    """The result of checking a ledger against one anchor.

    Attributes:
        anchor: The anchor that was used: ``NAME.head.json``, or the name of the one handed in.
        ok: Every line follows from the one before, and the anchor's line is where the anchor says.
        reason: What is wrong, in a few words; empty if ``ok``.
    """

    anchor: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Reading:
    """What a file holds: whole lines, the first fault of the chain, without a torn line at the end."""

    lines: list[bytes]
    entries: list[Entry]
    size: int  # bytes of the whole lines
    fault: str

    @property
    def head(self) -> str:
        """SHA-256 of the last line."""
        return sha256(self.lines[-1]) if self.lines else GENESIS


def read(data: bytes) -> Reading:
    """Split ``data`` into lines, check the chain, and set a torn last line aside.

    Raises:
        LedgerError: A line other than the last is not the JSON object that this journal writes; or the only line is
            torn, and does not begin as such an object.
    """
    *lines, tail = data.split(b"\n")
    entries = [_parse(line) for line in lines]
    if entries and entries[-1] is None and not tail:  # whole in length, not in content: the machine stopped
        tail = lines.pop()
        entries.pop()
    if not lines and not (tail.startswith(_OPENING[: len(tail)]) or not tail.strip(b"\0")):
        raise LedgerError("this is not a ledger.")  # and must not be cut off as a torn one
    known: list[Entry] = []
    for seq, entry in enumerate(entries):
        if entry is None:
            raise LedgerError(f"line {seq + 1} of the ledger is not one that tacita wrote.")
        known.append(entry)
    return Reading(lines, known, sum(len(line) + 1 for line in lines), find_fault(lines, known))


def _parse(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
        whole = isinstance(entry, dict) and canonical(entry) == line  # refuses doubled keys, too
    except (ValueError, RecursionError):
        return None
    return entry if whole else None


def find_fault(lines: list[bytes], entries: list[Entry]) -> str:
    """The first place where the chain breaks, or an empty string."""
    previous = GENESIS
    for seq, (line, entry) in enumerate(zip(lines, entries, strict=True)):
        if type(entry.get("v")) is not int or entry["v"] != VERSION:
            return f"line {seq + 1} is not of format version {VERSION}"
        if type(entry.get("seq")) is not int or entry["seq"] != seq:
            return f"line {seq + 1} carries another number: lines were removed, added or moved"
        if entry.get("prev") != previous:
            return f"line {seq + 1} does not follow from line {seq}: one of them was changed"
        previous = sha256(line)
    return ""


def check_anchor(lines: list[bytes], anchor: Anchor) -> str:
    """What contradicts ``anchor`` in ``lines``, or an empty string."""
    if len(lines) < anchor.count:
        return f"the ledger has {len(lines)} lines, {anchor.name} counts {anchor.count}: lines were removed"
    head = sha256(lines[anchor.count - 1]) if anchor.count else GENESIS
    return "" if head == anchor.head else f"line {anchor.count} is not the one that {anchor.name} has the hash of"
