r"""The survey: exact counts of the rows (private), and what their noisy values say about the columns (public).

Every column has two histograms, and a row adds 1 to one bin of each:

* the kind of its cell: missing, text, or a number in a dyadic bin by sign and exponent -30..50, with one bin for zero
  (165 bins);
* its text, in bins that exist because some row holds them: stable counts (``docs/derivations``), released only above a
  threshold and sorted by name. A number of more than 6 characters is not counted as a text, unless the column is
  declared to hold categories: such numbers are seldom few values, and there may be as many of them as rows.

So d columns are m = 2d histograms, and the counts have L2 sensitivity :math:`\sqrt{2d}` for one row. If the rows are
too few for that, the survey is *lean*: numbers are left out of the second histogram, and texts have no bin in the
first. In a column declared to hold categories, all cells are texts. A cell is then in one bin, and d columns are d
histograms. :mod:`tacita.tables.lean_survey` reads it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.errors import DataStructureError
from tacita.tables.cells import MISSING, NUMBER, TEXT
from tacita.tables.schema import Schema
from tacita.tables.table import Table
from tacita.tables.table_file import TableFile
from tacita.tables.task import TargetKinds

LOW, HIGH = -30, 50  # dyadic exponents: |x| in [2^e, 2^(e+1)), the outer bins take the rest
EXPONENTS = HIGH - LOW + 1
ZERO = 2 + EXPONENTS  # bin of zero; before it stand the negative bins, from the largest magnitude down
BINS = 3 + 2 * EXPONENTS
LONGEST_NUMBER = 6  # characters; a longer number is not counted as a text, too
FALSE_BIN = 0.001  # chance that some bin without rows passes the cut
LEAN = 5  # a survey is lean if a text that one row in five holds would not pass the threshold


def bin_bounds(bin: int) -> tuple[float, float]:
    """Return the bounds of a bin of numbers. A number nearer to zero than 2^-30 counts as zero, whose bin has no width.

    Example:
        >>> bin_bounds(ZERO), bin_bounds(ZERO + 31), bin_bounds(ZERO - 31)
        ((0.0, 0.0), (1.0, 2.0), (-2.0, -1.0))
    """
    if bin == ZERO:
        return 0.0, 0.0
    small = math.ldexp(1.0, LOW + abs(bin - ZERO) - 1)
    return (small, 2 * small) if bin > ZERO else (-2 * small, -small)


def dyadic_bins(values: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Return the bin of each cell, int64: 0 for missing, 1 for text, then the numbers in increasing order.

    Example:
        >>> bins = dyadic_bins(np.array([0.0, 0.0, -1.5, 0.0, 1.5, 2.0]), np.array([0, 1, 2, 2, 2, 2]))
        >>> (bins - np.array([0, 1, ZERO, ZERO, ZERO, ZERO])).tolist()
        [0, 0, -31, 0, 31, 32]
    """
    exponent = np.frexp(values)[1].astype(np.int64) - 1
    step = np.minimum(exponent, HIGH) - LOW + 1
    number = ZERO + np.where((values == 0) | (exponent < LOW), 0, np.sign(values).astype(np.int64) * step)
    return np.where(kinds == NUMBER, number, np.where(kinds == TEXT, 1, 0))


@dataclass(frozen=True, repr=False)
class SurveyCounts:
    """Exact counts of the survey. Private: they get noise before anything looks at them.

    Attributes:
        columns: The names of the columns that were counted. Public.
        bins: Counts of the fixed bins, float64, shape (columns, BINS).
        texts: The counts of the texts that exist in each column, float64, sorted by text.
        names: The texts themselves. Private until they are released.
    """

    columns: tuple[str, ...]
    bins: Tensor
    texts: tuple[Tensor, ...]
    names: tuple[tuple[str, ...], ...]

    def tensors(self) -> dict[str, Tensor]:
        """Return the counts by label; all of them get noise of the same ``noise_std``."""
        return {"bins": self.bins, **{f"texts {i}": counts for i, counts in enumerate(self.texts)}}

    def parts(self) -> Iterator[bytes]:
        """Yield the texts as bytes, for a fingerprint that covers them, too."""
        for names in self.names:
            yield "\0".join(names).encode("utf-8", errors="surrogatepass")


