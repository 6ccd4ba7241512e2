"""What training makes of it: two models of MNIST's digits, at equal privacy, for benchmarks/strategies.py.

    python benchmarks/strategies_training.py [--seeds 5] [--epochs 1]

Logistic regression on 60,000 images, an MLP of 64 units on 10,000; plain gradient descent, clipping threshold 1. The
learning rate of each strategy is the best of five for other images, in runs with other seeds: for the MLP 5,000 of the
training images that it does not see, for logistic regression half of the test images. The accuracy is that on test
images that chose nothing. The data folder is TACITA_DATA, or ../shared/data beside the repository. The figures go to
docs/strategies.md.
"""

import argparse
import gzip
import statistics
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from results import DATA, markdown_table, write_section
from strategies import DELTA, PAGE, RELATION

import tacita
from tacita.accounting import NeighboringRelation
from tacita.correlated import recommended_noise, recommended_power
from tacita.mechanisms import Mechanism
from tacita.sampling import Sampler

SCRIPT = "benchmarks/strategies_training.py"
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
RECORDS = {"MLP": 10_000, "logistic": 60_000}
BATCHES, EPSILONS = 100, (1.0, 4.0, 8.0)
Pixels = tuple[torch.Tensor, torch.Tensor]


def images(name: str) -> Pixels:
    """Return the pixels in [0, 1] and the digits of one part of MNIST."""
    with gzip.open(DATA / "mnist" / f"{name}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(DATA / "mnist" / f"{name}-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8)
    return torch.from_numpy(x.astype(np.float32) / 255), torch.from_numpy(y.astype(np.int64))


class Way(NamedTuple):
    """A strategy: batches, noise, and under which relation a record counts."""

    sampler: Sampler
    form: Mechanism
    relation: NeighboringRelation = RELATION


def strategies(records: int, batches: int, epochs: int, epsilon: float) -> dict[str, Way]:
    """Return the ways by name."""
    queries, plain = batches * epochs, tacita.GaussianMechanism(noise_multiplier=1.0)
    cyclic = partial(tacita.CyclicSampler, num_records=records)
    by_coin, by_index = (cyclic(batches_per_cycle=batches, assignment=kind) for kind in ("coin", "index"))
    target = {"relation": RELATION, "epsilon": epsilon, "delta": DELTA}
    banded = recommended_noise(queries, batches, **target, banded_matrix=True).factorization
    turns = cyclic(batches_per_cycle=banded.bands, assignment="coin", turn_rate=banded.bands / batches)

    def correlated(bands: int) -> Mechanism:
        power = recommended_power(queries, separation=batches, bands=bands)
        return tacita.CorrelatedGaussian(noise_multiplier=1.0, bands=bands, power=power)

    return {
        "Poisson": Way(tacita.PoissonSampler(sample_rate=1 / batches, num_records=records), plain),
        "epochs by coin": Way(tacita.AllocatedSampler(batches_per_epoch=batches, num_records=records), plain),
        "cyclic by index, independent": Way(by_index, plain, "zero_out_one"),
        "cyclic by index, p 8": Way(by_index, correlated(8), "zero_out_one"),
        "cyclic by coin, p 2": Way(by_coin, correlated(2)),
        "cyclic by coin, p 8": Way(by_coin, correlated(8)),
        "BandMF": Way(
            turns,
            tacita.CorrelatedGaussian(noise_multiplier=1.0, bands=banded.bands, power=banded.power, banded_matrix=True),
        ),
    }


def loss_fn(model: torch.nn.Module, batch: Pixels) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def network(model: str) -> torch.nn.Module:
    """Return a model of its own."""
    if model == "logistic":
        return torch.nn.Linear(784, 10)
    return torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def accuracy(
    model: str, data: Pixels, held_out: Pixels, way: Way, *, queries: int, epsilon: float, rate: float, seed: int
) -> float:
    """Train once, and return the accuracy in percent."""
    torch.manual_seed(seed)
    trained = network(model)
    oracle = tacita.ClippedGradientOracle(
        trained,
        loss_fn,
        data,
        ledger=tacita.Ledger(neighboring_relation=way.relation, privacy_unit="one row = one image"),
        sampler=way.sampler,
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=DELTA, form=way.form),
        planned_queries=queries,
    )
    optimizer = torch.optim.SGD(trained.parameters(), lr=rate)
    for _ in range(queries):
        oracle.backward()
        optimizer.step()
    with torch.no_grad():
        return 100 * float((trained(held_out[0]).argmax(1) == held_out[1]).float().mean())


def pilot_and_test(model: str) -> tuple[Pixels, Pixels, Pixels]:
    """Return the images to train on, those that choose the learning rate, and those that are tested on."""
    (x, y), (a, b) = images("train"), images("t10k")
    n = RECORDS[model]
    if model == "logistic":
        return (x, y), (a[:5000], b[:5000]), (a[5000:], b[5000:])
    return (x[:n], y[:n]), (x[n : n + 5000], y[n : n + 5000]), (a, b)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    lines = []
    for model, records in RECORDS.items():
        data, tuning, test = pilot_and_test(model)
        for epsilon in EPSILONS:
            line = {"model": model, "epsilon": f"{epsilon:g}"}
            for name, way in strategies(records, BATCHES, given.epochs, epsilon).items():
                run = partial(accuracy, model, data, way=way, queries=BATCHES * given.epochs, epsilon=epsilon)
                pilot = {rate: run(held_out=tuning, rate=rate, seed=1000) for rate in RATES}
                rate = max(pilot, key=lambda found: pilot[found])
                runs = [run(held_out=test, rate=rate, seed=seed) for seed in range(given.seeds)]
                line[name] = f"{statistics.mean(runs):.1f} +- {statistics.stdev(runs):.1f}"
                print(model, epsilon, name, pilot, line[name], flush=True)
            lines.append(line)
    write_section(SCRIPT, markdown_table(lines), PAGE)


if __name__ == "__main__":
    main()
