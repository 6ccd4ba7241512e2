r"""Histograms of a table: exact counts of the rows (private), and what their noisy values say (public).

**Survey.** Every column has two histograms, and a row adds 1 to one bin of each:

* the kind of its cell: missing, text, or a number in a dyadic bin by sign and exponent -30..50, with one bin for zero
  (165 bins);
* its text, in bins that exist because some row holds them: stable counts (``docs/derivations``), released only above a
  threshold and sorted by name. A number of more than 6 characters is not counted as a text, unless the column is
  declared to hold categories: such numbers are seldom few values, and there may be as many of them as rows.

So d columns are m = 2d histograms, and the counts have L2 sensitivity :math:`\sqrt{2d}` for one row.

**Lean survey.** If the rows are too few for that, numbers are left out of the second histogram, and texts have no bin
in the first; in a column declared to hold categories, all cells are texts. A cell is then in one bin, and d columns are
d histograms. Survey and refinement both count the cells: if the rows are enough for it, both have dyadic bins, and the
mean of both is read. With very few rows the survey has coarse bins, one for three octaves, whatever the sign. A
column's magnitude is the bin, or the two neighbouring bins, that stand out most; of the refinement's dyadic bins, those
of that magnitude are read. A scale is read off a window of bins, because a single one seldom stands out.

**Task.** One small histogram gives the number of rows and the task. A row adds 1 to one bin: missing, text, a number
that may be a label (whole, -1 to 99), or another number. The task is a regression if more than a tenth of the targets
are other numbers, by more than noise can cause (one chance in a million). The rule looks at each cell alone, so that
noise cannot turn class labels into a regression, however few rows there are.

**Refinement.** 64 equal bins between the bought bounds of each numeric column, because dyadic bins alone are too coarse
for years or longitudes. A row adds 1 to one bin of each of m histograms, where m is the public number of numeric
columns that the survey found; the L2 sensitivity is :math:`\sqrt m`. The noise is :math:`\sqrt m` times a multiplier
that was fixed beforehand, so that the cost is fixed, too.

All functions but the ``*_counts`` and :func:`in_groups` see noisy counts alone: they are post-processing. The noise is
added where the ledger is written (:mod:`tacita.tables.purchases`).
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
from tacita.tables.readers import TableFile
from tacita.tables.schema import CategorySpec, DateSpec, NumberSpec, Schema
from tacita.tables.table import Table

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
        numbers = _number_bins(counts[2:]) if kind == "number" else ()
        if not (numbers if kind == "number" else values):
            kind = "dropped"
        facts.append(Facts(column=name, kind=kind, missing=float(counts[MISSING]), bins=numbers, values=values))
    rows = float(np.round(kept.sum(axis=1).mean())) if len(columns) else 0.0
    return Survey(rows=rows, columns=tuple(facts), noise_std=noise_std, threshold=threshold)


def _number_bins(counts: np.ndarray) -> tuple[Bin, ...]:
    return tuple(Bin(*bin_bounds(2 + int(i)), float(counts[i])) for i in np.flatnonzero(counts))


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


Task = Literal["classification", "regression"]
SMALLEST_LABEL, LARGEST_LABEL = -1, 99  # whole numbers between them may be the names of classes
OTHER_NUMBERS = 0.1  # the target of a regression has more than this share of other numbers
FLIP = 1e-6  # chance that noise alone turns a classification into a regression
SEEN = 2.0  # noise standard deviations; a bin below them is taken for empty
TASK_BINS = 4  # missing, text, label, number


class RowsAndTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought about the rows as a whole. Public.

    Attributes:
        rows: Noisy number of rows, >= 0.
        task: The task by the public rule.
        why: The rule's reason, in words.
        noise_std: Noise on each count.
    """

    rows: float
    task: Task
    why: str
    noise_std: float


def task_counts(table: Table | TableFile, schema: Schema) -> Tensor:
    """Count exactly, chunk by chunk, the kinds of the target's cells, float64, shape (4,). Private."""
    assert schema.target is not None
    counts, column = np.zeros(TASK_BINS), schema.target.column
    for chunk in table.chunks((column,)):
        values, kinds = chunk.column(column).numbers(schema.missing, schema.date_format(column))
        label = (values >= SMALLEST_LABEL) & (values <= LARGEST_LABEL) & (values == np.rint(values))
        place = np.select([kinds == MISSING, kinds == TEXT, label], [0, 1, 2], default=3)
        counts += np.bincount(place[chunk.valid], minlength=TASK_BINS)
    return torch.from_numpy(counts)


