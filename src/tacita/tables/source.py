"""The table of a run and what is declared about it: its structure is public, its rows are private.

The schema is merged with the settings, the file is opened, and it is decided which columns take part and about which
something must be bought. Only the structure of the file may raise.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from tacita._near_names import did_you_mean
from tacita.errors import DataStructureError, TacitaError
from tacita.runs.run_facts import fingerprint_secret
from tacita.tables.column_specs import ArraySpec, CategorySpec, DateSpec, NumberSpec
from tacita.tables.readers import open_table, read_table
from tacita.tables.schema import Schema, Target
from tacita.tables.settings import TableSettings, check_delta, read_text
from tacita.tables.table import COMMA_HINT, ArrayColumn, Table, no_column
from tacita.tables.table_file import TableFile


@dataclass(frozen=True)
class TableSource:
    """A table with its declarations.

    Attributes:
        table: The file with the rows, which is read chunk by chunk. Private.
        schema: What is declared. Public.
        names: The columns that may become features. Public.
        to_buy: The columns about which something must be bought, the target last; empty if all is declared.
    """

    table: TableFile = field(repr=False)
    schema: Schema
    names: tuple[str, ...]
    to_buy: tuple[str, ...]


@contextmanager
def private_rows(doing: str) -> Iterator[None]:
    """Hide warnings, what is logged, and the messages of unforeseen errors in this block, whose code sees rows.

    Such a message may quote rows, and even a warning that a value overflowed is a fact about a row.
    """
    logged = logging.root.manager.disable
    try:
        logging.disable()
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except (TacitaError, OSError, MemoryError):
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise TacitaError(
            f"{doing} failed ({type(error).__name__}); the message is not shown, because it may quote rows. "
            "tacita check FILE shows you what is odd in the file."
        ) from None
    finally:
        logging.disable(logged)


def is_failure(error: BaseException) -> bool:
    """Return whether ``error`` is a failure of some code, in Rust too, and no signal to stop."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def declared_schema(settings: TableSettings) -> Schema:
    """Read the schema that the settings name (or take an empty one), and merge the settings into it.

    Raises:
        ValueError: The schema is a draft that nobody has reviewed, or a setting has two different values.
    """
    schema = Schema()
    if settings.schema is not None:
        text = read_text("schema", settings.schema)
        try:
            schema = Schema.loads(text).require_reviewed()
        except ValueError as error:
            raise ValueError(f"schema {settings.schema!r}: {error}") from None
    if settings.fingerprint_key is not None:
        fingerprint_secret(settings.fingerprint_key)  # before anything is spent
    schema = _with_target(schema, settings)
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


def read_test(path: str, source: TableSource) -> Table:
    """Read a table that the user declares public, in the same format as the private one."""
    target = source.schema.target
    assert target is not None
    with private_rows("reading the test file"):
        try:
            return read_table(path, source.schema.reading, only=(*source.names, target.column))
        except DataStructureError as error:
            raise DataStructureError(f"test_file: {error}") from None


def unit_in_words(schema: Schema) -> str:
    """Say whom the guarantee protects."""
    if schema.privacy_unit is not None:
        return schema.privacy_unit
    if schema.unit is None:
        return "one row of the table"
    return f"one person: all rows with the same {schema.unit!r}, of which at most {schema.max_rows_per_unit} are used"


def open_source(settings: TableSettings, schema: Schema) -> TableSource:
    """Open the table and check its structure against ``schema``.

    Raises:
        DataStructureError: The file cannot be read, or its structure is not the declared one.
    """
    only = schema.needed() if schema.columns else None
    with private_rows("reading the table"):
        table = open_table(settings.data, schema.reading, only=only)
        table.check()
    target = schema.target
    assert target is not None
    for name in (target.column, *(() if schema.unit is None else (schema.unit,))):
        table.column(name)
    for name in settings.drop:
        if name not in table.all_names:
            near = did_you_mean(name, schema.columns)  # declared names alone: those of the file may be a record
            raise DataStructureError(f"{no_column(name, table.all_names, near, 'drop names')} {COMMA_HINT}")
    # A schema that declares columns also chooses them: a column of the file that it does not name takes no part.
    offered = [
        name for name in table.names if name not in settings.drop and (not schema.columns or name in schema.columns)
    ]
    schema = _with_features(_with_arrays(_with_dates(schema, table), table, offered), settings)
    schema.check_structure(table.head)
    names = schema.features(offered)
    if not names:
        raise ValueError("the table has no column to predict from: declare some, or drop fewer.")
    if settings.balanced and target.complete:
        raise ValueError(
            "balanced weighs rows by bought counts of their class: declare no classes (or bounds) of the target, "
            "so that they are bought."
        )
    schema = _with_public_count(schema, table, settings)
    to_buy = schema.to_buy(offered)
    for name in to_buy:
        if table.column(name).storage == "array":
            raise DataStructureError(f"Column {name!r} holds arrays: declare it in a schema with kind = 'array'.")
    return TableSource(table, schema, names, to_buy)


