"""The command ``tacita train``: from a raw table to a private model.

The flags are the settings of :class:`~tacita.pipeline.TableSettings`; they override the config file.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tacita._choices import NeighboringRelation
from tacita.cli.names import names_of
from tacita.cli.trust import check_code

if TYPE_CHECKING:
    from tacita.pipeline import TableSettings

DATA = Parameter(group="The table", negative=())
PRIVACY = Parameter(group="The guarantee", negative=())
PUBLIC = Parameter(group="What is public", negative=())
TRAINING = Parameter(group="The training", negative=())
TUNING = Parameter(group="Tuning", negative=())
RUN = Parameter(group="The run", negative=())
ABOUT = Parameter(group="The statement", negative=())
FLAT = Parameter(name="*")  # an object's fields are options by their own names
OF_THE_COMMAND = ("config", "quiet", "trust_code", "dry_run")  # flags that are not settings of a run


@dataclass(frozen=True, kw_only=True)
class About:
    """What the statement says as given; nobody checks it.

    Attributes:
        responsible: Who makes the run.
        contact: Whom to ask about it.
        data_period: The time that the data are about.
        purpose: What the model is for.
        recipients: Who gets the model.
        retention: How long it is kept.
    """

    responsible: Annotated[str | None, ABOUT] = None
    contact: Annotated[str | None, ABOUT] = None
    data_period: Annotated[str | None, ABOUT] = None
    purpose: Annotated[str | None, ABOUT] = None
    recipients: Annotated[str | None, ABOUT] = None
    retention: Annotated[str | None, ABOUT] = None


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
    decimal: Annotated[str | None, DATA] = None,
    epsilon: Annotated[float | None, PRIVACY] = None,
    delta: Annotated[float | None, PRIVACY] = None,
    privacy_unit: Annotated[str | None, PRIVACY] = None,
    unit_column: Annotated[str | None, PRIVACY] = None,
    max_rows_per_unit: Annotated[int | None, PRIVACY] = None,
    neighboring_relation: Annotated[NeighboringRelation | None, PRIVACY] = None,
    allow_large_delta: Annotated[bool | None, PRIVACY] = None,
    hardened: Annotated[bool | Literal["rounded", "discrete"] | None, PRIVACY] = None,
    schema: Annotated[str | None, PUBLIC] = None,
    classes: Annotated[str | None, PUBLIC] = None,
    rows: Annotated[int | None, PUBLIC] = None,
    test_file: Annotated[str | None, PUBLIC] = None,
    non_private_holdout: Annotated[bool | None, PUBLIC] = None,
    model: Annotated[str | None, TRAINING] = None,
    width: Annotated[int | None, TRAINING] = None,
    task: Annotated[Literal["classification", "regression"] | None, TRAINING] = None,
    features: Annotated[Literal["scattering"] | None, TRAINING] = None,
    sample_rate: Annotated[float | None, TRAINING] = None,
    queries: Annotated[int | None, TRAINING] = None,
    max_grad_norm: Annotated[float | None, TRAINING] = None,
    lr: Annotated[float | None, TRAINING] = None,
    average: Annotated[Literal["last", "half", "ema"] | None, TRAINING] = None,
    feedback: Annotated[Literal["released", "bounded"] | None, TRAINING] = None,
    balanced: Annotated[bool | None, TRAINING] = None,
    sweep: Annotated[str | None, TUNING] = None,
    chosen_among: Annotated[int | None, TUNING] = None,
    dataset_name: Annotated[str | None, TUNING] = None,
    about: Annotated[About, FLAT] = About(),
    output: Annotated[str | None, RUN] = None,
    config: Annotated[str | None, RUN] = None,
    seed: Annotated[int | None, RUN] = None,
    trust_code: Annotated[bool, RUN] = False,
    quiet: Annotated[bool, RUN] = False,
    dry_run: Annotated[bool, RUN] = False,
) -> int:
    """Train a private model on a table. What is not declared is bought from the rows, out of the same epsilon.

    To continue a run that was stopped, repeat the same command.

    Example: tacita train adult.csv --target income --epsilon 1 --delta 1e-5 --output runs/adult

    With --sweep grid.toml it trains several times and keeps the best model; epsilon includes the price of that choice.

    Args:
        data: The table: CSV (compressed or not), Parquet or NPZ.
        target: The column to predict.
        columns: Names of the columns of a file without a header line, separated by commas; quote a name that holds one.
        drop: Columns to leave out, separated by commas; quote a name that holds one: '"blood pressure, sys",age'.
        delimiter: Character between cells; "," by default, never guessed from the rows.
        quote: Character around a cell that holds the delimiter.
        encoding: Encoding of the file; utf-8 by default.
        decimal: Decimal mark of the numbers, "." by default; with "," a point separates groups, as in 1.234,5.
        epsilon: The epsilon of everything together: purchases, training and score.
        delta: The delta of everything together; choose it well below 1 / (number of rows).
        privacy_unit: Whom the guarantee protects, in your words, for the statement.
        unit_column: The column that names the person, if a person may have several rows.
        max_rows_per_unit: The largest number of rows of one person that count; goes with --unit-column.
        neighboring_relation: How neighbouring tables differ; add_or_remove_one by default.
        allow_large_delta: Accept a delta at or above 1 / rows, which is refused if the number of rows is public.
        hardened: Close attacks on floating-point noise; give it alone, or with the kind of noise, rounded or discrete.
        schema: TOML file with what is public about the columns; "tacita schema FILE" drafts one.
        classes: The labels of the target, separated by commas, if they are public; a small table needs this most.
            Rows whose target is none of them contribute nothing, and no message tells how many: check the spelling.
        rows: The public number of rows (a declared guess).
        test_file: A table that you declare public: the score is computed on it exactly, outside the guarantee.
        non_private_holdout: Score held-out rows exactly, outside the guarantee; the statement says so.
        model: linear, mlp, or package.module:callable with callable(num_features, num_outputs) -> nn.Module.
        width: Number of hidden units of the mlp.
        task: classification or regression; by default a public rule decides by bought counts of the target.
        features: "scattering" trains on fixed features of images in place of their pixels; they cost no privacy.
        sample_rate: Chance of each row to be in a query.
        queries: Number of queries (steps).
        max_grad_norm: Clipping threshold.
        lr: Step size.
        average: What is published: the last iterate, the mean of the last half of them (by default), or an exponential
            average, ema, over about the last tenth.
        feedback: Error feedback: what clipping removes is added again later, released with noise of its own, or bounded
            and hidden. Both cost noise, and most models are better without it.
        balanced: Rare classes count as much as frequent ones: rows are weighted by bought counts of their class.
        sweep: TOML file with a grid of settings, to keep the best of a secret, random number of runs (mean_runs = 5;
            below [grid]: lr = [0.5, 1, 2]); epsilon includes the price of the choice. See docs/tuning.md.
        chosen_among: Number of runs among which you choose this one by hand; the statement then says that the price of
            that choice is not in epsilon.
        dataset_name: Public name of the data; runs under one name are listed beside their folders, and statements say
            how many there are and what they guarantee together.
        output: Folder of the run, new or empty.
        config: A run's config.toml, for all settings that are not given here; [about] is a table of its own in it.
        seed: Derive all coins and noise from this number, to repeat a demonstration. NOT PRIVATE: the noise can be
            computed again and removed, and the statement says so first.
        trust_code: Import and call the model's code that --config names; code that --model names needs no such flag.
        quiet: Show no progress on standard error.
        dry_run: Print the whole plan and how many rows bought values need; spend and write nothing.
    """
    flags = {name: value for name, value in locals().items() if name not in OF_THE_COMMAND and value is not None}
    flags["about"] = {name: value for name, value in asdict(about).items() if value is not None}
    settings = _settings(flags, config, trust_code=trust_code)
    if dry_run:
        from tacita.pipeline.dry_run import plan_in_words

        print(plan_in_words(settings), end="")
    else:
        _train(settings, quiet=quiet)
    return 0


def _settings(flags: dict[str, Any], config: str | None, *, trust_code: bool) -> "TableSettings":
    """Return the settings of the config file, overridden by those given as flags."""
    from tacita.pipeline import TableSettings
    from tacita.pipeline.settings import LISTS, parse_toml, read_text

    given = dict(flags)
    if "sweep" in given:
        given["sweep"] = read_text("sweep", given["sweep"])
    configured = {} if config is None else parse_toml(read_text("config", config))
    check_code(configured, trusted=trust_code, given=given)
    for name in LISTS:
        if name in given:
            given[name] = names_of(name, given[name])
    if isinstance(configured.get("about"), Mapping):  # single entries of the table are overridden
        given["about"] = {**configured["about"], **given["about"]}
    elif "about" in configured and not given["about"]:
        del given["about"]  # not a table: the settings refuse it
    return TableSettings.from_dict({**configured, **given})


def _train(settings: "TableSettings", *, quiet: bool) -> None:
    """Train, print the statement, and say on standard error what to do next."""
    from tacita.pipeline import train_table
    from tacita.pipeline.table_statement import no_run
    from tacita.selection import sweep_table

    training = train_table if settings.sweep is None else sweep_table
    try:
        run = training(settings, say=(lambda words: None) if quiet else _say, progress=not quiet)
    except (Exception, KeyboardInterrupt) as error:
        error.add_note("To continue the training where it stopped, repeat the same command.")
        raise
    print(run.statement, end="")
    if no_run(run.fields):
        _say(
            f"no model was trained: the secret number of runs came out as 0, so that {settings.output} holds no model. "
            "The selection's budget is spent all the same: training again needs a budget of its own"
        )
    elif not quiet:
        _say(f"written to {settings.output}; tacita predict {settings.output} FILE --output scored.csv uses the model")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
