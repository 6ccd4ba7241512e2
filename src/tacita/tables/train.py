"""Train on a raw table: from the file to a private model, in one folder."""

from tacita.random import Randomness
from tacita.tables.models import check_model
from tacita.tables.plan import TablePlan
from tacita.tables.settings import TableSettings
from tacita.tables.source import check_additive, declared_schema, open_source, read_test
from tacita.tables.table_run import TableRun, run_in_folder
from tacita.tables.table_task import Say


def train_table(
    settings: TableSettings,
    *,
    say: Say = lambda words: None,
    progress: bool = False,
    randomness: Randomness | None = None,
) -> TableRun:
    """Train on a table so that everything together is (epsilon, delta)-differentially private.

    The sessions are registered together; then what is bought is written down; then the training starts. A run that was
    killed at any instant goes on when this is called again with the same settings and data.

    Args:
        settings: The settings of the run; all of them are public.
        say: Called with a line of public words at every stage.
        progress: Whether to show a progress bar on the error stream.
        randomness: Only tests hand it in; the statement then says that the run is not private.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
        DataStructureError: The file's structure is not the declared one. What rows hold never raises.
        TacitaError: What was bought (with noise) about the rows shows that there is nothing to train on.
        ResumeError: The folder holds a finished run, or one with other settings or data.
    """
    if settings.sweep is not None:
        raise ValueError("sweep is for tacita.tables.sweep_table, which chooses among runs: leave it out here.")
    check_model(settings.model)
    source = open_source(settings, declared_schema(settings))
    check_additive(settings, source)
    plan = TablePlan.of(settings, source)
    test = None if settings.test_file is None else read_test(settings.test_file, source)
    return run_in_folder(
        settings, source, plan, lambda task: task.go(test), say=say, progress=progress, randomness=randomness
    )
