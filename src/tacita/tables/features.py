"""Features: how one column becomes numbers a model can use. Settings are public, values private.

Place: schema, purchases -> recipe -> [tables.features] -> encoding. Every piece is fixed before it sees the rows, acts
on each row alone, and maps whatever a cell holds to finite numbers.
"""

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Sequence

import msgspec
import numpy as np

from tacita.errors import DataStructureError
from tacita.tables.cells import NUMBER
from tacita.tables.table import ArrayColumn, Column

CLAMP = 4.0  # standardised numbers lie in [-CLAMP, CLAMP]
MOST_IN_ARRAY = 2**24  # numbers a row
LARGEST = float(np.finfo(np.float32).max)


class AbstractStructMeta(msgspec.StructMeta, ABCMeta):
    """The metaclass of structs with abstract methods."""


class Piece(
    msgspec.Struct,
    metaclass=AbstractStructMeta,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="piece",
):
    """Some features made from one column."""

    column: str

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """One name a feature; together the piece's width."""

    @abstractmethod
    def encode(self, column: Column, missing: Sequence[str]) -> np.ndarray:
        """Features, float32, shape (rows, len(names))."""


class NumberPiece(Piece, frozen=True, tag="number"):
    r"""Clip, standardise, clamp: :math:`\min(4, \max(-4, (\mathrm{clip}(x) - centre) / scale))`; missing is 0.

    Attributes:
        lower, upper, centre, scale: Of the linear feature.
        steps: A feature :math:`[x \ge step]` for each, in increasing order.
        buckets: Inner edges; a feature for each of the ``len(buckets) + 1`` intervals.
        indicator: Whether one more feature says "missing".
        date_format: Cells are dates in this format, read as days.
    """

    lower: float
    upper: float
    centre: float
    scale: float
    steps: tuple[float, ...] = ()
    buckets: tuple[float, ...] = ()
    indicator: bool = False
    date_format: str | None = None

    def __post_init__(self):
        _check_scaling(self.lower, self.upper, self.centre, self.scale)
        if not all(map(math.isfinite, (*self.steps, *self.buckets))):
            raise ValueError("steps and buckets must be finite numbers.")

    @property
    def names(self) -> tuple[str, ...]:
        steps = (f"{self.column} >= {step:g}" for step in self.steps)
        buckets = (f"{self.column} in bucket {i}" for i in range(len(self.buckets) + 1)) if self.buckets else ()
        return (self.column, *steps, *buckets, *((f"{self.column} is missing",) if self.indicator else ()))

    def encode(self, column: Column, missing: Sequence[str]) -> np.ndarray:
        values, kinds = column.numbers(missing, self.date_format)
        number = kinds == NUMBER
        linear = (np.clip(values, self.lower, self.upper) - self.centre) / self.scale
        parts = [np.clip(linear, -CLAMP, CLAMP)[:, None], values[:, None] >= np.asarray(self.steps)[None, :]]
        if self.buckets:
            bucket = np.searchsorted(np.asarray(self.buckets), values, side="right")
            parts.append(bucket[:, None] == np.arange(len(self.buckets) + 1))
        known = np.concatenate([part.astype(np.float32) for part in parts], axis=1) * number[:, None]
        if not self.indicator:
            return known.astype(np.float32)
        return np.concatenate([known, ~number[:, None]], axis=1).astype(np.float32)


class CategoryPiece(Piece, frozen=True, tag="category"):
    """One feature a value; any other cell, missing ones included, is "other": zeros, or its own indicator."""

    values: tuple[str, ...]
    indicator: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        other = (f"{self.column} is other",) if self.indicator else ()
        return (*(f"{self.column} = {value}" for value in self.values), *other)

    def encode(self, column: Column, missing: Sequence[str]) -> np.ndarray:
        place = {value: i for i, value in enumerate(self.values)}
        codes, texts = column.texts()
        own = np.array([place.get(text, len(place)) for text in texts] or [0], dtype=np.int64)
        return np.eye(len(place) + 1, len(self.names), dtype=np.float32)[own[codes]]


