"""Records under an oracle: a data set, the rows that take part, and what the ledger may know of them.

Place: [oracles.records] -> oracles. Rows and units are private; the kind of split and the cap are public.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from tacita import _validate
from tacita.accounting import Part
from tacita.random import Randomness
from tacita.sampling.units import unit_codes, unit_words, within_cap


@dataclass(frozen=True, kw_only=True)
class Records:
    """Rows of a data set. Printing it shows no data.

    Attributes:
        dataset: As an oracle takes it: a map-style ``Dataset`` or a tuple of arrays. Private.
        rows: Indices of the rows that take part, int64. Private.
        part: Which part of which split this is, for the ledger; ``None`` for all records.
        max_rows_per_unit: At most so many of the rows belong to one unit (a person); 1 where the unit is a row.
    """

    dataset: object = field(repr=False)
    rows: np.ndarray = field(repr=False)
    part: Part | None = None
    max_rows_per_unit: int = 1


class Taken(TypedDict):
    """Which rows of a data set take part, as keyword arguments of :class:`~tacita.GradientOracle`."""

    rows: np.ndarray | None
    part: Part | None
    max_rows_per_unit: int


def data_and_rows(dataset: Any) -> tuple[Any, Taken]:
    """What is to be read, and which rows of it take part: those of :class:`Records`, all of any other data set."""
    if isinstance(dataset, Records):
        return dataset.dataset, Taken(rows=dataset.rows, part=dataset.part, max_rows_per_unit=dataset.max_rows_per_unit)
    return dataset, Taken(rows=None, part=None, max_rows_per_unit=1)


def split(
    dataset: object,
    sizes: Sequence[int] | Sequence[float],
    *,
    units: Sequence[Hashable] | np.ndarray | None = None,
    max_rows_per_unit: int = 1,
    randomness: Randomness | None = None,
    name: str = "split",
) -> list[Records]:
    """Split records into disjoint parts whose sessions compose in parallel (the maximum, not the sum).

    Integer ``sizes`` split by position, for relations with a public number of records. Fractions that sum to 1 split by
    each record's own coin, for every relation. With ``units``, the coin is the unit's, so that all rows of a person
    fall into one part, and at most ``max_rows_per_unit`` rows of each unit take part, chosen by coins of that unit
    alone.

    Args:
        dataset: A map-style ``Dataset`` or a tuple of arrays.
        sizes: Lengths that sum to the number of rows, or fractions that sum to 1.
        units: The unit of each row; ``None`` if a row is a unit.
        max_rows_per_unit: Cap on the rows of one unit.
        randomness: Where the coins come from; by default a fresh system key, and then a split made again is another
            one, whose parts overlap these. Hand in the run's own to find the same split again.
        name: Names the split in the ledger, together with a tag of the coins.

    Raises:
        ValueError: ``sizes`` is neither, or ``units`` is combined with integer sizes.

    Example:
        >>> import torch
        >>> parts = split((torch.zeros(10, 2),), [7, 3])
        >>> [len(part.rows) for part in parts]
        [7, 3]
    """
    _validate.count("max_rows_per_unit", max_rows_per_unit)
    num_rows = length(dataset)
    if all(isinstance(size, int | np.integer) and not isinstance(size, bool) for size in sizes):
        return _by_range(dataset, [int(size) for size in sizes], num_rows, units, name)
    fractions = [_validate.probability("sizes", float(size)) for size in sizes]
    if abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"sizes must be fractions that sum to 1, or integers, got {list(sizes)!r}.")
    key = (randomness or Randomness.system()).session_key(name)
    drawn = f"{name}-{key.tag('split', parts=[])[:16]}"  # other coins are another split, whose parts overlap these
    if units is None:
        coins, kept = key.stream("coins").words(num_rows), np.arange(num_rows)
    else:
        codes, names = unit_codes(units)
        coins, kept = unit_words(codes, names, key), np.flatnonzero(within_cap(codes, names, max_rows_per_unit, key))
    part_of = np.searchsorted(np.cumsum(fractions)[:-1], coins / 2.0**64, side="right")
    return [
        Records(
            dataset=dataset,
            rows=kept[part_of[kept] == index],
            part=Part(split=drawn, kind="coin", index=index, fraction=fraction, start=None, stop=None),
            max_rows_per_unit=max_rows_per_unit,
        )
        for index, fraction in enumerate(fractions)
    ]


def cap_units(
    dataset: object,
    units: Sequence[Hashable] | np.ndarray,
    max_rows_per_unit: int,
    *,
    randomness: Randomness | None = None,
) -> Records:
    """All records, at most ``max_rows_per_unit`` rows of each unit, chosen by coins of that unit alone.

    For oracles whose sampler is a :class:`~tacita.UnitPoissonSampler` with the same cap.
    """
    key = (randomness or Randomness.system()).session_key("units")
    rows = np.flatnonzero(within_cap(*unit_codes(units), max_rows_per_unit, key))
    return Records(dataset=dataset, rows=rows, max_rows_per_unit=max_rows_per_unit)


def _by_range(dataset: object, sizes: list[int], num_rows: int, units: object, name: str) -> list[Records]:
    if units is not None:
        raise ValueError("units cannot be split by position: give sizes as fractions, each unit then has its own coin.")
    if sum(sizes) != num_rows or min(sizes) < 0:
        raise ValueError("integer sizes must be >= 0 and sum to the number of rows.")
    stops = np.cumsum(sizes).tolist()
    return [
        Records(
            dataset=dataset,
            rows=np.arange(stop - size, stop),
            part=Part(split=name, kind="range", index=index, fraction=None, start=stop - size, stop=stop),
        )
        for index, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    ]


def length(dataset: Any) -> int:
    """Number of rows of a data set: of its arrays, or of a map-style ``Dataset``."""
    return len(dataset[0]) if isinstance(dataset, tuple | list) else len(dataset)
