"""``tacita report`` and ``tacita card``: a page about one or several finished runs, and a model card of one."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tacita._files import replace_durably
from tacita.cli.outputs import NO_GUARANTEE, check_page, exit_code, say_written
from tacita.report.style import need_matplotlib


def report(*runs: str, output: Annotated[str, Parameter(name=("--output", "-o"))]) -> int:
    """Write a page about finished runs: verdict and signature, charts with their numbers, the whole statement.

    It is one HTML file that loads nothing, for a browser, a phone or a printer (needs the extra [report]).
    An audit in one run that lies beside a run (RUN-audit) is shown with it. Exit code 1 unless every run is private:
    if one was changed since it was finished, an audit refuted its claim, or its noise came from a seed.

    Example: tacita report runs/adult --output adult.html

    Args:
        runs: Folders of finished runs.
        output: HTML file to write.
    """
    from tacita.report.run_numbers import RunNumbers
    from tacita.report.run_page import report_page
    from tacita.runs.run_list import NAME

    folders = [run for run in runs if Path(run).name != NAME]  # the list, of runs/*
    if not folders:
        raise ValueError("runs must name one folder of a finished run, or more: tacita list shows them.")
    check_page("output", output)
    need_matplotlib()  # fails before the work, not after it
    found = [RunNumbers.of(run) for run in folders]
    replace_durably(Path(output), report_page(found).encode())
    say_written(output)
    return 0 if all(run.verdict.guaranteed for run in found) else NO_GUARANTEE


def card(run: str, /) -> int:
    """Print a model card of a finished run in Markdown: model, use, data, privacy, score and caveats.

    All of it is in the statement, after all checks of tacita statement. Exit code 1 unless the run is private.

    Example: tacita card runs/adult > MODEL_CARD.md

    Args:
        run: Folder of a finished run.
    """
    from tacita.report.model_card import model_card
    from tacita.runs.sealed_run import SealedRun
    from tacita.tables import check_run

    checked = check_run(run)
    print(model_card(SealedRun(run).fields, checked.verdict, Path(run).absolute().name, checked.notes), end="")
    return exit_code(checked.verdict)
