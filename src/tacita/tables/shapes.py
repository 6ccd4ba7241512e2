"""What a linear or additive model says of each column: its shape, drawn from the weights and from what was bought.

All of it is post-processing of releases. A shape is the part of the model's output that one column decides, at the
cells that were bought (bins of numbers, values of categories, a missing cell), less its mean over the bought counts.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from torch import Tensor

from tacita._counted import counted
from tacita.tables.additive import masses, positions
from tacita.tables.cells import NUMBER
from tacita.tables.encoder_rules import Piece
from tacita.tables.encoding import Encoder
from tacita.tables.features import ArrayPiece, BinsPiece, CategoryPiece, NumberPiece, NumberTarget, ScatteringPiece
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.refinement import FINE_BINS, best_bins, bins_of_all_rows, refined_columns
from tacita.tables.survey import Bin, Facts, Survey, cut
from tacita.tables.table import NumberColumn, TextColumn

EVEN = 32  # points of a number whose bounds are declared, of which no counts are bought
MISSING, OTHER = "missing", "other"
SOURCE = "from releases alone, at no cost; a date is a number of days since 1970-01-01"
LARGEST = float(np.finfo(np.float64).max)  # stands for infinity
NO_NUMBER = (math.nan, math.nan)  # the bounds of such cells


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the output that one column decides.

    Attributes:
        column: Its name.
        cells: Cells in words: a number's bin, a value, ``other`` or ``missing``.
        rows: Number of rows of each cell, by what was bought; all equal if nothing was bought about the column.
        values: Of each cell, one number an output, shape (cells, outputs); the mean over ``rows`` is 0.
        bought: Whether ``rows`` were bought.
    """

    column: str
    cells: tuple[str, ...]
    rows: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    bought: bool = True

    @property
    def importance(self) -> float:
        """The root of the mean over rows of the squared value, the largest over outputs."""
        return max(np.sqrt(np.average(np.square(self.values), axis=0, weights=self.rows)).tolist(), default=0.0)


def shapes(preprocessing: Preprocessing, weights: Mapping[str, Tensor]) -> tuple[Shape, ...]:
    """Return the shape of each column but arrays.

    Two classes have one output, the log odds of the second; more have one each, less the mean of all. A regression has
    one, in the units of the target, or of its logarithm.
    """
    found = []
    for name, places in places_of(preprocessing.encoder).items():
        if not isinstance(places[0][0], ArrayPiece | ScatteringPiece):
            cells = cells_of(preprocessing, [piece for piece, _ in places])
            values = cells.values([in_outputs(preprocessing.encoder, weights["weight"][:, own]) for _, own in places])
            values = values - np.average(values, axis=0, weights=cells.rows)
            found.append(
                Shape(
                    column=name,
                    cells=cells.words,
                    rows=tuple(cells.rows.tolist()),
                    values=tuple(map(tuple, values.tolist())),
                    bought=cells.bought,
                )
            )
    return tuple(found)


def places_of(encoder: Encoder) -> dict[str, list[tuple[Piece, slice]]]:
    """Return the pieces of each column, and where their features stand."""
    found: dict[str, list[tuple[Piece, slice]]] = {}
    first = 0
    for piece in encoder.pieces:
        found.setdefault(piece.column, []).append((piece, slice(first, first + piece.width)))
        first += piece.width
    return found


def in_outputs(encoder: Encoder, weight: Tensor) -> np.ndarray:
    """Return weights, float64, shape (outputs, features), in the units of shapes."""
    target, found = encoder.target, weight.double().numpy()
    if isinstance(target, NumberTarget):
        return found * (target.log or target).scale
    return found[1:] - found[:1] if len(encoder.classes) == 2 else found - found.mean(0)


