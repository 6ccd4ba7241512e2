"""Terms of a linear or additive model that a person wrote, in place of those that were trained.

What was written is the value of each cell. A number in no cell has the value of the nearest one, and what was not shown
(missing cells and texts of which no rows were bought) keeps its own. In a cell the new term is constant, also where a
linear model had a slope. All of it is post-processing of releases.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita._counted import counted
from tacita.tables.additive import positions
from tacita.tables.encoder_rules import Piece
from tacita.tables.encoding import Encoder
from tacita.tables.features import BinsPiece, CategoryPiece, NumberPiece, NumberTarget
from tacita.tables.models import ModelSpec
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.shapes import Shape, ShapeCells, cells_of, in_outputs, places_of
from tacita.tables.table import Column, TextColumn

Values = Sequence[Sequence[float]]
LARGEST = 1e6  # of a weight: of log odds, or of standard deviations of the target
CLOSE = 1e-5  # float32 keeps seven digits


def check_cells(shape: Shape, given: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Raise ``ValueError`` unless the cells are those of the shape, each with a number for each output."""
    if len(given) != len(shape.cells):
        raise ValueError(
            f"the shape of {shape.column!r} must have its {counted(len(shape.cells), 'cell')}, got {len(given)}."
        )
    for number, (cell, (name, values)) in enumerate(zip(shape.cells, given, strict=True), start=1):
        if name != cell:
            raise ValueError(f"cell {number} of {shape.column!r} must be {cell!r}, got {name!r}: keep cells and order.")
        if len(values) != len(shape.values[0]):
            raise ValueError(f"cell {cell!r} of {shape.column!r} must have {counted(len(shape.values[0]), 'value')}.")


def edit_terms(
    preprocessing: Preprocessing, weights: Mapping[str, Tensor], written: Mapping[str, Values]
) -> tuple[Preprocessing, dict[str, Tensor]]:
    """Return preprocessing and weights of the model whose terms of some columns are as written, cell by cell.

    Raises:
        ValueError: A value is too large; or two values are to differ where the model cannot tell the cells apart.
    """
    encoder, pieces, blocks = preprocessing.encoder, list[Piece](), list[Tensor]()
    for column, places in places_of(encoder).items():
        own, old = [piece for piece, _ in places], [weights["weight"][:, place] for _, place in places]
        if column in written:
            own, old = _edited(preprocessing, own, old, np.array(written[column], dtype=np.float64))
        pieces += own
        blocks += old
    encoder = msgspec.structs.replace(encoder, pieces=tuple(pieces))
    spec = ModelSpec.of(preprocessing.model.name, None, encoder)
    return msgspec.structs.replace(preprocessing, encoder=encoder, model=spec), {
        **weights,
        "weight": torch.cat(blocks, 1),
    }


def _edited(
    preprocessing: Preprocessing, pieces: list[Piece], weights: list[Tensor], written: np.ndarray
) -> tuple[list[Piece], list[Tensor]]:
    """Return pieces and weights of one column, of which the cells have the values ``written``, (cells, outputs)."""
    encoder, column = preprocessing.encoder, pieces[0].column
    cells, own = cells_of(preprocessing, pieces), [in_outputs(encoder, weight) for weight in weights]
    values = written + np.average(cells.values(own), axis=0, weights=cells.rows)  # the constant term stays
    first = pieces[0]
    if isinstance(first, BinsPiece):
        found = [(first, _of_bins(first, cells, own[0], values))]
    elif isinstance(first, NumberPiece):
        found = _of_number(encoder, pieces, cells, own, values)
    else:
        assert isinstance(first, CategoryPiece)
        found = [(msgspec.structs.replace(first, indicator=True), values.T)]
    made, blocks = [piece for piece, _ in found], [_as_weights(encoder, weight) for _, weight in found]
    largest = max(block.abs().max().item() for block in blocks)
    if not largest <= LARGEST:
        raise ValueError(f"values of {column!r} must be smaller: a weight would be {largest:.3g}, above {LARGEST:g}.")
    again = cells_of(preprocessing, made).values([in_outputs(encoder, block) for block in blocks])
    if not np.allclose(again, values, rtol=CLOSE, atol=CLOSE * np.abs(values).max()):
        raise ValueError(f"cells of {column!r} that have one number must have the same values.")
    return made, blocks


def _as_weights(encoder: Encoder, found: np.ndarray) -> Tensor:
    """Return weights of the model that :func:`tacita.tables.shapes.in_outputs` turns into these."""
    target = encoder.target
    if isinstance(target, NumberTarget):
        found = found / (target.log or target).scale
    elif len(encoder.classes) == 2:
        found = np.concatenate([-found / 2, found / 2])
    return torch.from_numpy(found).float()


def _of_bins(piece: BinsPiece, cells: ShapeCells, own: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the weights of a piece of which each feature is a cell, or has the value of the nearest one."""
    shown, place = cells.features[0].argmax(1), positions(piece)
    weight, numbers = own.copy(), shown[shown < len(place)]
    weight[:, shown] = values.T
    if len(numbers):
        weight[:, : len(place)] = weight[:, numbers[np.abs(place[:, None] - place[numbers]).argmin(1)]]
    return weight


def _of_number(
    encoder: Encoder, pieces: list[Piece], cells: ShapeCells, own: list[np.ndarray], values: np.ndarray
) -> list[tuple[Piece, np.ndarray]]:
    """Return buckets of a number with the values of the cells, and its own texts with what theirs differ from these."""
    number, *texts = pieces
    assert isinstance(number, NumberPiece)
    named = [text for piece in texts if isinstance(piece, CategoryPiece) for text in piece.values]

    def before(column: Column) -> np.ndarray:
        parts = zip(pieces, own, strict=True)
        return sum(piece.encode(column, encoder.missing) @ weight.T for piece, weight in parts)  # pyright: ignore

    at = dict(zip(cells.words, values, strict=True))
    shown = ~np.isnan(cells.bounds[:, 0])
    bins = shown & ~np.isin(cells.words, named)
    bins = bins if bins.any() else shown
    bounds = cells.bounds[bins]
    edges = [(one[1] + other[0]) / 2 for one, other in pairwise(bounds)] or [bounds[0][1]]
    kept = values[bins] if len(bounds) > 1 else np.repeat(values[bins], 2, axis=0)
    gone = at["missing"] if len(shown) > shown.sum() else before(TextColumn.of([""], "string"))[0]
    new = msgspec.structs.replace(number, steps=(), buckets=tuple(map(float, edges)), indicator=True)
    weight = np.stack([0 * gone, *kept, gone], axis=1)
    if not named:
        return [(new, weight)]
    column = TextColumn.of(named, "string")
    wanted = np.array([at.get(name, old) for name, old in zip(named, before(column), strict=True)])
    return [(new, weight), (texts[0], (wanted - new.encode(column, encoder.missing) @ weight.T).T)]
