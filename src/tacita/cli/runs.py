"""``tacita list`` and ``tacita show``: which runs there are, and what one of them guarantees, in a few lines."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from tacita.cli.outputs import NO_GUARANTEE, exit_code
from tacita.errors import TacitaError

if TYPE_CHECKING:
    from tacita.tables.overview import RunOverview

NOT_VERIFIED = "not verified"
WIDTH = 12  # of the first column of ``show``
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
    faults = checked.faults
    if json:
        sys.stdout.write((Path(run) / STATEMENT).read_text(encoding="utf-8"))
    else:
        print("\n".join(f"{name:<{WIDTH}}{words}" for name, words in _summary(found, faults).items()))
    return NO_GUARANTEE if faults else exit_code(checked.verdict)


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
    print("\n".join([f"{units(model.encoder)}; from releases alone, at no cost", "", *lines]))


def _row(run: "RunOverview") -> tuple[str, ...]:
    from tacita.ledger.run_sections import score_in_words
    from tacita.ledger.text_lines import rounded_up
    from tacita.ledger.verdict import verdict

    fields = run.fields
    epsilon, delta = fields.get("epsilon"), fields.get("delta")
    return (
        run.folder.name or str(run.folder),
        run.state,
        str(_part(fields, "run", "date")),
        str(_part(fields, "dataset", "name")),
        verdict(fields).in_words() if run.state != "changed" else NOT_VERIFIED,
        rounded_up(epsilon) if _is_number(epsilon) and _guaranteed(run) else "-",
        f"{delta:g}" if _is_number(delta) else "-",
        score_in_words(run.score) or "-",
    )


def _summary(run: "RunOverview", faults: tuple[str, ...]) -> dict[str, str]:
    from tacita.ledger.run_sections import score_in_words
    from tacita.ledger.text_lines import right_in_words, rounded_up
    from tacita.ledger.verdict import verdict

    fields = run.fields
    epsilon, accuracy = fields.get("epsilon"), fields.get("attack_accuracy")
    bound = f"epsilon <= {rounded_up(epsilon)}" if _is_number(epsilon) else "no unconditional epsilon"
    if faults:
        bound = NOT_VERIFIED
    elif _is_number(epsilon) and fields.get("verdict") == "not private":  # a seed
        bound = f"none; if the noise were secret, {bound}"
    risk = right_in_words(accuracy if _is_number(accuracy) and not faults else None)
    return {
        "run": f"{run.folder} ({_part(fields, 'run', 'id')}, {_part(fields, 'run', 'date')})",
        "state": "finished, verified" if not faults else f"CHANGED: {'; '.join(faults)}",
        "verdict": verdict(fields).in_words() if not faults else NOT_VERIFIED,
        "guarantee": f"{bound} at delta {fields.get('delta')}, {fields.get('neighboring_relation')}, "
        f"{fields.get('privacy_unit')}",
        "risk": f"an attacker who is 50 : 50 before about one unit {risk} afterwards, having seen everything that was "
        f"released{_apart(run)}",
        "model": f"{fields.get('model', '-')}, {fields.get('task', '-')} of {fields.get('target', '-')}",
        "score": score_in_words(run.score) or "none",
        "more": f"tacita statement {run.folder}",
    }


def _apart(run: "RunOverview") -> str:
    """Say that an exact score is outside the guarantee."""
    return " but the score" if run.score.get("private") is False else ""


def _guaranteed(run: "RunOverview") -> bool:
    return run.state == "finished" and run.fields.get("verdict") != "not private"


def _part(fields: dict[str, Any], name: str, part: str) -> Any:
    value = fields.get(name)
    return value.get(part, "-") if isinstance(value, dict) else "-"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
