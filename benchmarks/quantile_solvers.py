"""Newton steps beside preconditioned descent for private quantile regression.

    python benchmarks/quantile_solvers.py [--runs 3]

The score is the pinball loss on a fifth of the rows that was held out, over that of the best constant of the other
rows: 1 is a constant. The figures go to docs/results.md.
"""

import argparse
import gzip
import statistics

import numpy as np
from results import DATA, markdown_table, write_section

from tacita.linear_model import PrivateQuantileRegressor

SCRIPT = "benchmarks/quantile_solvers.py"
EPSILONS, DELTA, QUANTILES, MOST_ROWS = (0.1, 1.0, 10.0), 1e-6, (0.5, 0.9), 8000
SOLVERS = ("preconditioned", "newton")
Table = tuple[np.ndarray, np.ndarray]


def of_file(name: str, delimiter: str, header: int) -> Table:
    with gzip.open(DATA / f"tabular/{name}.csv.gz", "rt") as file:
        rows = np.genfromtxt(file, delimiter=delimiter, skip_header=header)
    rows = rows[np.isfinite(rows).all(axis=1)]
    return rows[:, :-1], rows[:, -1]


def heavy_tails() -> Table:
    rng = np.random.default_rng(3)
    x = rng.standard_t(3, (MOST_ROWS, 10))
    noise = rng.standard_t(2, MOST_ROWS) * (1 + 0.5 * np.abs(x[:, 0]))
    return x, x @ rng.standard_normal(10) + noise


READ = {
    "california": lambda: of_file("cal_housing", ",", 0),
    "white wine quality": lambda: of_file("winequality-white", ";", 1),
    "student-t": heavy_tails,
}


def pinball(residuals: np.ndarray, quantile: float) -> float:
    return float(np.maximum(quantile * residuals, (quantile - 1) * residuals).mean())


def measured(x: np.ndarray, y: np.ndarray, *, epsilon: float, quantile: float, solver: str, run: int) -> float:
    order = np.random.default_rng(run).permutation(len(y))
    held, kept = order[: len(y) // 5], order[len(y) // 5 :]
    low, high = np.quantile(y, [0.01, 0.99])
    model = PrivateQuantileRegressor(
        epsilon=epsilon, delta=DELTA, quantile=quantile, data_norm=float(np.sqrt(x.shape[1])),
        target_range=(low, high), solver=solver,
    ).fit(x[kept], y[kept])  # fmt: skip
    constant = pinball(y[held] - np.quantile(y[kept], quantile), quantile)
    return pinball(y[held] - model.predict(x[held]), quantile) / constant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    lines = []
    for name, read in READ.items():
        x, y = read()
        kept = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
        x, y = (x[kept] - x[kept].mean(0)) / x[kept].std(0), y[kept]
        for epsilon in EPSILONS:
            line = {
                "table": name,
                "rows x columns": f"{len(y) - len(y) // 5} x {x.shape[1]}",
                "epsilon": f"{epsilon:g}",
            }
            for quantile in QUANTILES:
                for solver in SOLVERS:
                    given = {"epsilon": epsilon, "quantile": quantile, "solver": solver}
                    scores = [measured(x, y, run=run, **given) for run in range(runs)]
                    line[f"{quantile}, {solver}"] = f"{statistics.fmean(scores):.3f}"
            lines.append(line)
            print(line, flush=True)
    words = (
        f"`python {SCRIPT}`: pinball loss on a fifth of the rows that was held out over that of the best constant, "
        f"mean of {runs} runs; less is better, and 1 is a constant. (epsilon, 1e-6), zero_out_one, 30 Newton and 49 "
        "preconditioned steps. The row "
        "norm was declared; columns were standardised by, and the range of targets taken from, the data, which leaks "
        "and is in no epsilon, for both alike."
    )
    write_section(SCRIPT, ["## Solvers of quantile regression", "", words, "", *markdown_table(lines)])


if __name__ == "__main__":
    main()
