"""The table of a run and what is declared about it: structure is public, rows are not.

Place: tables -> [pipeline.source] -> plan, purchases. Merges the schema with the settings, reads the file, and says
which columns take part and about which something must be bought. Only the file's structure may raise.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from tacita.errors import DataStructureError, TacitaError
from tacita.pipeline.settings import TableSettings, check_delta, read_text
from tacita.tables.readers import read_table
from tacita.tables.schema import ArraySpec, Schema, Target
from tacita.tables.table import ArrayColumn, Table


@dataclass(frozen=True)
class Source:
    """A table with its declarations.

    Attributes:
        table: The rows. Private.
        schema: What is declared: public.
        names: Columns that may become features: public structure.
        to_buy: Columns about which something must be bought, the target last; empty if all is declared.
    """

    table: Table = field(repr=False)
    schema: Schema
    names: tuple[str, ...]
    to_buy: tuple[str, ...]


@contextmanager
def private_rows(doing: str) -> Iterator[None]:
    """Around code that sees rows: what fails there unforeseen may quote them, so its message is not shown.

    Nor is a warning: that a value overflowed is a fact about a row.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except (TacitaError, OSError, MemoryError):
        raise
    except Exception as error:
        raise TacitaError(
            f"{doing} failed ({type(error).__name__}); the message is not shown, since it may quote rows. "
            "tacita check FILE looks at the file loudly."
        ) from None


def declared(settings: TableSettings) -> Schema:
    """The schema of the file named in the settings (or an empty one), with the settings merged in.

    Raises:
        ValueError: A draft nobody has reviewed, or a setting given twice with different values.
    """
    schema = Schema()
    if settings.schema is not None:
        text = read_text("schema", settings.schema)
        try:
            schema = Schema.loads(text).require_reviewed()
        except ValueError as error:
            raise ValueError(f"schema {settings.schema!r}: {error}") from None
    rows = _agreed("rows", settings.rows, schema.rows)
    check_delta(settings.delta, rows, settings.allow_large_delta)
    unit = _agreed("unit_column", settings.unit_column, schema.unit)
    most = _agreed("max_rows_per_unit", settings.max_rows_per_unit, schema.max_rows_per_unit)
    if (unit is None) != (most is None):
        raise ValueError("unit_column and max_rows_per_unit go together: give both, here or in the schema.")
    if unit is not None and settings.neighboring_relation != "add_or_remove_one":
        raise ValueError(
            f"unit_column needs neighboring_relation add_or_remove_one, got {settings.neighboring_relation!r}: for "
            "persons with several rows no guarantee is proved under the other relations."
        )
    return msgspec.structs.replace(
        schema,
        target=_target(settings, schema.target),
        rows=rows,
        unit=unit,
        max_rows_per_unit=most,
        privacy_unit=_agreed("privacy_unit", settings.privacy_unit, schema.privacy_unit),
        reading=settings.reading(schema.reading),
    )


def read_test(path: str, source: Source) -> Table:
    """A table that the user declares public, read as the private one is."""
    target = source.schema.target
    assert target is not None
    with private_rows("reading the test file"):
        try:
            return read_table(path, source.schema.reading, only=(*source.names, target.column))
        except DataStructureError as error:
            raise DataStructureError(f"test_file: {error}") from None


def unit_in_words(schema: Schema) -> str:
    """Whom the guarantee protects."""
    if schema.privacy_unit is not None:
        return schema.privacy_unit
    if schema.unit is None:
        return "one row of the table"
    return f"one person: all rows with the same {schema.unit!r}, of which at most {schema.max_rows_per_unit} are used"


def read(settings: TableSettings, schema: Schema) -> Source:
    """Read the table and hold its structure against ``schema``.

    Raises:
        DataStructureError: The file cannot be read, or its structure is not the declared one.
    """
    only = schema.needed() if schema.columns else None
    with private_rows("reading the table"):
        table = read_table(settings.data, schema.reading, only=only)
    target = schema.target
    assert target is not None
    for name in (target.column, *settings.drop, *(() if schema.unit is None else (schema.unit,))):
        table.column(name)
    offered = [name for name in (schema.columns or table.names) if name not in settings.drop]
    schema = _with_arrays(schema, table, offered)
    schema.check_structure(table)
    names = schema.features(offered)
    if not names:
        raise ValueError("the table has no column to predict from: declare some, or drop fewer.")
    schema = _with_public_count(schema, table, settings)
    to_buy = schema.to_buy(offered)
    if not to_buy and schema.rows is None:
        to_buy = (target.column,)  # for the number of rows alone
    for name in to_buy:
        if table.column(name).storage == "array":
            raise DataStructureError(f"Column {name!r} holds arrays: declare it in a schema with kind = 'array'.")
    return Source(table, schema, names, to_buy)


def _target(settings: TableSettings, target: Target | None) -> Target:
    column = _agreed("target", settings.target, None if target is None else target.column)
    if column is None:
        raise ValueError("target is missing: give --target COLUMN, or a schema with [target] column = ...")
    target = target or Target(column=column)
    task = _agreed("task", settings.task, target.task)
    return Target(column=column, task=task, classes=target.classes, lower=target.lower, upper=target.upper)


def _agreed(name: str, given: Any, in_schema: Any) -> Any:
    if given is not None and in_schema is not None and given != in_schema:
        raise ValueError(f"{name} is {given!r} in the settings and {in_schema!r} in the schema: give it in one place.")
    return in_schema if given is None else given


def _with_public_count(schema: Schema, table: Table, settings: TableSettings) -> Schema:
    """Where neighbours have the same number of rows, that number is public, and must be the file's."""
    if settings.neighboring_relation == "add_or_remove_one":
        return schema
    rows = max(table.num_rows, 1)
    if schema.rows not in (None, rows):
        raise ValueError(
            f"rows must be the table's number of rows under {settings.neighboring_relation}, got {schema.rows}: "
            "there it is public and exact. Leave it out."
        )
    check_delta(settings.delta, rows, settings.allow_large_delta)
    return msgspec.structs.replace(schema, rows=rows)


def _with_arrays(schema: Schema, table: Table, offered: list[str]) -> Schema:
    """Arrays of bytes (images) are declared by the file itself: their type says 0 to 255, their shape is structure."""
    specs = dict(schema.columns)
    for name in offered:
        column = table.column(name)
        if name not in specs and isinstance(column, ArrayColumn) and column.values.dtype == np.uint8:
            specs[name] = ArraySpec(shape=column.values.shape[1:], lower=0.0, upper=255.0)
    return msgspec.structs.replace(schema, columns=specs)
