"""The public rules that make an encoder from what is declared and what was bought.

They are post-processing and never see a row. The rules and their numbers are written out in ``docs/defaults.md``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tacita.tables.column_specs import ArraySpec, CategorySpec, DateSpec, NumberSpec, Spec, as_texts
from tacita.tables.encoding import Encoder
from tacita.tables.features import (
    GROUPS,
    ArrayPiece,
    BinsPiece,
    CategoryPiece,
    ClassTarget,
    Logarithm,
    NumberPiece,
    NumberTarget,
    ScatteringPiece,
    evenly_spread,
)
from tacita.tables.refinement import best_bins, bins_of_all_rows, bounds
from tacita.tables.schema import Schema, Target
from tacita.tables.survey import Bin, Facts, Survey, mean_and_std, skewness

COVER = 0.9  # a number has few values only if its released values hold this share of the rows
ALL_VALUES = 0.98  # ... and an additive model has them in place of its bins if they hold this share
ROWS_PER_BIN = 15  # fine bins of an additive model are joined to at least so many sqrt(columns + 1) / mu rows
FEWEST_ROWS = 50  # ... where a row of a tail counts for several, to at least so many all the same
FEW_VALUES = 12  # a number with at most so many released values gets one-hot features too
BUCKETS = 8  # quantile buckets of a bought number ...
ROWS_PER_FEATURE = 200  # ... only if all features, buckets included, are fewer than rows / 200 ...
FEATURE_STRENGTH = 25  # ... or than mu times rows over this, which is more from epsilon 0.4 or so on
ROWS_PER_STEP = 20  # steps of bought numbers only if all features, steps included, are fewer than rows / 20
MISSING_SHARE = 0.01  # an indicator of missing cells if their count passes max(4 s, 1 % of the rows)
MISSING_NOISE = 4
OCTAVES = 4  # a target is trained on its logarithm if its bins are positive, span so many octaves, ...
NOT_POSITIVE = 0.01  # ... (a bin at zero may hold less than this share)
SKEWED = 1.5  # ... have at least this skewness, ...
LESS_SKEWED = 0.125  # ... and those of the logarithm at most this share of it
DECLARED_STEPS = 12  # powers of two below the larger declared bound that become steps
NUMBERS_PER_GROUP = 64  # numbers of a feature map that are normalised together, at least
MOST_COLOURS = 4  # channels of an image; arrays with more are feature maps

Piece = NumberPiece | BinsPiece | CategoryPiece | ArrayPiece | ScatteringPiece


def make_encoder(
    schema: Schema, survey: Survey | None = None, *, columns: Sequence[str] | None = None, total_mu: float = 1.0
) -> Encoder:
    """Make the encoder of ``columns`` (by default those of the schema), each declared in full or found in the survey.

    ``total_mu`` is the Gaussian mu of the whole budget, which with the rows says how many features the noise bears.

    Raises:
        ValueError: A column is neither declared in full nor bought: its bounds or values are missing.
    """
    names = schema.features(schema.columns if columns is None else columns)
    rows = survey.rows if survey is not None else 0.0
    pieces = _pieces(schema, survey, names, buckets=True)
    if _width(pieces) >= rows * max(1 / ROWS_PER_FEATURE, total_mu / FEATURE_STRENGTH):
        pieces = _pieces(schema, survey, names)
    if (survey is not None and survey.lean) or _width(pieces) >= rows / ROWS_PER_STEP:
        pieces = _pieces(schema, survey, names, steps=False)
    return _encoder(schema, survey, names, pieces)


def make_additive_encoder(schema: Schema, survey: Survey, *, columns: Sequence[str], total_mu: float = 1.0) -> Encoder:
    """Make the encoder of an additive model: one feature of each of ``columns``, which were all bought, is 1."""
    names = schema.features(columns)
    least, skewed = ROWS_PER_BIN * math.sqrt(len(names) + 1) / total_mu, _trains_on_skewed(schema, survey)
    pieces: list[Piece] = []
    for facts in map(survey.facts, names):
        values, spec = tuple(value for value, _ in facts.values), schema.columns.get(facts.column)
        monotone = spec.monotone if isinstance(spec, NumberSpec) else None
        few = 1 < len(values) <= FEW_VALUES and sum(count for _, count in facts.values) >= ALL_VALUES * survey.rows
        if facts.kind == "category" or (facts.kind == "number" and few and monotone is None):
            pieces.append(CategoryPiece(column=facts.column, values=values, indicator=True))
        elif facts.kind == "number":
            date_format = spec.format if isinstance(spec, DateSpec) else None
            zero = () if monotone is None else (0.0,)
            edges = tuple(sorted({*_bin_edges(facts, least, by_squares=skewed), *zero}))
            pieces.append(BinsPiece(column=facts.column, edges=edges, date_format=date_format, monotone=monotone))
    return _encoder(schema, survey, names, pieces)


def _trains_on_skewed(schema: Schema, survey: Survey) -> bool:
    """Return whether a model is trained on a bought target that is skewed, and not on its logarithm."""
    target = None if schema.target is None else _target(schema.target, survey)
    if not isinstance(target, NumberTarget) or target.log is not None:
        return False
    bins = next((facts.bins for facts in survey.columns if facts.column == target.column), ())
    return len(bins) > 0 and skewness(bins) >= SKEWED


def _bin_edges(facts: Facts, least: float, *, by_squares: bool) -> tuple[float, ...]:
    """Return the inner edges of the bins, so that each bin's rows were bought.

    Fine bins are joined until they hold ``least`` rows, but not across the edge of a dyadic one. With ``by_squares`` a
    row counts as the square of its distance from the column's mean, in standard deviations, if that is above 1: tails
    make up the R2 of a skewed target, and a bin's effect stands out of the noise the more, the farther out it is.
    """
    bins = bins_of_all_rows(facts)
    counts = np.array([bin.count for bin in bins])
    weighted, fewest = counts, min(FEWEST_ROWS, least)
    if by_squares and bins:
        mean, std = mean_and_std(bins, -math.inf, math.inf)
        centres = np.array([(bin.lower + bin.upper) / 2 for bin in bins])
        weighted = counts * np.maximum(np.square((centres - mean) / (std or 1.0)), 1.0)
    dyadic = {edge for bin in facts.bins for edge in (bin.lower, bin.upper)}
    kept, held = list[float](), np.zeros(2)
    for bin, *own in zip(bins[:-1], weighted, counts, strict=False):
        held += own
        if (held >= (least, fewest)).all() or any(bin.lower < edge <= bin.upper for edge in dyadic):
            kept.append(bin.upper)
            held[:] = 0.0
    return tuple(kept)


def _encoder(schema: Schema, survey: Survey | None, names: Sequence[str], pieces: Sequence[Piece]) -> Encoder:
    used = {piece.column for piece in pieces}
    return Encoder(
        pieces=tuple(pieces),
        target=None if schema.target is None else _target(schema.target, survey),
        missing=schema.missing,
        reading=schema.reading,
        dropped=tuple(name for name in names if name not in used),
    )


def _width(pieces: Sequence[Piece]) -> int:
    return sum(piece.width for piece in pieces)


def public_rows(schema: Schema, survey: Survey | None) -> float:
    """Return the number of rows that may set a divisor: the declared one, else the bought one; at least 1."""
    if schema.rows is not None:
        return float(schema.rows)
    if survey is None:
        raise ValueError("rows must be declared: nothing was bought about this table, not even the number of rows.")
    return max(survey.rows, 1.0)


def _pieces(
    schema: Schema, survey: Survey | None, names: Sequence[str], *, steps: bool = True, buckets: bool = False
) -> list[Piece]:
    """Return the features of the columns; a bought number may have steps and buckets beside its linear one."""
    pieces: list[Piece] = []
    for name in names:
        spec = schema.columns.get(name)
        if spec is not None and spec.complete:
            pieces += _declared(name, spec)
        else:
            pieces += _bought(_facts(survey, name), spec, survey, steps, buckets)  # pyright: ignore[reportArgumentType]
    return pieces


def _facts(survey: Survey | None, name: str) -> Facts:
    if survey is None or name not in {facts.column for facts in survey.columns}:
        raise ValueError(
            f"column {name!r} must be declared in full (lower and upper, or values, or classes), or bought: "
            "nothing was bought about it."
        )
    return survey.facts(name)


# ---- declared


def _declared(name: str, spec: Spec) -> Sequence[Piece]:
    if isinstance(spec, ArraySpec):
        return [_declared_array(name, spec)]
    if isinstance(spec, CategorySpec):
        return [CategoryPiece(column=name, values=as_texts(spec.values or ()))]
    if isinstance(spec, DateSpec):
        return [NumberPiece(column=name, **_spread(*spec.days), indicator=True, date_format=spec.format)]
    if isinstance(spec, NumberSpec):
        scaling = _spread(spec.lower, spec.upper)
        steps = declared_steps(scaling["lower"], scaling["upper"]) if spec.steps is None else sorted(set(spec.steps))
        return [NumberPiece(column=name, **scaling, steps=tuple(steps), indicator=True)]
    return []


def _spread(lower: float | None, upper: float | None) -> dict[str, Any]:
    """Return declared bounds, with centre and scale of numbers that are spread evenly between them."""
    assert lower is not None  # the schema checks that both bounds are declared, or neither
    assert upper is not None
    centre, scale = evenly_spread(lower, upper)
    return {"lower": lower, "upper": upper, "centre": centre, "scale": scale}


def _declared_array(name: str, spec: ArraySpec) -> ArrayPiece | ScatteringPiece:
    """Return the scattering features if they are asked for; else the values, scaled as declared or by the rule."""
    of = {"column": name, "shape": spec.shape, "lower": spec.lower, "upper": spec.upper}
    if spec.features == "scattering":
        return ScatteringPiece(**of, groups=GROUPS if spec.groups is None else spec.groups, mirrored=spec.mirrored)
    declared = spec.centre is not None or spec.groups is not None
    groups = spec.groups if declared else feature_map_groups(spec.shape)
    return ArrayPiece(**of, centre=spec.centre, scale=spec.scale, groups=groups)


def feature_map_groups(shape: tuple[int, ...]) -> int | None:
    """Return in how many groups of channels a feature map is normalised by default, or ``None`` for other arrays.

    A feature map has the shape (channels, height, width) with more than 4 entries at both ends, so that it is not an
    image. Its features are seldom centred in their bounds. The groups are at most 27, as for scattering features, and
    hold at least ``NUMBERS_PER_GROUP`` numbers each.
    """
    if len(shape) != 3 or min(shape[0], shape[2]) <= MOST_COLOURS:
        return None
    width = math.prod(shape)
    fits = (g for g in range(GROUPS, 0, -1) if shape[0] % g == 0 and width // g >= NUMBERS_PER_GROUP)
    return next(fits, None)


def declared_steps(lower: float, upper: float) -> tuple[float, ...]:
    """Return the powers of two strictly between the bounds, at most 12 of each sign from the larger bound down, and 0.

    Example:
        >>> declared_steps(17, 90)
        (32.0, 64.0)
        >>> declared_steps(-3, 1)[:4], declared_steps(-3, 1)[-2:]
        ((-2.0, -1.0, -0.5, -0.25), (0.25, 0.5))
    """
    top = math.frexp(max(abs(lower), abs(upper)))[1] - 1  # 2^top is at most the larger bound
    powers = [math.ldexp(1.0, top - i) for i in range(DECLARED_STEPS)]
    marks = {*powers, *(-power for power in powers), 0.0}
    return tuple(sorted(mark for mark in marks if lower < mark < upper))


# ---- bought


def _bought(facts: Facts, spec: Spec | None, survey: Survey, with_steps: bool, with_buckets: bool) -> list[Piece]:
    if facts.kind == "dropped":
        return []
    often = facts.missing > max(MISSING_NOISE * survey.noise_std, MISSING_SHARE * survey.rows)
    values = tuple(value for value, _ in facts.values)
    if facts.kind == "category":
        return [CategoryPiece(column=facts.column, values=values)]
    number = NumberPiece(
        column=facts.column,
        **_scaling(facts),
        steps=tuple(bin.lower for bin in facts.bins[1:]) if with_steps else (),  # the lowest bin needs none
        buckets=_bucket_edges(facts) if with_buckets and facts.fine else (),
        indicator=often,
        date_format=spec.format if isinstance(spec, DateSpec) else None,
    )
    return [number, CategoryPiece(column=facts.column, values=values)] if _few(facts, survey, FEW_VALUES) else [number]


def _bucket_edges(facts: Facts) -> tuple[float, ...]:
    """Return the quantiles i/8, each moved up to the edge of its fine bin.

    So a value that many rows share makes one edge.
    """
    uppers = np.array([bin.upper for bin in facts.fine])
    cumulated = np.cumsum([bin.count for bin in facts.fine])
    places = np.searchsorted(cumulated, cumulated[-1] * np.arange(1, BUCKETS) / BUCKETS)
    return tuple(np.unique(uppers[places]).tolist()[: BUCKETS - 1])


def _scaling(facts: Facts) -> dict[str, Any]:
    """Return the bounds of a bought number, and centre and scale of what lies between them."""
    lower, upper = bounds(best_bins(facts))
    mean, std = mean_and_std(best_bins(facts), lower, upper)
    return {"lower": lower, "upper": upper, "centre": mean, "scale": std or 1.0}


def _few(facts: Facts, survey: Survey, most: int) -> bool:
    return 0 < len(facts.values) <= most and sum(count for _, count in facts.values) >= COVER * survey.rows


def _target(target: Target, survey: Survey | None) -> ClassTarget | NumberTarget:
    """Return how the target is read, by what is declared or bought.

    With fewer than two classes nothing is trained.
    """
    if target.classes is not None:
        return ClassTarget(column=target.column, classes=as_texts(target.classes))
    read: dict[str, Any] = {"column": target.column, "dates": target.dates, "date_format": target.format}
    if target.lower is not None and target.upper is not None:
        log = None
        if target.scale == "log":
            centre, scale = evenly_spread(math.log(target.lower), math.log(target.upper))
            log = Logarithm(centre=centre, scale=scale)
        return NumberTarget(**read, **_spread(target.lower, target.upper), log=log)
    facts = _facts(survey, target.column)
    by_kind = "regression" if facts.kind == "number" else "classification"
    if (target.task or (survey and survey.task) or by_kind) == "classification":
        return ClassTarget(column=target.column, classes=tuple(value for value, _ in facts.values))
    if not facts.bins:
        return NumberTarget(**read, lower=0.0, upper=1.0, centre=0.0, scale=1.0)
    log = _logarithm(target, facts.bins)
    lower = min(bin.lower for bin in facts.bins if log is None or bin.lower > 0)
    upper = max(facts.bins[-1].upper, np.nextafter(lower, np.inf).item())
    return NumberTarget(**read, **{**_scaling(facts), "lower": lower, "upper": upper}, log=log)


def _logarithm(target: Target, bins: Sequence[Bin]) -> Logarithm | None:
    """Return how the logarithm of a target is standardised; ``None`` if the model is to be trained on the target.

    By default it is trained on the logarithm if all bins that stood out are positive, wide apart and skewed, and those
    of the logarithm are much less so.
    """
    positive = [Bin(math.log(bin.lower), math.log(bin.upper), bin.count) for bin in bins if bin.lower > 0]
    rows = sum(bin.count for bin in bins)
    if target.scale == "linear" or target.dates or not positive:
        return None
    if target.scale is None:
        others = rows - sum(bin.count for bin in positive)
        if others >= NOT_POSITIVE * rows or positive[-1].upper - positive[0].lower < OCTAVES * math.log(2):
            return None
        if skewness(bins) < SKEWED or abs(skewness(positive)) > LESS_SKEWED * skewness(bins):
            return None
    centre, scale = mean_and_std(positive, positive[0].lower, positive[-1].upper)
    return Logarithm(centre=centre, scale=scale or 1.0)