class ShapeCells(NamedTuple):
    """The cells of a column at which its shape is drawn.

    Attributes:
        words: The cells in words.
        rows: Number of rows of each, by what was bought; ones if nothing was bought.
        bounds: Bounds of each, shape (cells, 2); NaN for what is no number.
        features: Of each piece of the column, shape (cells, width).
        bought: Whether anything was bought about the column.
    """

    words: tuple[str, ...]
    rows: np.ndarray
    bounds: np.ndarray
    features: list[np.ndarray]
    bought: bool

    def values(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        """Return what weights, each (outputs, width), add to the outputs, shape (cells, outputs)."""
        return sum(own @ weight.T for own, weight in zip(self.features, weights, strict=True))  # pyright: ignore


def cells_of(preprocessing: Preprocessing, pieces: Sequence[Piece]) -> ShapeCells:
    """Return the cells of one column, whose pieces are given."""
    survey, encoder = preprocessing.survey, preprocessing.encoder
    facts = next((one for one in (survey.columns if survey else ()) if one.column == pieces[0].column), None)
    values = next((piece.values for piece in pieces if isinstance(piece, CategoryPiece)), ())
    number = pieces[0]
    if isinstance(number, BinsPiece):
        assert facts is not None
        found = _bins_of(number, facts)
        features = np.eye(number.width)[[place for place, *_ in found]]
        words, bounds, rows = zip(*(one for _, *one in found), strict=True)
        return ShapeCells(words, np.array(rows), np.array(bounds), [features], True)
    if isinstance(number, NumberPiece):
        even = np.linspace(number.lower, number.upper, EVEN).tolist()
        found = (
            [(f"{x:.4g}", (x, x), 1.0) for x in even]
            if facts is None
            else _bins_and_values(facts, values, preprocessing.rows)
        )
        if facts is not None and facts.missing >= 1:
            found.append((MISSING, NO_NUMBER, facts.missing))
    else:
        counts = {} if facts is None else dict(facts.values)
        known = [max(counts.get(value, 1.0), 1.0) for value in values]
        others = 1.0 if facts is None else max(preprocessing.rows - sum(known), 1.0)
        found = [
            *((value, NO_NUMBER, rows) for value, rows in zip(values, known, strict=True)),
            (OTHER, NO_NUMBER, others),
        ]
    words, bounds, rows = zip(*found, strict=True)
    middle = np.clip(np.mean(bounds, axis=1), -LARGEST, LARGEST)
    if values:
        texts = [
            word if word in values else "" if math.isnan(x) else repr(x)
            for word, x in zip(words, middle.tolist(), strict=True)
        ]
        column = TextColumn.of(texts, "string")
    else:
        column = NumberColumn(middle)
    features = [piece.encode(column, encoder.missing).astype(np.float64) for piece in pieces]
    return ShapeCells(words, np.array(rows), np.array(bounds), features, facts is not None)


def _bins_of(piece: BinsPiece, facts: Facts) -> list[tuple[int, str, tuple[float, float], float]]:
    """Return place, words, bounds and rows of each feature that rows were bought of, in increasing order."""
    edges = [-math.inf, *piece.edges, math.inf]
    words = [_between(low, high) for low, high in pairwise(edges)]
    words, bounds = [*words, "0", MISSING], [*pairwise(edges), (0.0, 0.0), NO_NUMBER]
    rows = masses(piece, facts)
    order = [*np.argsort(positions(piece)).tolist(), piece.width - 1]
    bought = [place for place in order if rows[place] >= 1 or place <= len(piece.edges)]  # all bins of numbers
    return [(place, words[place], bounds[place], float(rows[place])) for place in bought]


def _bins_and_values(facts: Facts, values: Sequence[str], rows: float) -> list[tuple[str, tuple[float, float], float]]:
    """Return (words, bounds, rows) of bins that hold all rows of a number, and of values with features of their own."""
    counts, (numbers, kinds) = dict(facts.values), TextColumn.of(values, "string").numbers(())
    own = [
        (value, float(x), max(counts.get(value, 0.0), 1.0))
        for value, x, kind in zip(values, numbers, kinds, strict=True)
        if kind == NUMBER
    ]
    found, bins = [(value, (x, x), rows) for value, x, rows in own], _all_bins(facts, rows)
    if len(bins) > 1 and best_bins(facts) is facts.fine:  # the end bins hold what lies beyond them, too
        bins[0] = msgspec.structs.replace(bins[0], lower=-math.inf)
        bins[-1] = msgspec.structs.replace(bins[-1], upper=math.inf)
    for bin in bins:
        inside = sum(rows for _, x, rows in own if bin.lower <= x < bin.upper or x == bin.lower == bin.upper)
        if bin.count > inside:
            words = _between(bin.lower, bin.upper)
            words = "other numbers" if words in values else words
            found.append((words, (bin.lower, bin.upper), bin.count - inside))
    return sorted(found, key=lambda one: sum(one[1])) or [("any", (0.0, 0.0), 1.0)]


def _all_bins(facts: Facts, rows: float) -> list[Bin]:
    """Return bins that hold all of ``rows`` but missing cells: what no bought count tells of is spread over empty ones.

    Nothing lies outside of refined bins. Zeros are in a bin of theirs, or in that of a refinement.
    """
    if not facts.bins:
        return []
    bins, refined = list(bins_of_all_rows(facts)), best_bins(facts) is facts.fine
    zeros = [bin for bin in facts.bins if bin.lower == bin.upper]
    known = sum(bin.count for bin in [*bins, *zeros])
    free = sum(bin.upper - bin.lower for bin in bins if not bin.count)
    rest = max(rows - facts.missing - known, 0.0) / free if free else 0.0
    found = [bin if bin.count else Bin(bin.lower, bin.upper, rest * (bin.upper - bin.lower)) for bin in bins]
    if not refined:
        return sorted([*found, *zeros], key=lambda bin: bin.lower + bin.upper)
    nulls = sum(bin.count for bin in zeros)
    around = max((place for place, bin in enumerate(found) if bin.lower <= 0), default=0)
    found[around] = Bin(found[around].lower, found[around].upper, found[around].count + nulls)
    return found


def _between(low: float, high: float) -> str:
    if math.isinf(low):
        return f"up to {_bound(high, abs(high))}" if math.isfinite(high) else "any"
    if math.isinf(high):
        return f"{_bound(low, abs(low))} and above"
    ends = [_bound(one, high - low) for one in (low, high)]
    return ends[0] if high <= math.nextafter(low, math.inf) else " to ".join(ends)  # which no reader can tell


def _bound(value: float, width: float) -> str:
    """Return a bound with the digits that place it well within a cell of that width: four, or as many as it takes.

    Example:
        >>> _bound(17986.56, 253.44), _bound(18240.0, 253.44), _bound(1.112403, 0.1057)
        ('17986.6', '18240', '1.1124')
    """
    least, near = max(4, min(len(f"{abs(value):.0f}"), 7)), max(width / 1000, abs(value) * 1e-9)
    return next(words for digits in range(least, 18) if abs(float(words := f"{value:.{digits}g}") - value) <= near)


def units(encoder: Encoder) -> str:
    """Say what the values of shapes are."""
    target = encoder.target
    if isinstance(target, NumberTarget):
        scale = "the logarithm of " if target.log else ""
        return f"what each column adds to {scale}{target.column!r}"
    if len(encoder.classes) == 2:
        return f"what each column adds to the log odds of {encoder.classes[1]!r}"
    return f"what each column adds to the scores of {', '.join(map(repr, encoder.classes))}"


def least_rows(survey: Survey | None) -> float:
    """Return the bought number of rows below which a cell may well be empty; 0 if nothing was bought.

    Of all fine bins that hold no row, none has as many in 999 of 1000 runs.
    """
    if survey is None:
        return 0.0
    return max(2 * survey.noise_std, cut(survey.fine_noise_std, FINE_BINS * len(refined_columns(survey))))


def largest_terms(found: Sequence[Shape], least: float) -> list[str]:
    """Return a line for each column: its importance, and the cells of its lowest and highest value, as below."""
    width = max((len(shape.column) for shape in found), default=0)
    return [f"{shape.column:<{width}}  {shape.importance:8.3g}  {lowest_and_highest(shape, least)}" for shape in found]


def lowest_and_highest(shape: Shape, least: float) -> str:
    """Return the lowest and the highest value of a shape with their cells, in words.

    A cell of fewer than ``least`` rows may well be empty, which its words say.
    """
    if not shape.importance > 0:
        return "the same for all rows"
    outputs, values, few = len(shape.values[0]), np.array(shape.values), np.array(shape.rows) < least
    ends = (int(values.argmin()), int(values.argmax()))
    marks = [", few rows or none" if shape.bought and few[end // outputs] else "" for end in ends]
    return "; ".join(
        f"{values.flat[end]:+.3g} ({shape.cells[end // outputs]}{mark})" for end, mark in zip(ends, marks, strict=True)
    )


def in_json(shape: Shape) -> str:
    """Return a shape as JSON, a cell a line: the file that ``tacita edit`` reads."""
    cells = [
        {"cell": cell, "rows": round(rows), "values": list(map(rounded, own))}
        for cell, rows, own in zip(shape.cells, shape.rows, shape.values, strict=True)
    ]
    lines = ",\n".join(f"  {json.dumps(cell)}" for cell in cells)
    return f'{{"column": {json.dumps(shape.column)}, "bought": {json.dumps(shape.bought)}, "cells": [\n{lines}\n]}}'


def rounded(value: float) -> float:
    """Return the value of a cell with the digits that are shown of it."""
    return float(f"{value:.6g}")


def shape_in_words(shape: Shape) -> list[str]:
    """Return a line for each cell: its value in each output, and about how many rows it has."""
    width = max(map(len, shape.cells))
    rows = [f"about {counted(count, 'row')}" if shape.bought else "" for count in shape.rows]
    return [
        f"{cell:<{width}}  {' '.join(f'{value:+8.3g}' for value in own)}  {count}".rstrip()
        for cell, own, count in zip(shape.cells, shape.values, rows, strict=True)
    ]
