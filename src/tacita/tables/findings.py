"""Check a table for its holder: odd rows, cells and labels, and what training will do with a column. NOT private.

Training passes over every odd row in silence, because a message would reveal it. Here each one is counted and shown,
with examples. The report says in its first line that it is not private, and nothing else in the library reads it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tacita.tables.cells import MISSING, NUMBER, TEXT
from tacita.tables.drafting import date_formats, notation, require_columns
from tacita.tables.schema import ArraySpec, CategorySpec, DateSpec, NumberSpec, Schema, Target, as_texts
from tacita.tables.table import ArrayColumn, Column, Table, TextColumn

ENOUGH = 50  # rows; with fewer, nothing is said about shares
OFTEN = 50  # rows that must share a text for it to have a chance of being bought
RARE = 0.1  # a class of a smaller share is rare
LONGEST_EXAMPLE = 60  # characters of a cell that are shown
LOST = "\ufffd"  # stands for bytes that could not be decoded
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


def worth(name: str, table: Table, schema: Schema) -> Iterator[Finding]:
    """Find whether a column is constant, different in every row, of mixed type, or likely to be dropped."""
    column, spec = table.column(name), schema.columns.get(name)
    _, kinds = column.numbers(schema.missing, schema.date_format(name))
    there = table.valid & (kinds != MISSING)
    counts = column.counts(there)
    rows, numbers = int(there.sum()), int((there & (kinds == NUMBER)).sum())
    if not rows and table.valid.any():
        words = "cells, all of them missing: training drops the column. Leave it out (--drop)"
        yield Finding(name, words, int(table.valid.sum()), ())
    if rows < ENOUGH:
        return
    declared = spec is not None and spec.complete
    if len(counts) == 1:
        yield Finding(
            name, "rows with one and the same value: a constant tells nothing. Leave it out (--drop)", rows, ()
        )
    elif not declared and (found := other_notation(name, column, there & (kinds == TEXT), schema)):
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
            (),
        )
    elif not declared and numbers < rows / 2 and max(counts.values()) < OFTEN:
        yield Finding(
            name,
            f"different texts, none of them in {OFTEN} rows: too few of each to be bought, and training drops the "
            "column. Declare its values in a schema, or drop it",
            len(counts),
            (),
        )
    elif spec is None and numbers < rows:
        odd = np.flatnonzero(there & (kinds == TEXT))
        if numbers > rows / 2:
            _, texts = column.take(odd).texts()
            problem = "cells are not numbers, in a column of numbers: taken as missing"
            yield Finding(name, problem, len(odd), tuple(map(repr, texts[:3])))


def other_notation(name: str, column: Column, texts: np.ndarray, schema: Schema) -> Finding | None:
    """Find whether a tenth of the cells or more, the mask ``texts``, would be numbers or dates in another notation."""
    rows = int(texts.sum())
    if not isinstance(column, TextColumn) or rows < max(MIXED * len(texts), 1):
        return None
    _, known = column.take(np.flatnonzero(texts)).texts()
    words = notation(known, schema.reading.decimal)
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
        yield Finding(
            target.column,
            "rows are of the rarest class: imbalanced. Always guessing the largest class is right in "
            f"{most / rows:.0%} of the rows, so compare the accuracy with that, and look at a measure by class",
            counts[rarest],
            (repr(rarest),),
        )


def _are_classes(counts: dict[str, int], texts: int, target: Target) -> bool:
    """Return whether the targets are surely classes, and no quantities: by declaration, or as most are texts."""
    return target.task == "classification" or 2 * texts > sum(counts.values())


EXAMPLES = 3


@dataclass(frozen=True)
class Report:
    """The findings of :func:`check`. Not private."""

    rows: int
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        head = "NOT PRIVATE: computed from the rows themselves, for the holder of the data alone."
        body = [f"  {finding}" for finding in self.findings] or ["  nothing odd"]
        return "\n".join([head, f"{self.rows} records", *body])


def check(table: Table, schema: Schema) -> Report:
    """List everything odd about ``table`` under ``schema``. A wrong structure raises, as it does in training."""
    require_columns(table.names, schema.reading.delimiter)
    schema.check_structure(table)
    first = 2 if schema.reading.header else 1
    findings = list(structure(table, schema))
    findings += list(_where("records", "of the wrong width: they count for nothing", ~table.valid, first))
    for name in schema.columns:
        findings += _column(name, table, schema)
    for name in schema.features(table.names):
        if not isinstance(table.column(name), ArrayColumn):
            findings += worth(name, table, schema)
    findings += _target(table, schema)
    findings += labels(table, schema)
    findings += _units(table, schema)
    return Report(table.num_rows, tuple(findings))


def _where(column: str, problem: str, odd: np.ndarray, first: int) -> Iterator[Finding]:
    lines = np.flatnonzero(odd)
    if len(lines):
        yield Finding(column, problem, len(lines), tuple(f"line {i + first}" for i in lines[:EXAMPLES]))


def _cells(name: str, problem: str, odd: np.ndarray, column: Column) -> Iterator[Finding]:
    if odd.any():
        codes, texts = column.texts()
        shown = [repr(texts[code]) for code in np.unique(codes[odd])[:EXAMPLES]]
        yield Finding(name, problem, int(odd.sum()), tuple(shown))


def _column(name: str, table: Table, schema: Schema) -> Iterator[Finding]:
    spec = schema.columns[name]
    if isinstance(spec, ArraySpec):
        yield from _array(name, table.column(name), spec)
    elif isinstance(spec, CategorySpec):
        yield from _category(name, table.column(name), spec, table.valid, schema.missing)
    elif isinstance(spec, (NumberSpec, DateSpec)):
        yield from _number(name, table.column(name), spec, table.valid, schema.missing)


def _number(
    name: str, column: Column, spec: NumberSpec | DateSpec, valid: np.ndarray, missing: Sequence[str]
) -> Iterator[Finding]:
    date_format = spec.format if isinstance(spec, DateSpec) else None
    lower, upper = spec.days if isinstance(spec, DateSpec) else (spec.lower, spec.upper)
    values, kinds = column.numbers(missing, date_format)
    yield from _missing(name, valid & (kinds == MISSING))
    what = "dates in the declared format" if date_format else "numbers"
    yield from _cells(name, f"cells that are not {what}: taken as missing", valid & (kinds == TEXT), column)
    if lower is not None and upper is not None:
        outside = valid & (kinds == NUMBER) & ((values < lower) | (values > upper))
        yield from _cells(name, "values outside the declared bounds: clamped", outside, column)


def _category(
    name: str, column: Column, spec: CategorySpec, valid: np.ndarray, missing: Sequence[str]
) -> Iterator[Finding]:
    codes, texts = column.texts()
    absent = np.array([text in set(missing) for text in texts] or [True])[codes]
    yield from _missing(name, valid & absent)
    if spec.values is not None:
        known = np.array([text in set(as_texts(spec.values)) for text in texts] or [True])[codes]
        yield from _cells(name, 'values that are not declared: taken as "other"', valid & ~known & ~absent, column)


def _array(name: str, column: Column, spec: ArraySpec) -> Iterator[Finding]:
    assert isinstance(column, ArrayColumn)  # the structure was checked
    flat = column.values.reshape(len(column), math.prod(column.values.shape[1:])).astype(np.float64)
    outside = ~((flat >= spec.lower) & (flat <= spec.upper)).all(axis=1)
    if outside.any():
        yield Finding(name, "arrays with values outside the declared bounds: clamped", int(outside.sum()), ())


def _missing(name: str, odd: np.ndarray) -> Iterator[Finding]:
    if odd.any():
        yield Finding(name, "missing cells", int(odd.sum()), ())


def _target(table: Table, schema: Schema) -> Iterator[Finding]:
    target = schema.target
    if target is None:
        return
    column = table.column(target.column)
    problem = "rows without a usable target: they count for nothing"
    if target.classes is not None:
        codes, texts = column.texts()
        known = np.array([text in set(as_texts(target.classes)) for text in texts] or [False])[codes]
        yield from _cells(target.column, problem, table.valid & ~known, column)
    elif target.task == "regression" or target.lower is not None:
        _, kinds = column.numbers(schema.missing, target.format)
        yield from _cells(target.column, problem, table.valid & (kinds != NUMBER), column)
    else:
        _, kinds = column.numbers(schema.missing, target.format)
        absent = table.valid & (kinds == MISSING)
        if absent.any():
            yield Finding(target.column, "rows without a target: they count for nothing", int(absent.sum()), ())


def _units(table: Table, schema: Schema) -> Iterator[Finding]:
    if schema.unit is None or schema.max_rows_per_unit is None:
        return
    codes, _ = table.column(schema.unit).texts()
    _, rows = np.unique(codes[table.valid], return_counts=True)
    over = rows[rows > schema.max_rows_per_unit]
    if len(over):
        yield Finding(schema.unit, f"units with more than {schema.max_rows_per_unit} rows: cut down", len(over), ())
