"""The schema: what is declared about a table before anybody looks at it. Public.

A column that is declared in full, with bounds or values, needs no purchase; what is missing is bought or refused. A
drafted schema carries ``reviewed = false`` until a person has read it, and training refuses it.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from tacita._near_names import did_you_mean
from tacita.errors import DataStructureError
from tacita.tables.cells import DEFAULT_MISSING, check_date_format, parse_date
from tacita.tables.csv_lines import FileFormat
from tacita.tables.features import ArrayPiece, check_array, evenly_spread
from tacita.tables.table import ArrayColumn, Table
from tacita.tables.wavelets import Scattering

LONGEST_REASON = 500  # characters of a message, because names and values in it may be of any length


def strict(settings: Any, kind: Any, where: str) -> Any:
    """Convert ``settings`` to a ``kind``, or raise a ``ValueError`` of one line that says what is wrong with ``where``.

    Args:
        settings: Plain values.
        kind: A struct of msgspec, or a union of structs.
        where: What is read, for the message.

    Example:
        >>> class Size(msgspec.Struct, forbid_unknown_fields=True):
        ...     width: int = 1
        >>> strict({"width": 2}, Size, "size")
        Size(width=2)
    """
    near = ""
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        why = " ".join(str(error).split()).rstrip(".")  # names in it may hold line breaks
        unknown = re.match("Object contains unknown field `(.*?)`", why)
        near = did_you_mean(unknown[1], _names(kind)) if unknown else ""
    except UnicodeEncodeError:
        why = "it holds half a character, which no text file can hold"
    raise ValueError(f"The {where} is not valid: {why[:LONGEST_REASON]}.{near}")


def _names(kind: Any) -> set[str]:
    """Return the names of all settings of a ``kind``, and of the structs directly inside it."""
    outer = list(_structs(kind))
    inner = (found for one in outer for hint in get_type_hints(one).values() for found in _structs(hint))
    return {name for one in (*outer, *inner) for name in one.__struct_fields__}


def _structs(kind: Any) -> Iterator[Any]:
    """Yield ``kind`` if it is a struct, or those structs that it is a union of."""
    for one in get_args(kind) or (kind,):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            yield one


class Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The declaration of one column: one TOML table, read strictly."""

    @property
    def complete(self) -> bool:
        """Whether the column can be encoded without looking at the data."""
        return True


class NumberSpec(Declared, frozen=True, tag="number"):
    """A number, clamped to [lower, upper]; ``steps`` are public thresholds, by default chosen by a public rule."""

    lower: float | None = None
    upper: float | None = None
    steps: tuple[float, ...] | None = None

    def __post_init__(self):
        check_bounds(self.lower, self.upper)
        if self.steps is not None and not all(map(math.isfinite, self.steps)):
            raise ValueError(f"steps must be finite numbers, got {list(self.steps)}.")

    @property
    def complete(self) -> bool:
        return self.lower is not None


class DateSpec(Declared, frozen=True, tag="date"):
    """A date in a declared ``format`` (strptime), between two dates in that format; read as days since 1970-01-01.

    A date with an offset (``%z``) is converted to UTC.
    """

    format: str
    lower: str | None = None
    upper: str | None = None

    def __post_init__(self):
        check_date_format(self.format)
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if bound is not None and parse_date(bound, self.format) is None:
                raise ValueError(f"{name} must be a date in the format {self.format!r}, got {bound!r}.")
        check_bounds(*self.days)

    @property
    def days(self) -> tuple[float | None, float | None]:
        """The bounds as days since 1970-01-01."""
        lower, upper = (None if b is None else parse_date(b, self.format) for b in (self.lower, self.upper))
        return lower, upper

    @property
    def complete(self) -> bool:
        return self.lower is not None


class CategorySpec(Declared, frozen=True, tag="category"):
    """A category: one of ``values``, or else "other"."""

    values: tuple[str | int, ...] | None = None

    def __post_init__(self):
        check_values("values", self.values, at_least=1)

    @property
    def complete(self) -> bool:
        return self.values is not None


