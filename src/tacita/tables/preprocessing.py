"""The preprocessing of a model: the encoder, what was bought, and the architecture. Public, stored as strict JSON.

It is written before the training starts, so that a resumed run reads it and does not buy again.
"""

import json
import math
from pathlib import Path

import msgspec

from tacita._files import replace_durably
from tacita.errors import TacitaError
from tacita.tables.encoding import Encoder
from tacita.tables.models import ModelSpec
from tacita.tables.survey import Survey


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a prediction needs beside the weights.

    Attributes:
        encoder: Turns raw columns into features and the target.
        survey: What was bought about the columns; ``None`` if everything was declared.
        model: The architecture of the model.
        rows: The number of rows, declared or bought.
    """

    encoder: Encoder
    survey: Survey | None
    model: ModelSpec
    rows: float

    @property
    def label_counts(self) -> dict[str, float]:
        """The bought number of rows of each class; empty if the classes were declared, or for a regression."""
        if self.survey is None or self.encoder.target is None or self.encoder.task != "classification":
            return {}
        found = [facts for facts in self.survey.columns if facts.column == self.encoder.target.column]
        return {name: max(count, 1.0) for name, count in found[0].values} if found else {}

    @property
    def guess(self) -> tuple[str, float] | None:
        """The most common label by bought counts, and its share of the rows; ``None`` if no labels were bought."""
        counts = self.label_counts
        if not counts:
            return None
        label = max(counts, key=lambda name: counts[name])
        return label, min(counts[label] / max(self.rows, 1.0), 1.0)

    @property
    def log_odds(self) -> float:
        """The log of the bought rows of the second class over those of the first; 0 unless two classes were bought."""
        counts = [self.label_counts.get(name, 1.0) for name in self.encoder.classes]
        return math.log(counts[1] / counts[0]) if len(counts) == 2 else 0.0

    def to_bytes(self) -> bytes:
        """Return strict JSON; the numbers come back bit for bit."""
        return (json.dumps(msgspec.to_builtins(self), indent=1, allow_nan=False) + "\n").encode()

    def save(self, path: Path) -> None:
        """Write the preprocessing to a file, whole or not at all."""
        replace_durably(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "Preprocessing":
        """Read what :meth:`save` wrote.

        Raises:
            TacitaError: The file cannot be read, or was not written by :meth:`save`.
        """
        try:
            return cls.from_bytes(path.read_bytes())
        except OSError:
            raise TacitaError(f"{path.name} cannot be read, or was not written by this version of tacita.") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> "Preprocessing":
        """Read what :meth:`to_bytes` returned.

        Raises:
            TacitaError: The bytes are something else.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError):
            raise TacitaError("preprocessing.json was not written by this version of tacita.") from None
