"""Which solver fits a private logistic regression best: preconditioned descent, Newton steps, or momentum.

    python benchmarks/solvers.py [--runs 5] [--only NAME ...]

The tables are those of benchmarks/linear_models.py, with at most 10,000 rows. A rule says which of the candidates to
take from public numbers alone: always the same one, or one above and another one below a threshold of mu n / d. It is
chosen by its mean score on half of the tables and scored on the other half, for every way to halve them. The figures go
to docs/results.md.
"""

import argparse
import itertools
import statistics
from collections.abc import Mapping

import linear_models
import numpy as np
from results import markdown_table, write_section

from tacita.accounting import gaussian_mu
from tacita.linear_model import PrivateLogisticRegression

SCRIPT = "benchmarks/solvers.py"
EPSILONS, DELTA = (0.1, 1.0, 10.0), 1e-6
MOST_ROWS = 10_000
CANDIDATES = {
    "preconditioned, 30 steps": ("preconditioned", 30),
    "preconditioned, 60": ("preconditioned", 60),
    "Newton, 30": ("newton", 30),
    "Newton, 60": ("newton", 60),
    "momentum, 100": ("momentum", 100),
}
THRESHOLDS = (1.0, 3.0, 10.0, 30.0, 100.0)
Cell = tuple[str, float]  # table and epsilon
Scores = Mapping[str, float]  # mean accuracy of each candidate


def fitted(x: np.ndarray, y: np.ndarray, epsilon: float, run: int, candidate: str) -> float:
    order = np.random.default_rng(run).permutation(len(y))
    held, kept = order[: len(y) // 5], order[len(y) // 5 :]
    solver, steps = CANDIDATES[candidate]
    model = PrivateLogisticRegression(
        epsilon=epsilon, delta=DELTA, classes=[0, 1], data_norm=float(np.sqrt(x.shape[1])), solver=solver, steps=steps
    )
    return float(model.fit(x[kept], y[kept]).score(x[held], y[held]))


class Rule:
    """Take ``above`` where mu n / d is at least ``threshold``, else ``below``."""

    def __init__(self, threshold: float, below: str, above: str) -> None:
        self.threshold, self.below, self.above = threshold, below, above

    def __call__(self, size: float) -> str:
        return self.above if size >= self.threshold else self.below

    def __str__(self) -> str:
        if self.below == self.above:
            return f"always {self.above}"
        return f"{self.above} from mu n / d = {self.threshold:g}, else {self.below}"


def rules() -> list[Rule]:
    pairs = itertools.permutations(CANDIDATES, 2)
    constant = [Rule(0.0, name, name) for name in CANDIDATES]
    return constant + [Rule(t, *pair) for pair in pairs for t in THRESHOLDS]


def mean_score(rule: Rule, cells: Mapping[Cell, Scores], sizes: Mapping[Cell, float], tables: tuple[str, ...]) -> float:
    return statistics.fmean(cells[cell][rule(sizes[cell])] for cell in cells if cell[0] in tables)


def rotated(cells: Mapping[Cell, Scores], sizes: Mapping[Cell, float]) -> list[dict[str, str]]:
    """Choose on half of the tables, score on the other; all halves. One line for each rule that was ever chosen."""
    tables = sorted({table for table, _ in cells})
    halves = [tuple(half) for half in itertools.combinations(tables, len(tables) // 2)]
    chosen: dict[str, list[float]] = {}
    gains = []
    for half in halves:
        others = tuple(table for table in tables if table not in half)
        best = max(rules(), key=lambda rule, half=half: mean_score(rule, cells, sizes, half))
        today = Rule(0.0, *[next(iter(CANDIDATES))] * 2)
        gain = mean_score(best, cells, sizes, others) - mean_score(today, cells, sizes, others)
        chosen.setdefault(str(best), []).append(gain)
        gains.append(gain)
    lines = [("all that were chosen", gains), *sorted(chosen.items(), key=lambda item: -len(item[1]))]
    return [
        {
            "rule": name,
            "chosen": f"{len(found)} of {len(halves)}",
            "mean gain on the other half": f"{statistics.fmean(found):+.4f}",
            "least": f"{min(found):+.4f}",
        }
        for name, found in lines
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(linear_models.READ))
    options = parser.parse_args()
    linear_models.MOST_ROWS = MOST_ROWS
    cells: dict[Cell, Scores] = {}
    sizes: dict[Cell, float] = {}
    lines = []
    for name in options.only:
        x, y = linear_models.table(name)
        kept = len(y) - len(y) // 5
        for epsilon in EPSILONS:
            cell = name, epsilon
            sizes[cell] = gaussian_mu(epsilon, DELTA) * kept / x.shape[1]
            cells[cell] = {
                one: statistics.fmean(fitted(x, y, epsilon, run, one) for run in range(options.runs))
                for one in CANDIDATES
            }
            scores = {one: f"{score:.3f}" for one, score in cells[cell].items()}
            lines.append(
                {"table": name, "rows x columns": f"{kept} x {x.shape[1]}", "epsilon": f"{epsilon:g}"}
                | {"mu n / d": f"{sizes[cell]:.3g}"}
                | scores
            )
            print(lines[-1], flush=True)
    found = rotated(cells, sizes)
    for line in found:
        print(line)
    means = {one: statistics.fmean(scores[one] for scores in cells.values()) for one in CANDIDATES}
    lines.append({"table": "mean", "rows x columns": "", "epsilon": "", "mu n / d": ""} | {
        one: f"{mean:.4f}" for one, mean in means.items()
    })  # fmt: skip
    words = (
        f"`python {SCRIPT}`: accuracy on a fifth of the rows that was held out, mean of {options.runs} runs; "
        "(epsilon, 1e-6), zero_out_one, classes and row norm declared, columns standardised by their own means and "
        "deviations, at most 10,000 rows. mu is the Gaussian budget, n the rows of the fit and d the columns."
    )
    rotation = (
        "A rule by public numbers alone, chosen by its mean score on half of the tables and scored on the other half, "
        "for every way to halve them; gains are over preconditioned descent of 30 steps everywhere:"
    )
    title = "## Solvers of logistic regression"
    tables = [*markdown_table(lines), "", rotation, "", *markdown_table(found)]
    write_section(SCRIPT, [title, "", words, "", *tables])


if __name__ == "__main__":
    main()
