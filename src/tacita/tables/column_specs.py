"""What is declared about one column of a table: a number, a date, a category, an array, text or an identifier. Public.

A column that is declared in full, with bounds or values, needs no purchase.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from tacita._near_names import did_you_mean
from tacita.tables.cells import check_date_format, parse_date
from tacita.tables.features import ArrayPiece, Direction, check_array, evenly_spread
from tacita.tables.strict import LONGEST_REASON, strict
from tacita.tables.wavelets import Scattering


class Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The declaration of one column: one TOML table, read strictly."""

    @property
    def complete(self) -> bool:
        """Whether the column can be encoded without looking at the data."""
        return True


class NumberSpec(Declared, frozen=True, tag="number"):
    """A number, clamped to [lower, upper]; ``steps`` are public thresholds, by default chosen by a public rule.

    With ``monotone`` the prediction of an additive model never falls ("up") or never rises ("down") with this column:
    the number, or the chance of the second class.
    """

    lower: float | None = None
    upper: float | None = None
    steps: tuple[float, ...] | None = None
    monotone: Direction | None = None

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
