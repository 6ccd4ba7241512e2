"""People with several rows: rows with a cap against users as records, at equal epsilon and equal work.

    python benchmarks/users.py [--seeds 5]

600 users hold 6,000 rows of Fashion-MNIST (a network of 64 units) or of Adult (a linear model), about ten each or very
unequal numbers, and each prefers some classes. A query reads 128 rows in expectation, whichever way. Adam; of each way
the learning rate is the best of three for other rows, with another seed. The figures go to docs/how-to-choose.md. The
data folder is TACITA_DATA, or ../shared/data beside the repository.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from results import DATA, ROOT, markdown_table, write_section
from torch import Tensor, nn

import tacita

SCRIPT = "benchmarks/users.py"
PAGE = ROOT / "docs" / "how-to-choose.md"
USERS, ROWS, READ, QUERIES, DELTA = 600, 6000, 128, 200, 1e-4
RATES = (2e-3, 8e-3, 3.2e-2)
CAPS, READS, EPSILONS = (2, 10), (1, 4, 16), (1.0, 8.0)
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """Rows to train, tune and score on, and which user has each of the first."""

    parts: tuple[Rows, Rows, Rows]
    units: list[int]
    network: Any


def sizes(heavy: bool, generator: np.random.Generator, *, users: int = USERS, rows: int = ROWS) -> np.ndarray:
    """Return how many rows each user has, ``rows`` in all but for the rounding."""
    drawn = generator.lognormal(0.0, 1.7 if heavy else 0.2, users)
    return np.maximum(1, np.round(drawn * rows / drawn.sum())).astype(int)


def dealt(y: np.ndarray, of_users: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """Deal rows to users, each of whom prefers some classes; return the rows and their users."""
    left = {label: list(generator.permutation(np.flatnonzero(y == label))) for label in np.unique(y)}
    shares, rows, units = np.array([len(left[label]) for label in sorted(left)]) / len(y), [], []
    for user in generator.permutation(len(of_users)):
        tastes = generator.dirichlet(0.3 * len(left) * shares)
        for label in generator.choice(sorted(left), of_users[user], p=tastes):
            pile = left[label] or max(left.values(), key=len)
            rows.append(pile.pop())
            units.append(int(user))
    return np.array(rows), units


def task_of(name: str, heavy: bool) -> Task:
    generator = np.random.default_rng(0)
    if name == "Fashion-MNIST":
        data = np.load(DATA / "fashion_mnist_10k.npz")
        x, y = data["x"].reshape(-1, 784) / np.float32(255), data["y"].astype(np.int64)
        network = lambda: nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))  # noqa: E731
    else:
        data = np.load(DATA / "a9a.npz")
        x, y = data["x_train"], (data["y_train"] > 0).astype(np.int64)
        network = lambda: nn.Linear(123, 2)  # noqa: E731
    order = generator.permutation(len(x))
    x, y = torch.from_numpy(x[order].astype(np.float32)), torch.from_numpy(y[order])
    rows, units = dealt(y[3000:].numpy(), sizes(heavy, generator), generator)
    train = x[3000:][rows], y[3000:][rows]
    return Task((train, (x[:1000], y[:1000]), (x[1000:3000], y[1000:3000])), units, network)


def loss_fn(model: nn.Module, batch: Rows) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def ways(task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and arguments of the oracle, for every way."""
    for cap in CAPS:
        records = tacita.cap_units(task.parts[0], task.units, cap, randomness=tacita.Randomness.insecure(0))
        count = len(records.rows)  # type: ignore[arg-type]
        sampler = tacita.UnitPoissonSampler(sample_rate=READ / count, num_records=count, max_rows_per_unit=cap)
        yield f"rows, at most {cap}", {"loss_fn": loss_fn, "dataset": records, "sampler": sampler}
    for rows in READS:
        users = tacita.UserRecords(task.parts[0], task.units, rows)
        sampler = tacita.PoissonSampler(expected_batch_size=READ / rows, num_records=USERS)
        yield (
            f"users, {rows} a query",
            {"loss_fn": tacita.mean_over_views(loss_fn), "dataset": users, "sampler": sampler},
        )


def trained(task: Task, way: dict[str, Any], mechanism: Any, rate: float, seed: int) -> Any:
    """Return the calibrated mechanism, if it is still to be calibrated, or the model."""
    torch.manual_seed(seed)
    model = task.network()
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one user")
    clipper = tacita.FlatClipper(max_grad_norm=1.0)
    oracle = tacita.ClippedGradientOracle(
        model, **way, ledger=ledger, clipper=clipper, mechanism=mechanism, planned_queries=QUERIES
    )
    if isinstance(mechanism, tacita.CalibratedGaussian):
        return oracle.mechanism
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(QUERIES):
        oracle.backward()
        optimizer.step()
    return model


def score(model: nn.Module, rows: Rows) -> float:
    with torch.no_grad():
        return 100 * float((model(rows[0]).argmax(1) == rows[1]).float().mean())


def compared(
    ways: Iterable[tuple[str, dict[str, Any]]],
    trained: Callable[[dict[str, Any], Any, float, int], Any],
    *,
    target: tacita.CalibratedGaussian,
    rates: Iterable[float],
    parts: tuple[Rows, Rows],  # to tune and to score on
    seeds: int,
) -> dict[str, str]:
    """Return mean and spread of the scores of each way, at the best of ``rates`` for other rows, with another seed."""
    found = {}
    for name, way in ways:
        noise = trained(way, target, 0.0, 0)
        pilot = {rate: score(trained(way, noise, rate, 1000), parts[0]) for rate in rates}
        best = max(pilot, key=lambda rate: pilot[rate])
        runs = [score(trained(way, noise, best, seed), parts[1]) for seed in range(seeds)]
        found[name] = f"{statistics.mean(runs):.1f} +- {statistics.stdev(runs):.1f}"
        print(name, pilot, noise.noise_multiplier, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    lines = []
    for name in ("Fashion-MNIST", "Adult"):
        for heavy in (False, True):
            task = task_of(name, heavy)
            counts = [task.units.count(user) for user in set(task.units)]
            for epsilon in EPSILONS:
                line = {"task": name, "rows a user": f"{min(counts)} to {max(counts)}", "epsilon": f"{epsilon:g}"}
                target = tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=DELTA)
                print(line, flush=True)
                settings = {"target": target, "rates": RATES, "parts": task.parts[1:], "seeds": arguments.seeds}
                lines.append(line | compared(ways(task), partial(trained, task), **settings))
    write_section(SCRIPT, markdown_table(lines), PAGE)


if __name__ == "__main__":
    main()
