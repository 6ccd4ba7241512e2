"""tacita beside DP-EBM (InterpretML) on the same tables at the same epsilon and delta, the defaults of both.

    python -m venv ENV && ENV/bin/pip install interpret-core==0.7.8
    python benchmarks/dp_ebm.py ENV/bin/python [--runs 3] [--only NAME ...]

Every run of either has the same training file and the same unseen rows. The data folder is TACITA_DATA, or
../shared/data beside the repository. The figures go to docs/results.md, between the marks of this page.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from results import DATA, markdown_table, section, write_section
from tables import BANK, Case, adult, housing, one_run, rows_of, split

SCRIPT = "benchmarks/dp_ebm.py"
PEER = Path(__file__).with_name("dp_ebm_peer.py")
DELTA = "1e-5"  # of both
Figures = list[dict[str, float]]  # of each run, by measure


def bank(folder: Path, run: int) -> tuple[Path, Path]:
    lines = gzip.decompress((DATA / "tabular/bank_full.csv.gz").read_bytes()).decode().splitlines()
    return split(folder / f"bank{run}", BANK + "\n", lines, run)


@dataclass(frozen=True)
class Comparison:
    """One table at one epsilon; ``prepare`` and ``target`` as in :class:`tables.Case`."""

    table: str
    epsilon: str
    prepare: Callable[[Path, int], tuple[Path, Path]]
    target: str

    @property
    def name(self) -> str:
        return f"{self.table} at {self.epsilon}"


COMPARISONS = (
    *(Comparison("Adult", epsilon, adult, "Y") for epsilon in ("0.1", "0.5", "1", "4")),
    Comparison("Bank marketing", "1", bank, "y"),
    Comparison("California housing", "1", housing, "median_house_value"),
)


def theirs(python: str, comparison: Comparison, train: Path, unseen: Path, seed: int) -> dict[str, float]:
    """DP-EBM, in its own environment."""
    command = [python, str(PEER), str(train), str(unseen), comparison.target, comparison.epsilon, str(seed)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(comparison: Comparison, python: str, runs: int) -> list[dict[str, str]]:
    """A line of the table for each measure."""
    case = Case(comparison.name, 0, "", comparison.prepare, comparison.target, budget=(comparison.epsilon, DELTA))
    ours: Figures = []
    peers: Figures = []
    with tempfile.TemporaryDirectory() as name:
        for run in range(runs):
            train, unseen = comparison.prepare(Path(name), run)
            ours.append(one_run(case, train, unseen, Path(name) / f"run{run}")[0])
            peers.append(theirs(python, comparison, train, unseen, run))
            print(comparison.name, ours[-1], peers[-1], flush=True)
    return [_line(comparison, measure, ours, peers) for measure in sorted(ours[0])]


def _line(comparison: Comparison, measure: str, ours: Figures, peers: Figures) -> dict[str, str]:
    line = {"table": comparison.table, "epsilon": comparison.epsilon, "measure": measure}
    for who, found in (("tacita", ours), ("DP-EBM", peers)):
        values = [one[measure] for one in found]
        line[who] = f"{statistics.mean(values):.3f}"
        line[f"{who}, each run"] = " ".join(f"{value:.3f}" for value in values)
    return line


def write(lines: list[dict[str, str]]) -> None:
    """Replace these lines of docs/results.md; lines of tables that were not run stay."""
    names = list(lines[0])
    kept = {tuple(row[:3]): row for row in rows_of(section(SCRIPT))}
    kept |= {tuple(row[:3]): row for row in (list(line.values()) for line in lines)}
    order = [(one.table, one.epsilon, measure) for one in COMPARISONS for measure in ("AUC", "accuracy", "R2")]
    body = [
        "## Beside DP-EBM",
        "",
        "`python benchmarks/dp_ebm.py PYTHON`: `tacita train` with nothing declared but the target, and the models of "
        "`interpret.privacy` (interpret-core 0.7.8), each with its defaults, at the same epsilon and delta = 1e-5, on "
        "rows that neither saw (Adult: adult.test; the others: a fifth, another one in every run). Epsilon of tacita "
        "covers the bounds of columns, the labels and a score on a tenth of the rows, which is held out for it. DP-EBM "
        "scores nothing, and takes the bounds of columns and of a regression's target **from the data**, which leaks "
        "and is in no epsilon, as its own warning says.",
        "",
        *markdown_table([dict(zip(names, kept[key], strict=True)) for key in order if key in kept]),
        "",
    ]
    write_section(SCRIPT, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="python of an environment that has interpret-core")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--only", nargs="*", help='comparisons whose name, as "Adult at 1", contains one of these words'
    )
    arguments = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"no data at {DATA}: set TACITA_DATA.")
    for one in COMPARISONS:
        if not arguments.only or any(word in one.name for word in arguments.only):
            write(compare(one, arguments.python, arguments.runs))


if __name__ == "__main__":
    main()
