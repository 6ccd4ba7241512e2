"""From a raw table to a private model: read, buy what is needed, train, score, state, predict."""

from tacita.pipeline.settings import TableSettings
from tacita.pipeline.train import TableRun, train_table

__all__ = ["TableRun", "TableSettings", "train_table"]
