"""The records of an oracle: a data set, the rows that take part, and what the ledger may know of them.

Place: [oracles.records] -> oracles. Rows and units are private; the kind of split and the cap are public.
"""

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from tacita import _validate
from tacita._row_numbers import ChosenRows, RowNumbers, RowRange, is_ascending, kept
from tacita.accounting import NeighboringRelation, Part
from tacita.errors import UnsupportedEventError
from tacita.gradients import NetworkSource
from tacita.gradients.arrays import arrays_in, is_arrays, is_sparse, length
from tacita.gradients.engine import GradientSource
from tacita.gradients.functional import LossFn
from tacita.random import Key, Randomness, Stream
from tacita.sampling.units import unit_codes, unit_words, within_cap

HASHED = 2**22  # numbers that are hashed at once

AnySource = TypeVar("AnySource", bound=GradientSource)


@dataclass(frozen=True, kw_only=True)
class Records:
    """Rows of a data set. Printing it shows no data.

    Attributes:
        dataset: As an oracle takes it: a map-style ``Dataset``, or arrays in a tuple, mapping or dataclass. Private.
        rows: Indices of the rows that take part, each once, kept as int64; ``None`` for all. Private. Of a split with
            millions of rows they are row numbers that are not in memory, which NumPy takes as an array.
        part: The part of a split that these records form, for the ledger; ``None`` for all records.
        max_rows_per_unit: The largest number of rows that belong to one unit (a person); 1 where the unit is a row.
    """

    dataset: object = field(repr=False)
    rows: np.ndarray | RowNumbers | None = field(default=None, repr=False)
    part: Part | None = None
    max_rows_per_unit: int = 1

    def __post_init__(self) -> None:
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)
        if self.rows is not None:
            object.__setattr__(self, "rows", distinct_rows(self.rows, length(self.dataset)))
        check_in_part(self.part, self.rows, length(self.dataset))


def as_records(dataset: Any) -> Records:
    """Return ``dataset`` if it is :class:`Records`, else all records of it."""
    return dataset if isinstance(dataset, Records) else Records(dataset=dataset)


class OracleData(Generic[AnySource]):
    """The data of an oracle: a source of engines, and which of its rows take part.

    Args:
        source: Makes engines from data.
        rows: The rows of ``source`` that take part; ``None`` for all of them. Private.
        part: The part of a split that these rows form.
        max_rows_per_unit: The largest number of these rows that belong to one unit.

    Attributes:
        num_rows: Number of rows that take part. Private under add_or_remove_one.
    """

    def __init__(
        self,
        source: AnySource,
        rows: np.ndarray | RowNumbers | None = None,
        part: Part | None = None,
        max_rows_per_unit: int = 1,
    ) -> None:
        self.source, self.part, self.max_rows_per_unit = source, part, max_rows_per_unit
        self.rows = None if rows is None else owned_rows(rows, source.num_rows)
        self.num_rows = source.num_rows if rows is None else len(rows)
        check_in_part(part, self.rows, source.num_rows)


@dataclass(frozen=True)
class Network:
    """A network with its loss and its records, as :class:`~tacita.gradients.NetworkSource` takes them."""

    model: nn.Module
    loss_fn: LossFn
    dataset: Any = field(repr=False)
    collate_fn: Callable[[list], Any] | None = None
    num_workers: int = 0
    method: str = "auto"
    max_physical_batch_size: int | None = None
    process_group: Any = None

    def data(self) -> OracleData[NetworkSource]:
        """Check the model and the loss, and return the data of an oracle."""
        records = as_records(self.dataset)
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        source = NetworkSource(**{**given, "dataset": records.dataset})
        return OracleData(source, records.rows, records.part, records.max_rows_per_unit)


