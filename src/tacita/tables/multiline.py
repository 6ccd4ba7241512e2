"""Where records end in a CSV whose quoted cells may hold line breaks (``multiline = true``). Private.

Place: csv_lines (physical lines) -> [multiline] -> readers, predict. Proof: docs/derivations/tables.md, "Records of
several lines".

A *record of several lines* is a run of at most ``MOST_LINES`` lines such that

1. its first line opens a quoted cell and does not close it (:attr:`Form.opens`);
2. no other line of it opens one in this way, or is a record by RFC 4180 (quotes only around whole cells, the right
   width);
3. its last line is the first after which the number of quotes is even;
4. as a whole it is a record by RFC 4180.

Every other line is a record by itself, and counts if it is one by RFC 4180. By (2) two such runs never share a line,
and whether lines are a record depends on their own bytes alone: no record can reach into another.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from tacita.tables.csv_lines import FileFormat, blocks, line_ends

MOST_LINES = 100  # of one record


class Form:
    """What lines look like in a format: patterns of bytes, each of which looks at these alone."""

    def __init__(self, reading: FileFormat, width: int):
        quote, delimiter = (re.escape(one.encode()) for one in (reading.quote, reading.delimiter))
        body = rb"(?:[^%b]++|%b%b)*+" % (quote, quote, quote)
        cell = rb"(?:(?> *%b%b%b)|[^%b%b\n]*+)" % (quote, body, quote, quote, delimiter)
        before = rb"(?:%b%b)" % (cell, delimiter)
        # A cell that begins with a delimiter, or that stands first and begins with a line break, looks like one's end.
        opening = rb"(?:%b++ *%b(?!%b)| *%b(?!%b|\Z))%b" % (before, quote, delimiter, quote, delimiter, body)
        self._opening = re.compile(opening, re.DOTALL)
        self._whole = re.compile(rb"%b{%d}%b" % (before, width - 1, cell), re.DOTALL)

    def opens(self, line: bytes) -> bool:
        """Return whether a line with an odd number of quotes opens a quoted cell at its end, and closes all others."""
        return self._opening.fullmatch(line.removesuffix(b"\r")) is not None

    def whole(self, lines: bytes) -> bool:
        """Return whether lines with an even number of quotes are one record by RFC 4180, of the right width."""
        return self._whole.fullmatch(lines.removesuffix(b"\r")) is not None


_form = lru_cache(maxsize=8)(Form)


def cut(block: bytes, reading: FileFormat, width: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Find the records in whole lines.

    Returns:
        Where each record ends (at its newline); a mask of those whose quotes are as they must be; and where the first
        record begins that further lines may continue (``len(block)`` if there is none).
    """
    ends = line_ends(block)
    quotes = np.flatnonzero(np.frombuffer(block, np.uint8) == ord(reading.quote))
    numbers = np.diff(np.searchsorted(quotes, ends), prepend=0)
    odd: list[int] = np.flatnonzero(numbers % 2).tolist()
    starts, form = np.append(0, ends[:-1] + 1), _form(reading, width)
    inner, counts = np.zeros(len(ends), bool), numbers % 2 == 0

    def line(number: int) -> bytes:
        return block[starts[number] : ends[number]]

    for number in np.flatnonzero(counts & (numbers > 0)).tolist():
        counts[number] = form.whole(line(number))
    for first, last in zip(odd, [*odd[1:], len(ends)], strict=False):
        if last - first >= MOST_LINES or inner[first - 1 : first].any() or not form.opens(line(first)):
            continue
        if any(form.whole(line(number)) for number in range(first + 1, last)):
            continue
        if last == len(ends):
            return ends[~inner], counts[~inner], int(starts[first])
        if not form.opens(line(last)) and form.whole(block[starts[first] : ends[last]]):
            inner[first:last], counts[last] = True, True
    return ends[~inner], counts[~inner], len(block)


def records(path: Path, reading: FileFormat, width: int) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
    """Yield the lines below the header, block by block, none cut within a record; where its records end; which count.

    Raises:
        DataStructureError: The file cannot be read.
    """
    skip, kept = reading.header, b""
    for block in blocks(path):
        lines = kept + (block.partition(b"\n")[2] if skip else block)
        skip, kept = False, b""
        if not lines:
            continue
        if not reading.multiline:
            ends = line_ends(lines)
            yield lines, ends, np.ones(len(ends), bool)
            continue
        ends, counts, decided = cut(lines, reading, width)
        lines, kept = lines[:decided], lines[decided:]
        if lines:
            found = ends < decided
            yield lines, ends[found], counts[found]
    if kept:
        ends, counts, _ = cut(kept, reading, width)
        yield kept, ends, counts
