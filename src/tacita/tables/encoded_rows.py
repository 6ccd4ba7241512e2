"""The rows of a run as features and targets, split into those to train on and those held out.

A person's coin is a pseudo-random function of the session's key and that person's name. It depends on no other row and
on no position, so that adding or removing a person moves nobody else. Persons are told apart by the text of their cell;
a row without one does not count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import Tensor

from tacita import _validate
from tacita.random import Key
from tacita.sampling.units import unit_words, within_cap
from tacita.tables.encoded_file import EncodedFile
from tacita.tables.encoding import Encoded, Encoder
from tacita.tables.readers import TableFile
from tacita.tables.rules import HOLDOUT
from tacita.tables.schema import Schema
from tacita.tables.source import private_rows
from tacita.tables.table import Table

AnyTable = TypeVar("AnyTable", Table, TableFile)


def cap_rows(table: AnyTable, unit: str, max_rows: int, missing: Sequence[str], key: Key) -> AnyTable:
    """Return the table in which at most ``max_rows`` rows of each person count, chosen by that person's own coin.

    A row of the wrong width, or whose unit is missing, does not count at all. The column of units is held in memory.
    """
    codes, persons = _persons(table.whole((unit,)), unit, missing)
    return table.keep(within_cap(codes, persons, max_rows, key))


def held_out(
    table: Table, fraction: float, key: Key, *, unit: str | None = None, missing: Sequence[str] = (), first: int = 0
) -> np.ndarray:
    """Return a mask of the rows that are held out: each by its own coin of chance ``fraction``, or by its person's.

    If the table is a chunk of a longer one, ``first`` is the number of its first row there.
    """
    _validate.probability("fraction", fraction)
    if unit is None:
        return key.stream("held out").bernoulli(table.num_rows, fraction, first)
    codes, persons = _persons(table, unit, missing)
    coins = unit_words(codes, persons, key) / 2.0**64
    return (coins < fraction) & (codes >= 0)


def _persons(table: Table, unit: str, missing: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Return the number of each row's person, -1 for rows that do not count, and the names of the persons."""
    codes, names = table.column(unit).texts()
    absent = np.array([name in set(missing) or not name for name in names] or [True], dtype=bool)
    return np.where(table.valid & ~absent[codes], codes, -1), names


ENCODED_AT_ONCE = 2**26  # features in memory at once while rows are encoded


@dataclass(frozen=True)
class CappedRows:
    """The rows that count, once each person's rows beyond the cap are dropped.

    Attributes:
        table: The rows of the private table.
        test: A table that the user declares public; ``None`` without one.
    """

    table: TableFile = field(repr=False)
    test: Table | None = field(repr=False)


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
    rows: CappedRows,
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
        rows: The rows that count.
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
        for chunk in narrow(rows.table.chunks(wanted), encoder.num_features):
            out = np.zeros(chunk.num_rows, dtype=bool)
            # A row's coin follows from its place in the whole file, or from its person: chunks do not move it.
            if holds_out:
                out = held_out(chunk, HOLDOUT, key, unit=schema.unit, missing=schema.missing, first=first)
            encoded = encoder.encode(chunk)
            # A row that does not count has weight 0 in the loss and no label to score.
            held.append(encoded, out)
            kept.append(encoded, ~out if keeps_invalid else ~out & chunk.valid)
            first += chunk.num_rows
        public = None if rows.test is None else encoder.encode(rows.test)
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