def survey_counts(
    table: Table | TableFile, schema: Schema, columns: Sequence[str], *, lean: bool = False
) -> SurveyCounts:
    """Count the valid rows of ``table``, chunk by chunk, in both histograms of each of ``columns``.

    In a lean survey each cell is in one of them: in the second if it is a text, or if its column is declared to hold
    categories.
    """
    for name in columns:
        if table.column(name).storage == "array":
            raise DataStructureError(
                f"Column {name!r} holds arrays: nothing is bought about them, declare kind = 'array'."
            )
    bins = {name: np.zeros(BINS, np.int64) for name in columns}
    texts: dict[str, dict[str, int]] = {name: {} for name in columns}
    for chunk in table.chunks(columns) if columns else ():
        for name in columns:
            _count(chunk, name, schema, bins[name], texts[name], lean=lean)
    names = [sorted(texts[name]) for name in columns]
    counts = [[texts[name][text] for text in own] for name, own in zip(columns, names, strict=True)]
    stacked = np.stack([bins[name] for name in columns]) if columns else np.zeros((0, BINS))
    return SurveyCounts(
        columns=tuple(columns),
        bins=torch.from_numpy(stacked.astype(np.float64)),
        texts=tuple(torch.tensor(own, dtype=torch.float64) for own in counts),
        names=tuple(map(tuple, names)),
    )


def _count(chunk: Table, name: str, schema: Schema, bins: np.ndarray, texts: dict[str, int], *, lean: bool) -> None:
    """Add the counts of one column in one chunk."""
    column = chunk.column(name)
    values, kinds = column.numbers(schema.missing, schema.date_format(name))
    categories = schema.holds_categories(name)
    counted, told = chunk.valid, chunk.valid & (kinds != MISSING)
    if lean:
        told = told & (categories | (kinds == TEXT))
        counted = counted & ~told
    elif not categories:
        told = told & ((kinds != NUMBER) | column.short(LONGEST_NUMBER))
    bins += np.bincount(dyadic_bins(values, kinds)[counted], minlength=BINS)
    for text, count in column.counts(told).items():
        texts[text] = texts.get(text, 0) + count


Kind = Literal["number", "category", "dropped"]


