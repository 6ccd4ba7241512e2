"""The names of the room, and the module that each comes from; ``__init__.py`` imports it when it is first used."""

from .budget import PurchasePlan
from .choose import Selection, Trial, Winner, clipped_training, select
from .csv_lines import FileFormat
from .drafting import draft
from .encoded_rows import cap_rows, held_out
from .encoder_rules import make_encoder, public_rows
from .encoding import Encoded, Encoder
from .extraction import scattering
from .findings import Report, check
from .grid import Grid, Sweep
from .histograms import Survey, refined_columns
from .number_of_runs import NumberOfRuns
from .predict import predict_file
from .readers import read_table
from .run_check import Checked, check_run
from .schema import Schema, Target
from .score import Score
from .settings import TableSettings
from .sweep import sweep_table
from .table import Table
from .table_model import TableModel, load
from .train import TableRun, train_table
from .wavelets import Scattering, typical_sizes

__all__ = [
    "Checked",
    "Encoded",
    "Encoder",
    "FileFormat",
    "Grid",
    "NumberOfRuns",
    "PurchasePlan",
    "Report",
    "Scattering",
    "Schema",
    "Score",
    "Selection",
    "Survey",
    "Sweep",
    "Table",
    "TableModel",
    "TableRun",
    "TableSettings",
    "Target",
    "Trial",
    "Winner",
    "cap_rows",
    "check",
    "check_run",
    "clipped_training",
    "draft",
    "held_out",
    "load",
    "make_encoder",
    "predict_file",
    "public_rows",
    "read_table",
    "refined_columns",
    "scattering",
    "select",
    "sweep_table",
    "train_table",
    "typical_sizes",
]