def check_units(relation: NeighboringRelation, max_rows_per_unit: int) -> None:
    """Refuse units of several rows under any relation but add_or_remove_one.

    The others make the number of rows that take part public, and it depends on how many rows such a unit has.

    Raises:
        UnsupportedEventError: No guarantee is proved.
    """
    if max_rows_per_unit > 1 and relation != "add_or_remove_one":
        raise UnsupportedEventError(
            f"max_rows_per_unit is {max_rows_per_unit}, and for units of several rows no guarantee is proved under "
            f"{relation}: use add_or_remove_one, or make one row of each unit."
        )


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
    each record's own coin, for every relation. With ``units`` there is one coin for each unit, so that all rows of a
    person fall into one part. At most ``max_rows_per_unit`` rows of each unit take part, chosen by coins of that unit
    alone.

    A ledger takes two splits for the same one only if everything agrees: the key, the name, the values of all arrays in
    their order and, for fractions, also sizes, units and cap. Parts of two different splits are assumed to share
    records. If rows of a ``Dataset`` have to be loaded one by one, only its length is compared: give each such data
    set, and each order of its rows, a ``name`` of its own.

    Args:
        dataset: A map-style ``Dataset``, arrays in a tuple, mapping or dataclass, or a SciPy sparse matrix (or several
            of these in a container), which stays sparse.
        sizes: Lengths that sum to the number of rows, or fractions that sum to 1.
        units: The unit of each row, a text, a number, bytes or a tuple of these; ``None`` if a row is a unit. Under
            add_or_remove_one only. Units are compared by value: 1 and 1.0 are one unit, 1 and "1" are two. A row whose
            unit is ``None`` or NaN is nobody's, and takes no part.
        max_rows_per_unit: Cap on the rows of one unit.
        randomness: The key of the coins, and of the tag in the ledger. The default is a new system key: each call then
            makes another split, whose parts overlap those of this one. Hand in the run's own key to get the same split
            again.
        name: Names the split in the ledger, together with a tag of the drawing.

    Raises:
        ValueError: ``sizes`` are neither lengths nor fractions; ``units`` come with integer sizes, or there is not one
            for each row.
        TypeError: A unit is neither a text, nor a number, nor bytes, nor a tuple of these.

    Example:
        >>> import torch
        >>> parts = split((torch.zeros(10, 2),), [7, 3])
        >>> [len(part.rows) for part in parts]
        [7, 3]
    """
    _validate.count("max_rows_per_unit", max_rows_per_unit)
    num_rows = length(dataset)
    key = (randomness or Randomness.system()).session_key(name)
    if all(isinstance(size, int | np.integer) and not isinstance(size, bool) for size in sizes):
        in_order = f"{name}-{_tag(key, 'in order', num_rows, _content(dataset))}"
        return _by_range(dataset, [int(size) for size in sizes], num_rows, units, in_order)
    fractions = [_validate.probability("sizes", float(size)) for size in sizes]
    if abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"sizes must be fractions that sum to 1, or integers, got {list(sizes)!r}.")
    if units is None:
        stream, of = key.stream("coins"), ""
        places = [_part_by_coin(stream, num_rows, fractions, index) for index in range(len(fractions))]
    else:
        codes, names = _unit_of_each_row(units, num_rows)
        coins, taken = unit_words(codes, names, key), np.flatnonzero(within_cap(codes, names, max_rows_per_unit, key))
        of_unit = _parts_of(coins, fractions)
        places = [taken[of_unit[taken] == index] for index in range(len(fractions))]
        of = _sha256(codes, names)
    drawn = f"{name}-{_tag(key, num_rows, max_rows_per_unit, of, _content(dataset), *map(repr, fractions))}"
    return [
        Records(
            dataset=dataset,
            rows=places[index],
            part=Part(split=drawn, kind="coin", index=index, fraction=fraction, units=None if units is None else True),
            max_rows_per_unit=max_rows_per_unit,
        )
        for index, fraction in enumerate(fractions)
    ]


def _parts_of(coins: np.ndarray, fractions: list[float]) -> np.ndarray:
    """Return the part that each coin, a 64-bit word, falls into."""
    return np.searchsorted(np.cumsum(fractions)[:-1], coins / 2.0**64, side="right")


def _part_by_coin(stream: Stream, num_rows: int, fractions: list[float], index: int) -> np.ndarray | RowNumbers:
    """Return the rows whose coin falls into one part; the coins of many rows are computed whenever they are read."""

    def chosen(first: int, count: int) -> np.ndarray:
        return _parts_of(stream.words(count, first), fractions) == index

    return kept(ChosenRows(num_rows, chosen))


def _tag(key: Key, *drawing: str | int) -> str:
    """Return 16 hexadecimal digits that stand for everything a drawing depends on, and tell nothing about it."""
    return key.derive("split", *drawing).tag("split", parts=[])[:16]


def _content(dataset: Any) -> str:
    """Return a hash of the rows in their order, if they are arrays or tensors of torch's own data sets; never shown.

    The coins and positions of a split belong to these rows.
    """
    if isinstance(dataset, Subset):
        inner = f"{_content(dataset.dataset)} {list(map(int, dataset.indices))}"
        return hashlib.sha256(inner.encode()).hexdigest()
    known = dataset.tensors if isinstance(dataset, TensorDataset) else dataset
    known = (known,) if is_sparse(known) else known
    digest = hashlib.sha256()
    for array in _stored(known) if is_arrays(known) else ():
        digest.update(f"{array.dtype} {tuple(array.shape)} ".encode() if hasattr(array, "dtype") else b"")
        for block in _in_blocks(array):
            digest.update(_values(block))
    return digest.hexdigest()


def _stored(dataset: Any) -> Iterator[Any]:
    """Yield the arrays of a container; of a sparse matrix its shape and what it stores, which stays sparse."""
    for array in arrays_in(dataset):
        if not is_sparse(array):
            yield array
            continue
        rows = array.tocsr()
        yield from (np.array(rows.shape), rows.data, rows.indices, rows.indptr)


def _in_blocks(array: Any) -> Iterator[Any]:
    """Yield an array a block of rows at a time, so that a memory map is not read into memory as a whole."""
    if getattr(array, "ndim", 0) == 0 or getattr(array.dtype, "hasobject", False):
        yield array
        return
    height = max(1, HASHED // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), height):
        yield array[start : start + height]


def _values(array: Any) -> Any:
    if isinstance(array, Tensor):
        flat = array.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy() if len(flat) else b""
    found = np.ascontiguousarray(array)
    return repr(found.tolist()).encode() if found.dtype.hasobject else found.tobytes()


def _unit_of_each_row(units: Sequence[Hashable] | np.ndarray, num_rows: int) -> tuple[np.ndarray, list[str]]:
    if len(units) != num_rows:
        raise ValueError("units must name the unit of each row: it has another length than the data set.")
    return unit_codes(units.tolist() if isinstance(units, Tensor) else units)


def _sha256(codes: np.ndarray, names: list[str]) -> str:
    """Return a hash of the unit of each row."""
    digest = hashlib.sha256(np.ascontiguousarray(codes).tobytes())
    for name in names:
        word = name.encode("utf-8", "surrogatepass")
        digest.update(len(word).to_bytes(8, "big") + word)
    return digest.hexdigest()


def cap_units(
    dataset: object,
    units: Sequence[Hashable] | np.ndarray,
    max_rows_per_unit: int,
    *,
    randomness: Randomness | None = None,
) -> Records:
    """Return the records with at most ``max_rows_per_unit`` rows of each unit, chosen by coins of that unit alone.

    They are for oracles whose sampler is a :class:`~tacita.UnitPoissonSampler` with the same cap. Units are given and
    compared as in :func:`split`.
    """
    key = (randomness or Randomness.system()).session_key("units")
    codes, names = _unit_of_each_row(units, length(dataset))
    rows = np.flatnonzero(within_cap(codes, names, max_rows_per_unit, key))
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
            rows=kept(RowRange(stop - size, stop)),
            part=Part(split=name, kind="range", index=index, fraction=None, start=stop - size, stop=stop),
        )
        for index, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    ]


def owned_rows(rows: Any, num_rows: int) -> np.ndarray | RowNumbers:
    """Return ``rows``, checked by :func:`distinct_rows`, in memory that nobody else can write."""
    found = distinct_rows(rows, num_rows)
    return found if isinstance(found, RowNumbers) else found.copy()


def distinct_rows(rows: Any, num_rows: int) -> np.ndarray | RowNumbers:
    """Return ``rows`` as int64. Each must be a row of the data set, and none may stand twice.

    Raises:
        ValueError: A row stands twice, so that its gradient would count twice, or it is not one of the ``num_rows``
            rows. No message tells which row it is.
        TypeError: ``rows`` is not an array of integers.
    """
    if is_ascending(rows) and rows.end <= num_rows:  # ascending, and each once, by what they are
        return rows
    given = np.asarray(rows)
    if given.ndim != 1 or not (np.issubdtype(given.dtype, np.integer) or given.size == 0):
        raise TypeError("rows must be one axis of integers: the indices of the rows that take part.")
    found = given.astype(np.int64, copy=False)
    if found.size and (found.min() < 0 or found.max() >= num_rows):
        raise ValueError("rows must be indices of the data set, from 0 to its length less 1.")
    if not (found[1:] > found[:-1]).all() and not _each_once(found, num_rows):
        raise ValueError("rows must hold each row once: a row that stands twice would count twice in every sum.")
    return found


def check_in_part(part: Part | None, rows: np.ndarray | RowNumbers | None, num_rows: int) -> None:
    """Refuse rows at other positions of the data set than those of a part by range. Coins cannot be checked.

    Raises:
        ValueError: The ledger would charge the part for records that it does not hold. No message tells which.
    """
    if part is None or part.kind != "range":
        return
    if isinstance(rows, RowRange):
        first, last = rows.start, rows.stop - 1
    else:
        found = None if rows is None else np.asarray(rows)
        first, last = (0, num_rows - 1) if found is None else (found.min(initial=num_rows), found.max(initial=-1))
    if num_rows and (first < (part.start or 0) or last >= (part.stop or 0)):
        raise ValueError(
            "rows must be those of the part, which stands for other positions of the data set. Hand in the Records that"
            " tacita.split returned, or both of their attributes, rows and part."
        )


def _each_once(rows: np.ndarray, num_rows: int) -> bool:
    seen = np.zeros(num_rows, dtype=bool)
    seen[rows] = True
    return int(np.count_nonzero(seen)) == len(rows)


def num_rows(records: Records) -> int:
    """Return how many rows take part. Private under add_or_remove_one."""
    return length(records.dataset) if records.rows is None else len(records.rows)
