"""The names of the room, and the module that each comes from; ``__init__.py`` imports it when it is first used."""

from .check_run import Checked, check_run
from .predict import predict_file
from .settings import TableSettings
from .table_model import TableModel, load
from .table_run import TableRun
from .train import train_table

__all__ = ["Checked", "TableModel", "TableRun", "TableSettings", "check_run", "load", "predict_file", "train_table"]