class Bin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bin of numbers that was kept, and its noisy count."""

    lower: float
    upper: float
    count: float


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought about one column. All of it is noisy, hence public.

    Attributes:
        column: The name of the column.
        kind: Number, category, or dropped (neither numbers nor texts stood out of the noise).
        missing: Noisy count of missing cells.
        bins: Dyadic bins that stood out of the noise, in increasing order.
        values: Texts that passed the threshold, with their noisy counts, sorted by text.
        fine: The bins of the refinement, of equal width between the bought bounds; empty before it is bought.
    """

    column: str
    kind: Kind
    missing: float
    bins: tuple[Bin, ...] = ()
    values: tuple[tuple[str, float], ...] = ()
    fine: tuple[Bin, ...] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought about the columns. Public, and part of the statement.

    Attributes:
        rows: Noisy number of rows, >= 0.
        columns: The facts, column by column.
        noise_std: Noise on each count of the survey, except those of the target.
        threshold: The noisy count from which a text is released.
        lean: Whether each cell was in one bin, because the rows were too few for two.
        task: The task by the public rule; ``None`` if nothing was bought about it.
        task_why: The rule's reason, in words.
        target_threshold: The noisy count from which a label is released.
        target_noise_std: Noise on each count of a label.
        rows_noise_std: Noise on the number of rows; 0 if it was declared.
        kinds: Rows by what their target is; ``None`` if they were not counted.
        fine_noise_std: Noise on each count of the refinement; 0 if none was bought.
    """

    rows: float
    columns: tuple[Facts, ...]
    noise_std: float
    threshold: float
    lean: bool = False
    task: Literal["classification", "regression"] | None = None
    task_why: str = ""
    target_threshold: float | None = None
    target_noise_std: float = 0.0
    rows_noise_std: float = 0.0
    kinds: TargetKinds | None = None
    fine_noise_std: float = 0.0

    def facts(self, column: str) -> Facts:
        """Return the facts of one column."""
        return next(facts for facts in self.columns if facts.column == column)


def cut(noise_std: float, bins: int) -> float:
    """Return the cut s z, z = Phi^-1(1 - 0.001 / bins), that a bin without rows passes in one survey in a thousand."""
    return noise_std * NormalDist().inv_cdf(1 - FALSE_BIN / max(bins, 1))


def read_survey(
    columns: Sequence[str],
    *,
    bins: np.ndarray,  # (columns, BINS), noisy and rounded
    texts: Sequence[dict[str, float]],  # released texts only
    noise_std: float,
    threshold: float,
    kinds: Mapping[str, Kind] | None = None,
) -> Survey:
    """Read types, values and the number of rows from noisy counts, after every bin below the cut is set to zero.

    Without the cut, noise would swamp every quantile. The number of rows is the mean over the columns of what is left
    of the first histogram. ``kinds`` overrides the type of a column; the type of a column that is half text and half
    numbers is a matter of chance.
    """
    level = cut(noise_std, bins.size)
    kept = np.where(bins >= max(level, 0.5), bins, 0.0)
    facts = []
    for name, counts, released in zip(columns, kept, texts, strict=True):
        values = tuple(sorted(released.items()))
        kind: Kind = (kinds or {}).get(name) or ("number" if counts[2:].sum() > counts[TEXT] else "category")
        bins_of = np.flatnonzero(counts[2:]) + 2 if kind == "number" else ()
        numbers = tuple(Bin(*bin_bounds(int(i)), float(counts[i])) for i in bins_of)
        if not (numbers if kind == "number" else values):
            kind = "dropped"
        facts.append(Facts(column=name, kind=kind, missing=float(counts[MISSING]), bins=numbers, values=values))
    rows = float(np.round(kept.sum(axis=1).mean())) if len(columns) else 0.0
    return Survey(rows=rows, columns=tuple(facts), noise_std=noise_std, threshold=threshold)


def quantile(bins: Sequence[Bin], level: float) -> float:
    """Return the value below which a share ``level`` of the counts lies; within a bin the mass is spread evenly.

    Example:
        >>> quantile([Bin(0.0, 1.0, 50.0), Bin(4.0, 8.0, 50.0)], 0.75)
        6.0
    """
    goal = level * sum(bin.count for bin in bins)
    for bin in bins:
        if goal <= bin.count:
            return bin.lower + (bin.upper - bin.lower) * max(goal, 0.0) / bin.count if bin.count else bin.lower
        goal -= bin.count
    return bins[-1].upper


def mean_and_std(bins: Sequence[Bin], lower: float, upper: float) -> tuple[float, float]:
    """Return mean and standard deviation of values clipped to [lower, upper], spread evenly within each bin."""
    total = sum(bin.count for bin in bins)
    low = np.clip([bin.lower for bin in bins], lower, upper)
    high = np.clip([bin.upper for bin in bins], lower, upper)
    weight = np.array([bin.count for bin in bins]) / total
    mean = float((weight * (low + high) / 2).sum())
    square = float((weight * (low**2 + low * high + high**2) / 3).sum())
    return mean, math.sqrt(max(square - mean**2, 0.0))


def skewness(bins: Sequence[Bin]) -> float:
    """Return the skewness of values that are spread evenly within each bin; 0 if all are equal.

    Example:
        >>> round(skewness([Bin(0.0, 1.0, 1.0)]), 6), round(skewness([Bin(0.0, 1.0, 9.0), Bin(9.0, 10.0, 1.0)]), 2)
        (0.0, 2.62)
    """
    mean, std = mean_and_std(bins, -math.inf, math.inf)
    if not std > 0:
        return 0.0
    low, high = (np.array([getattr(bin, end) for bin in bins]) / std - mean / std for end in ("lower", "upper"))
    weight = np.array([bin.count for bin in bins]) / sum(bin.count for bin in bins)
    return float((weight * (low + high) * (low**2 + high**2) / 4).sum())
