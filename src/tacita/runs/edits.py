"""Edits of a finished run: what a person changed in its model, in lines that continue the ledger behind its seal.

The folder of an edited run holds the run that was edited, whole and untouched, in ``parent/``, and one line an edit in
``edits.jsonl``. Nothing else of the model is stored: it is loaded from ``parent/``, and then edited. A line has the
hash of the line before (of the seal, in the first) and of itself. The format is that of docs/format.md.

Guarantee: an edit reads releases and what a person wrote, so that it is post-processing, unless that person looked at
private rows. Ledger, epsilon and delta are those of the run in ``parent/``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tacita.errors import LedgerError
from tacita.ledger.hash_chain import LedgerLines, canonical, read, sha256
from tacita.ledger.run_sections import files_policy, one_line
from tacita.ledger.verdict import verdict
from tacita.runs.run_facts import Day, today

EDITS, PARENT, LEDGER = "edits.jsonl", "parent", "ledger.jsonl"
BEFORE = " (of the model before the edit)"
NO_SCORE = "none was bought for the edited model, and that of the model before the edit is void"
NO_LOOK = (
    "An edit costs no privacy if whoever made it saw no private rows, nor anything that was computed from them outside "
    "of this ledger. Nobody can check that. Of an edit made while looking at private rows nothing is guaranteed."
)


class EditedCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cell of a shape, with what the model added to each output there, and what it adds now."""

    cell: str
    before: Annotated[tuple[float, ...], Meta(min_length=1)]
    after: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.before) != len(self.after):
            raise ValueError("before and after must have one number for each output.")


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One edit.

    Attributes:
        v, seq, prev, kind: As in a line of the ledger.
        who, date, reason: Who edited, the day by that machine's clock (UTC), and why.
        shapes: All cells of each column that was edited.
        sha256: Of the canonical JSON of all else.
    """

    v: Literal[1] = 1
    seq: int
    prev: str
    kind: Literal["edit"] = "edit"
    who: str
    date: Day
    reason: str
    shapes: Annotated[dict[str, Annotated[tuple[EditedCell, ...], Meta(min_length=1)]], Meta(min_length=1)]
    sha256: str = ""

    def __post_init__(self) -> None:
        one_line("who", self.who)
        one_line("reason", self.reason)

    @property
    def digest(self) -> str:
        """The hash that ``sha256`` must be."""
        fields = msgspec.to_builtins(self)
        del fields["sha256"]
        return sha256(canonical(fields))

    @property
    def line(self) -> bytes:
        """The line of the file, without its newline."""
        return canonical(msgspec.to_builtins(self))

    @property
    def in_words(self) -> str:
        """Who edited what, when and why."""
        columns = "; ".join(f"{column!r}: {words}" for column, words in self.differences().items())
        return f"{self.who} on {self.date} ({self.reason}): {columns}"

    def differences(self) -> dict[str, str]:
        """Say of each column how much was changed."""
        found = {}
        for column, cells in self.shapes.items():
            moved = [max(abs(a - b) for a, b in zip(one.after, one.before, strict=True)) for one in cells]
            count = sum(step > 0 for step in moved)
            found[column] = f"{count} of {len(cells)} cells changed by at most {max(moved):.3g}"
        return found


def chain_of(folder: Path) -> LedgerLines:
    """Return the lines of a run's ledger, and behind them those of its edits, if there are any."""
    if (folder / EDITS).exists():
        return read(_bytes(folder / PARENT / LEDGER) + _bytes(folder / EDITS))
    return read(_bytes(folder / LEDGER))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path.name} cannot be read: {error.strerror}.") from None


def read_edits(folder: Path) -> tuple[Edit, ...]:
    """Return the edits of an edited run; each follows from the line before.

    Raises:
        LedgerError: A line was changed, removed or added.
    """
    count, chain = _bytes(folder / EDITS).count(b"\n"), chain_of(folder)
    if chain.fault or chain.torn or not count:
        raise LedgerError(f"{EDITS} does not continue the ledger in {PARENT}: {chain.fault or 'a line is not whole'}.")
    try:
        found = [msgspec.json.decode(line, type=Edit) for line in chain.lines[-count:]]
        pairs = zip(found, chain.lines[-count:], strict=True)
        whole = all(one.sha256 == one.digest and one.line == line for one, line in pairs)
    except (ValueError, msgspec.MsgspecError):
        whole = False
    if not whole:
        raise LedgerError(f"a line of {EDITS} is not one that tacita wrote.")
    return tuple(found)


def edit_line(folder: Path, shapes: Mapping[str, Sequence[EditedCell]], *, who: str, reason: str) -> bytes:
    """Return the line of a new edit of the run in ``folder``.

    Raises:
        ValueError: ``who`` or ``reason`` is not one line of text.
    """
    chain = chain_of(folder)
    kept = {column: tuple(cells) for column, cells in shapes.items()}
    new = Edit(seq=len(chain.lines), prev=chain.head, who=who, date=today(), reason=reason, shapes=kept)
    return msgspec.structs.replace(new, sha256=new.digest).line + b"\n"


def edited_fields(stated: Mapping[str, Any], edits: Sequence[Edit]) -> dict[str, Any]:
    """Return the fields of the statement of an edited run, from those of the run in ``parent/``.

    The guarantee is that of the run; the score is void, as is whatever else tells how good the model was.
    """
    by = [f"by {one.in_words}" for one in edits] or ["nobody knows by whom"]
    before = stated.get("headline")
    found = {
        **{name: value for name, value in stated.items() if name != "public_losses"},
        "headline": f"EDITED after the training, {', and '.join(by)}. No score was bought for the edited model. It has "
        "the guarantee of the run before the edit if whoever edited saw no private rows."
        + (f" Before the edit: {before}" if before else ""),
        "edits": [
            {"who": one.who, "date": one.date, "reason": one.reason, "of": one.prev, "columns": one.differences()}
            for one in edits
        ],
    }
    if isinstance(score := stated.get("holdout_score"), Mapping):
        kept = {name: score[name] for name in ("measure", "private", "of_rows") if name in score}
        found["holdout_score"] = {**kept, "value": None, "how": NO_SCORE}
    if isinstance(caveats := stated.get("caveats"), list):
        found["caveats"] = [*caveats, NO_LOOK]
    if isinstance(bought := stated.get("purchases"), list):
        found["purchases"] = [_marked(one) for one in bought]
    if isinstance(files := stated.get("files"), Mapping):
        found["files"] = {f"{PARENT}/{name}": digest for name, digest in files.items()}
    if isinstance(policy := stated.get("files_policy"), Mapping) and isinstance(policy.get("may_leave"), list):
        leaving = [f"{PARENT}/{name}" for name in policy["may_leave"]]
        found["files_policy"] = {**policy, "may_leave": [EDITS, "signatures.jsonl", *leaving]}
    weighed = verdict(found)
    if "files_policy" in found:
        found["files_policy"] = files_policy(found["files_policy"], weighed)
    return {**found, "verdict_warnings": list(weighed.warnings)}


def _marked(purchase: Any) -> Any:
    """Return a purchase; one that released a score says of which model."""
    released = purchase.get("released") if isinstance(purchase, Mapping) else None
    if not isinstance(released, Mapping) or "value" not in released:
        return purchase
    return {**purchase, "what": f"{purchase.get('what')}{BEFORE}"}
