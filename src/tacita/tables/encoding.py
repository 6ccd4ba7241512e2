"""Encoding: the public, fixed map from a table to features, target and the rows that count.

Place: recipe -> [tables.encoding] -> training, prediction. The encoder is public (it is released with the model, as
strict JSON); what it returns is private. It acts on each row alone: a row of the wrong width, or whose label is
unknown, keeps its place with ``valid`` False, and its loss is to be weighted by zero.
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

from tacita.tables.features import ArrayPiece, CategoryPiece, ClassTarget, NumberPiece, NumberTarget
from tacita.tables.readers import Reading
from tacita.tables.schema import strict
from tacita.tables.table import Table

FORMAT = 1


@dataclass(frozen=True, repr=False)
class Encoded:
    """Private: features (rows, features) float32; target (rows,) int64 or float32, or ``None``; valid (rows,) bool."""

    features: Tensor
    target: Tensor | None
    valid: Tensor


class Encoder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a table becomes tensors.

    Attributes:
        pieces: The features, column by column.
        target: The target; ``None`` for a table without one.
        missing: Cells that say "missing".
        reading: How the training file was read, so that a file to predict on is read alike.
        dropped: Columns left out by the public rules; the statement names them.
        format: Version of this layout.
    """

    pieces: tuple[NumberPiece | CategoryPiece | ArrayPiece, ...]
    target: ClassTarget | NumberTarget | None = None
    missing: tuple[str, ...]
    reading: Reading = Reading()
    dropped: tuple[str, ...] = ()
    format: int = FORMAT

    def __post_init__(self):
        if self.format != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {self.format}: made by another version of tacita.")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in the order of the columns of a batch."""
        return tuple(name for piece in self.pieces for name in piece.names)

    @property
    def num_features(self) -> int:
        """Number of features: inputs of the model."""
        return len(self.feature_names)

    @property
    def task(self) -> str | None:
        """``"classification"``, ``"regression"``, or ``None`` without a target."""
        if self.target is None:
            return None
        return "classification" if isinstance(self.target, ClassTarget) else "regression"

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes by number; empty for a regression."""
        return self.target.classes if isinstance(self.target, ClassTarget) else ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row's features: that of the array if the table is one array a row, else ``(num_features,)``."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], ArrayPiece):
            return self.pieces[0].shape
        return (self.num_features,)

    def columns(self, *, with_target: bool = True) -> tuple[str, ...]:
        """The columns that a file must hold, each once."""
        names = [piece.column for piece in self.pieces]
        if with_target and self.target is not None:
            names.append(self.target.column)
        return tuple(dict.fromkeys(names))

    def encode(self, table: Table, *, with_target: bool = True) -> Encoded:
        """Features, target and valid rows of ``table``; only a wrong structure raises."""
        parts = [piece.encode(table.column(piece.column), self.missing) for piece in self.pieces]
        features = np.concatenate([np.zeros((table.num_rows, 0), dtype=np.float32), *parts], axis=1)
        valid, target = table.valid, None
        if with_target and self.target is not None:
            values, known = self.target.encode(table.column(self.target.column), self.missing)
            valid, target = valid & known, torch.from_numpy(values)
        features[~valid] = 0.0
        return Encoded(torch.from_numpy(features), target, torch.from_numpy(valid.copy()))

    def decode(self, predicted: np.ndarray) -> list[str] | np.ndarray:
        """Class numbers to class names, or standardised values back to the target's own units."""
        if isinstance(self.target, ClassTarget):
            return [self.target.classes[int(i)] for i in predicted]
        if isinstance(self.target, NumberTarget):
            return np.asarray(predicted, dtype=np.float64) * self.target.scale + self.target.centre
        raise ValueError("The encoder has no target to decode.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Encoder":
        """From plain values, strictly: an unknown, missing or mistyped setting raises ``ValueError``."""
        return strict(dict(settings), cls, "preprocessing")

    def save(self, path: str | Path) -> None:
        """Write strict JSON; the numbers come back bit for bit."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Encoder":
        """Read what :meth:`save` wrote."""
        try:
            settings = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            raise ValueError(f"preprocessing must be a readable JSON file, got {str(path)!r}.") from None
        return cls.from_dict(settings if isinstance(settings, dict) else {})
