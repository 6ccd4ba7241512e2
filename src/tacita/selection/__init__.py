"""Selection: train under several settings, release the best run, and account for the choice."""

from tacita.selection.choose import Selection, Winner, clipped_training, select
from tacita.selection.grid import Grid, Sweep
from tacita.selection.number_of_runs import NumberOfRuns
from tacita.selection.sweep import sweep_table
from tacita.selection.trials import Trial

__all__ = ["Grid", "NumberOfRuns", "Selection", "Sweep", "Trial", "Winner", "clipped_training", "select", "sweep_table"]
