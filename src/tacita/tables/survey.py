r"""The survey: what is counted in the rows (exact, private), and what noisy counts say (public).

Place: table -> [tables.survey] -> purchases, recipe. A row adds 1 to one bin of each of two histograms a column:

* what its cell is: missing, text, or a number in a dyadic bin: sign and exponent -30..50, one bin for zero (165 bins);
* its text, in bins that exist because some row holds them: stable counts (``docs/derivations``), released above a
  threshold only, sorted by name.

So d columns are m = 2d histograms: L2 sensitivity :math:`\sqrt{2d}` of the counts for one row.
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
from tacita.tables.schema import DateSpec, Schema
from tacita.tables.table import ArrayColumn, Table

LOW, HIGH = -30, 50  # dyadic exponents: |x| in [2^e, 2^(e+1)), the outer bins take the rest
EXPONENTS = HIGH - LOW + 1
ZERO = 2 + EXPONENTS  # bin of zero; negative bins before it, from the largest magnitude down
BINS = 3 + 2 * EXPONENTS
FALSE_BIN = 0.001  # chance that noise alone passes the cut somewhere


def bin_bounds(bin: int) -> tuple[float, float]:
    """The lower and upper bound of a number bin; what is nearer to zero than 2^-30 counts as zero, which has no width.

    Example:
        >>> bin_bounds(ZERO), bin_bounds(ZERO + 31), bin_bounds(ZERO - 31)
        ((0.0, 0.0), (1.0, 2.0), (-2.0, -1.0))
    """
    if bin == ZERO:
        return 0.0, 0.0
    small = math.ldexp(1.0, LOW + abs(bin - ZERO) - 1)
    return (small, 2 * small) if bin > ZERO else (-2 * small, -small)


def dyadic_bins(values: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """The bin of each cell, int64: 0 missing, 1 text, then the numbers in increasing order.

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
    """Exact counts of the survey. Private: noise goes on before anything looks at them.

    Attributes:
        columns: The columns counted; public.
        bins: Counts of the fixed bins, float64, shape (columns, BINS).
        texts: For each column the counts of its existing texts, float64, sorted by text.
        names: The texts themselves. Private until released.
    """

    columns: tuple[str, ...]
    bins: Tensor
    texts: tuple[Tensor, ...]
    names: tuple[tuple[str, ...], ...]

    def tensors(self) -> dict[str, Tensor]:
        """The counts by label, each to get noise of the same ``noise_std``."""
        return {"bins": self.bins, **{f"texts {i}": counts for i, counts in enumerate(self.texts)}}

    def parts(self) -> Iterator[bytes]:
        """The texts as bytes, for a fingerprint that covers them too."""
        for names in self.names:
            yield "\0".join(names).encode("utf-8", errors="surrogatepass")


def survey_counts(table: Table, schema: Schema, columns: Sequence[str]) -> SurveyCounts:
    """Count the valid rows of ``table`` in both histograms of each of ``columns``."""
    bins, texts, names = [], [], []
    for name in columns:
        column, spec = table.column(name), schema.columns.get(name)
        if isinstance(column, ArrayColumn):
            raise DataStructureError(
                f"Column {name!r} holds arrays: nothing is bought about them, declare kind = 'array'."
            )
        values, kinds = column.numbers(schema.missing, spec.format if isinstance(spec, DateSpec) else None)
        bins.append(np.bincount(dyadic_bins(values, kinds)[table.valid], minlength=BINS))
        codes, known = column.texts()
        counts = np.bincount(codes[table.valid & (kinds != MISSING)], minlength=len(known))
        present = np.flatnonzero(counts)
        texts.append(torch.from_numpy(counts[present].astype(np.float64)))
        names.append(tuple(known[i] for i in present))
    stacked = np.stack(bins) if bins else np.zeros((0, BINS))
    return SurveyCounts(tuple(columns), torch.from_numpy(stacked.astype(np.float64)), tuple(texts), tuple(names))


Kind = Literal["number", "category", "dropped"]


class Bin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kept bin of numbers, and its noisy count."""

    lower: float
    upper: float
    count: float


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought about one column; all of it noisy, hence public.

    Attributes:
        column: Its name.
        kind: A number, a category, or dropped: neither numbers nor texts stood out of the noise.
        missing: Noisy count of missing cells.
        bins: Dyadic bins that stood out of the noise, in increasing order.
        values: Texts that passed the threshold, with their noisy counts, sorted by text.
        fine: The refinement: equal bins between the bought bounds; empty before it is bought.
    """

    column: str
    kind: Kind
    missing: float
    bins: tuple[Bin, ...] = ()
    values: tuple[tuple[str, float], ...] = ()
    fine: tuple[Bin, ...] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought: public, and part of the statement.

    Attributes:
        rows: Noisy number of rows, >= 0.
        columns: The facts, column by column.
        noise_std: Of each count of the survey.
        threshold: A text is released from this noisy count on.
    """

    rows: float
    columns: tuple[Facts, ...]
    noise_std: float
    threshold: float

    def facts(self, column: str) -> Facts:
        """The facts of one column."""
        return next(facts for facts in self.columns if facts.column == column)


def cut(noise_std: float, bins: int) -> float:
    """s z, z = Phi^-1(1 - 0.001 / bins): no bin without rows passes it but for one survey in a thousand."""
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
    """Read the noisy counts: cut every bin below s z first, then types, values and the number of rows.

    Uncut, noise swamps every quantile. The number of rows is the mean over the columns of what is left of the first
    histogram. ``kinds`` overrides a column's type, which is a coin toss for a column half text, half numbers.
    """
    level = cut(noise_std, bins.size)
    kept = np.where(bins >= max(level, 0.5), bins, 0.0)
    facts = []
    for name, counts, released in zip(columns, kept, texts, strict=True):
        values = tuple(sorted(released.items()))
        kind: Kind = (kinds or {}).get(name) or ("number" if counts[2:].sum() > counts[TEXT] else "category")
        numbers = _number_bins(counts[2:]) if kind == "number" else ()
        if not (numbers if kind == "number" else values):
            kind = "dropped"
        facts.append(Facts(column=name, kind=kind, missing=float(counts[MISSING]), bins=numbers, values=values))
    rows = float(np.round(kept.sum(axis=1).mean())) if len(columns) else 0.0
    return Survey(rows=rows, columns=tuple(facts), noise_std=noise_std, threshold=threshold)


def _number_bins(counts: np.ndarray) -> tuple[Bin, ...]:
    return tuple(Bin(*bin_bounds(2 + int(i)), float(counts[i])) for i in np.flatnonzero(counts))


def quantile(bins: Sequence[Bin], level: float) -> float:
    """The value below which a share ``level`` of the counts lies, mass spread evenly within a bin.

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
    """Mean and standard deviation of the counts, clipped to [lower, upper]; within a bin the mass is spread evenly."""
    total = sum(bin.count for bin in bins)
    low = np.clip([bin.lower for bin in bins], lower, upper)
    high = np.clip([bin.upper for bin in bins], lower, upper)
    weight = np.array([bin.count for bin in bins]) / total
    mean = float((weight * (low + high) / 2).sum())
    square = float((weight * (low**2 + low * high + high**2) / 3).sum())
    return mean, math.sqrt(max(square - mean**2, 0.0))
