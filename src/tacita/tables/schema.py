"""The schema: what is declared about a table before anybody looks at it. Public.

A column that is declared in full, with bounds or values, needs no purchase; what is missing is bought or refused. A
drafted schema carries ``reviewed = false`` until a person has read it, and training refuses it.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from tacita.errors import DataStructureError
from tacita.tables.cells import DEFAULT_MISSING, check_date_format
from tacita.tables.column_specs import (
    STORAGES,
    ArraySpec,
    CategorySpec,
    DateSpec,
    IdentifierSpec,
    Spec,
    TextSpec,
    check_bounds,
    check_values,
    declared_column,
)
from tacita.tables.csv_lines import FileFormat
from tacita.tables.strict import strict
from tacita.tables.table import ArrayColumn, Table

Task = Literal["classification", "regression"]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The column to predict. What is not declared about it is bought.

    Attributes:
        column: Its name.
        task: What is predicted; decided from bought counts if it is not declared.
        classes: The labels.
        lower, upper: Bounds of a number, in days since 1970-01-01 for a date.
        dates: Whether numbers are days since 1970-01-01, so that predictions are written as (ISO) dates. A Parquet file
            declares it by its type.
        format: The format (strptime) of dates that are not ISO.
        scale: Whether a regression is trained on the target or on its logarithm; decided from bought counts if it is
            not declared.
    """

    column: str
    task: Task | None = None
    classes: tuple[str | int, ...] | None = None
    lower: float | None = None
    upper: float | None = None
    dates: bool = False
    format: str | None = None
    scale: Literal["log", "linear"] | None = None

    def __post_init__(self):
        check_bounds(self.lower, self.upper)
        check_values("classes", self.classes, at_least=2)
        if self.classes is not None and (self.task == "regression" or self.lower is not None):
            raise ValueError("classes belong to a classification: remove them, or task, lower and upper.")
        if self.dates and self.classes is not None:
            raise ValueError("dates belong to a regression: remove dates, or classes.")
        if self.format is not None and not self.dates:
            raise ValueError("format is that of dates: add dates = true, or remove format.")
        if self.format is not None:
            check_date_format(self.format)
        if self.scale is not None and (self.dates or self.classes is not None or self.task == "classification"):
            raise ValueError("scale (--target-scale) is for numbers: remove it, or dates, classes, 'classification'.")
        if self.scale == "log" and self.lower is not None and self.lower <= 0:
            raise ValueError(f"scale = 'log' needs a lower bound above 0, got {self.lower:g}.")
        if self.lower is not None and self.task == "classification":
            raise ValueError("lower and upper belong to a regression: a classification has classes.")

    @property
    def complete(self) -> bool:
        """Whether the column can be encoded without looking at the data."""
        return self.classes is not None or self.lower is not None


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The declaration of a table.

    Attributes:
        columns: Name -> declaration; a column of the file that is not named here is bought or left out.
        target: The column to predict.
        rows: Public number of rows, a declared guess under add_or_remove_one; ``None`` means that it is bought.
        privacy_unit: Whom the guarantee protects, in the user's words.
        unit: The column that names the person, if a person has several rows; never a feature.
        max_rows_per_unit: The largest number of rows of one person that count.
        missing: Cells that mean "missing".
        reading: The format of the file.
        reviewed: Whether a person has read this schema; a draft says false.
    """

    columns: dict[str, Spec] = {}
    target: Target | None = None
    rows: int | None = None
    privacy_unit: str | None = None
    unit: str | None = None
    max_rows_per_unit: int | None = None
    missing: tuple[str, ...] = DEFAULT_MISSING
    reading: FileFormat = FileFormat()
    reviewed: bool = True

    def __post_init__(self):
        if (self.unit is None) != (self.max_rows_per_unit is None):
            raise ValueError(
                "unit and max_rows_per_unit go together: the column of the person, and the number of rows that count."
            )
        for name in ("rows", "max_rows_per_unit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {value}.")
        if self.target is not None and self.target.column in self.columns:
            raise ValueError(
                f"target {self.target.column!r} must not stand among the columns, too: declare it under [target]."
            )
        if self.unit is not None and self.target is not None and self.unit == self.target.column:
            raise ValueError(f"unit must not be the target, got {self.unit!r} for both.")

    @classmethod
    def load(cls, path: str | Path) -> "Schema":
        """Read a TOML file; a wrong or misspelt setting raises ``ValueError`` and names it."""
        try:
            return cls.loads(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise ValueError(f"The schema must be a TOML file in UTF-8, got {str(path)!r}.") from None

    @classmethod
    def loads(cls, text: str) -> "Schema":
        """Read TOML text."""
        try:
            return cls.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"The schema must be a TOML file: {error}.") from None
        except RecursionError:
            raise ValueError("The schema must be a TOML file: this one is nested too deeply.") from None

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Schema":
        """Make a schema from plain values, strictly."""
        columns = settings.get("columns", {})
        if isinstance(columns, Mapping):  # one by one, so that the message names the column
            columns = {name: declared_column(name, spec) for name, spec in columns.items()}
        return strict({**settings, "columns": columns}, cls, "schema")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return msgspec.to_builtins(self)

    def require_reviewed(self) -> "Schema":
        """Return this schema, or raise ``ValueError`` if it is a draft."""
        if not self.reviewed:
            raise ValueError("reviewed must be true: read the drafted schema, fill in what is public, then set it.")
        return self

    def features(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``names`` that may become features: neither target, unit, text nor identifier."""
        left_out = {name for name, spec in self.columns.items() if isinstance(spec, (TextSpec, IdentifierSpec))}
        left_out |= {self.unit, self.target.column if self.target else None}
        return tuple(name for name in names if name not in left_out)

    def to_buy(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the columns among ``names`` about which something must be bought, the target last."""
        bought = [n for n in self.features(names) if n not in self.columns or not self.columns[n].complete]
        return (*bought, *((self.target.column,) if self.target and not self.target.complete else ()))

    def date_format(self, column: str) -> str | None:
        """Return the declared format of a column of dates, or ``None`` for any other column."""
        if self.target is not None and column == self.target.column:
            return self.target.format
        spec = self.columns.get(column)
        return spec.format if isinstance(spec, DateSpec) else None

    def holds_categories(self, column: str) -> bool:
        """Return whether a column is declared to hold categories, or is the target of a declared classification."""
        if self.target is not None and column == self.target.column:
            return self.target.task == "classification"
        return isinstance(self.columns.get(column), CategorySpec)

    def needed(self) -> tuple[str, ...]:
        """Return the columns that a file must hold if no other column is used."""
        unit = () if self.unit is None else (self.unit,)
        return (*self.features(self.columns), *((self.target.column,) if self.target else ()), *unit)

    def check_structure(self, table: Table, *, with_target: bool = True) -> None:
        """Raise :class:`DataStructureError` if the file's structure (not its rows) is not the declared one."""
        for name, spec in self.columns.items():
            if isinstance(spec, (TextSpec, IdentifierSpec)):
                continue
            column = table.column(name)
            if column.storage not in STORAGES[type(spec)]:
                raise DataStructureError(
                    f"Column {name!r} is declared as {msgspec.to_builtins(spec)['kind']!r}, "
                    f"but the file declares its type as {column.storage!r}: change one of them."
                )
            if isinstance(spec, ArraySpec) and isinstance(column, ArrayColumn) and column.shape != spec.shape:
                raise DataStructureError(f"Column {name!r} must hold arrays of shape {list(spec.shape)}, as declared.")
        for name in (self.target and self.target.column, self.unit) if with_target else ():
            if name is not None and table.column(name).storage == "array":
                raise DataStructureError(f"Column {name!r} is the target or the unit, but holds arrays.")