class ArraySpec(Declared, frozen=True, tag="array"):
    """An array in each row of an NPZ file; ``shape`` is that of one row.

    Attributes:
        shape, lower, upper: The shape, and bounds that values are clamped to.
        centre, scale: Public numbers; a value x becomes ``(x - centre) / scale``.
        groups: Number of equal runs of a row's array that each get mean 0 and variance 1, by the row alone, in place of
            ``centre`` and ``scale``; with ``features``, of groups of channels. If none of the three is declared, a
            public rule on the shape chooses: groups for a feature map, of shape (channels, height, width) with more
            than 4 channels, and else [lower, upper] is mapped to [0, 1].
        features: "scattering" for an image: fixed features in place of the values.
        mirrored: With ``features``, the mean of those of the image and of its mirror image: for photographs, whose
            class stays the same in a mirror.
    """

    shape: tuple[int, ...]
    lower: float
    upper: float
    centre: float | None = None
    scale: float | None = None
    groups: int | None = None
    features: Literal["scattering"] | None = None
    mirrored: bool = False

    def __post_init__(self):
        check_bounds(self.lower, self.upper)
        check_array(self.shape, self.lower, self.upper)
        if self.mirrored and self.features is None:
            raise ValueError('mirrored belongs to features: declare features = "scattering" with it, or leave it out.')
        if self.features is None:
            scaling = {"centre": self.centre, "scale": self.scale, "groups": self.groups}
            ArrayPiece(column="", shape=self.shape, lower=self.lower, upper=self.upper, **scaling)  # raises if wrong
        elif self.centre is not None or self.scale is not None:
            raise ValueError("centre and scale belong to values: leave them out with features, which have groups.")
        else:
            Scattering(shape=self.shape, groups=self.groups)  # raises unless it is an image


class TextSpec(Declared, frozen=True, tag="text"):
    """Free text, which is not used."""


class IdentifierSpec(Declared, frozen=True, tag="identifier"):
    """A name, number or code of a person, which is never a feature."""


Spec = NumberSpec | DateSpec | CategorySpec | ArraySpec | TextSpec | IdentifierSpec
STORAGES: dict[type, tuple[str, ...]] = {  # the storage that a file may have for each kind
    NumberSpec: ("cells", "string", "number"),
    DateSpec: ("cells", "string", "date"),
    CategorySpec: ("cells", "string", "number"),
    ArraySpec: ("array",),
    TextSpec: ("cells", "string", "number", "date", "array"),
    IdentifierSpec: ("cells", "string", "number", "date", "array"),
}


def declared_column(name: str, spec: Any) -> Any:
    """Read one column's declaration; the message about an unknown kind lists the known ones."""
    kinds = list(map(_kind, STORAGES))
    kind = spec.get("kind") if isinstance(spec, Mapping) else None
    if isinstance(kind, str) and kind not in kinds and kind.isprintable():
        raise ValueError(
            f"kind of column {name!r} must be one of {', '.join(kinds)}, got {kind[:LONGEST_REASON]!r}."
            f"{did_you_mean(kind, kinds)}"
        )
    return strict(spec, Spec, f"column {name!r}")


def _kind(spec: type) -> str:
    return spec.__struct_config__.tag  # pyright: ignore[reportAttributeAccessIssue]


def as_texts(values: Iterable[str | int]) -> tuple[str, ...]:
    """Return declared values as cells hold them: 1 is ``"1"``."""
    return tuple(str(value).strip() for value in values)


def check_bounds(lower: float | None, upper: float | None) -> None:
    """Raise ``ValueError`` unless both bounds are missing, or both are finite, in order and far enough apart."""
    if (lower is None) != (upper is None):
        raise ValueError(f"lower and upper go together, got {lower!r} and {upper!r}.")
    if (
        lower is not None
        and upper is not None
        and not (math.isfinite(lower) and math.isfinite(upper) and lower < upper)
    ):
        raise ValueError(f"lower must be below upper, both finite, got {lower!r} and {upper!r}.")
    if lower is not None and upper is not None:
        centre, scale = evenly_spread(lower, upper)
        if not (math.isfinite(centre) and 0 < scale < math.inf):
            raise ValueError(f"lower and upper are too close, or too large, to tell apart: {lower!r} and {upper!r}.")


def check_values(name: str, values: tuple[str | int, ...] | None, at_least: int) -> None:
    """Raise ``ValueError`` unless values are missing, or distinct as cells hold them, and ``at_least`` so many."""
    if values is None:
        return
    texts = as_texts(values)
    if len(texts) < at_least or len(set(texts)) < len(texts):
        raise ValueError(f"{name} must hold at least {at_least} distinct values, got {list(values)}.")


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
    """

    column: str
    task: Task | None = None
    classes: tuple[str | int, ...] | None = None
    lower: float | None = None
    upper: float | None = None
    dates: bool = False
    format: str | None = None

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
