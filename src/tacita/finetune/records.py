"""Records of text, one a line: read each by its own keys, and by nothing else of the file. Private.

A line that is no record keeps its place and contributes nothing, and no message tells of it: ``tacita check`` does.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from tacita.tables.csv_lines import file_pieces

ROLES = ("system", "user", "assistant")
LONGEST = 2**22  # bytes of a line, which takes thirty times as much to read; a longer one contributes nothing
EMPTY = f"an empty line, or one of more than {LONGEST:,} bytes"
NO_UTF8, NO_JSON = "not in UTF-8", 'no JSON object, such as {"prompt": "...", "completion": "..."}'
NO_KEYS = "no messages, no prompt with completion, and no text among its keys"
NO_TEXT = "what stands under prompt, completion or text is no text"
NO_TURNS = f"messages is no list of turns, each a role ({', '.join(ROLES)}) and content that is text"
Form = Literal["messages", "pair", "text"]


@dataclass(frozen=True)
class Turn:
    """One message: ``role`` says it, with ``content``."""

    role: str
    content: str


@dataclass(frozen=True)
class TextRecord:
    """One line.

    Attributes:
        form: Which keys it has: ``messages``; ``prompt`` and ``completion``; or ``text``.
        turns: The messages; prompt and completion, as user and assistant; or the text, as one of the assistant.
    """

    form: Form
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Line:
    """What a line holds.

    Attributes:
        record: ``None`` if it is no record.
        unit: The person whose it is, if the field that names persons is there and holds a text or an integer.
        why: Why it is no record.
    """

    record: TextRecord | None
    unit: str | None = None
    why: str = ""


def read_records(path: str | Path, unit_field: str | None = None) -> Iterator[Line]:
    """Yield every line of a file of JSON lines, compressed if its name ends in ``.gz``.

    Args:
        path: The file.
        unit_field: The key that names the person; ``None`` if a record is a unit.

    Raises:
        DataStructureError: The file cannot be read. What its lines hold never raises.
    """
    for line in physical_lines(Path(path)):
        yield read_line(line, unit_field)


def physical_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; of one that is longer than ``LONGEST`` an empty line."""
    rest, too_long = b"", False
    for piece in file_pieces(path):
        *whole, last = piece.split(b"\n")
        for line in whole:
            joined = rest + line
            yield b"" if too_long or len(joined) > LONGEST else joined
            rest, too_long = b"", False
        too_long = too_long or len(rest) + len(last) > LONGEST
        rest = b"" if too_long else rest + last
    if rest or too_long:
        yield rest


def read_line(line: bytes, unit_field: str | None = None) -> Line:
    """Read one line by its own keys: ``messages`` first, then ``prompt`` and ``completion``, then ``text``.

    Example:
        >>> read_line(b'{"prompt": "2 + 2 =", "completion": " 4", "who": 7}', "who")  # doctest: +ELLIPSIS
        Line(record=TextRecord(form='pair', turns=(Turn(...='2 + 2 ='), Turn(...=' 4'))), unit='7', why='')
        >>> read_line(b'{"text": 4}').record is None
        True
    """
    try:
        fields = json.loads(line.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except UnicodeDecodeError:
        return Line(None, why=NO_UTF8)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return Line(None, why=NO_JSON if line.strip() else EMPTY)
    name = None if unit_field is None else fields.get(unit_field)
    unit = str(name) if isinstance(name, str | int) and not isinstance(name, bool) else None
    found = _record(fields)
    return Line(None, unit, found) if isinstance(found, str) else Line(found, unit)


def _record(fields: dict[str, Any]) -> TextRecord | str:
    """Return the record that an object holds, or why there is none."""
    if "messages" in fields:
        given = fields["messages"]
        turns = [_turn(one) for one in given] if isinstance(given, list) else []
        known = tuple(turn for turn in turns if turn is not None)
        return TextRecord("messages", known) if known and len(known) == len(turns) else NO_TURNS
    if "prompt" in fields and "completion" in fields:
        prompt, completion = fields["prompt"], fields["completion"]
        if not (_is_text(prompt) and _is_text(completion)):
            return NO_TEXT
        return TextRecord("pair", (Turn("user", prompt), Turn("assistant", completion)))
    if "text" not in fields:
        return NO_KEYS
    text = fields["text"]
    return TextRecord("text", (Turn("assistant", text),)) if _is_text(text) else NO_TEXT


def _turn(given: Any) -> Turn | None:
    if not isinstance(given, dict) or not {"role", "content"} <= given.keys():
        return None
    role, content = given["role"], given["content"]
    return Turn(role, content) if role in ROLES and _is_text(content) else None


def _is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is text that UTF-8 can hold: JSON may hold one half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
