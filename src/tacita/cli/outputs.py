"""Checks of output paths before the work starts, so that hours of work do not end at a path that cannot be written."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita._files import replace_durably
from tacita.cli.streams import drop_output
from tacita.report.style import image_kind, need_matplotlib

if TYPE_CHECKING:
    from tacita.ledger.verdict import Verdict

NO_GUARANTEE = 1  # exit code: something was changed or refuted, or the verdict is not private
PAGES = (".html", ".htm")


def check_file(
    name: str, path: str | os.PathLike[str] | None, inputs: Iterable[str | os.PathLike[str] | None] = ()
) -> None:
    """Raise ``ValueError`` unless the file can be written; ``None`` means that no file is wanted.

    Args:
        name: Name of the option, for the message.
        path: The option's value.
        inputs: Files and folders that are read, and stay as they are.

    Raises:
        ValueError: Its folder is missing or cannot be written, it is a folder itself, or it is one of the inputs or
            lies in one.
    """
    if path is None:
        return
    given, folder = str(path), Path(path).absolute().parent
    for one in inputs:
        if one is not None and Path(path).resolve().is_relative_to(Path(one).resolve()):
            raise ValueError(f"{name} must lie outside of what is read ({str(one)!r}), got {given!r}.")
    if Path(path).is_dir():
        raise ValueError(f"{name} must be a file, got the folder {given!r}: add a file name.")
    if not folder.is_dir():
        raise ValueError(f"{name} must be in a folder that exists, got {given!r}: make {str(folder)!r} first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{name} must be in a folder that you may write, got {given!r}.")


def check_figure(name: str, path: str | os.PathLike[str] | None) -> None:
    """Raise unless a figure can be written to the file: its ending is .png, .svg or .pdf, and matplotlib is installed.

    Raises:
        ValueError: As :func:`check_file`, or the file has another ending.
        TacitaError: matplotlib is not installed.
    """
    if path is None:
        return
    image_kind(path)
    need_matplotlib()
    check_file(name, path)


def check_page(name: str, path: str | os.PathLike[str] | None) -> None:
    """Raise ``ValueError`` unless a page can be written to the file: its ending is .html or .htm.

    Raises:
        ValueError: As :func:`check_file`, or the file has another ending.
    """
    if path is not None and Path(path).suffix.lower() not in PAGES and not Path(path).is_dir():
        raise ValueError(f"{name} must end in {' or '.join(PAGES)}, got {str(path)!r}: a page is HTML.")
    check_file(name, path)


def check_folder(name: str, path: str | os.PathLike[str] | None) -> None:
    """Raise ``ValueError`` unless the folder exists and can be written, or can be made.

    Raises:
        ValueError: A part of the path is a file, or the folder above cannot be written.
    """
    if path is None:
        return
    whole = Path(path).absolute()
    there = next(folder for folder in (whole, *whole.parents) if folder.exists())
    if not there.is_dir():
        raise ValueError(f"{name} must be a folder, got {str(path)!r}: {str(there)!r} is a file.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{name} must be a folder that you may write, got {str(path)!r}.")


def write_json(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """Write one JSON document; after a crash the file is complete or unchanged."""
    replace_durably(Path(path), json.dumps(record, indent=2, allow_nan=False).encode() + b"\n")


def write_bytes(pieces: Iterable[bytes]) -> None:
    """Write to standard output, piece by piece, and stop where the program that reads it wants no more (``head``)."""
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:
        if not drop_output():
            raise


def exit_code(verdict: "Verdict") -> int:
    """Return 0 if there is a guarantee, if only under conditions; else say on standard error that there is none."""
    if verdict.guaranteed:
        return 0
    print(f"tacita: the verdict is: {verdict.word}. Exit code {NO_GUARANTEE}.", file=sys.stderr)
    return NO_GUARANTEE


def in_short(fields: Mapping[str, Any]) -> str:
    """Return verdict, epsilon and score in a line, to stand below a statement that has scrolled them away."""
    from tacita.ledger.run_sections import epsilon_in_words, score_in_words
    from tacita.ledger.verdict import verdict

    weighed, score = verdict(fields), score_in_words(fields.get("holdout_score"))
    return f"verdict: {weighed.in_words()}; epsilon {epsilon_in_words(weighed)}; {score or 'no score'}"


def say_written(path: str | os.PathLike[str]) -> None:
    """Print on standard error where a result was written."""
    print(f"written to {path}", file=sys.stderr, flush=True)
