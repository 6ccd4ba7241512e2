"""``tacita list`` and ``tacita show``: which runs there are, and what one of them guarantees, in a few lines."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from tacita._files import replace_durably
from tacita.cli.outputs import NO_GUARANTEE, check_file, exit_code, say_written
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
    from tacita.ledger.run_sections import GUARANTEE

    header = ("run", "state", "day", "data set", "verdict", *GUARANTEE, "score")
    table, rows = Table(*header, box=box.SIMPLE_HEAD), [_row(run) for run in found]
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False)
    whole = console.options.update(max_width=1000)
    if console.measure(table, options=whole).maximum <= console.width:
        console.print(table)
    else:  # columns would be cut, numbers too
        for name, *cells in rows:
            console.print(name)
            for title, cell in zip(header[1:], cells, strict=True):
                console.print(f"  {title:<{WIDTH}}{cell}")
    return NO_GUARANTEE if any(run.state == "changed" for run in found) else 0


def show_run(run: str, /, *, json: Annotated[bool, FLAG] = False) -> int:
    """Show one run in a few lines, after all checks of tacita statement. Exit code 1 unless the run is private.

    Example: tacita show runs/adult

    Args:
        run: Folder of a run.
        json: Print the statement's fields as JSON instead.
    """
    from json import dumps

    from tacita.runs.folder import RunFolder
    from tacita.runs.sealed_run import unfinished_in_words
    from tacita.tables import check_run
    from tacita.tables.overview import overview_of

    found = overview_of(run)
    if found is None:
        raise TacitaError(f"{run!r} holds no run: give the --output of a training.")
    if found.state == "unfinished":
        print(f"{'state':<{WIDTH}}{unfinished_in_words(RunFolder(run))}")
        return NO_GUARANTEE
    checked = check_run(run)
    if json:
        print(dumps(found.fields, indent=2))  # the bytes of its file, or what becomes of them by edits
    else:
        print("\n".join(f"{name:<{WIDTH}}{words}" for name, words in _summary(found, checked).items()))
    return exit_code(checked.verdict)


def explain_run(
    run: str,
    /,
    *,
    column: str | None = None,
    json: Annotated[bool, FLAG] = False,
    output: Annotated[str | None, Parameter(name=("--output", "-o"))] = None,
    trust_code: Annotated[bool, FLAG] = False,
) -> None:
    """Show what a linear or additive model says of each column: importance and shape. Costs no privacy.

    Everything is computed from the released weights and from what was bought. A column's importance is the root of the
    mean square of its term over the bought rows. There are no bands of noise: a shape has the privacy noise in it.

    Example: tacita explain runs/adult --column age

    Args:
        run: Folder of a run.
        column: Print the whole shape of this column instead.
        json: Print all shapes, or that of the column, as JSON instead.
        output: Write that JSON to this file. tacita edit reads the file of a column.
        trust_code: Allow code that the run names as its model to be imported and called.
    """
    from tacita.tables.shapes import SOURCE, in_json, largest_terms, least_rows, shape_in_words, units
    from tacita.tables.table_model import load

    check_file("output", output, (run,))
    model = load(run, trust_code=trust_code)
    one = None if column is None else model.shape(column)
    if json or output is not None:
        words = in_json(one) if one is not None else f"[{', '.join(map(in_json, model.shapes()))}]"
        if output is None:
            print(words)
        else:
            replace_durably(Path(output), f"{words}\n".encode())
            say_written(output)
        return
    least = least_rows(model.preprocessing.survey)
    lines = shape_in_words(one) if one is not None else largest_terms(model.shapes(), least)
    legend = "cell, value less the mean of all rows, rows:" if one is not None else LEGEND
    edited = [model.statement["headline"]] if model.written else []
    print("\n".join([*edited, f"{units(model.encoder)}; {SOURCE}", legend, *lines]))


def edit_run(
    run: str,
    /,
    *,
    output: Annotated[str, Parameter(name=("--output", "-o"))],
    shape: list[tuple[str, str]],
    who: str,
    reason: str,
) -> int:
    """Write a new run whose model has shapes that a person wrote. Epsilon stays; the score is void.

    tacita explain RUN --column age --output age.json writes the file: change its values, and no cell. The new folder
    holds the run untouched (parent/) and the edits, which name who made them. Whoever edits must not look at private
    rows: an edit that follows them is no post-processing, and nothing is guaranteed of it.

    Example: tacita edit runs/adult --output runs/edited --shape age age.json --who "Ada Moreau" --reason "no dip at 40"

    Args:
        run: Folder of a finished run of a linear or additive model, edited before or not.
        output: New folder.
        shape: A column, and the file of its shape; may be given several times.
        who: Who edits, in one line.
        reason: Why, in one line.
    """
    from tacita.tables.editing import edit_run as edit

    model = edit(run, output, {column: Path(file).read_bytes() for column, file in shape}, who=who, reason=reason)
    print("; ".join(f"{name}: {words}" for name, words in model.statement["edits"][-1]["columns"].items()))
    say_written(f"{output}; no score was bought for it")
    return 0


def _row(run: "RunOverview") -> tuple[str, ...]:
    from tacita.ledger.run_sections import columns_of_guarantee, score_in_words

    fields, weighed = run.fields, run.verdict
    return (
        run.folder.name or str(run.folder),
        run.state + ", not to be signed" * bool(weighed.missing),
        str(_part(fields, "run", "date")),
        str(_part(fields, "dataset", "name")),
        weighed.in_words(),
        *(columns_of_guarantee(fields, weighed) if fields else "----"),
        (score_in_words(run.score) if weighed.verified else None) or "-",
    )


def _summary(run: "RunOverview", checked: "Checked") -> dict[str, str]:
    from tacita.ledger.run_sections import guarantee_in_words, not_to_be_signed, risk_in_words, score_in_words

    unsigned = not_to_be_signed(checked.verdict)
    fields, faults = run.fields, checked.faults
    return {
        "run": f"{run.folder} ({_part(fields, 'run', 'id')}, {_part(fields, 'run', 'date')})",
        "state": "finished, verified" if not faults else f"TAMPERED: {'; '.join(faults)}",
        "verdict": checked.verdict.in_words(),
        "guarantee": guarantee_in_words(fields, checked.verdict),
        "risk": risk_in_words(fields, checked.verdict),
        **(_data_in_words(fields) if checked.verdict.verified else {}),
        "model": _model_in_words(fields),
        "score": (score_in_words(run.score) or "none") if checked.verdict.verified else "not verified",
        **({"edited": fields["headline"]} if "edits" in fields else {}),
        **({"signature": unsigned} if unsigned else {}),
        **({"note": "; ".join(checked.notes)} if checked.notes else {}),
        "more": f"tacita statement {run.folder}",
    }


def _data_in_words(fields: dict[str, Any]) -> dict[str, str]:
    from tacita.federated.round_noise import LOUD
    from tacita.ledger.run_sections import data_in_words, other_runs_in_words

    shown = {"data": data_in_words(fields), "other runs": other_runs_in_words(fields.get("dataset"))}
    loud = [words.removeprefix(LOUD) for words in fields["caveats"] if words.startswith(LOUD)]
    return {**shown, **({"loudness": loud[0]} if loud else {})}


def _model_in_words(fields: dict[str, Any]) -> str:
    """Return the model and what it predicts, which a run of ``fit`` does not say."""
    from tacita.ledger.run_sections import model_in_words

    task = f"{fields['task']} of {fields['target']}" if "task" in fields and "target" in fields else ""
    return ", ".join(filter(None, [model_in_words(fields), task])) or "not said"


def _part(fields: dict[str, Any], name: str, part: str) -> Any:
    value = fields.get(name)
    return value.get(part, "-") if isinstance(value, dict) else "-"
