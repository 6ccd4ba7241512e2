"""``tacita list`` and ``tacita show``: which runs there are, and what one of them guarantees, in a few lines."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from tacita.cli.outputs import NO_GUARANTEE, exit_code
from tacita.errors import TacitaError

if TYPE_CHECKING:
    from tacita.tables.overview import RunOverview
    from tacita.tables.run_check import Checked

WIDTH = 12  # of the first column of ``show``
LEGEND = "column, importance (root mean square over the rows), lowest and highest value:"
FLAG = Parameter(negative=())


def list_runs(folder: str = ".", /) -> int:
    """List the runs in a folder: state, day, data set, guarantee and score of each.

    Example: tacita list runs

    Args:
        folder: Folder that holds the folders of runs; the current one by default.
    """
    from tacita.tables.overview import runs_in

    found = list(runs_in(folder))
    if not found:
        print(f"no runs in {folder}", file=sys.stderr)
        return 0
    table = Table("run", "state", "day", "data set", "verdict", "epsilon", "delta", "score", box=box.SIMPLE_HEAD)
    for run in found:
        table.add_row(*_row(run))
    Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False).print(table)
    return NO_GUARANTEE if any(run.state == "changed" for run in found) else 0


def show_run(run: str, /, *, json: Annotated[bool, FLAG] = False) -> int:
    """Show one run in a few lines, after all checks of tacita statement. Exit code 1 unless the run is private.

    Example: tacita show runs/adult

    Args:
        run: Folder of a run.
        json: Print the statement's fields as JSON instead.
    """
    from tacita.runs.sealed_run import STATEMENT
    from tacita.tables import check_run
    from tacita.tables.overview import overview_of

    found = overview_of(run)
    if found is None:
        raise TacitaError(f"{run!r} holds no run: give the --output of a training.")
    if found.state == "unfinished":
        print(f"{'state':<{WIDTH}}unfinished: repeat the command of its training to continue it")
        return NO_GUARANTEE
    checked = check_run(run)
    if json:
        sys.stdout.write((Path(run) / STATEMENT).read_text(encoding="utf-8"))
    else:
        print("\n".join(f"{name:<{WIDTH}}{words}" for name, words in _summary(found, checked).items()))
    return exit_code(checked.verdict)


def explain_run(
    run: str,
    /,
    *,
    column: str | None = None,
    json: Annotated[bool, FLAG] = False,
    trust_code: Annotated[bool, FLAG] = False,
) -> None:
    """Show what a linear or additive model says of each column: importance and shape. Costs no privacy.

    Everything is computed from the released weights and from what was bought. A column's importance is the root of the
    mean square of its term over the bought rows. There are no bands of noise: a shape has the privacy noise in it.

    Example: tacita explain runs/adult --column age

    Args:
        run: Folder of a run.
        column: Print the whole shape of this column instead.
        json: Print all shapes as JSON instead.
        trust_code: Allow code that the run names as its model to be imported and called.
    """
    import msgspec

    from tacita.tables.shapes import largest_terms, shape_in_words, units
    from tacita.tables.table_model import load

    model = load(run, trust_code=trust_code)
    found = model.shapes()
    if json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return
    if column is not None:
        found = [shape for shape in found if shape.column == column]
        if not found:
            raise ValueError(f"column must be one that the model uses, got {column!r}: leave it out to list them.")
    lines = shape_in_words(found[0]) if column is not None else largest_terms(found)
    legend = "cell, value less the mean of all rows, rows:" if column is not None else LEGEND
    print("\n".join([f"{units(model.encoder)}; from releases alone, at no cost", legend, *lines]))


def _row(run: "RunOverview") -> tuple[str, ...]:
    from tacita.ledger.run_sections import epsilon_in_words, score_in_words

    fields, weighed = run.fields, run.verdict
    return (
        run.folder.name or str(run.folder),
        run.state,
        str(_part(fields, "run", "date")),
        str(_part(fields, "dataset", "name")),
        weighed.in_words(),
        epsilon_in_words(weighed) if fields else "-",
        f"{fields['delta']:g}" if isinstance(fields.get("delta"), float) else "-",
        (score_in_words(run.score) if weighed.verified else None) or "-",
    )


def _summary(run: "RunOverview", checked: "Checked") -> dict[str, str]:
    from tacita.ledger.run_sections import epsilon_in_words, risk_in_words, score_in_words

    fields, faults = run.fields, checked.faults
    return {
        "run": f"{run.folder} ({_part(fields, 'run', 'id')}, {_part(fields, 'run', 'date')})",
        "state": "finished, verified" if not faults else f"TAMPERED: {'; '.join(faults)}",
        "verdict": checked.verdict.in_words(),
        "guarantee": f"epsilon {epsilon_in_words(checked.verdict)} at delta {fields.get('delta')}, "
        f"{fields.get('neighboring_relation')}, {fields.get('privacy_unit')}",
        "risk": risk_in_words(fields, checked.verdict),
        "model": _model_in_words(fields),
        "score": (score_in_words(run.score) or "none") if checked.verdict.verified else "not verified",
        **({"note": "; ".join(checked.notes)} if checked.notes else {}),
        "more": f"tacita statement {run.folder}",
    }


def _model_in_words(fields: dict[str, Any]) -> str:
    """Return the model and what it predicts, which a run of ``fit`` does not say."""
    task = f"{fields['task']} of {fields['target']}" if "task" in fields and "target" in fields else ""
    return ", ".join(filter(None, [str(fields.get("model", "")), task])) or "not said"


def _part(fields: dict[str, Any], name: str, part: str) -> Any:
    value = fields.get(name)
    return value.get(part, "-") if isinstance(value, dict) else "-"
