"""Which threshold a training should have: fixed, adaptive, none, at equal privacy on five tasks.

    python benchmarks/adaptive_clipping.py [--seeds 5]

Adam, Poisson batches of 256, epsilon 3 at delta 1e-5; of each way, the learning rate is the best of three for rows that
are in no run, with another seed. In the last two lines the loss has another unit. The figures go to
docs/derivations/adaptive-clipping.md. The data folder is TACITA_DATA, or ../shared/data beside the repository.
"""

import argparse
import csv
import gzip
import io
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from results import DATA, ROOT, markdown_table, write_section
from torch import Tensor, nn

import tacita
from tacita.accounting import gaussian_sum_event, moved
from tacita.clipping.flat import clip_weights
from tacita.estimators import ClippedSum, Estimator

SCRIPT = "benchmarks/adaptive_clipping.py"
PAGE = ROOT / "docs" / "derivations" / "adaptive-clipping.md"
EPSILON, DELTA, BATCH, QUERIES = 3.0, 1e-5, 256, 300
RATES = (2e-3, 8e-3, 3.2e-2)
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """Rows to train on, to tune on and to score; a network, and a score where more is better."""

    train: Rows
    tuning: Rows
    test: Rows
    network: Callable[[], nn.Module]
    regression: bool = False
    factor: float = 1.0  # of the loss, as if it had another unit

    def losses(self, model: nn.Module, batch: Rows) -> Tensor:
        found, y = model(batch[0]), batch[1]
        if self.regression:
            return self.factor * (found.squeeze(1) - y).square()
        return self.factor * nn.functional.cross_entropy(found, y, reduction="none")

    def score(self, model: nn.Module, rows: Rows) -> float:
        with torch.no_grad():
            found, y = model(rows[0]), rows[1]
            if self.regression:
                return 100 * float(1 - (found.squeeze(1) - y).square().mean() / (y - y.mean()).square().mean())
            return 100 * float((found.argmax(1) == y).float().mean())


def parts(x: np.ndarray, y: np.ndarray, sizes: tuple[int, int, int]) -> tuple[Rows, Rows, Rows]:
    """Return rows in three disjoint parts, in an order that is always the same."""
    order, found = np.random.default_rng(0).permutation(len(x)), []
    for size in sizes:
        rows, order = order[:size], order[size:]
        found.append((torch.from_numpy(x[rows]), torch.from_numpy(y[rows])))
    return found[0], found[1], found[2]