def read_task(counts: np.ndarray, noise_std: float) -> RowsAndTask:
    """Read the number of rows and the task from the noisy counts."""
    seen = np.where(counts >= max(SEEN * noise_std, 0.5), counts, 0.0)
    margin = float(counts[3] - OTHER_NUMBERS * counts[1:].sum())
    noise = noise_std * (((1 - OTHER_NUMBERS) ** 2 + 2 * OTHER_NUMBERS**2) ** 0.5)
    number = margin > max(noise * NormalDist().inv_cdf(1 - FLIP), 0.5)
    why = "more than a tenth of" if number else "not clearly more than a tenth of"
    return RowsAndTask(
        rows=float(seen.sum()),
        task="regression" if number else "classification",
        why=f"{why} the targets are numbers with decimals, below {SMALLEST_LABEL} or above {LARGEST_LABEL}",
        noise_std=noise_std,
    )


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
    return msgspec.structs.replace(survey, columns=tuple(_with(facts, fine) for facts in survey.columns))


def _with(facts: Facts, fine: Mapping[str, tuple[Bin, ...]]) -> Facts:
    return msgspec.structs.replace(facts, fine=fine.get(facts.column, ()))


GROUP = 3  # octaves of a coarse bin; both signs together
GROUPS = EXPONENTS // GROUP
ZERO_GROUP = 2  # place of zero among the coarse bins; missing and text stand before it, the groups behind
COARSE = 8.0  # the first query has coarse bins if the rows are fewer than so many noise standard deviations
GROUP_STANDS_OUT = 2.5  # noise standard deviations by which one or two coarse bins must stand out
STANDS_OUT = 3.5  # ... the window of dyadic bins that shows a number's scale, if its magnitude is not known
BESIDE = 1.5  # ... a bin beside that window, to be kept
WINDOW = 3  # the largest number of octaves of that window

Octaves = tuple[int, int]  # the first, and one past the last, from 0 at 2^-30


def in_groups(bins: Tensor) -> Tensor:
    """Add up exact counts of dyadic bins, (columns, BINS), to those of coarse bins, (columns, 3 + GROUPS). Private.

    Every cell stays in one bin, so the sensitivity is the same.
    """
    magnitudes = bins[:, ZERO + 1 :] + bins[:, 2:ZERO].flip(1)
    return torch.cat([bins[:, :2], bins[:, [ZERO]], magnitudes.reshape(len(bins), GROUPS, GROUP).sum(dim=2)], dim=1)


def read_lean(
    columns: Sequence[str],
    *,
    bins: np.ndarray,  # (columns, BINS) or (columns, 3 + GROUPS), noisy
    texts: Sequence[dict[str, float]],  # released texts only
    noise_std: float,
    kinds: Mapping[str, Kind] | None = None,
) -> tuple[Facts, ...]:
    """Read kinds, values, and scales or magnitudes of the columns. ``kinds`` overrides the type of a column."""
    facts = []
    for name, counts, released in zip(columns, bins, texts, strict=True):
        values = tuple(sorted(released.items()))
        dyadic = len(counts) == BINS
        numbers = window(counts[2:], noise_std) if dyadic else _magnitude(counts[ZERO_GROUP:], noise_std)
        seen = sum(bin.count for bin in numbers), sum(count for _, count in values)
        kind: Kind = (kinds or {}).get(name) or ("number" if seen[0] > seen[1] else "category")
        if not (numbers if kind == "number" else values):
            kind = "dropped"
        facts.append(
            Facts(
                column=name,
                kind=kind,
                missing=float(counts[MISSING]),
                bins=numbers if kind == "number" else (),
                values=values if kind == "category" else (),
            )
        )
    return tuple(facts)


