"""The names of the room, and the module that each comes from; ``__init__.py`` imports it when it is first used."""

from .budget import PurchasePlan
from .checking import Report, check
from .choose import Selection, Winner, clipped_training, select
from .csv_lines import FileFormat
from .drafting import draft
from .encoder_rules import make_encoder, public_rows
from .encoding import Encoded, Encoder
from .extraction import scattering
from .grid import Grid, Sweep
from .moments import Moments, MomentsOracle
from .number_of_runs import NumberOfRuns
from .predict import predict_file
from .readers import read_table
from .refinement import refined_columns
from .run_check import Checked, check_run
from .schema import Schema, Target
from .score import Score
from .selection_events import ComposedEvent, RepeatAndSelectEvent, WorstOfEvent
from .settings import TableSettings
from .survey import Survey
from .sweep import sweep_table
from .table import Table
from .table_model import TableModel, load
from .table_run import TableRun, train_table
from .trials import Trial
from .units import cap_rows, held_out
from .wavelets import Scattering, typical_sizes

__all__ = [
    "Checked",
    "ComposedEvent",
    "Encoded",
    "Encoder",
    "FileFormat",
    "Grid",
    "Moments",
    "MomentsOracle",
    "NumberOfRuns",
    "PurchasePlan",
    "RepeatAndSelectEvent",
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
    "WorstOfEvent",
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
