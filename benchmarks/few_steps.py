"""How few steps a private logistic regression needs where mu n / d is large: the rule of linear_model/rules.py.

    python benchmarks/few_steps.py [--runs 3] [--only NAME ...]

Tables as in benchmarks/linear_models.py, with at most 50,000 rows, and one with 40 rare columns. A rule is a number of
steps, a momentum and the mu n / d from which they are taken; below it, 30 steps without momentum are. On half of the
tables the rule is chosen that makes the fewest steps there and costs at most 0.0005 in the mean over its cells and
0.0015 in any; it is scored on the other half, for every way to halve them. What the rule costs just at
and around its threshold stands beside. The figures go to docs/results.md.
"""

import argparse
import itertools
import math
import statistics

import linear_models
import numpy as np
from results import markdown_table, write_section
from scipy.optimize import brentq

from tacita.accounting import gaussian_mu
from tacita.linear_model import PrivateLogisticRegression, rules

SCRIPT = "benchmarks/few_steps.py"
EPSILONS, DELTA = (1.0, 10.0), 1e-6
MOST_ROWS, LEAST_SIZE = 50_000, 100.0
USUAL = (30, 0.0)
CANDIDATES = ((6, 0.7), (8, 0.7), (10, 0.6), (12, 0.5))  # steps and momentum
SIZES = (100.0, 300.0, 1000.0)
NEAR = (150.0, 200.0, 250.0)
MEAN, WORST = 0.0005, 0.0015  # what a rule may cost on the half that chooses it


def rare_columns() -> linear_models.Table:
    """Ten skewed columns and forty of which one is 1, as in tables of land cover."""
    rng = np.random.default_rng(4)
    kinds = (rng.integers(0, 40, (MOST_ROWS, 1)) == np.arange(40)).astype(float)
    x = np.hstack([rng.gamma(2, 1, (MOST_ROWS, 10)), kinds])
    scores = np.sin(x[:, :10]) @ rng.standard_normal(10) + kinds @ rng.standard_normal(40)
    return x, scores + 0.5 * rng.logistic(size=MOST_ROWS) > 0


