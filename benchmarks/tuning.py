"""What a sweep reaches against one run, at the same total budget, on rows that neither ever saw.

    python benchmarks/tuning.py [--runs 3]

Prints the table of docs/tuning.md. The data folder is TACITA_DATA, or ../shared/data beside the repository.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from results import markdown_table
from tables import CASES, Case, figure

import tacita
from tacita.tables import TableSettings, sweep_table, train_table

LRS = {"Adult, bare": [0.1, 0.5, 2.0], "California housing, bare": [0.01, 0.05, 0.25]}
NORMS = [0.5, 2.0]
MEAN_RUNS = 5


def contestants(lrs: list[float]) -> dict[str, dict[str, Any]]:
    """Settings by name: the defaults, a sweep, and two corners of its grid as somebody might have guessed them."""
    grid = f"mean_runs = {MEAN_RUNS}\n[grid]\nlr = {lrs}\nmax_grad_norm = {NORMS}\n"
    corners = [(lrs[0], NORMS[0]), (lrs[-1], NORMS[-1])]
    guesses = {f"one run, lr {lr:g}, threshold {norm:g}": {"lr": lr, "max_grad_norm": norm} for lr, norm in corners}
    return {"one run, defaults": {}, f"sweep, {MEAN_RUNS} runs on average": {"sweep": grid}, **guesses}


def measure(case: Case, runs: int) -> list[dict[str, str]]:
    """The lines of one table."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for row, (words, changes) in enumerate(contestants(LRS[case.name]).items()):
            found = [one_run(case, folder, f"{row}-{run}", run, changes) for run in range(runs)]
            each = " ".join(f"{value:.4f}" for value in found)
            mean = f"{statistics.mean(found):.4f}"
            lines.append({"table": case.name, "measure": case.measure, "training": words, "mean": mean, "each": each})
    return lines


def one_run(case: Case, folder: Path, output: str, run: int, changes: dict[str, Any]) -> float:
    """The figure on unseen rows."""
    train, unseen = case.prepare(folder, run)
    epsilon, delta = map(float, case.budget)
    settings = TableSettings(
        data=str(train), output=str(folder / output), epsilon=epsilon, delta=delta, target=case.target, **changes
    )
    made = (train_table if settings.sweep is None else sweep_table)(settings)
    return figure(case, tacita.load(made.folder), unseen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    lines = [line for case in CASES if case.name in LRS for line in measure(case, arguments.runs)]
    print("\n".join(markdown_table(lines)))


if __name__ == "__main__":
    main()
