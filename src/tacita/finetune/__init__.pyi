"""The names of the room, and the module that each comes from; ``__init__.py`` imports it when it is first used."""

from .base_model import save_adapter
from .chat import ChatTemplate
from .encoding import EncodedTexts, TokenEncoder
from .generation import generate, load
from .losses import sequence_losses
from .private_trainer import PrivateTrainer
from .records import read_records
from .settings import Files, FinetuneSettings
from .text_audit import TextAudit, audit_texts
from .text_run import TextRun, finetune

__all__ = [
    "ChatTemplate",
    "EncodedTexts",
    "Files",
    "FinetuneSettings",
    "PrivateTrainer",
    "TextAudit",
    "TextRun",
    "TokenEncoder",
    "audit_texts",
    "finetune",
    "generate",
    "load",
    "read_records",
    "save_adapter",
    "sequence_losses",
]