class ArrayPiece(Piece, frozen=True, tag="array"):
    """The values of an array a row, clamped to [lower, upper], mapped to [0, 1], flattened; not finite is 0."""

    shape: tuple[int, ...]
    lower: float
    upper: float

    def __post_init__(self):
        check_array(self.shape, self.lower, self.upper)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column}[{i}]" for i in range(math.prod(self.shape)))

    def encode(self, column: Column, missing: Sequence[str]) -> np.ndarray:
        if not isinstance(column, ArrayColumn) or column.shape != self.shape:
            raise DataStructureError(
                f"Column {self.column!r} must hold arrays of the declared shape {list(self.shape)}."
            )
        values = column.values.reshape(len(column), math.prod(column.values.shape[1:])).astype(np.float32)
        scaled = (np.clip(values, self.lower, self.upper) - np.float32(self.lower)) / (self.upper - self.lower)
        return np.where(np.isfinite(values), scaled, 0.0).astype(np.float32)


class Answer(
    msgspec.Struct,
    metaclass=AbstractStructMeta,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="task",
):
    """How the target is read."""

    column: str

    @abstractmethod
    def encode(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Targets, shape (rows,), and which rows have one."""


class ClassTarget(Answer, frozen=True, tag="classification"):
    """A class by its text; a label that is none of ``classes`` makes the row count for nothing."""

    classes: tuple[str, ...]

    def encode(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Class numbers, int64, 0 where unknown."""
        place = {value: i for i, value in enumerate(self.classes)}
        codes, texts = column.texts()
        own = np.array([place.get(text, -1) for text in texts] or [-1], dtype=np.int64)[codes]
        return np.maximum(own, 0), own >= 0


class NumberTarget(Answer, frozen=True, tag="regression"):
    """A number, clamped to [lower, upper], standardised; a cell that is no number makes the row count for nothing."""

    lower: float
    upper: float
    centre: float
    scale: float

    def __post_init__(self):
        _check_scaling(self.lower, self.upper, self.centre, self.scale)
        if not max(abs(self.lower - self.centre), abs(self.upper - self.centre)) / self.scale <= LARGEST:
            raise ValueError("scale must be larger: standardised targets between lower and upper pass float32.")

    def encode(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Standardised targets, float32, 0 where there is none."""
        values, kinds = column.numbers(missing)
        number = kinds == NUMBER
        scaled = (np.clip(values, self.lower, self.upper) - self.centre) / self.scale
        return np.where(number, scaled, 0.0).astype(np.float32), number


def evenly_spread(lower: float, upper: float) -> tuple[float, float]:
    """Mean and standard deviation of numbers that are spread evenly between two bounds."""
    return (lower + upper) / 2, (upper - lower) / math.sqrt(12)


def check_array(shape: Sequence[int], lower: float, upper: float) -> None:
    """Raise ``ValueError`` unless arrays of that shape can be mapped from [lower, upper] to [0, 1], in float32."""
    if not shape or min(shape) < 1 or math.prod(shape) > MOST_IN_ARRAY:
        raise ValueError(f"shape must hold integers >= 1, of at most {MOST_IN_ARRAY} numbers a row, got {list(shape)}.")
    if not (-LARGEST <= lower < upper <= LARGEST and 0 < np.float32(upper - lower) <= LARGEST):
        raise ValueError(f"lower must be below upper, both numbers of float32, got {lower!r} and {upper!r}.")


def _check_scaling(lower: float, upper: float, centre: float, scale: float) -> None:
    """Raise ``ValueError`` where a number, clipped and standardised, could be none."""
    if not (all(map(math.isfinite, (lower, upper, centre))) and lower <= upper and 0 < scale < math.inf):
        raise ValueError("lower, upper, centre and scale must be finite, lower at most upper, and scale above 0.")
