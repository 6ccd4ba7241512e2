r"""The number of rows and the task, from one small histogram of the kinds of the target's cells.

A row adds 1 to one bin: missing, text, a number that may be a label (whole, -1 to 99), or another number. If the
classes are declared, a text is a target that is none of them, and a label one that is. A line of the wrong width, which
is no row, is in a bin of its own where it may be counted (:func:`task_counts`). The task is a
regression if more than a tenth of the targets are other numbers, by more than noise can cause (one chance in a
million); otherwise it is a classification. The rule looks at each cell alone, so that it does not depend on how many
values passed a threshold, and noise cannot turn class labels into a regression, however few rows there are.
"""

from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.cells import MISSING, TEXT
from tacita.tables.column_specs import as_texts
from tacita.tables.schema import Schema
from tacita.tables.table import Table
from tacita.tables.table_file import TableFile

Task = Literal["classification", "regression"]
SMALLEST_LABEL, LARGEST_LABEL = -1, 99  # whole numbers between them may be the names of classes
OTHER_NUMBERS = 0.1  # the target of a regression has more than this share of other numbers
FLIP = 1e-6  # chance that noise alone turns a classification into a regression
SEEN = 2.0  # noise standard deviations; a bin below them is taken for empty
BINS = ("missing", "other", "label", "decimal", "unreadable")
MISSED, OTHER, LABEL, DECIMAL, UNREADABLE = range(len(BINS))


class TargetKinds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Noisy counts of the rows by what their target is, and of the lines that are no row. Public.

    Attributes:
        missing, other, label, decimal, unreadable: The bins, in their order.
        noise_std: Noise on each count.
    """

    missing: float
    other: float
    label: float
    decimal: float
    unreadable: float
    noise_std: float


class RowsAndTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought about the rows as a whole. Public.

    Attributes:
        rows: Noisy number of rows, >= 0.
        task: The task by the public rule.
        why: The rule's reason, in words.
        noise_std: Noise on each count.
        kinds: The noisy counts that both follow from.
    """

    rows: float
    task: Task
    why: str
    noise_std: float
    kinds: TargetKinds


def task_counts(table: Table | TableFile, schema: Schema, *, unreadable: bool = False) -> Tensor:
    """Count exactly, chunk by chunk, the kinds of the target's cells, float64, shape (5,). Private.

    ``unreadable`` also counts lines of the wrong width. The unit must be a row that is there or not: such a line has no
    person's name, and it is what a record is replaced by under zero_out_one, where it may add nothing.
    """
    assert schema.target is not None
    counts, column, classes = np.zeros(len(BINS)), schema.target.column, schema.target.classes
    for chunk in table.chunks((column,)):
        values, kinds = chunk.column(column).numbers(schema.missing, schema.date_format(column))
        label = (values >= SMALLEST_LABEL) & (values <= LARGEST_LABEL) & (values == np.rint(values))
        place = np.select([kinds == MISSING, kinds == TEXT, label], [MISSED, OTHER, LABEL], default=DECIMAL)
        if classes is not None:
            known = chunk.column(column).places_of(as_texts(classes)) >= 0
            place = np.select([known, kinds == MISSING], [LABEL, MISSED], default=OTHER)
        counts += np.bincount(place[chunk.valid], minlength=len(counts))
        counts[UNREADABLE] += unreadable * (~chunk.valid).sum()
    return torch.from_numpy(counts)


def read_task(counts: np.ndarray, noise_std: float) -> RowsAndTask:
    """Read the number of rows and the task from the noisy counts."""
    seen = np.where(counts >= max(SEEN * noise_std, 0.5), counts, 0.0)
    margin = float(counts[DECIMAL] - OTHER_NUMBERS * counts[OTHER:UNREADABLE].sum())
    noise = noise_std * (((1 - OTHER_NUMBERS) ** 2 + 2 * OTHER_NUMBERS**2) ** 0.5)
    number = margin > max(noise * NormalDist().inv_cdf(1 - FLIP), 0.5)
    why = "more than a tenth of" if number else "not clearly more than a tenth of"
    return RowsAndTask(
        rows=float(seen[:UNREADABLE].sum()),
        task="regression" if number else "classification",
        why=f"{why} the targets are numbers with decimals, below {SMALLEST_LABEL} or above {LARGEST_LABEL}",
        noise_std=noise_std,
        kinds=TargetKinds(**dict(zip(BINS, counts.tolist(), strict=True)), noise_std=noise_std),
    )
