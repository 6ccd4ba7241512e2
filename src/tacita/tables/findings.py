"""Findings about a table: what training will do with a column, and what its holder can do about it. NOT private."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacita.tables.cells import MISSING, NUMBER, TEXT
from tacita.tables.notation import date_formats, notation
from tacita.tables.schema import Schema, Target
from tacita.tables.table import ArrayColumn, Column, Table, TextColumn

ENOUGH = 50  # rows; with fewer, nothing is said about shares
OFTEN = 50  # rows that must share a text for it to have a chance of being bought
RARE = 0.1  # a class of a smaller share is rare
LONGEST_EXAMPLE = 60  # characters of a cell that are shown
LOST = "\ufffd"  # stands for bytes that could not be decoded
GARBLED = (LOST, "\0")
MIXED = 0.1  # a column is mixed if numbers and texts both have this share


@dataclass(frozen=True)
class Finding:
    """One odd thing in a table. Not private: its count and examples are exact."""

    column: str
    problem: str
    rows: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        shown = f" (for example {', '.join(map(_short, self.examples))})" if self.examples else ""
        return f"{self.column}: {self.rows} {self.problem}{shown}"


def structure(table: Table, schema: Schema) -> Iterator[Finding]:
    """Find what a training would stop at or learn nothing from: few records, no column, names that were not decoded."""
    if not table.num_rows:
        yield Finding("records", "records: the file holds no row, so that there is nothing to learn", 0, ())
    elif table.num_rows < ENOUGH and schema.target is not None and schema.to_buy(table.names):
        words = (
            "records: about as many as one label needs to be bought at epsilon 1, so that a training may learn nothing "
            "of what no schema declares. tacita train --dry-run says how many rows are needed"
        )
        yield Finding("records", words, table.num_rows, ())
    if schema.target is not None and not schema.features(table.names):
        yield Finding("columns", "columns to predict from: training refuses such a table", 0, ())
    odd = [name for name in table.names if LOST in name]
    if odd:
        yield Finding(
            "columns",
            f"names of columns hold bytes that are not {schema.reading.encoding}: give --encoding, for example latin-1",
            len(odd),
            tuple(map(repr, odd[:3])),
        )


def garbled(name: str, table: Table, schema: Schema) -> Iterator[Finding]:
    """Find cells with zero bytes, or with bytes that could not be decoded."""
    codes, texts = table.column(name).texts()
    marked = np.array([any(mark in text for mark in GARBLED) for text in texts] or [False])
    odd = table.valid & marked[codes] if len(codes) else table.valid
    if odd.any():
        words = (
            f"cells hold zero bytes, or bytes that are not {schema.reading.encoding}: give --encoding (latin-1, say), "
            "or clean the file"
        )
        shown = tuple(repr(texts[code]) for code in np.unique(codes[odd])[:3])
        yield Finding(name, words, int(odd.sum()), shown)


def worth(name: str, table: Table, schema: Schema) -> Iterator[Finding]:
    """Find whether a column is constant, different in every row, of mixed type, short of cells, or to be dropped."""
    column, spec = table.column(name), schema.columns.get(name)
    _, kinds = column.numbers(schema.missing, schema.date_format(name))
    there = table.valid & (kinds != MISSING)
    counts = column.counts(there)
    rows, numbers = int(there.sum()), int((there & (kinds == NUMBER)).sum())
    odd = np.flatnonzero(there & (kinds == TEXT))
    missing = int(table.valid.sum()) - rows
    if missing and not rows:
        yield Finding(name, "cells, all of them missing: training drops the column. Leave it out (--drop)", missing, ())
    elif missing and spec is None:
        yield Finding(name, "missing cells", missing, ())
    if rows < ENOUGH:
        return
    declared = spec is not None and spec.complete
    if len(counts) == 1:
        yield Finding(
            name, "rows with one and the same value: a constant tells nothing. Leave it out (--drop)", rows, ()
        )
    elif not declared and (found := other_notation(name, column, there & (kinds == TEXT), schema, beside=numbers)):
        yield found
    elif len(counts) == rows and not declared and column.storage != "date" and _looks_like_names(counts, kinds[there]):
        yield Finding(
            name,
            "rows, all with different values: training drops such texts and takes such numbers as quantities. An "
            "identifier? Declare kind = 'identifier', or drop it (--drop)",
            rows,
            (),
        )
    elif not declared and min(numbers, rows - numbers) >= MIXED * rows:
        yield Finding(
            name,
            f"cells are numbers and {rows - numbers} are texts: the noise decides which of the two the column is taken "
            "for. Declare its kind in a schema",
            numbers,
            tuple(map(repr, column.take(odd).texts()[1][:3])),
        )
    elif not declared and numbers < rows / 2 and max(counts.values()) < OFTEN:
        yield Finding(
            name,
            f"different texts, none of them in {OFTEN} rows: too few of each to be bought, and training drops the "
            "column. Declare its values in a schema, or drop it",
            len(counts),
            (),
        )
    elif spec is None and rows / 2 < numbers < rows:
        problem = "cells are not numbers, in a column of numbers: taken as missing"
        yield Finding(name, problem, len(odd), tuple(map(repr, column.take(odd).texts()[1][:3])))


def other_notation(name: str, column: Column, texts: np.ndarray, schema: Schema, *, beside: int = 0) -> Finding | None:
    """Find whether a tenth of the cells or more, the mask ``texts``, would be numbers or dates in another notation.

    Args:
        name: The name of the column.
        column: Its cells.
        texts: Those that are read as texts.
        schema: What is declared.
        beside: Number of cells that are read as numbers, or as dates.
    """
    rows = int(texts.sum())
    if not isinstance(column, TextColumn) or rows < max(MIXED * len(texts), 1):
        return None
    _, known = column.take(np.flatnonzero(texts)).texts()
    words = notation(known, schema.reading.decimal)
    if words is not None and words.startswith("dates") and beside:
        words = "dates in another format than the others: a column takes one, so write all of them alike in the file"
    problem = f"cells are read as texts, and look like {words}"
    return None if words is None else Finding(name, problem, rows, tuple(map(repr, known[:2])))


def _short(example: str) -> str:
    """Shorten an example so that it fits on a line."""
    return example if len(example) <= LONGEST_EXAMPLE else f"{example[:LONGEST_EXAMPLE]}... ({len(example)} characters)"


def _looks_like_names(counts: dict[str, int], kinds: np.ndarray) -> bool:
    """Return whether cells that all differ look like names: texts or whole numbers. Measurements may differ, too."""
    return bool((kinds == TEXT).all()) or all(text.lstrip("+-").isdigit() for text in counts)


def labels(table: Table, schema: Schema) -> Iterator[Finding]:
    """Find labels in another notation, rare labels, and a rare class.

    A model that never predicts a rare class looks good by accuracy.
    """
    target = schema.target
    if (
        target is None
        or target.task == "regression"
        or target.dates
        or isinstance(table.column(target.column), ArrayColumn)
    ):
        return
    column = table.column(target.column)
    _, kinds = column.numbers(schema.missing, target.format)
    counts = column.counts(table.valid & (kinds != MISSING))
    rows = sum(counts.values())
    texts = table.valid & (kinds == TEXT)
    if target.classes is None and (found := other_notation(target.column, column, texts, schema)):
        yield found
        return
    if rows and (column.storage == "date" or date_formats(sorted(set(counts) - set(schema.missing)))):
        words = (
            "targets are dates: predictions are dates if the file's types or a schema ([target] dates = true) say so"
        )
        yield Finding(target.column, words, rows, ())
        return
    if twins := _twins(counts):
        yield Finding(
            target.column,
            "rows have a label that differs from a more frequent one in case alone, and so is another class: write "
            "both alike",
            sum(counts[text] for text in twins),
            tuple(map(repr, twins[:3])),
        )
    seldom = [text for text in counts if counts[text] < OFTEN]
    if rows >= ENOUGH and target.classes is None and len(seldom) > 1 and _are_classes(counts, int(texts.sum()), target):
        yield Finding(
            target.column,
            f"rows have one of {len(seldom)} labels (of {len(counts)}) with fewer than {OFTEN} rows each: too few to "
            "be bought, and a model is wrong on such rows. Merge labels, or declare the classes (--classes)",
            sum(counts[text] for text in seldom),
            tuple(map(repr, sorted(seldom)[:3])),
        )
        return
    if rows < ENOUGH or not 2 <= len(counts) <= 20:
        return
    rarest, most = min(counts, key=lambda text: (counts[text], text)), max(counts.values())
    if counts[rarest] < RARE * rows:
        too_few = (
            ""
            if target.classes is not None or counts[rarest] >= OFTEN
            else (", and too few to be bought: they contribute nothing unless the classes are declared (--classes)")
        )
        yield Finding(
            target.column,
            f"rows are of the rarest class: imbalanced{too_few}. Always guessing the largest class is right in "
            f"{most / rows:.0%} of the rows, so compare the accuracy with that, and look at a measure by class",
            counts[rarest],
            (repr(rarest),),
        )


def _twins(counts: dict[str, int]) -> list[str]:
    """Return the texts that are others in another case, but for the most frequent of each kind."""
    kinds: dict[str, list[str]] = {}
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        kinds.setdefault(text.casefold(), []).append(text)
    return sorted(text for alike in kinds.values() for text in alike[1:])


def _are_classes(counts: dict[str, int], texts: int, target: Target) -> bool:
    """Return whether the targets are surely classes, and no quantities: by declaration, or as most are texts."""
    return target.task == "classification" or 2 * texts > sum(counts.values())