def mlp(inputs: int, outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.AvgPool2d(2),
        nn.Conv2d(1, 8, 4, 2),
        nn.Tanh(),
        nn.Conv2d(8, 16, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def tasks() -> dict[str, Task]:
    sizes = 6000, 2000, 2000
    fashion = np.load(DATA / "fashion_mnist_10k.npz")
    pixels, labels = (fashion["x"] / np.float32(255)).astype(np.float32), fashion["y"].astype(np.int64)
    adult = np.load(DATA / "a9a.npz")
    earned = (adult["y_train"] > 0).astype(np.int64)
    text = gzip.decompress((DATA / "tabular/cal_housing.csv.gz").read_bytes()).decode()
    homes = np.array(list(csv.reader(io.StringIO(text)))[1:], np.float32)
    features = (homes[:, :-1] - homes[:, :-1].mean(0)) / homes[:, :-1].std(0)  # as if mean and spread were public
    value = homes[:, -1] / 100_000 - 2
    phishing = np.load(DATA / "phishing.npz")
    fraud = (phishing["y"] > 0).astype(np.int64)
    found = {
        "Fashion-MNIST, CNN": Task(*parts(pixels[:, None], labels, sizes), convolutional),
        "Fashion-MNIST, MLP": Task(*parts(pixels.reshape(-1, 784), labels, sizes), mlp(784, 10)),
        "Adult, MLP": Task(*parts(adult["x_train"].astype(np.float32), earned, (20000, 5000, 7000)), mlp(123, 2)),
        "phishing, linear": Task(
            *parts(phishing["x"].astype(np.float32), fraud, (7000, 2000, 2000)), lambda: nn.Linear(68, 2)
        ),
        "California housing, MLP": Task(*parts(features, value, (14000, 3000, 3000)), mlp(8, 1), regression=True),
    }
    scaled = {f"{name}, loss / 1000": replace(found[name], factor=1e-3) for name in ("Adult, MLP", "phishing, linear")}
    return found | scaled


class Share(Estimator):
    """Adaptive clipping of Andrew et al.: the count of unclipped gradients is a second block with noise of its own."""

    def __init__(self, divisor: float, quantile: float, share: float) -> None:
        self.divisor, self.quantile = divisor, quantile
        self.unit = 2 * math.sqrt(share / (1 - share))  # of the count, whose sensitivity is half of it

    def sensitivity(self, relation: Any, shapes: Any) -> dict[str, float]:
        return {"all": moved(relation), "count": moved(relation) * self.unit / 2}

    def event(self, sampler: Any, noise_std: Any, relation: Any, shapes: Any) -> Any:
        stds = noise_std["all"], noise_std["count"]
        return gaussian_sum_event(sampler.law, (1.0, self.unit / 2), stds, relation)

    def block_sizes(self, shapes: Any) -> dict[str, int]:
        return {"all": sum(shape.numel() for shape in shapes.values()), "count": 1}

    def initial_state(self, shapes: Any, lead: tuple[int, ...] = ()) -> Any:
        return torch.ones((), dtype=torch.float64)

    def __call__(self, engine: Any, state: Any) -> Any:
        sums = engine.weighted_sums(lambda norms: clip_weights(state, norms), {"all": tuple(engine.shapes)})
        count = self.unit * ((sums.norms <= state).double() - 0.5).sum()
        return {"all": {name: x / state for name, x in sums.values[0].items()}, "count": {"count": count}}, state

    def gradient(self, released: Any, divisor: float) -> Any:
        return {name: noisy / divisor for name, noisy in released["all"].items()}

    def after(self, state: Any, released: Any) -> Any:
        below = released["count"]["count"].double() / (self.unit * self.divisor) + 0.5
        return state * torch.exp(-0.2 * (below.clamp(0, 1) - self.quantile))


class SlaClip(Estimator):
    """SlaClip as in Opacus #824: K slots of slack in the same ball, and a target from the slot nearest to zero."""

    def __init__(self, divisor: float, noise_multiplier: float) -> None:
        self.divisor = divisor
        self.slots = max(1, math.floor((divisor / (2 * 2.576 * noise_multiplier)) ** (2 / 3)))

    def sensitivity(self, relation: Any, shapes: Any) -> dict[str, float]:
        return {"all": moved(relation)}

    def event(self, sampler: Any, noise_std: Any, relation: Any, shapes: Any) -> Any:
        return gaussian_sum_event(sampler.law, (1.0,), (noise_std["all"],), relation)

    def block_sizes(self, shapes: Any) -> dict[str, int]:
        return {"all": self.slots + sum(shape.numel() for shape in shapes.values())}

    def initial_state(self, shapes: Any, lead: tuple[int, ...] = ()) -> Any:
        return torch.ones((), dtype=torch.float64)

    def __call__(self, engine: Any, state: Any) -> Any:
        sums = engine.weighted_sums(lambda norms: clip_weights(state, norms), {"all": tuple(engine.shapes)})
        slack = self.slots * (1 - sums.norms.double() / state).clamp(0, 1).nan_to_num(0.0)  # (batch, 1)
        slots = (slack - torch.arange(self.slots)).clamp(0, 1).sum(0) / math.sqrt(self.slots)
        return {"all": {**{name: x / state for name, x in sums.values[0].items()}, "slots": slots}}, state

    def gradient(self, released: Any, divisor: float) -> Any:
        return {name: noisy / divisor for name, noisy in released["all"].items() if name != "slots"}

    def after(self, state: Any, released: Any) -> Any:
        slots = released["all"]["slots"].double() * math.sqrt(self.slots) / self.divisor
        target = 1 - (1 - (slots[-1] / state).clamp(0, 1)) / 2
        return (state * torch.exp(0.2 * (target - slots[0]))).clamp(0.1, 50.0)


def ways(multiplier: float) -> dict[str, Any]:
    """Return what bounds a gradient, by name."""
    return {
        "fixed, C = 1": ClippedSum(tacita.FlatClipper(max_grad_norm=1.0)),
        "fixed, C = 0.1": ClippedSum(tacita.FlatClipper(max_grad_norm=0.1)),
        "fixed, C = 10": ClippedSum(tacita.FlatClipper(max_grad_norm=10.0)),
        "AUTO-S": ClippedSum(tacita.AutomaticClipper(max_grad_norm=1.0, gamma=0.01)),
        "paid count, q 0.5": Share(BATCH, 0.5, 0.01),
        "SlaClip": SlaClip(BATCH, multiplier),
        "free count, q 0.2": tacita.AdaptiveClippedSum(divisor=BATCH, quantile=0.2),
        "free count, q 0.5": tacita.AdaptiveClippedSum(divisor=BATCH, quantile=0.5),
        "free count, q 0.8": tacita.AdaptiveClippedSum(divisor=BATCH, quantile=0.8),
    }


def trained(task: Task, way: str, noise: float, rate: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = task.network()
    oracle = tacita.GradientOracle(
        tacita.NetworkSource(model, task.losses, task.train),
        estimator=ways(noise)[way],
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(expected_batch_size=BATCH, num_records=len(task.train[0])),
        mechanism=tacita.GaussianMechanism(noise_multiplier=noise),
        planned_queries=QUERIES,
    )
    assert oracle.ledger.epsilon(DELTA) <= EPSILON * (1 + 1e-9)  # the paid count included
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(QUERIES):
        oracle.backward()
        optimizer.step()
    return model


def noise_of(records: int) -> float:
    law = tacita.PoissonSampler(expected_batch_size=BATCH, num_records=records).law
    return tacita.accounting.calibrate(
        lambda noise: gaussian_sum_event(law, (1.0,), (noise,), "add_or_remove_one"),
        "add_or_remove_one",
        EPSILON,
        DELTA,
        queries=QUERIES,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    lines = []
    for name, task in tasks().items():
        noise, line = noise_of(len(task.train[0])), {"task": name}
        for way in ways(noise):
            pilot = {rate: task.score(trained(task, way, noise, rate, 1000), task.tuning) for rate in RATES}
            rate = max(pilot, key=lambda found: pilot[found])
            runs = [task.score(trained(task, way, noise, rate, seed), task.test) for seed in range(arguments.seeds)]
            line[way] = f"{statistics.mean(runs):.1f} +- {statistics.stdev(runs):.1f}"
            print(name, way, pilot, rate, line[way], flush=True)
        lines.append(line)
    write_section(SCRIPT, markdown_table(lines), PAGE)


if __name__ == "__main__":
    main()
