r"""The refinement: 64 equal bins between the bought bounds of each numeric column.

Place: survey -> [tables.refinement] -> recipe. Dyadic bins alone are too coarse for years or longitudes. A row adds 1
to one bin of each of m histograms, m the number of numeric columns that the survey found (public): sensitivity
:math:`\sqrt m`. Its noise is :math:`\sqrt m` times a multiplier fixed beforehand, so what it spends is fixed too.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.cells import NUMBER
from tacita.tables.schema import DateSpec, Schema
from tacita.tables.survey import Bin, Facts, Survey, quantile
from tacita.tables.table import Table

FINE_BINS = 64
FINE_CUT = 3  # noise standard deviations below which a fine bin is taken for empty
TAIL = 0.005  # bounds and clipping at the 0.5 and 99.5 % quantiles


def refined_columns(survey: Survey) -> tuple[str, ...]:
    """The numeric columns of the survey; public."""
    return tuple(facts.column for facts in survey.columns if facts.kind == "number")


def bounds(bins: Sequence[Bin]) -> tuple[float, float]:
    """The 0.5 and 99.5 % quantiles; a little apart if all lies in one point."""
    low, high = quantile(bins, TAIL), quantile(bins, 1 - TAIL)
    return (low, high) if low < high else (low, np.nextafter(low, np.inf).item())


def refinement_counts(table: Table, schema: Schema, survey: Survey) -> Tensor:
    """Exact counts, float64, (numeric columns, 64). Private. Values outside the bounds count in the end bins."""
    rows = []
    for name in refined_columns(survey):
        spec = schema.columns.get(name)
        low, high = bounds(survey.facts(name).bins)
        values, kinds = table.column(name).numbers(schema.missing, spec.format if isinstance(spec, DateSpec) else None)
        inner = np.linspace(low, high, FINE_BINS + 1)[1:-1]
        place = np.searchsorted(inner, values[table.valid & (kinds == NUMBER)], side="right")
        rows.append(np.bincount(place, minlength=FINE_BINS))
    counts = np.stack(rows) if rows else np.zeros((0, FINE_BINS))
    return torch.from_numpy(counts.astype(np.float64))


def read_refinement(survey: Survey, counts: np.ndarray, noise_std: float) -> Survey:
    """The survey with each numeric column's fine bins.

    Noise of a bin without rows is cut at 3 s: lower than the survey's cut, since no bin lies outside the bought bounds.
    A column whose fine bins are all cut keeps its dyadic ones.
    """
    fine: dict[str, tuple[Bin, ...]] = {}
    for name, noisy in zip(refined_columns(survey), counts, strict=True):
        marks = np.linspace(*bounds(survey.facts(name).bins), FINE_BINS + 1).tolist()
        kept = np.flatnonzero(noisy >= max(FINE_CUT * noise_std, 0.5))
        fine[name] = tuple(Bin(marks[i], marks[i + 1], float(noisy[i])) for i in kept)
    return msgspec.structs.replace(survey, columns=tuple(_with(facts, fine) for facts in survey.columns))


def _with(facts: Facts, fine: Mapping[str, tuple[Bin, ...]]) -> Facts:
    return msgspec.structs.replace(facts, fine=fine.get(facts.column, ()))
