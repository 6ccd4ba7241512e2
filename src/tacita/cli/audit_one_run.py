"""``tacita audit one-run``: train a configuration again with canaries, and print a lower bound on the run's epsilon."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tacita import _validate
from tacita._whole_numbers import WHOLE
from tacita.cli.outputs import check_figure, check_file, say_written, write_json
from tacita.cli.trust import check_code
from tacita.cli.working import Working

REFUTED = 1
CONFIDENCE = "95 % is 0.95."
TESTED = (
    "tested:       the claim of the training session alone. Canaries are added after the purchases, which are\n"
    "              not audited"
)
AUDIT = Parameter(group="The audit", negative=())
RESULT = Parameter(group="The result", negative=())


def one_run(
    config: str,
    /,
    *,
    canaries: Annotated[int, AUDIT, WHOLE] = 1000,
    kind: Annotated[Literal["planted", "rows"], AUDIT] = "planted",
    attack: Annotated[Literal["white_box", "black_box"], AUDIT] = "white_box",
    confidence: Annotated[float, AUDIT] = 0.95,
    guesses: Annotated[int | None, AUDIT, WHOLE] = None,
    output: Annotated[str | None, RESULT] = None,
    json_file: Annotated[str | None, Parameter(name="--json", group="The result")] = None,
    plot: Annotated[str | None, RESULT] = None,
    trust_code: Annotated[bool, AUDIT] = False,
    quiet: Annotated[bool, RESULT] = False,
) -> int:
    """Train a config.toml again with canaries in the data, and print a lower bound on epsilon. Exit code 1 if refuted.

    It publishes no model, but it reads the same rows. It is a session of its own, and its statement says what it cost.
    The verdict is about the configuration, trained again, and not about a model that was exported before.

    Only the claim of the training session is tested; purchases (types, bounds, score) are not audited.

    Example: tacita audit one-run runs/adult --canaries 1000 --plot audit.png

    Args:
        config: Folder of a run, or its config.toml.
        canaries: Number of canaries, at least 50; a fair coin decides whether each is in the data. To test a claimed
            epsilon, use more than 16 e^epsilon.
        kind: planted: canaries with a parameter of their own, the worst case of the accounting; rows: rows of the
            table's form with extreme cells and random answers, which leak far less.
        attack: For --kind rows: use all releases (white_box), or only the final model's loss (black_box).
        confidence: Confidence of the lower bound. The verdict has its own: one wrong "refuted" in a million audits.
        guesses: Number of canaries to guess; if not given, six numbers are tried.
        output: New folder for the audit's ledger, statement and result; if not given, the run's folder name plus
            "-audit".
        json_file: Write the result as JSON to this file.
        plot: Write a figure to this file: .png, .svg or .pdf.
        trust_code: Allow importing and calling the model's code that the config names.
        quiet: Print no progress on standard error.
    """
    from tacita.tables import TableSettings
    from tacita.tables.settings import parse_toml, read_text
    from tacita.tables.table_audit import audit_table

    path = Path(config) / "config.toml" if Path(config).is_dir() else Path(config)
    configured = parse_toml(read_text("config", str(path)))
    check_code(configured, trusted=trust_code)
    settings = TableSettings.from_dict({**configured, "output": output or _beside(path)})
    _validate.inside("confidence", confidence, hint=CONFIDENCE)
    check_file("json", json_file)  # before anything is spent
    check_figure("plot", plot)
    with Working("training with canaries", quiet=quiet):
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
        from tacita.report.one_run import save_one_run

        save_one_run(audit.result, plot)
    if not quiet:
        for written in (json_file, plot):
            if written is not None:
                say_written(written)
        _say(f"ledger, statement and result are in {audit.folder}")
    return REFUTED if audit.result.verdict == "refuted" else 0


def _beside(config: Path) -> str:
    """Return a folder beside the run's, so that both stand in the same list of runs on a data set."""
    run = config.parent if config.parent.name else config.absolute().parent
    return str(run.with_name(f"{run.name}-audit"))


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
