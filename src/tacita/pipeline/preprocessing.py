"""What travels with a model: the encoder, what was bought, the architecture. Public, strict JSON.

Place: purchases -> [pipeline.preprocessing] -> training, load. Written before the training starts, so that a resumed
run reads it in place of buying again.
"""

import json
from pathlib import Path

import msgspec

from tacita._files import replace_durably
from tacita.errors import TacitaError
from tacita.pipeline.models import ModelSpec
from tacita.tables.encoding import Encoder
from tacita.tables.survey import Survey


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From raw columns to a prediction, weights aside.

    Attributes:
        encoder: Raw columns to features, and the target.
        survey: What was bought about the columns; ``None`` if all was declared.
        model: What the model is built from.
        rows: Number of rows, declared or bought.
    """

    encoder: Encoder
    survey: Survey | None
    model: ModelSpec
    rows: float

    def to_bytes(self) -> bytes:
        """Strict JSON; the numbers come back bit for bit."""
        return (json.dumps(msgspec.to_builtins(self), indent=1, allow_nan=False) + "\n").encode()

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        replace_durably(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "Preprocessing":
        """Read what :meth:`save` wrote.

        Raises:
            TacitaError: It cannot be read as such.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, ValueError):
            raise TacitaError(f"{path.name} cannot be read, or is not one that this version of tacita wrote.") from None
