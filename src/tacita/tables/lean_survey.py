r"""The lean survey, for tables with few rows: which columns are numbers, and their scale. Public.

Two queries count the cells of a column, the survey and the refinement. If the rows are enough for it, both have dyadic
bins, and the mean of both is read. A scale is read off a window of bins, because a single one seldom stands out.

The numbers of a column fill several dyadic bins, of both signs, and each bin that is added up adds its noise. With very
few rows the first query therefore has coarse bins: one for three octaves, whatever the sign. A column's magnitude is
the bin, or the two neighbouring bins, that stand out most. The second query has the dyadic bins, and those of the
magnitude that was found are read.

The functions here see noisy counts and nothing of the rows, but for :func:`in_groups`, which adds up exact ones.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tacita.tables.cells import MISSING
from tacita.tables.survey import BINS, EXPONENTS, LOW, ZERO, Bin, Facts, Kind, bin_bounds, cut

GROUP = 3  # octaves of a coarse bin; both signs together
GROUPS = EXPONENTS // GROUP
ZERO_GROUP = 2  # place of zero among the coarse bins; missing and text stand before it, the groups behind
COARSE = 8.0  # the first query has coarse bins if the rows are fewer than so many noise standard deviations
GROUP_STANDS_OUT = 2.0  # noise standard deviations by which one or two coarse bins must stand out
STANDS_OUT = 3.5  # ... the window of dyadic bins that shows a number's scale, if its magnitude is not known
BESIDE = 1.5  # ... a bin beside that window, to be kept
WINDOW = 3  # the largest number of octaves of that window
APART = 1000  # by so much rarer than in the survey is a bin apart from it kept by mistake: one far out ruins bounds

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
    kept |= set(np.flatnonzero(counts >= max(cut(noise_std, APART * BINS), 0.5)).tolist()) - {zero}
    if counts[zero] >= max(STANDS_OUT * (noise_std if zero_noise_std is None else zero_noise_std), 0.5):
        kept.add(zero)
    return tuple(Bin(*bin_bounds(2 + i), max(float(counts[i]), 1.0)) for i in sorted(kept))
