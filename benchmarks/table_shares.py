"""What the constants of the purchases are worth: linear models of tables, trained on what the library buys.

    python benchmarks/table_shares.py [--only taxi ...] [--epsilon 0.1 ...] [--runs 5] [--set budget.COLUMNS=0.17 ...]

Purchases are made by the library, with constants of its modules in ``tacita.tables`` replaced as ``--set`` says; the
training is one in NumPy with batches, clipping, noise, step size and average of the same law, in a tenth of the time.
Tables, splits and measures are those of table_models.py. Figures are printed.
"""

import argparse
import importlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table_models import DELTA, EPSILONS, PROBABILITY, TABLES, Lines, score, write_csv

from tacita.tables import TableSettings, rules
from tacita.tables.features import NumberTarget
from tacita.tables.plan import TablePlan, noise_stds
from tacita.tables.readers import read_table
from tacita.tables.shapes import mean_shift
from tacita.tables.source import declared_schema, open_source
from tacita.tables.table_run import run_in_folder
from tacita.tables.table_task import TableTask

FLAGS: dict[str, dict[str, Any]] = {"taxi": {"drop": ("total",)}, "wine": {"task": "regression"}}


class BoughtError(Exception):
    """Ends a run that has bought what it needs."""


def trained(x: np.ndarray, y: np.ndarray, regression: bool, noise_std: float, lr: float) -> np.ndarray:
    """Return weights, (features + 1, outputs), as the trainer of a linear model of the library does in law.

    ``lr`` is the step size over the number of rows.
    """
    draw, bound = np.random.default_rng(), rules.MAX_GRAD_NORM
    with_one = np.concatenate([x, np.ones((len(x), 1), np.float32)], 1)
    norms = np.linalg.norm(with_one, axis=1)
    weights = np.zeros((with_one.shape[1], 1 if regression else int(y.max()) + 1))
    velocity, total = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(rules.PLANNED_QUERIES):
        own = np.flatnonzero(draw.random(len(x)) < rules.SAMPLE_RATE)
        outputs = with_one[own] @ weights.astype(np.float32)
        if regression:
            slope = 2 * (outputs - y[own, None])
        else:
            slope = np.exp(outputs - outputs.max(1, keepdims=True))
            slope /= slope.sum(1, keepdims=True)
            slope[np.arange(len(own)), y[own]] -= 1
        lengths = np.linalg.norm(slope, axis=1) * norms[own]
        slope *= np.minimum(1, bound / np.maximum(lengths, 1e-12))[:, None]
        noisy = with_one[own].T @ slope + noise_std * draw.normal(size=weights.shape)
        velocity = rules.MOMENTUM * velocity + noisy / rules.SAMPLE_RATE
        weights = weights - lr * velocity
        total += weights * (step >= rules.PLANNED_QUERIES // 2)
    return total / (rules.PLANNED_QUERIES - rules.PLANNED_QUERIES // 2)


def figure(task: TableTask, unseen: Path, truth: np.ndarray, measure: str) -> float:
    """Return what a model on the task's purchases gives on unseen rows."""
    table, sessions = task.capped(), task.register()
    found = task.preprocess(table, sessions)
    encoder, chunks = found.encoder, list(task.encoded(table, None, found).kept.chunks())
    x = np.concatenate([np.asarray(chunk.features) for chunk in chunks])
    y = np.concatenate([np.asarray(chunk.target) for chunk in chunks])
    assert sessions.train is not None
    (noise_std,), lr = noise_stds(sessions.train.event), rules.learning_rate(task.settings, encoder, found.rows)
    weights = trained(x, y, encoder.task == "regression", noise_std, lr / ((1 - rules.HOLDOUT) * found.rows))
    if isinstance(encoder.target, NumberTarget) and encoder.target.log is not None:
        parts = {"weight": torch.from_numpy(weights[:-1].T), "bias": torch.from_numpy(weights[-1])}
        weights[-1] += mean_shift(found, parts)
    rows = np.asarray(encoder.encode(read_table(unseen, encoder.reading, only=encoder.columns())).features)
    outputs = rows @ weights[:-1] + weights[-1]
    if measure == "R2":
        return score(measure, truth, {"prediction": encoder.target.decode(outputs[:, 0])})  # pyright: ignore
    chances = zip(encoder.classes, (outputs - outputs[:, :1]).T, strict=True)
    return score(measure, truth, {f"{PROBABILITY}{name}": chance for name, chance in chances})


def one_run(name: str, lines: Lines, epsilon: str, run: int) -> float:
    (head, rows), (_, target, measure, _), found = lines, TABLES[name], []
    parts = np.split(np.random.default_rng(run).permutation(len(rows)), [len(rows) // 5])
    with tempfile.TemporaryDirectory() as folder:
        test, train = Path(folder) / "unseen.csv", Path(folder) / "train.csv"
        for path, own in zip((test, train), parts, strict=True):
            write_csv(path, head, [rows[i] for i in np.sort(own)])
        settings = TableSettings(
            data=str(train), target=target, epsilon=float(epsilon), delta=float(DELTA), output=f"{folder}/run",
            **FLAGS.get(name, {}),
        )  # fmt: skip
        source = open_source(settings, declared_schema(settings))
        truth = np.array([rows[i][head.index(target)] for i in np.sort(parts[0])])

        def work(task: TableTask) -> None:
            found.append(figure(task, test, truth, measure))
            raise BoughtError

        try:
            plan = TablePlan.of(settings, source)
            run_in_folder(settings, source, plan, work, say=lambda words: None, progress=False, randomness=None)
        except BoughtError:
            pass
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(TABLES))
    parser.add_argument("--epsilon", nargs="*", default=list(EPSILONS))
    parser.add_argument("--set", nargs="*", default=[], help="MODULE.CONSTANT=NUMBER")
    options = parser.parse_args()
    for one in options.set:
        place, _, value = one.partition("=")
        module, _, constant = place.partition(".")
        of = importlib.import_module(f"tacita.tables.{module}")
        setattr(of, constant, type(getattr(of, constant))(float(value)))
    for name in options.only:
        lines = TABLES[name][0]()
        for epsilon in options.epsilon:
            every = [one_run(name, lines, epsilon, run) for run in range(options.runs)]
            print(name, epsilon, f"{statistics.mean(every):.4f}", " ".join(f"{one:.3f}" for one in every), flush=True)


if __name__ == "__main__":
    main()