def check_additive(settings: TableSettings, source: TableSource) -> None:
    """Refuse an additive model of columns of which no bins are bought, and a direction that no model can keep."""
    target, specs = source.schema.target, source.schema.columns
    assert target is not None
    names = [name for name in source.names if getattr(specs.get(name), "monotone", None) is not None]
    if names and settings.model != "additive":
        raise ValueError(f"monotone of column {names[0]!r} belongs to model = additive: choose it, or leave it out.")
    if names and target.task != "regression" and len(target.classes or ()) != 2:
        raise ValueError(
            f"monotone of column {names[0]!r} needs a regression (--task regression) or two classes as given "
            '(--classes no,yes): "up" means that the second gets likelier.'
        )
    if settings.model == "additive" and not set(source.names) <= set(source.to_buy):
        raise ValueError(
            "model = additive needs bought bins of every column: leave columns out of the schema (or drop them), or "
            "choose linear."
        )


def _with_target(schema: Schema, settings: TableSettings) -> Schema:
    """Move the declaration of the target from the columns of a schema to its ``target``, if it stands there."""
    column = settings.target or (schema.target.column if schema.target else None)
    if column is not None and column in settings.drop:
        raise ValueError(f"drop must not hold the target {column!r}: leave it out of drop, or choose another target.")
    spec = schema.columns.get(column or "")
    if column is None or spec is None or schema.target is not None:
        return schema
    target = Target(column=column)
    if isinstance(spec, CategorySpec):
        target = Target(column=column, task="classification", classes=spec.values)
    elif isinstance(spec, NumberSpec) and spec.complete:
        target = Target(column=column, lower=spec.lower, upper=spec.upper)
    elif isinstance(spec, DateSpec):
        lower, upper = spec.days
        target = Target(column=column, dates=True, format=spec.format, lower=lower, upper=upper)
    others = {name: one for name, one in schema.columns.items() if name != column}
    return msgspec.structs.replace(schema, columns=others, target=target)


def _target(settings: TableSettings, target: Target | None) -> Target:
    column = _agreed("target", settings.target, None if target is None else target.column)
    if column is None:
        raise ValueError("target is missing: give --target COLUMN, or a schema with [target] column = ...")
    target = target or Target(column=column)
    task = _agreed("task", settings.task, target.task)
    classes = _agreed("classes", settings.classes or None, target.classes)
    scale = _agreed("target_scale", settings.target_scale, target.scale)
    return msgspec.structs.replace(target, task=task, classes=classes, scale=scale)


def _agreed(name: str, given: Any, in_schema: Any) -> Any:
    if given is not None and in_schema is not None and given != in_schema:
        raise ValueError(f"{name} is {given!r} in the settings and {in_schema!r} in the schema: give it in one place.")
    return in_schema if given is None else given


def _with_public_count(schema: Schema, table: TableFile, settings: TableSettings) -> Schema:
    """Set the number of rows if neighbours have the same one: it is then public, and must be that of the file."""
    if settings.neighboring_relation == "add_or_remove_one":
        return schema
    rows = max(table.num_rows, 1)
    if schema.rows not in (None, rows):
        raise ValueError(
            f"rows must be the table's number of rows under {settings.neighboring_relation}, got {schema.rows}: "
            "the number is public there, and exact. Leave it out."
        )
    check_delta(settings.delta, rows, settings.allow_large_delta)
    return msgspec.structs.replace(schema, rows=rows)


def _with_dates(schema: Schema, table: TableFile) -> Schema:
    """Declare the target's numbers to be dates if the file does by its type."""
    target = schema.target
    assert target is not None
    if target.task == "classification" or target.classes is not None or table.column(target.column).storage != "date":
        return schema
    return msgspec.structs.replace(schema, target=msgspec.structs.replace(target, dates=True))


def _with_arrays(schema: Schema, table: TableFile, offered: list[str]) -> Schema:
    """Declare arrays of bytes (images) by the file itself: it has their shape, and their type the bounds 0 and 255."""
    specs = dict(schema.columns)
    for name in offered:
        column = table.column(name)
        if name not in specs and isinstance(column, ArrayColumn) and column.values.dtype == np.uint8:
            specs[name] = ArraySpec(shape=column.values.shape[1:], lower=0.0, upper=255.0)
    return msgspec.structs.replace(schema, columns=specs)


def _with_features(schema: Schema, settings: TableSettings) -> Schema:
    """Declare that the images are to be replaced by the features that the settings ask for."""
    if settings.features is None:
        return schema
    specs = {
        name: msgspec.structs.replace(spec, features=settings.features)
        for name, spec in schema.columns.items()
        if isinstance(spec, ArraySpec) and name not in settings.drop
    }
    if not specs:
        raise ValueError("features belong to columns of images: the table has none, so leave features out.")
    return msgspec.structs.replace(schema, columns={**schema.columns, **specs})
