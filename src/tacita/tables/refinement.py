r"""The refinement: 64 equal bins between the bought bounds of each numeric column.

Dyadic bins alone are too coarse for years or longitudes. A row adds 1 to one bin of each of m histograms, where m is
the public number of numeric columns that the survey found; the L2 sensitivity is :math:`\sqrt m`. The noise is
:math:`\sqrt m` times a multiplier that was fixed beforehand, so that the cost is fixed, too.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.cells import NUMBER
from tacita.tables.schema import Schema
from tacita.tables.survey import Bin, Facts, Survey, quantile
from tacita.tables.table import Table
from tacita.tables.table_file import TableFile

FINE_BINS = 64
FINE_CUT = 3  # noise standard deviations; a fine bin below them is taken for empty
TAIL = 0.005  # bounds and clipping at the 0.5 and 99.5 % quantiles


def refined_columns(survey: Survey) -> tuple[str, ...]:
    """Return the names of the survey's numeric columns; public."""
    return tuple(facts.column for facts in survey.columns if facts.kind == "number")


def bounds(bins: Sequence[Bin]) -> tuple[float, float]:
    """Return the 0.5 and 99.5 % quantiles, a little apart if all counts lie in one point."""
    low, high = quantile(bins, TAIL), quantile(bins, 1 - TAIL)
    return (low, high) if low < high else (low, np.nextafter(low, np.inf).item())


def best_bins(facts: Facts) -> tuple[Bin, ...]:
    """Return the fine bins, or the dyadic ones if the noise cut more than half of the fine counts away."""
    fine, dyadic = (sum(bin.count for bin in bins) for bins in (facts.fine, facts.bins))
    return facts.fine if fine > dyadic / 2 else facts.bins


def bins_of_all_rows(facts: Facts) -> tuple[Bin, ...]:
    """Return bins side by side that hold every bought row of a number but zeros.

    They are the fine ones, and dyadic ones beyond their bounds. A fine bin that noise cut may hold rows: what a dyadic
    bin has beyond the fine counts in it is spread over the empty ones.
    """
    dyadic = [bin for bin in facts.bins if bin.lower < bin.upper]
    ends = {edge for bin in facts.bins for edge in (bin.lower, bin.upper)}
    fine = best_bins(facts) is facts.fine
    if fine:
        low, high = bounds(facts.bins)
        outer = {edge for edge in ends if edge < low or edge > high}
        ends = outer | {min(ends), max(ends)} | set(np.linspace(low, high, FINE_BINS + 1)[1:-1].tolist())
    edges = np.array(sorted(ends))
    lower, upper, counts = edges[:-1], edges[1:], np.zeros(len(edges) - 1)
    if fine:
        after = partial(bisect_right, edges, lo=1, hi=len(edges) - 1)
        for bin in facts.fine:
            counts[after((bin.lower + bin.upper) / 2) - 1] += bin.count
        for bin in facts.bins:  # zeros, and what lies beyond the bounds, were counted in fine bins, too
            if bin.lower >= high or bin.upper <= low or bin.lower == bin.upper:
                counts[after(min(max(bin.lower, low), high)) - 1] -= bin.count
        counts = np.maximum(counts, 0.0)
    for bin in dyadic:
        shared = np.maximum(np.minimum(upper, bin.upper) - np.maximum(lower, bin.lower), 0.0)
        rest = max(bin.count - float(counts @ (shared / (upper - lower))), 0.0)
        empty = shared * (counts == 0)
        counts += rest * (empty / empty.sum() if empty.any() else shared / shared.sum())
    return tuple(map(Bin, lower.tolist(), upper.tolist(), counts.tolist()))


def refinement_counts(table: Table | TableFile, schema: Schema, survey: Survey) -> Tensor:
    """Count exactly, float64, shape (numeric columns, 64). Private. Values outside the bounds count in the end bins."""
    names = refined_columns(survey)
    inner = [np.linspace(*bounds(survey.facts(name).bins), FINE_BINS + 1)[1:-1] for name in names]
    counts = np.zeros((len(names), FINE_BINS))
    for chunk in table.chunks(names) if names else ():
        for row, name in enumerate(names):
            values, kinds = chunk.column(name).numbers(schema.missing, schema.date_format(name))
            place = np.searchsorted(inner[row], values[chunk.valid & (kinds == NUMBER)], side="right")
            counts[row] += np.bincount(place, minlength=FINE_BINS)
    return torch.from_numpy(counts)


def read_refinement(survey: Survey, counts: np.ndarray, noise_std: float) -> Survey:
    """Return the survey with the fine bins of each numeric column.

    A bin is taken for empty below 3 noise standard deviations: a lower cut than the survey's, because no bin lies
    outside the bought bounds. A column whose fine bins are all cut keeps its dyadic ones.
    """
    fine: dict[str, tuple[Bin, ...]] = {}
    for name, noisy in zip(refined_columns(survey), counts, strict=True):
        marks = np.linspace(*bounds(survey.facts(name).bins), FINE_BINS + 1).tolist()
        kept = np.flatnonzero(noisy >= max(FINE_CUT * noise_std, 0.5))
        fine[name] = tuple(Bin(marks[i], marks[i + 1], float(noisy[i])) for i in kept)
    columns = tuple(msgspec.structs.replace(facts, fine=fine.get(facts.column, ())) for facts in survey.columns)
    return msgspec.structs.replace(survey, columns=columns, fine_noise_std=noise_std)
