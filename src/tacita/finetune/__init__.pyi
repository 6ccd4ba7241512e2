"""The names of the room, and the module that each comes from; ``__init__.py`` imports it when it is first used."""

from .chat import ChatTemplate
from .encoding import EncodedTexts, TokenEncoder
from .losses import sequence_losses
from .records import read_records

__all__ = ["ChatTemplate", "EncodedTexts", "TokenEncoder", "read_records", "sequence_losses"]
