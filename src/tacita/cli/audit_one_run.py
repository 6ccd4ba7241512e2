"""``tacita audit one-run``: train a configuration anew with canaries, and say what epsilon the run gave away at least.

Place: cli.audit -> [cli.audit_one_run] -> pipeline, report.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tacita import _validate
from tacita.cli.outputs import check_figure, check_file, say_written, write_json
from tacita.pipeline import TableSettings
from tacita.pipeline.one_run import audit_table
from tacita.pipeline.settings import parse_toml, read_text
from tacita.report.one_run import save_one_run

REFUTED = 1
CONFIDENCE = "95 % is 0.95."
TESTED = (
    "tested:       the claim of the training session alone: canaries are put in after the purchases, which are\n"
    "              not audited"
)
AUDIT = Parameter(group="The audit", negative=())
RESULT = Parameter(group="The result", negative=())


def one_run(
    config: str,
    /,
    *,
    canaries: Annotated[int, AUDIT] = 1000,
    kind: Annotated[Literal["planted", "rows"], AUDIT] = "planted",
    attack: Annotated[Literal["white_box", "black_box"], AUDIT] = "white_box",
    confidence: Annotated[float, AUDIT] = 0.95,
    guesses: Annotated[int | None, AUDIT] = None,
    output: Annotated[str | None, RESULT] = None,
    json_file: Annotated[str | None, Parameter(name="--json", group="The result")] = None,
    plot: Annotated[str | None, RESULT] = None,
    quiet: Annotated[bool, RESULT] = False,
) -> int:
    """Train by a config.toml anew, with canaries in the data; measure a lower bound on epsilon; exit code 1 if refuted.

    It publishes no model, but reads the same rows: it is a session of its own, and its statement says what it cost.
    The verdict is on the configuration, trained anew; not on a model that was exported before.

    The claim tested is that of the training session alone: purchases (types, bounds, score) are not audited.

    Example: tacita audit one-run runs/adult --canaries 1000 --plot audit.png

    Args:
        config: Folder of a run, or its config.toml.
        canaries: How many, >= 50; each is in the data by a fair coin. A claim of epsilon needs more than 16 e^epsilon.
        kind: planted: canaries with a parameter of their own, the worst case of the accounting; rows: rows of the
            table's form with extreme cells and random answers, which give away far less.
        attack: For rows: from all releases, or from the final model's loss alone.
        confidence: Of the lower bound. The verdict has its own: one wrong "refuted" in a million audits.
        guesses: How many canaries are guessed; six numbers are tried if not given.
        output: New folder for the audit's ledger, statement and result; that of the config with "-audit" if not given.
        json_file: File for the result as JSON.
        plot: File for a picture: .png, .svg or .pdf.
        quiet: No progress on standard error.
    """
    path = Path(config) / "config.toml" if Path(config).is_dir() else Path(config)
    settings = TableSettings.from_dict(
        {**parse_toml(read_text("config", str(path))), "output": output or _beside(path)}
    )
    _validate.inside("confidence", confidence, hint=CONFIDENCE)
    check_file("json", json_file)  # before anything is spent
    check_figure("plot", plot)
    audit = audit_table(
        settings,
        canaries=canaries,
        kind=kind,
        attack=attack,
        confidence=confidence,
        guesses=guesses,
        say=(lambda words: None) if quiet else _say,
    )
    print(f"{audit.result.text}{TESTED}\n")
    print(audit.statement, end="")
    if json_file is not None:
        write_json(json_file, audit.result.to_json())
    if plot is not None:
        save_one_run(audit.result, plot)
    if not quiet:
        for written in (json_file, plot):
            if written is not None:
                say_written(written)
        _say(f"ledger, statement and result are in {audit.folder}")
    return REFUTED if audit.result.verdict == "refuted" else 0


def _beside(config: Path) -> str:
    """A folder beside the run's, so that a list of runs on one data set is the same for both."""
    run = config.parent if config.parent.name else config.absolute().parent
    return str(run.with_name(f"{run.name}-audit"))


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
