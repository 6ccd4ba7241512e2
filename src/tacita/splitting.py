"""Splits of records into disjoint parts, by coins of rows or units or by position; and the cap on rows of a unit.

Place: [splitting] -> oracles.records. Who falls into which part is private; the kind of the split is public.
"""

import hashlib
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from tacita import _validate
from tacita._row_numbers import ChosenRows, RowNumbers, RowRange, kept
from tacita.accounting import Part
from tacita.gradients.arrays import arrays_in, is_arrays, is_sparse, length
from tacita.oracles.records import Records
from tacita.random import Key, Randomness, Stream
from tacita.sampling.units import unit_codes, unit_words, within_cap

__all__ = ["cap_units", "split"]

HASHED = 2**22  # numbers that are hashed at once


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
        return np.flatnonzero(_parts_of(stream.words(count, first), fractions) == index)

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