def _magnitude(counts: np.ndarray, noise_std: float) -> tuple[Bin, ...]:
    """Return zero and the coarse bins, one of each sign, that stand out of the noise; none if nothing does."""
    groups, best, found = counts[1:], GROUP_STANDS_OUT, (0, 0)
    for width in (1, 2):
        sums = np.convolve(groups, np.ones(width), "valid") / max(noise_std * math.sqrt(width), 0.5)
        if sums.max() > best:
            best, found = float(sums.max()), (int(sums.argmax()), int(sums.argmax()) + width)
    bins = [Bin(0.0, 0.0, float(counts[0]))] if counts[0] >= max(STANDS_OUT * noise_std, 0.5) else []
    for group in range(*found):
        low = math.ldexp(1.0, LOW + GROUP * group)
        high, half = math.ldexp(low, GROUP), max(float(groups[group]), 1.0) / 2
        bins += [Bin(low, high, half), Bin(-high, -low, half)]
    return tuple(sorted(bins, key=lambda bin: bin.lower))


def read_scales(
    columns: Sequence[Facts],
    first: np.ndarray,
    second: np.ndarray,
    noise: tuple[float, float],
    kinds: Mapping[str, Kind] | None = None,
) -> tuple[Facts, ...]:
    """Return the facts with dyadic bins, from the noisy counts of both queries.

    Args:
        columns: What :func:`read_lean` returned for the first query.
        first: The bins of the first query, shape (columns, BINS) or (columns, 3 + GROUPS).
        second: The dyadic bins of the second query, shape (columns, BINS).
        noise: The noise on each count, of the first query and of the second.
        kinds: Override the type of a column.
    """
    weight, together = noise[1] ** 2 / (noise[0] ** 2 + noise[1] ** 2), math.prod(noise) / math.hypot(*noise)
    if first.shape == second.shape:
        mean, texts = np.rint(weight * first + (1 - weight) * second), [dict(facts.values) for facts in columns]
        names = [facts.column for facts in columns]
        return read_lean(names, bins=mean, texts=texts, noise_std=together, kinds=kinds)
    read = []
    for facts, coarse, fine in zip(columns, first, second, strict=True):
        missing, zero = (
            float(np.rint(weight * coarse[one] + (1 - weight) * fine[other]))
            for one, other in ((MISSING, MISSING), (ZERO_GROUP, ZERO))
        )
        counts = fine[2:].copy()
        counts[ZERO - 2] = zero
        bins = window(counts, noise[1], octaves=_octaves(facts.bins), zero_noise_std=together) if facts.bins else ()
        kind = "dropped" if facts.kind == "number" and not bins else facts.kind
        read.append(Facts(column=facts.column, kind=kind, missing=missing, bins=bins, values=facts.values))
    return tuple(read)


def _octaves(bins: Sequence[Bin]) -> Octaves:
    """Return the octaves of the magnitude that was found; none if only zero was."""
    above = [bin for bin in bins if bin.lower > 0]
    if not above:
        return 0, 0
    return tuple(math.frexp(bound)[1] - 1 - LOW for bound in (above[0].lower, above[-1].upper))  # pyright: ignore


def window(
    counts: np.ndarray, noise_std: float, *, octaves: Octaves | None = None, zero_noise_std: float | None = None
) -> tuple[Bin, ...]:
    """Return the bins that show a number's scale; none if nothing stands out of the noise.

    They are up to three octaves, of one sign or of both, and bins beside them that stand out, too.

    Args:
        counts: The noisy counts of the dyadic bins of numbers, in increasing order.
        noise_std: The noise on each.
        octaves: Where to look. The window that stands out most there is returned, whether it stands out enough or not.
        zero_noise_std: The noise on the bin of zero, if it is another.
    """
    zero = ZERO - 2
    start, stop = octaves or (0, EXPONENTS)
    sides = {1: counts[zero + 1 :], -1: counts[:zero][::-1]}
    candidates = [((1,), sides[1]), ((-1,), sides[-1]), ((1, -1), sides[1] + sides[-1])]
    best, signs, first, last = -math.inf if octaves else STANDS_OUT, (), 0, 0
    for which, side in candidates:
        for width in range(1, min(WINDOW, stop - start) + 1):
            noise = max(noise_std * math.sqrt(width * len(which)), 0.5)
            sums = np.convolve(side[start:stop], np.ones(width), "valid") / noise
            if sums.max() > best:
                best, signs, first = float(sums.max()), which, start + int(sums.argmax())
                last = first + width - 1
    if signs:
        side = np.sum([sides[sign] for sign in signs], axis=0)
        level = max(BESIDE * noise_std * math.sqrt(len(signs)), 0.5)
        while first > start and side[first - 1] >= level:
            first -= 1
        while last + 1 < stop and side[last + 1] >= level:
            last += 1
    kept = {zero + sign * (1 + place) for sign in signs for place in range(first, last + 1)}
    kept |= set(np.flatnonzero(counts >= max(cut(noise_std, BINS), 0.5)).tolist()) - {zero}
    if counts[zero] >= max(STANDS_OUT * (noise_std if zero_noise_std is None else zero_noise_std), 0.5):
        kept.add(zero)
    return tuple(Bin(*bin_bounds(2 + i), max(float(counts[i]), 1.0)) for i in sorted(kept))


