"""``tacita report``: a page in one file about one or several finished runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tacita._files import replace_durably
from tacita.cli.outputs import check_page, say_written
from tacita.report.style import need_matplotlib

CHANGED = 1


def report(*runs: str, output: Annotated[str, Parameter(name=("--output", "-o"))]) -> int:
    """Write a page about finished runs: verdict and signature, charts with their numbers, the whole statement.

    It is one HTML file that loads nothing, for a browser, a phone or a printer (needs the extra [report]).
    An audit in one run that lies beside a run (RUN-audit) is shown with it. Exit code 1 if something was changed in a
    run since it was finished, or if an audit refuted its claim.

    Example: tacita report runs/adult --output adult.html

    Args:
        runs: Folders of finished runs.
        output: HTML file to write.
    """
    from tacita.report.run_numbers import RunNumbers
    from tacita.report.run_page import report_page

    if not runs:
        raise ValueError("runs must name one folder of a finished run, or more: tacita list shows them.")
    check_page("output", output)
    need_matplotlib()  # fails before the work, not after it
    found = [RunNumbers.of(run) for run in runs]
    replace_durably(Path(output), report_page(found).encode())
    say_written(output)
    return CHANGED if any(run.faults or run.refuted for run in found) else 0
