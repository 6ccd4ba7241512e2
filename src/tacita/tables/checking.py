"""Check a table for its holder: odd rows, cells and labels, with examples. NOT private.

Training passes over every odd row in silence, because a message would reveal it. Here each one is counted and shown.
The report says in its first line that it is not private, and nothing else in the library reads it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tacita._counted import counted
from tacita.tables.cells import MISSING, NUMBER, TEXT
from tacita.tables.column_specs import ArraySpec, CategorySpec, DateSpec, NumberSpec, as_texts
from tacita.tables.findings import Finding, garbled, labels, structure, worth
from tacita.tables.notation import require_columns
from tacita.tables.schema import Schema
from tacita.tables.table import ArrayColumn, Column, Table

EXAMPLES = 3


@dataclass(frozen=True)
class Report:
    """The findings of :func:`check`. Not private."""

    rows: int
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        head = "NOT PRIVATE: computed from the rows themselves, for the holder of the data alone."
        body = [f"  {finding}" for finding in self.findings] or ["  nothing odd"]
        return "\n".join([head, counted(self.rows, "record"), *body])


def check(table: Table, schema: Schema) -> Report:
    """List everything odd about ``table`` under ``schema``. A wrong structure raises, as it does in training."""
    require_columns(table.names, schema.reading.delimiter)
    schema.check_structure(table)
    findings = list(structure(table, schema))
    way = "" if schema.reading.multiline else "; of a CSV, --multiline reads quoted line breaks"
    lines, first = ("record", 1) if schema.reading.multiline else ("line", 1 + schema.reading.header)
    findings += list(
        _where(
            "records",
            f"that are no row of this table (too many or too few cells, or stray quotes{way}): they count for nothing",
            ~table.valid,
            lines,
            first,
        )
    )
    for name in schema.columns:
        findings += _column(name, table, schema)
    for name in schema.features(table.names):
        if not isinstance(table.column(name), ArrayColumn):
            findings += garbled(name, table, schema)
            findings += worth(name, table, schema)
    findings += _target(table, schema)
    findings += labels(table, schema)
    findings += _units(table, schema)
    return Report(table.num_rows, tuple(findings))


def _where(column: str, problem: str, odd: np.ndarray, what: str, first: int) -> Iterator[Finding]:
    places = np.flatnonzero(odd)
    if len(places):
        yield Finding(column, problem, len(places), tuple(f"{what} {i + first}" for i in places[:EXAMPLES]))


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
    if not isinstance(column, ArrayColumn):
        yield from garbled(target.column, table, schema)
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
        yield Finding(
            schema.unit,
            f"units with more than {counted(schema.max_rows_per_unit or 0, 'row')}: cut down",
            len(over),
            (),
        )
