"""The records of an oracle: a data set, the rows that take part, and what the ledger may know of them.

Place: [oracles.records] -> oracles. Rows and units are private; the kind of split and the cap are public.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from torch import nn

from tacita import _validate
from tacita._row_numbers import RowNumbers, RowRange, is_ascending
from tacita.accounting import NeighboringRelation, Part
from tacita.errors import UnsupportedEventError
from tacita.gradients import NetworkSource
from tacita.gradients.arrays import length
from tacita.gradients.engine import GradientSource
from tacita.gradients.functional import LossFn

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


def network_data(  # noqa: PLR0917 - in the order of the constructors that call it
    model: nn.Module,
    loss_fn: LossFn,
    dataset: Any,
    collate_fn: Callable[[list], Any] | None = None,
    num_workers: int = 0,
    method: str = "auto",
    max_physical_batch_size: int | None = None,
    process_group: Any = None,
) -> OracleData[NetworkSource]:
    """Check a network and its loss, and return the data of an oracle; arguments as in ``NetworkSource``."""
    records = as_records(dataset)
    source = NetworkSource(
        model,
        loss_fn,
        records.dataset,
        collate_fn=collate_fn,
        num_workers=num_workers,
        method=method,
        max_physical_batch_size=max_physical_batch_size,
        process_group=process_group,
    )
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
