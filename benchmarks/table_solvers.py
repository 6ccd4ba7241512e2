"""Whether `tacita train --model linear` would gain by the method of PrivateLogisticRegression, on the same features.

    python benchmarks/table_solvers.py [--runs 3] [--only NAME ...]

Tables, splits and scores are those of benchmarks/small_tables.py, classifications alone. A run of `tacita train` makes
the features. Then the estimator is fitted to those features of the rows to train on, with the budget that the purchases
of the run leave and the labels that it bought; the row norm is bought out of it. The figures go to docs/results.md.
"""

import argparse
import math
import statistics
import tempfile
from pathlib import Path

import numpy as np
import small_tables
from results import markdown_table, write_section

import tacita
from tacita.accounting import gaussian_mu
from tacita.linear_model import PrivateLogisticRegression
from tacita.tables import TableSettings, train_table
from tacita.tables.plan import TablePlan
from tacita.tables.source import declared_schema, open_source
from tacita.tables.table_model import TableModel, as_table

SCRIPT = "benchmarks/table_solvers.py"
EPSILONS, DELTA = (0.1, 1.0, 3.0), 1e-6
SOLVERS = (("preconditioned", 30), ("preconditioned", 100), ("newton", 60))


def features(model: TableModel, x: np.ndarray) -> np.ndarray:
    frame = {f"c{i}": column for i, column in enumerate(x.T)}
    table = as_table(frame, model.encoder.columns(with_target=False))
    return model.encoder.encode(table, with_target=False).features.double().numpy()


def scores(split: small_tables.Split, epsilon: float, run: int) -> list[float]:
    """Return the accuracy of `tacita train`, and of each solver on its features."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        small_tables.write_csv(path, split.x, split.y)
        settings = TableSettings(
            data=str(path), output=f"{folder}/run", epsilon=epsilon, delta=DELTA, target="target", task="classification"
        )
        plan = TablePlan.of(settings, open_source(settings, declared_schema(settings)))
        try:
            train_table(settings)
        except tacita.TacitaError:  # fewer than two labels were bought
            return [0.0] * (1 + len(SOLVERS))
        model = tacita.load(f"{folder}/run")
    frame = {f"c{i}": column for i, column in enumerate(split.unseen_x.T)}
    found = [float((model.predict(frame) == split.unseen_y).mean())]
    left = gaussian_mu(epsilon, 0.9 * DELTA) ** 2 * (1 - plan.purchases_share)
    kept = np.random.default_rng(run).random(len(split.y)) < 0.9  # `tacita train` holds out a tenth for its score
    train, unseen = features(model, split.x[kept]), features(model, split.unseen_x)
    for solver, steps in SOLVERS:
        fit = PrivateLogisticRegression(
            rho=left / 2, delta=DELTA, classes=list(model.classes), solver=solver, steps=steps
        ).fit(train, split.y[kept].astype(str))
        found.append(float((fit.predict(unseen) == split.unseen_y).mean()))
    return found


def main() -> None:
    cases = {case.name: case for case in small_tables.CASES if not case.flags and case.name != "diabetes"}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[*cases])
    options = parser.parse_args()
    lines = []
    for name in options.only:
        data = cases[name].read()
        if data is None:
            continue
        for epsilon in EPSILONS:
            runs = [scores(small_tables.Split.of(data, run), epsilon, run) for run in range(options.runs)]
            means = [statistics.fmean(one) for one in zip(*runs, strict=True)]
            heads = ["tacita train", *(f"{solver}, {steps} steps" for solver, steps in SOLVERS)]
            values = {head: f"{mean:.3f}" for head, mean in zip(heads, means, strict=True)}
            rows = f"{math.ceil(0.8 * len(data[1]))} x {data[0].shape[1]}"
            lines.append({"table": name, "rows x columns": rows, "epsilon": f"{epsilon:g}", **values})
            print(lines[-1], flush=True)
    words = (
        f"`python {SCRIPT}`: accuracy on a fifth of the rows that was set aside, mean of {options.runs} runs, nothing "
        "declared but the target and its task. `tacita train`: SGD with momentum on Poisson batches, 400 queries. "
        "The others: `PrivateLogisticRegression` on the features that this very run made, with the budget that its "
        "purchases left and the labels that it bought; the row norm is bought out of it. With fewer than two labels "
        "nothing is trained: 0.000."
    )
    title = "## `tacita train` beside the solvers of the estimators"
    write_section(SCRIPT, [title, "", words, "", *markdown_table(lines)])


if __name__ == "__main__":
    main()
