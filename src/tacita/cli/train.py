"""``tacita train``: from a raw table to a private model.

Place: cli.app -> [cli.train] -> pipeline. Flags are the settings of :class:`~tacita.pipeline.TableSettings`; what is
given overrides the config file.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from tacita.accounting import NeighboringRelation
from tacita.pipeline import TableSettings, train_table
from tacita.pipeline.report import no_run
from tacita.pipeline.settings import parse_toml, read_text
from tacita.selection import sweep_table

DATA = Parameter(group="The table", negative=())
PRIVACY = Parameter(group="The guarantee", negative=())
PUBLIC = Parameter(group="What is public", negative=())
TRAINING = Parameter(group="The training", negative=())
TUNING = Parameter(group="Tuning", negative=())
RUN = Parameter(group="The run", negative=())


def train(
    data: Annotated[str | None, DATA] = None,
    /,
    *,
    target: Annotated[str | None, DATA] = None,
    columns: Annotated[str | None, DATA] = None,
    drop: Annotated[str | None, DATA] = None,
    delimiter: Annotated[str | None, DATA] = None,
    quote: Annotated[str | None, DATA] = None,
    encoding: Annotated[str | None, DATA] = None,
    epsilon: Annotated[float | None, PRIVACY] = None,
    delta: Annotated[float | None, PRIVACY] = None,
    privacy_unit: Annotated[str | None, PRIVACY] = None,
    unit_column: Annotated[str | None, PRIVACY] = None,
    max_rows_per_unit: Annotated[int | None, PRIVACY] = None,
    neighboring_relation: Annotated[NeighboringRelation | None, PRIVACY] = None,
    allow_large_delta: Annotated[bool | None, PRIVACY] = None,
    hardened: Annotated[bool | Literal["rounded", "discrete"] | None, PRIVACY] = None,
    schema: Annotated[str | None, PUBLIC] = None,
    rows: Annotated[int | None, PUBLIC] = None,
    test_file: Annotated[str | None, PUBLIC] = None,
    non_private_holdout: Annotated[bool | None, PUBLIC] = None,
    model: Annotated[str | None, TRAINING] = None,
    width: Annotated[int | None, TRAINING] = None,
    task: Annotated[Literal["classification", "regression"] | None, TRAINING] = None,
    sample_rate: Annotated[float | None, TRAINING] = None,
    queries: Annotated[int | None, TRAINING] = None,
    max_grad_norm: Annotated[float | None, TRAINING] = None,
    lr: Annotated[float | None, TRAINING] = None,
    sweep: Annotated[str | None, TUNING] = None,
    chosen_among: Annotated[int | None, TUNING] = None,
    dataset_name: Annotated[str | None, TUNING] = None,
    output: Annotated[str | None, RUN] = None,
    config: Annotated[str | None, RUN] = None,
    quiet: Annotated[bool, RUN] = False,
) -> int:
    """Train a private model on a table. What is not declared is bought from the rows, out of the same epsilon.

    A run that was stopped goes on where it was when the same command is repeated.

    Example: tacita train adult.csv --target income --epsilon 1 --delta 1e-5 --output runs/adult

    With --sweep grid.toml it trains several times and keeps the best, at a price that is included.

    Args:
        data: CSV (gzip too), Parquet or NPZ.
        target: Column to predict.
        columns: Names of the columns of a file without a header line, separated by commas.
        drop: Columns to leave out, separated by commas.
        delimiter: Character between cells; "," if not given, never guessed from the rows.
        quote: Character around a cell that holds the delimiter.
        encoding: Of the file; utf-8 if not given.
        epsilon: Of everything together: purchases, training and score.
        delta: Of everything together; well below 1 / (number of rows).
        privacy_unit: Whom the guarantee protects, in your words, for the statement.
        unit_column: Column that names the person, if a person may have several rows.
        max_rows_per_unit: At most so many rows of a person count; goes with --unit-column.
        neighboring_relation: How neighbouring tables differ; add_or_remove_one if not given.
        allow_large_delta: Accept a delta at or above 1 / rows; checked where --rows is declared, or the relation
            makes the number of rows public.
        hardened: Close attacks on floating-point noise; alone, or with the kind of noise, rounded or discrete.
        schema: TOML file with what is public about the columns; "tacita schema FILE" drafts one.
        rows: Public number of rows (a declared guess).
        test_file: A table that you declare public: the score is computed on it exactly, outside the guarantee.
        non_private_holdout: Score held-out rows exactly, outside the guarantee; the statement says so.
        model: linear, mlp, or package.module:callable with callable(num_features, num_outputs) -> nn.Module.
        width: Hidden units of the mlp.
        task: classification or regression; bought if not given.
        sample_rate: Chance of a row to be in a query.
        queries: Number of queries (steps).
        max_grad_norm: Clipping threshold.
        lr: Step size.
        sweep: TOML file with a grid of settings: the best of a secret, random number of runs (mean_runs = 5; below
            [grid]: lr = [0.5, 1, 2]), the price of the choice included in epsilon. See docs/tuning.md.
        chosen_among: This run is, or will be, chosen by hand among so many: the statement says that the price of that
            choice is not in epsilon.
        dataset_name: Public name of the data: runs under one name are listed beside their folders, and flagged where
            one of them is reported alone.
        output: Folder of the run; new or empty.
        config: A run's config.toml: its settings, unless given here.
        quiet: No progress on standard error.
    """
    flags = {name: value for name, value in locals().items() if name not in ("config", "quiet") and value is not None}
    if sweep is not None:
        flags["sweep"] = read_text("sweep", sweep)
    settings = TableSettings.from_dict({**_configured(config), **_listed(flags)})
    training = train_table if settings.sweep is None else sweep_table
    with _going_on():
        run = training(settings, say=(lambda words: None) if quiet else _say, progress=not quiet)
    print(run.statement, end="")
    if no_run(run.fields):
        _say(
            f"no run: the number drawn was 0, so that {settings.output} holds no model. What the selection may spend "
            "is spent: training again needs a budget of its own"
        )
    elif not quiet:
        _say(f"written to {settings.output}; tacita predict {settings.output} FILE --output scored.csv uses the model")
    return 0


@contextmanager
def _going_on() -> Iterator[None]:
    """What stops a training from outside says how to go on."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        error.add_note("A training goes on where it was: repeat the same command.")
        raise


def _configured(config: str | None) -> dict[str, Any]:
    return {} if config is None else parse_toml(read_text("config", config))


def _listed(flags: dict[str, Any]) -> dict[str, Any]:
    for name in ("columns", "drop"):
        if name in flags:
            flags[name] = tuple(part.strip() for part in flags[name].split(",") if part.strip())
    return flags


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
