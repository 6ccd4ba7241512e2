"""The command ``tacita train``: from a raw table to a private model.

The flags are the settings of :class:`~tacita.tables.TableSettings`; they override the config file.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tacita.cli.names import names_of
from tacita.cli.outputs import exit_code, in_short
from tacita.cli.trust import check_code
from tacita.tables.settings import DATA, RUN, TableSettings, flags, lists_of_names, parse_toml, read_text

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags()

ABOUT = Parameter(group="The statement", negative=())
FLAT = Parameter(name="*")  # an object's fields are options by their own names


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
    settings: Annotated[Flags | None, FLAT] = None,
    about: Annotated[About, FLAT] = About(),
    config: Annotated[str | None, RUN] = None,
    trust_code: Annotated[bool, RUN] = False,
    quiet: Annotated[bool, RUN] = False,
    dry_run: Annotated[bool, RUN] = False,
) -> int:
    """Train a private model on a table. What is not declared is bought from the rows, out of the same epsilon.

    To continue a run that was stopped, repeat the same command.

    Example: tacita train adult.csv --target income --epsilon 1 --delta 1e-5 --output runs/adult

    With --sweep grid.toml it trains several times and keeps the best model; epsilon includes the price of that choice.

    Args:
        data: The table: CSV or JSON lines (compressed or not), Parquet or NPZ.
        config: A run's config.toml, for all settings that are not given here; [about] is a table of its own in it.
        trust_code: Import and call the model's code that --config names; code that --model names needs no such flag.
        quiet: Show no progress on standard error.
        dry_run: Print the whole plan and how many rows bought values need; spend and write nothing.
    """
    given = {**({} if data is None else {"data": data}), **(settings or {})}
    given["about"] = {name: value for name, value in asdict(about).items() if value is not None}
    chosen = _settings(given, config, trust_code=trust_code, unsaid={"output": "unnamed"} if dry_run else {})
    if dry_run:
        from tacita.tables.dry_run import plan_in_words

        print(plan_in_words(chosen), end="")
        return 0
    return _train(chosen, quiet=quiet)


def _settings(
    given: dict[str, Any], config: str | None, *, trust_code: bool, unsaid: Mapping[str, Any]
) -> TableSettings:
    """Return the settings of the config file, overridden by those ``given`` as flags; ``unsaid`` where neither is."""
    if "sweep" in given:
        given["sweep"] = read_text("sweep", given["sweep"])
    configured = {} if config is None else parse_toml(read_text("config", config))
    check_code(configured, trusted=trust_code, given=given)
    for name in lists_of_names():
        if name in given:
            given[name] = names_of(name, given[name])
    if isinstance(configured.get("about"), Mapping):  # single entries of the table are overridden
        given["about"] = {**configured["about"], **given["about"]}
    elif "about" in configured and not given["about"]:
        del given["about"]  # not a table: the settings refuse it
    return TableSettings.from_dict({**unsaid, **configured, **given})


def _train(settings: TableSettings, *, quiet: bool) -> int:
    """Train, print the statement, say on standard error what to do next, and return the exit code."""
    from tacita.ledger.verdict import verdict
    from tacita.tables import sweep_table, train_table
    from tacita.tables.table_statement import no_run

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
        _say(in_short(run.fields))
    return exit_code(verdict(run.fields))


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
