"""Canary rows: rows that an attacker could add to a table, with cells at the edges of what the encoder accepts.

They follow from the encoder, which is public, and from random bits that belong to no row. Nothing about them depends on
the table.
"""

import numpy as np

from tacita.random import Stream
from tacita.tables.encoding import Encoder
from tacita.tables.features import ArrayPiece, BinsPiece, CategoryPiece, ClassTarget, NumberPiece, NumberTarget
from tacita.tables.image_features import ScatteringPiece
from tacita.tables.table import ArrayColumn, Column, NumberColumn, Table, TextColumn

NOBODY = "no such value"  # a cell that no encoder knows


def crafted(encoder: Encoder, rows: int, stream: Stream) -> Table:
    """Make rows with random cells at the edges and a random target, which no model of the table can know beforehand.

    A number is its lower bound, its upper bound or a value in between, with equal chance. A category is any of its
    values or an unknown one. An array has the lower or the upper bound in each place. The target is any class, or
    either bound.

    Args:
        encoder: Knows the columns and what they hold.
        rows: The number of rows.
        stream: Random bits that serve these rows alone.

    Example:
        >>> from tacita.random import Randomness
        >>> answer = ClassTarget(column="ill", classes=("no", "yes"))
        >>> age = NumberPiece(column="age", lower=18.0, upper=90.0, centre=50.0, scale=20.0)
        >>> encoder = Encoder(pieces=(age,), target=answer, missing=("",))
        >>> table = crafted(encoder, 100, Randomness.insecure(0).key.stream("rows"))
        >>> features = encoder.encode(table).features
        >>> tuple(features.shape), features.min().item(), features.max().item()
        ((100, 1), -1.600000023841858, 2.0)
    """
    draw = np.random.default_rng(np.frombuffer(stream.bytes(32), dtype=np.uint64))
    columns: dict[str, Column] = {}
    for piece in encoder.pieces:  # a column may have two pieces, a number and its frequent values: take the number
        if piece.column not in columns or isinstance(piece, NumberPiece | BinsPiece):
            columns[piece.column] = _cells(piece, rows, draw)
    if encoder.target is not None:
        columns[encoder.target.column] = _answers(encoder.target, rows, draw)
    return Table(columns, np.ones(rows, dtype=bool))


def _cells(
    piece: NumberPiece | BinsPiece | CategoryPiece | ArrayPiece | ScatteringPiece, rows: int, draw: np.random.Generator
) -> Column:
    if isinstance(piece, NumberPiece):
        inside = draw.uniform(piece.lower, piece.upper, rows)
        storage = "number" if piece.date_format is None else "date"
        edge = np.where(draw.random(rows) < 0.5, piece.lower, piece.upper)
        return NumberColumn(np.where(draw.random(rows) < 2 / 3, edge, inside), storage=storage)
    if isinstance(piece, BinsPiece):
        edges = np.array([0.0, np.nan, *piece.edges])
        return NumberColumn(edges[draw.integers(0, len(edges), rows)])
    if isinstance(piece, CategoryPiece):
        values = (*piece.values, NOBODY)
        return TextColumn.of(values[i] for i in draw.integers(0, len(values), rows))
    return ArrayColumn(np.where(draw.random((rows, *piece.shape)) < 0.5, piece.lower, piece.upper))


def _answers(target: ClassTarget | NumberTarget, rows: int, draw: np.random.Generator) -> Column:
    if isinstance(target, NumberTarget):
        return NumberColumn(np.where(draw.random(rows) < 0.5, target.lower, target.upper))
    classes = target.classes or (NOBODY,)  # without a known class no row counts, and no canary does
    return TextColumn.of(classes[i] for i in draw.integers(0, len(classes), rows))