def survey_of(
    counts: SurveyCounts,
    noisy: Mapping[str, np.ndarray],
    schema: Schema,
    *,
    noise_std: float,
    threshold: float,
    lean: bool = False,
) -> Survey:
    """Return the survey that noisy counts show.

    Args:
        counts: The exact counts. Private, except for the names of the columns. Nothing is read from them but the names
            of those texts whose *noisy* count reaches the threshold (stable counts).
        noisy: The released counts, whole numbers, by the labels of ``counts.tensors()``.
        schema: Declares the kinds of some columns.
        noise_std: Standard deviation of the noise on each count.
        threshold: The noisy count from which a text is released.
        lean: Whether each cell was counted in one bin.
    """
    texts = [
        {name: float(count) for name, count in zip(names, noisy[f"texts {i}"], strict=True) if count >= threshold}
        for i, names in enumerate(counts.names)
    ]
    kinds = forced_kinds(schema)
    if lean:
        columns = read_lean(counts.columns, bins=noisy["bins"], texts=texts, noise_std=noise_std, kinds=kinds)
        return Survey(rows=0.0, columns=columns, noise_std=noise_std, threshold=threshold, lean=True)
    return read_survey(
        counts.columns, bins=noisy["bins"], texts=texts, noise_std=noise_std, threshold=threshold, kinds=kinds
    )


def with_scales(
    survey: Survey, first: np.ndarray, second: np.ndarray, noise: tuple[float, float], schema: Schema
) -> Survey:
    """Return a lean survey with what its second query showed; ``first`` are the bins of the first one."""
    columns = read_scales(survey.columns[: len(first)], first, second, noise, forced_kinds(schema))
    together = noise[0] * noise[1] / (noise[0] ** 2 + noise[1] ** 2) ** 0.5
    return msgspec.structs.replace(survey, columns=(*columns, *survey.columns[len(first) :]), noise_std=together)


def target_facts(
    counts: SurveyCounts, noisy: Mapping[str, np.ndarray], task: Task, *, noise_std: float, threshold: float
) -> Facts:
    """Return what was bought about the target: its labels, or the bins of its numbers."""
    (name,) = counts.columns
    if task == "regression":
        bins = window(noisy["target bins"][0][2:], noise_std)
        return Facts(column=name, kind="number" if bins else "dropped", missing=0.0, bins=bins)
    released = zip(counts.names[0], noisy["target texts"], strict=True)
    values = tuple((text, float(count)) for text, count in released if count >= threshold)
    return Facts(column=name, kind="category" if values else "dropped", missing=0.0, values=values)


def forced_kinds(schema: Schema) -> dict[str, Kind]:
    """Return the kinds of columns that the schema declares without bounds or values; the survey buys the rest."""
    kinds: dict[str, Kind] = {}
    for name, spec in schema.columns.items():
        if isinstance(spec, (NumberSpec, DateSpec)):
            kinds[name] = "number"
        elif isinstance(spec, CategorySpec):
            kinds[name] = "category"
    if schema.target is not None and schema.target.task is not None:
        kinds[schema.target.column] = "number" if schema.target.task == "regression" else "category"
    return kinds


def whole(number: float) -> float:
    """Return a number that is whole as an integer, so that JSON shows it without a point.

    Example:
        >>> whole(302.0), whole(0.5)
        (302, 0.5)
    """
    return int(number) if number.is_integer() else number
