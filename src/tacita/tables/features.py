"""Features: how one column becomes numbers that a model can use. The settings are public, the values private.

Every piece is fixed before it sees the rows, acts on each row alone, and maps any content of a cell to finite numbers.

Scattering features are fixed, public transforms of an image (:mod:`tacita.tables.wavelets`).
"""

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import torch

from tacita.errors import DataStructureError
from tacita.tables.cells import MISSING, NUMBER
from tacita.tables.extraction import extracted, scaled
from tacita.tables.table import ArrayColumn, Column
from tacita.tables.wavelets import Scattering, group_normalised

Direction = Literal["up", "down"]
BLOCK_ROWS = 2**11  # rows that are worked on at once; few enough for the processor's cache
CLAMP = 4.0  # standardised numbers lie in [-CLAMP, CLAMP]
MOST_IN_ARRAY = 2**24  # numbers in the array of one row
NEAR_ZERO = 2.0**-30  # as in the survey: what is nearer to zero counts as zero
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
    """Features that are made from one column."""

    column: str

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the features; their number is the width of the piece."""

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.names)

    @abstractmethod
    def fill(self, column: Column, missing: Sequence[str], out: np.ndarray) -> None:
        """Write the features into ``out``, float32, shape (rows, width)."""

    def encode(self, column: Column, missing: Sequence[str]) -> np.ndarray:
        """Return the features, float32, shape (rows, width)."""
        out = np.empty((len(column), self.width), np.float32)
        self.fill(column, missing, out)
        return out


class NumberPiece(Piece, frozen=True, tag="number"):
    r"""A number, clipped, standardised and clamped: :math:`\min(4, \max(-4, (\mathrm{clip}(x) - centre) / scale))`.

    A missing number is 0.

    Attributes:
        lower, upper, centre, scale: Settings of the linear feature.
        steps: Thresholds in increasing order; each makes a feature :math:`[x \ge step]`.
        buckets: Inner edges; each of the ``len(buckets) + 1`` intervals makes a feature.
        indicator: Whether one more feature says "missing".
        date_format: The format of dates, which are read as days; ``None`` for numbers.
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

    def fill(self, column: Column, missing: Sequence[str], out: np.ndarray) -> None:
        values, kinds = column.numbers(missing, self.date_format)
        for start in range(0, len(values), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            self._fill(values[rows], kinds[rows] == NUMBER, out[rows])

    def _fill(self, values: np.ndarray, number: np.ndarray, out: np.ndarray) -> None:
        linear = (np.clip(values, self.lower, self.upper) - self.centre) / self.scale
        out[:, 0] = np.clip(linear, -CLAMP, CLAMP).astype(np.float32) * number
        steps, last = len(self.steps), len(self.steps) + 1 + (len(self.buckets) + 1 if self.buckets else 0)
        out[:, 1 : 1 + steps] = (values[:, None] >= np.asarray(self.steps)[None, :]) & number[:, None]
        if self.buckets:
            bucket = np.where(number, np.searchsorted(np.asarray(self.buckets), values, side="right"), -1)
            out[:, 1 + steps : last] = bucket[:, None] == np.arange(len(self.buckets) + 1)
        if self.indicator:
            out[:, last] = ~number


class BinsPiece(Piece, frozen=True, tag="bins"):
    """One feature for each bin of a number, one for zero, and one for any cell that is no number; one of them is 1.

    Attributes:
        edges: Inner edges of the bins, increasing; zero, and what is nearer to it than 2^-30, is in no bin.
        date_format: The format of dates, which are read as days; ``None`` for numbers.
        monotone: How the model's output changes from bin to bin, if that is declared. Zero is then an edge, so that its
            own bin lies between two others.
    """

    edges: tuple[float, ...]
    date_format: str | None = None
    monotone: Direction | None = None

    def __post_init__(self):
        if not all(map(math.isfinite, self.edges)) or list(self.edges) != sorted(set(self.edges)):
            raise ValueError("edges must be finite and increasing.")
        if self.monotone is not None and 0.0 not in self.edges:
            raise ValueError("edges must hold 0 where a direction is declared.")

    @property
    def names(self) -> tuple[str, ...]:
        bins = (f"{self.column} in bin {i}" for i in range(len(self.edges) + 1))
        return (*bins, f"{self.column} = 0", f"{self.column} is missing")

    def fill(self, column: Column, missing: Sequence[str], out: np.ndarray) -> None:
        values, kinds = column.numbers(missing, self.date_format)
        place = np.searchsorted(np.asarray(self.edges), values, side="right")
        place = np.where(np.abs(values) < NEAR_ZERO, self.width - 2, place)
        out[:] = 0.0
        out[np.arange(len(out)), np.where(kinds == NUMBER, place, self.width - 1)] = 1.0


class CategoryPiece(Piece, frozen=True, tag="category"):
    """One feature for each value; any other cell, missing or not, is "other": zeros, or a feature of its own."""

    values: tuple[str, ...]
    indicator: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        other = (f"{self.column} is other",) if self.indicator else ()
        return (*(f"{self.column} = {value}" for value in self.values), *other)

    def fill(self, column: Column, missing: Sequence[str], out: np.ndarray) -> None:
        own = column.places_of(self.values)  # -1 means "other" and picks the last row below
        out[:] = np.eye(len(self.values) + 1, len(self.names), dtype=np.float32)[own]


class ArrayPiece(Piece, frozen=True, tag="array"):
    """The array of a row, clamped to [lower, upper], then scaled and flattened; what is not finite counts as lower.

    Attributes:
        shape: The shape of the array.
        lower, upper: Public bounds of its values.
        centre, scale: A value x becomes ``(x - centre) / scale``; ``None`` maps [lower, upper] to [0, 1].
        groups: Number of equal runs of the flattened array that each get mean 0 and variance 1, by the row alone, in
            place of ``centre`` and ``scale``.
    """

    shape: tuple[int, ...]
    lower: float
    upper: float
    centre: float | None = None
    scale: float | None = None
    groups: int | None = None

    def __post_init__(self):
        check_array(self.shape, self.lower, self.upper)
        if (self.centre is None) != (self.scale is None):
            raise ValueError(f"centre and scale go together, got {self.centre!r} and {self.scale!r}.")
        if self.groups is not None and self.centre is not None:
            raise ValueError("groups normalise each row by itself: leave out centre and scale.")
        if self.groups is not None and (self.groups < 1 or self.width % self.groups):
            raise ValueError(f"groups must divide the {self.width} numbers of a row, got {self.groups}.")
        if self.centre is not None and self.scale is not None:
            _check_scaling(self.lower, self.upper, self.centre, self.scale)
            if not max(abs(self.lower - self.centre), abs(self.upper - self.centre)) / self.scale <= LARGEST / 2:
                raise ValueError("scale must be larger: scaled values between lower and upper exceed float32.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column}[{i}]" for i in range(self.width))

    @property
    def width(self) -> int:
        return math.prod(self.shape)

    def fill(self, column: Column, missing: Sequence[str], out: np.ndarray) -> None:
        values = arrays_of(column, self.column, self.shape).reshape(len(column), self.width)
        for start in range(0, len(values), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            out[rows] = scaled(values[rows], self.lower, self.upper)
        if self.groups is not None:
            for row in out:
                row[:] = group_normalised(torch.from_numpy(row).clone(), self.groups).numpy().reshape(-1)
        elif self.centre is not None and self.scale is not None:
            out *= np.float32((self.upper - self.lower) / self.scale)
            out += np.float32((self.lower - self.centre) / self.scale)


class TargetColumn(
    msgspec.Struct,
    metaclass=AbstractStructMeta,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="task",
):
    """How the target column is read."""

    column: str

    @abstractmethod
    def encode(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the targets, shape (rows,), and a mask of the rows that have one."""

    @abstractmethod
    def answers(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return what a score compares with: unclipped targets, and a mask of the rows with any label, known or not."""


class ClassTarget(TargetColumn, frozen=True, tag="classification"):
    """A class, by its text. A row whose label is not among ``classes`` does not count."""

    classes: tuple[str, ...]

    def encode(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return class numbers, int64, 0 where the label is unknown, and a mask of the known ones."""
        own = column.places_of(self.classes)
        return np.maximum(own, 0), own >= 0

    def answers(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        absent = frozenset((*missing, "")) - set(self.classes)
        codes, texts = column.texts()
        labelled = np.array([text not in absent for text in texts] or [False], dtype=bool)[codes]
        return self.encode(column, missing)[0], labelled


class Logarithm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Centre and scale of the logarithms of a positive target."""

    centre: float
    scale: float


class NumberTarget(TargetColumn, frozen=True, tag="regression"):
    """A number, clamped to [lower, upper] and standardised. A row whose target is not a number does not count.

    Attributes:
        lower, upper: Where targets are clamped, and predictions by a logarithm.
        centre, scale: Of the bulk of the targets. Scores are in these units.
        dates: Whether the numbers are days since 1970-01-01.
        date_format: The format of dates.
        log: Standardises the logarithm of the target, which the model is trained on; ``None`` for the target itself.
    """

    lower: float
    upper: float
    centre: float
    scale: float
    dates: bool = False
    date_format: str | None = None
    log: Logarithm | None = None

    def __post_init__(self):
        _check_scaling(self.lower, self.upper, self.centre, self.scale)
        if not max(abs(self.lower - self.centre), abs(self.upper - self.centre)) / self.scale <= LARGEST:
            raise ValueError("scale must be larger: standardised targets between lower and upper exceed float32.")
        if self.log is not None:
            if not self.lower > 0:
                raise ValueError(f"lower must be > 0 for a logarithm, got {self.lower!r}.")
            _check_scaling(math.log(self.lower), math.log(self.upper), self.log.centre, self.log.scale)

    def encode(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return standardised targets, float32, 0 where there is none, and a mask of the numbers."""
        values, kinds = column.numbers(missing, self.date_format)
        number, values = kinds == NUMBER, np.clip(values, self.lower, self.upper)
        if self.log is None:
            scaled = (values - self.centre) / self.scale
        else:
            scaled = (np.log(values) - self.log.centre) / self.log.scale
        return np.where(number, scaled, 0.0).astype(np.float32), number

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Return what outputs of the model predict, in the target's own units; an exponential is clamped to its range.

        Any other may pass the range: at a small epsilon the bins of a tail drown in noise, and lines reach it.
        """
        values = np.asarray(outputs, dtype=np.float64)
        if self.log is None:
            return values * self.scale + self.centre
        with np.errstate(over="ignore"):
            return np.clip(np.exp(values * self.log.scale + self.log.centre), self.lower, self.upper)

    def answers(self, column: Column, missing: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        values, kinds = column.numbers(missing, self.date_format)
        with np.errstate(over="ignore"):
            scaled = np.clip((values - self.centre) / self.scale, -LARGEST, LARGEST)
        return np.where(kinds == NUMBER, scaled, 0.0), kinds != MISSING


def evenly_spread(lower: float, upper: float) -> tuple[float, float]:
    """Return mean and standard deviation of numbers that are spread evenly between two bounds."""
    return (lower + upper) / 2, (upper - lower) / math.sqrt(12)


def arrays_of(column: Column, name: str, shape: Sequence[int]) -> np.ndarray:
    """Return the arrays of a column, shape (rows, *shape), or raise :class:`DataStructureError` if they are others."""
    if not isinstance(column, ArrayColumn) or column.shape != tuple(shape):
        raise DataStructureError(f"Column {name!r} must hold arrays of the declared shape {list(shape)}.")
    return column.values


def check_array(shape: Sequence[int], lower: float, upper: float) -> None:
    """Raise ``ValueError`` unless arrays of that shape can be mapped from [lower, upper] to [0, 1] in float32."""
    if not shape or min(shape) < 1 or math.prod(shape) > MOST_IN_ARRAY:
        raise ValueError(f"shape must hold integers >= 1, of at most {MOST_IN_ARRAY} numbers a row, got {list(shape)}.")
    if not (-LARGEST <= lower < upper <= LARGEST and 0 < np.float32(upper - lower) <= LARGEST):
        raise ValueError(f"lower must be below upper, both numbers of float32, got {lower!r} and {upper!r}.")


def _check_scaling(lower: float, upper: float, centre: float, scale: float) -> None:
    """Raise ``ValueError`` if the standardised value of some number could be infinite or NaN."""
    if not (all(map(math.isfinite, (lower, upper, centre))) and lower <= upper and 0 < scale < math.inf):
        raise ValueError("lower, upper, centre and scale must be finite, lower at most upper, and scale above 0.")


GROUPS = 27  # groups of channels that are normalised; it divides the channels of 1, 3 or 4 colours


class ScatteringPiece(Piece, frozen=True, tag="scattering"):
    """Scattering features of the image in a row (:class:`~tacita.tables.Scattering`), rounded to float16.

    Values are clamped to [lower, upper] and mapped to [0, 1] first; what is not finite counts as lower.

    Attributes:
        shape: The shape of an image.
        lower, upper: Public bounds of its values.
        num_scales, num_orientations: Settings of the transform.
        groups: Number of groups of channels that each get mean 0 and variance 1 by the row alone; ``None`` for none.
        mirrored: Whether features are the mean of those of the image and of its mirror image.
    """

    shape: tuple[int, ...]
    lower: float
    upper: float
    num_scales: int = 2
    num_orientations: int = 8
    groups: int | None = GROUPS
    mirrored: bool = False

    def __post_init__(self):
        check_array(self.shape, self.lower, self.upper)
        self.transform  # noqa: B018 - raises if a setting is wrong

    @property
    def transform(self) -> Scattering:
        """The transform of one image."""
        return Scattering(
            shape=self.shape,
            num_scales=self.num_scales,
            num_orientations=self.num_orientations,
            groups=self.groups,
            mirrored=self.mirrored,
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column} scattering[{i}]" for i in range(self.width))

    @property
    def width(self) -> int:
        return math.prod(self.transform.feature_shape)

    def fill(self, column: Column, missing: Sequence[str], out: np.ndarray) -> None:
        images, first = arrays_of(column, self.column, self.shape), 0
        for part in extracted(self.transform, images, self.lower, self.upper):
            out[first : first + len(part)] = part.reshape(len(part), -1)
            first += len(part)
