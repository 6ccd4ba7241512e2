"""Tables: from raw rows to features. Whatever is learned from the rows is either declared or bought with noise.

    file -> readers -> Table ──> survey_counts ──┃──> Survey ──> make_encoder ──> Encoder
                         │        (exact counts) ┃ noise            public rules     │
                         └───────────────────────┃───────────────> encode: features, target, valid rows

The exact counts and the encoded table are private. The survey, the encoder and everything in the schema are public.
"""

from tacita.tables.budget import PurchasePlan
from tacita.tables.check import Report, check
from tacita.tables.csv_lines import FileFormat
from tacita.tables.draft import draft
from tacita.tables.encoder_rules import make_encoder, public_rows
from tacita.tables.encoding import Encoded, Encoder
from tacita.tables.readers import read_table
from tacita.tables.refinement import refined_columns
from tacita.tables.schema import Schema, Target
from tacita.tables.score import Score
from tacita.tables.survey import Survey
from tacita.tables.table import Table
from tacita.tables.units import cap_rows, held_out

__all__ = [
    "Encoded",
    "Encoder",
    "FileFormat",
    "PurchasePlan",
    "Report",
    "Schema",
    "Score",
    "Survey",
    "Table",
    "Target",
    "cap_rows",
    "check",
    "draft",
    "held_out",
    "make_encoder",
    "public_rows",
    "read_table",
    "refined_columns",
]
