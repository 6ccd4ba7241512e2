"""The encoder: a fixed, public map from a table to features, targets and the rows that count.

The encoder is public and is released with the model, as strict JSON; what it returns is private. It acts on each row
alone. A row of the wrong width, or whose label is unknown, keeps its place with ``valid`` False, and its loss must get
weight zero.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.csv_lines import FileFormat
from tacita.tables.features import (
    ArrayPiece,
    BinsPiece,
    CategoryPiece,
    ClassTarget,
    NumberPiece,
    NumberTarget,
    ScatteringPiece,
)
from tacita.tables.strict import strict
from tacita.tables.table import Table

FORMAT = 1


@dataclass(frozen=True, repr=False)
class Encoded:
    """Encoded rows. Private.

    Attributes:
        features: Shape (rows, features), float32.
        target: Class numbers (int64) or standardised targets (float32), shape (rows,); ``None`` without a target.
        valid: Which rows count, bool, shape (rows,).
        answers: For a score: targets that are not clipped, shape (rows,).
        labelled: For a score: which rows have a label, known to the model or not, bool, shape (rows,).
    """

    features: Tensor
    target: Tensor | None
    valid: Tensor
    answers: Tensor | None = None
    labelled: Tensor | None = None

    def take(self, rows: np.ndarray) -> "Encoded":
        """Return some of the rows."""
        parts = (self.features, self.target, self.valid, self.answers, self.labelled)
        return Encoded(*(None if part is None else part[rows] for part in parts))  # pyright: ignore[reportArgumentType]


class Encoder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fixed map from a table to tensors.

    Attributes:
        pieces: The features, column by column.
        target: How the target is read; ``None`` for a table without one.
        missing: Cells that mean "missing".
        reading: The format of the training file, so that a file to predict on is read in the same way.
        dropped: Columns that the public rules leave out; the statement names them.
        format: Version of this layout.
    """

    pieces: tuple[NumberPiece | BinsPiece | CategoryPiece | ArrayPiece | ScatteringPiece, ...]
    target: ClassTarget | NumberTarget | None = None
    missing: tuple[str, ...]
    reading: FileFormat = FileFormat()
    dropped: tuple[str, ...] = ()
    format: int = FORMAT

    def __post_init__(self):
        if self.format != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {self.format}: made by another version of tacita.")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, in the order of the columns of a batch."""
        return tuple(name for piece in self.pieces for name in piece.names)

    @property
    def num_features(self) -> int:
        """The number of features, which are the inputs of the model."""
        return sum(piece.width for piece in self.pieces)

    @property
    def task(self) -> str | None:
        """``"classification"``, ``"regression"``, or ``None`` without a target."""
        if self.target is None:
            return None
        return "classification" if isinstance(self.target, ClassTarget) else "regression"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes by class number; empty for a regression."""
        return self.target.classes if isinstance(self.target, ClassTarget) else ()

    def columns(self, *, with_target: bool = True) -> tuple[str, ...]:
        """Return the names of the columns that a file must hold, each once."""
        names = [piece.column for piece in self.pieces]
        if with_target and self.target is not None:
            names.append(self.target.column)
        return tuple(dict.fromkeys(names))

    def encode(self, table: Table, *, with_target: bool = True) -> Encoded:
        """Encode the rows of ``table``; only a wrong structure raises."""
        features, last = np.empty((table.num_rows, self.num_features), np.float32), 0
        for piece in self.pieces:
            first, last = last, last + piece.width
            piece.fill(table.column(piece.column), self.missing, features[:, first:last])
        valid, target = table.valid, None
        answers = labelled = None
        if with_target and self.target is not None:
            column = table.column(self.target.column)
            values, known = self.target.encode(column, self.missing)
            valid, target = valid & known, torch.from_numpy(values)
            own, labels = self.target.answers(column, self.missing)
            answers, labelled = torch.from_numpy(own), torch.from_numpy(labels & table.valid)
        features[np.flatnonzero(~valid)] = 0.0
        return Encoded(torch.from_numpy(features), target, torch.from_numpy(valid.copy()), answers, labelled)

    def decode(self, predicted: np.ndarray) -> list[str] | np.ndarray:
        """Turn class numbers into class names, or outputs of a regression into the target's own units."""
        if isinstance(self.target, ClassTarget):
            return [self.target.classes[int(i)] for i in predicted]
        if isinstance(self.target, NumberTarget):
            return self.target.decode(predicted)
        raise ValueError("The encoder has no target to decode.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Encoder":
        """Make an encoder from plain values; an unknown, missing or mistyped setting raises ``ValueError``."""
        return strict(dict(settings), cls, "preprocessing")

    def save(self, path: str | Path) -> None:
        """Write strict JSON; the numbers come back bit for bit."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: str | Path) -> "Encoder":
        """Read what :meth:`save` wrote."""
        try:
            settings = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            raise ValueError(f"preprocessing must be a readable JSON file, got {str(path)!r}.") from None
        return cls.from_dict(settings if isinstance(settings, dict) else {})
