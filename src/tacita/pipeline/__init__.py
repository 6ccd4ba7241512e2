"""From a raw table to a private model: read, buy what is needed, train, score, state, predict."""

from tacita.pipeline.check_run import Checked, check_run
from tacita.pipeline.predict import predict_file
from tacita.pipeline.settings import TableSettings
from tacita.pipeline.table_model import TableModel, load
from tacita.pipeline.table_run import TableRun
from tacita.pipeline.train import train_table

__all__ = ["Checked", "TableModel", "TableRun", "TableSettings", "check_run", "load", "predict_file", "train_table"]