def score(x: np.ndarray, y: np.ndarray, epsilon: float, run: int, candidate: tuple[int, float]) -> float:
    order = np.random.default_rng(run).permutation(len(y))
    held, kept = order[: len(y) // 5], order[len(y) // 5 :]
    steps, rules.FEW_MOMENTUM = candidate
    rules.FEW_SIZE = 0.0 if candidate != USUAL else math.inf
    model = PrivateLogisticRegression(
        epsilon=epsilon, delta=DELTA, classes=[0, 1], data_norm=float(np.sqrt(x.shape[1])), steps=steps
    )
    return float(model.fit(x[kept], y[kept]).score(x[held], y[held]))


def at_size(size: float, runs: int) -> list[dict[str, str]]:
    """Return what 8 steps cost against 30, with epsilon (at most 10) set so that mu n / d is ``size``."""
    lines = []
    for name in linear_models.READ:
        x, y = linear_models.table(name)
        wanted = size * x.shape[1] / (len(y) - len(y) // 5)
        if wanted > gaussian_mu(10.0, DELTA):
            continue
        epsilon = brentq(lambda found, wanted=wanted: gaussian_mu(found, DELTA) - wanted, 1e-3, 11.0)
        few = [score(x, y, epsilon, run, USUAL) - score(x, y, epsilon, run, (8, 0.7)) for run in range(runs)]
        error = statistics.stdev(few) / math.sqrt(runs)
        lines.append(
            {"table": name, "mu n / d": f"{size:g}", "epsilon": f"{epsilon:.3g}",
             "cost of 8 steps": f"{statistics.fmean(few):+.4f}", "s.e.": f"{error:.4f}"}
        )  # fmt: skip
        print(lines[-1], flush=True)
    return lines


def losses(rule: tuple, cells: dict, tables: tuple[str, ...]) -> list[float]:
    """Return what the rule costs in each cell of these tables that it changes."""
    candidate, least = rule
    here = [cell for cell in cells if cell[0] in tables and cell[2] >= least]
    return [cells[cell][USUAL] - cells[cell][candidate] for cell in here] or [0.0]


def steps_of(rule: tuple, cells: dict, tables: tuple[str, ...]) -> float:
    candidate, least = rule
    return statistics.fmean(candidate[0] if cell[2] >= least else USUAL[0] for cell in cells if cell[0] in tables)


def rotated(cells: dict) -> list[dict[str, str]]:
    tables = sorted({cell[0] for cell in cells})
    chosen: dict[str, list[tuple[float, float]]] = {}
    for half in itertools.combinations(tables, len(tables) // 2):
        found = [
            rule
            for rule in itertools.product(CANDIDATES, SIZES)
            if statistics.fmean(losses(rule, cells, half)) <= MEAN and max(losses(rule, cells, half)) <= WORST
        ]
        best = min(found, key=lambda rule, half=half: steps_of(rule, cells, half), default=((30, 0.0), math.inf))
        others = losses(best, cells, tuple(table for table in tables if table not in half))
        name = f"{best[0][0]} steps, momentum {best[0][1]:g}, from mu n / d = {best[1]:g}"
        chosen.setdefault(name, []).append((statistics.fmean(others), max(others)))
    return [
        {
            "rule": name,
            "chosen": f"{len(found)}",
            "mean cost on the other half": f"{statistics.fmean(mean for mean, _ in found):+.4f}",
            "most, in any cell": f"{max(worst for _, worst in found):+.4f}",
        }
        for name, found in sorted(chosen.items(), key=lambda item: -len(item[1]))
    ]


def main() -> None:
    linear_models.MOST_ROWS = MOST_ROWS
    linear_models.READ["rare columns"] = rare_columns
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--near-runs", type=int, default=12, help="of each cell around the threshold of the rule")
    parser.add_argument("--only", nargs="*", default=list(linear_models.READ))
    options = parser.parse_args()
    cells: dict = {}
    lines = []
    for name, epsilon in itertools.product(options.only, EPSILONS):
        x, y = linear_models.table(name)
        kept = len(y) - len(y) // 5
        size = gaussian_mu(epsilon, DELTA) * kept / x.shape[1]
        if size < LEAST_SIZE:
            continue
        found = {
            one: statistics.fmean(score(x, y, epsilon, run, one) for run in range(options.runs))
            for one in (USUAL, *CANDIDATES)
        }
        cells[name, epsilon, size] = found
        scores = {f"{steps}, {momentum:g}": f"{found[steps, momentum]:.4f}" for steps, momentum in found}
        rows = f"{kept} x {x.shape[1]}"
        lines.append(
            {"table": name, "rows x columns": rows, "epsilon": f"{epsilon:g}", "mu n / d": f"{size:.3g}"} | scores
        )
        print(lines[-1], flush=True)
    found = rotated(cells)
    print(found)
    words = (
        f"`python {SCRIPT}`: accuracy on a fifth of the rows that was held out, mean of {options.runs} runs, of "
        "preconditioned descent by steps and momentum; (epsilon, 1e-6), zero_out_one, classes and row norm declared, "
        "columns standardised by their own means and deviations. Cells with mu n / d below 100 are left out."
    )
    rotation = (
        f"The rule with the fewest steps among those that cost at most {MEAN:g} in the mean and {WORST:g} in any cell "
        "of half of the tables, scored on the other half, for every way to halve them:"
    )
    near = [line for size in NEAR for line in at_size(size, options.near_runs)]
    says = (
        f"Around the threshold of 200 that the library has: mean accuracy of 30 steps less that of 8, same splits, "
        f"{options.near_runs} runs, epsilon set so that mu n / d is just that (tables that need more than 10 left out):"
    )
    tables = [*markdown_table(lines), "", rotation, "", *markdown_table(found), "", says, "", *markdown_table(near)]
    write_section(SCRIPT, ["## Few steps of logistic regression", "", words, "", *tables])


if __name__ == "__main__":
    main()
