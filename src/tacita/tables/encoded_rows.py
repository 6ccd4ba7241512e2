"""The rows of a run as features and targets, split into those to train on and those held out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from tacita.random import Key
from tacita.tables.encoded_file import EncodedFile
from tacita.tables.encoding import Encoded, Encoder
from tacita.tables.rules import HOLDOUT
from tacita.tables.schema import Schema
from tacita.tables.source import private_rows
from tacita.tables.table import Table
from tacita.tables.table_file import TableFile
from tacita.tables.units import held_out

ENCODED_AT_ONCE = 2**26  # features in memory at once while rows are encoded


@dataclass(frozen=True)
class EncodedRows:
    """Rows as features and targets, by their use.

    Attributes:
        kept: The rows to train on. Private.
        held: The rows held out for the score. Private.
        public: The rows of the table that is declared public; ``None`` without one.
    """

    kept: EncodedFile = field(repr=False)
    held: EncodedFile = field(repr=False)
    public: Encoded | None = field(repr=False)

    def scored(self) -> Iterable[Encoded]:
        """Return the rows that the model is scored on, chunk by chunk."""
        return self.held.chunks() if self.public is None else [self.public]


def encode_rows(
    table: TableFile,
    test: Table | None,
    encoder: Encoder,
    schema: Schema,
    *,
    key: Key,
    holds_out: bool,
    keeps_invalid: bool,
    by_class: Tensor | None,
    folder: Path,
) -> EncodedRows:
    """Encode all rows into files; each row is held out by its own coin, or by that of its person.

    Args:
        table: The private table, with the rows that count.
        test: A table that the user declares public; ``None`` without one.
        encoder: Turns raw columns into features and targets.
        schema: What is declared about the table.
        key: The key of the coins.
        holds_out: Whether rows are held out at all.
        keeps_invalid: Whether a row that does not count keeps a place among the training records. It does where the
            number of rows is public, and has no place where nobody may learn that number.
        by_class: Weights of the classes, for training; ``None`` means 1 each.
        folder: A folder on the disk that holds the files.
    """
    kept, held = EncodedFile(encoder, folder, by_class=by_class), EncodedFile(encoder, folder)
    wanted, first = (*encoder.columns(), *(() if schema.unit is None else (schema.unit,))), 0
    with private_rows("encoding the rows"):
        for chunk in narrow(table.chunks(wanted), encoder.num_features):
            out = np.zeros(chunk.num_rows, dtype=bool)
            # A row's coin follows from its place in the whole file, or from its person: chunks do not move it.
            if holds_out:
                out = held_out(chunk, HOLDOUT, key, unit=schema.unit, missing=schema.missing, first=first)
            encoded = encoder.encode(chunk)
            # A row that does not count has weight 0 in the loss and no label to score.
            held.append(encoded, out)
            kept.append(encoded, ~out if keeps_invalid else ~out & chunk.valid)
            first += chunk.num_rows
        public = None if test is None else encoder.encode(test)
    return EncodedRows(kept, held, public)


def narrow(chunks: Iterator[Table], num_features: int) -> Iterator[Table]:
    """Cut chunks so that the features of one fit into memory: an image may have thousands."""
    most = max(ENCODED_AT_ONCE // max(num_features, 1), 1)
    for chunk in chunks:
        if chunk.num_rows <= most:
            yield chunk
            continue
        for first in range(0, chunk.num_rows, most):
            yield chunk.take(np.arange(first, min(first + most, chunk.num_rows)))
