"""What a linear or additive model says of each column: its shape, drawn from the weights and from what was bought.

All of it is post-processing of releases. A shape is the part of the model's output that one column decides, at the
cells that were bought (bins of numbers, values of categories, a missing cell), less its mean over the bought counts.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.cells import NUMBER
from tacita.tables.encoder_rules import Piece, best_bins
from tacita.tables.encoding import Encoder
from tacita.tables.features import ArrayPiece, BinsPiece, CategoryPiece, NumberPiece, NumberTarget, ScatteringPiece
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.refinement import bounds
from tacita.tables.survey import Bin, Facts
from tacita.tables.table import Column, NumberColumn, TextColumn

EVEN = 32  # points of a number whose bounds are declared, of which no counts are bought
MISSING, OTHER = "missing", "other"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the output that one column decides.

    Attributes:
        column: Its name.
        cells: Cells in words: a number's bin, a value, ``other`` or ``missing``.
        rows: Bought number of rows of each cell; all equal if nothing was bought about the column.
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
    encoder, target = preprocessing.encoder, preprocessing.encoder.target
    weight, first = weights["weight"].double(), 0
    if isinstance(target, NumberTarget):
        weight = weight * (target.log or target).scale
    elif len(encoder.classes) == 2:
        weight = weight[1:] - weight[:1]
    else:
        weight = weight - weight.mean(0)
    by_column: dict[str, list[tuple[Piece, Tensor]]] = {}
    for piece in encoder.pieces:
        by_column.setdefault(piece.column, []).append((piece, weight[:, first : first + piece.width]))
        first += piece.width
    return tuple(
        _shape(name, parts, preprocessing)
        for name, parts in by_column.items()
        if not isinstance(parts[0][0], ArrayPiece | ScatteringPiece)
    )


def _shape(name: str, parts: list[tuple[Piece, Tensor]], preprocessing: Preprocessing) -> Shape:
    survey, missing = preprocessing.survey, preprocessing.encoder.missing
    facts = next((one for one in (() if survey is None else survey.columns) if one.column == name), None)
    cells, column, rows = _cells(parts, facts, preprocessing.rows)
    values = sum(torch.from_numpy(piece.encode(column, missing)).double() @ own.T for piece, own in parts)
    assert isinstance(values, Tensor)
    found = values.numpy()
    found = found - np.average(found, axis=0, weights=rows)
    return Shape(
        column=name,
        cells=tuple(cells),
        rows=tuple(rows.tolist()),
        values=tuple(map(tuple, found.tolist())),
        bought=facts is not None,
    )


def _cells(parts: list[tuple[Piece, Tensor]], facts: Facts | None, rows: float) -> tuple[list[str], Column, np.ndarray]:
    """Return cells in words, the same as a column, and the number of rows of each, above 0."""
    pieces = [piece for piece, _ in parts]
    values = next((piece.values for piece in pieces if isinstance(piece, CategoryPiece)), ())
    number = next((piece for piece in pieces if isinstance(piece, NumberPiece | BinsPiece)), None)
    if number is None:
        counts = dict(facts.values) if facts is not None else {}
        known = [max(counts.get(value, 1.0), 1.0) for value in values]
        others = max(rows - sum(known), 1.0) if facts is not None else 1.0
        return [*values, OTHER], TextColumn.of([*values, ""], "string"), np.array([*known, others])
    if facts is None:
        assert isinstance(number, NumberPiece)
        points = np.linspace(number.lower, number.upper, EVEN)
        return [f"{point:.4g}" for point in points], NumberColumn(points), np.ones(EVEN)
    found = _bins_and_values(facts, values)
    if facts.missing >= 1:
        found.append((MISSING, math.nan, facts.missing))
    names, points, known = zip(*found, strict=True)
    if not values:
        return list(names), NumberColumn(np.array(points)), np.array(known)
    texts = [name if name in values else "" if math.isnan(x) else repr(x) for name, x, _ in found]
    return list(names), TextColumn.of(texts, "string"), np.array(known)


def _bins_and_values(facts: Facts, values: Sequence[str]) -> list[tuple[str, float, float]]:
    """Return (words, number, rows) of the bins of a number, and of values that have features of their own."""
    counts, (numbers, kinds) = dict(facts.values), TextColumn.of(values, "string").numbers(())
    own = [
        (value, float(x), max(counts.get(value, 0.0), 1.0))
        for value, x, kind in zip(values, numbers, kinds, strict=True)
        if kind == NUMBER
    ]
    found, bins = list(own), best_bins(facts)
    refined = bins is facts.fine  # its end bins hold what lies beyond them, too; of the others a bin may be one point
    low, high = bounds(facts.bins) if refined else (math.nan, math.nan)
    for bin in bins:
        inside = sum(
            rows
            for _, x, rows in own
            if bin.lower <= x < bin.upper
            or (x == bin.lower and not refined)
            or (x < low and bin.lower == low)
            or (x >= high and bin.upper == high)
        )
        if bin.count - inside >= 1:
            found.append((_bin_in_words(bin, low, high), (bin.lower + bin.upper) / 2, bin.count - inside))
    return sorted(found, key=lambda one: one[1]) or [("any", 0.0, 1.0)]


def _bin_in_words(bin: Bin, low: float, high: float) -> str:
    """Return the numbers of a bin, one of a refinement if ``low`` and ``high`` are its bounds.

    Where all counts lay in one point, ``high`` is the next number above ``low``, which no reader can tell from it.
    """
    if high == math.nextafter(low, math.inf):
        side = "" if bin.lower < bin.upper else "below " if bin.lower == low else "above "
        return f"{side}{low:.4g}"
    if bin.lower == low:
        return f"up to {bin.upper:.4g}"
    if bin.upper == high:
        return f"{bin.lower:.4g} and above"
    return f"{bin.lower:.4g}" if bin.lower == bin.upper else f"{bin.lower:.4g} to {bin.upper:.4g}"


def mean_shift(preprocessing: Preprocessing, weights: Mapping[str, Tensor]) -> float:
    r"""Return what turns a prediction of the mean logarithm into one of the mean, in standardised units.

    If the logarithm is normal around its prediction with variance :math:`s^2`, the mean is :math:`\exp(f + s^2/2)`.
    What the model explains of the variance of 1 is taken to be the sum of what its shapes do, as if columns were
    independent.
    """
    target = preprocessing.encoder.target
    assert isinstance(target, NumberTarget)
    assert target.log is not None
    explained = sum(shape.importance**2 for shape in shapes(preprocessing, weights)) / target.log.scale**2
    return max(1.0 - explained, 0.0) * target.log.scale / 2


def units(encoder: Encoder) -> str:
    """Say what the values of shapes are."""
    target = encoder.target
    if isinstance(target, NumberTarget):
        scale = "the logarithm of " if target.log else ""
        return f"what each column adds to {scale}{target.column!r}"
    if len(encoder.classes) == 2:
        return f"what each column adds to the log odds of {encoder.classes[1]!r}"
    return f"what each column adds to the scores of {', '.join(map(repr, encoder.classes))}"


def largest_terms(found: Sequence[Shape]) -> list[str]:
    """Return a line for each column: its importance, and the cells of its lowest and highest value."""
    width = max((len(shape.column) for shape in found), default=0)
    lines = []
    for shape in found:
        words = "nothing stood out of the noise"
        if shape.importance > 0:
            ends = (int(np.argmin(np.array(shape.values))), int(np.argmax(np.array(shape.values))))
            outputs = len(shape.values[0])
            low, high = (f"{shape.values[i // outputs][i % outputs]:+.3g} ({shape.cells[i // outputs]})" for i in ends)
            words = f"{low}; {high}"
        lines.append(f"{shape.column:<{width}}  {shape.importance:8.3g}  {words}")
    return lines


def shape_in_words(shape: Shape) -> list[str]:
    """Return a line for each cell: its value in each output, and about how many rows it has."""
    width = max(map(len, shape.cells))
    rows = [f"about {count:,.0f} rows" if shape.bought else "" for count in shape.rows]
    return [
        f"{cell:<{width}}  {' '.join(f'{value:+8.3g}' for value in own)}  {count}".rstrip()
        for cell, own, count in zip(shape.cells, shape.values, rows, strict=True)
    ]
