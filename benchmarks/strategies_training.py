"""What a network makes of it: a small one on 10,000 digits, at equal privacy, for benchmarks/strategies.py.

    python benchmarks/strategies_training.py [--seeds 5]

An MLP of 64 units on MNIST pixels, plain gradient descent, clipping threshold 1. The learning rate of each strategy is
the best of five for 5,000 other training images, in runs with other seeds; the test images are read once a run. The
data folder is TACITA_DATA, or ../shared/data beside the repository. The figures go to docs/strategies.md.
"""

import argparse
import gzip
import statistics

import numpy as np
import torch
from results import DATA, markdown_table, write_section
from strategies import DELTA, INDEPENDENT, PAGE, RELATION, Noise

import tacita
from tacita.correlated import recommended_power
from tacita.sampling import Sampler

SCRIPT = "benchmarks/strategies_training.py"
RECORDS, TUNING, BATCHES = 10_000, 5_000, 100
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
CELLS = (1, 1.0), (1, 4.0), (1, 8.0), (5, 4.0), (5, 8.0)  # epochs, epsilon
Pixels = tuple[torch.Tensor, torch.Tensor]


def images(name: str) -> Pixels:
    """Return the pixels in [0, 1] and the digits of one part of MNIST."""
    with gzip.open(DATA / "mnist" / f"{name}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(DATA / "mnist" / f"{name}-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8)
    return torch.from_numpy(x.astype(np.float32) / 255), torch.from_numpy(y.astype(np.int64))


def strategies(epochs: int) -> dict[str, tuple[Sampler, Noise]]:
    """Return sampler and noise by name."""
    queries = BATCHES * epochs
    cyclic = tacita.CyclicSampler(batches_per_cycle=BATCHES, num_records=RECORDS, assignment="coin")
    correlated = {
        f"cyclic by coin, p {bands}": (cyclic, (bands, recommended_power(queries, separation=BATCHES, bands=bands)))
        for bands in (2, 8)
    }
    epoch = tacita.AllocatedSampler(batches_per_epoch=BATCHES, num_records=RECORDS)
    poisson = tacita.PoissonSampler(sample_rate=1 / BATCHES, num_records=RECORDS)
    return {"Poisson": (poisson, INDEPENDENT), "epochs by coin": (epoch, INDEPENDENT), **correlated}


def loss_fn(model: torch.nn.Module, batch: Pixels) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def accuracy(
    data: Pixels, held_out: Pixels, way: tuple, *, epochs: int, epsilon: float, rate: float, seed: int
) -> float:
    """Train once, and return the accuracy in percent."""
    sampler, (bands, power) = way
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    form = tacita.GaussianMechanism(noise_multiplier=1.0)
    if bands > 1:
        form = tacita.CorrelatedGaussian(noise_multiplier=1.0, bands=bands, power=power)
    oracle = tacita.ClippedGradientOracle(
        model,
        loss_fn,
        data,
        ledger=tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one row = one image"),
        sampler=sampler,
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=DELTA, form=form),
        planned_queries=BATCHES * epochs,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(oracle.planned_queries):
        oracle.backward()
        optimizer.step()
    with torch.no_grad():
        return 100 * float((model(held_out[0]).argmax(1) == held_out[1]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    (x, y), test = images("train"), images("t10k")
    data = x[:RECORDS], y[:RECORDS]
    tuning = x[RECORDS : RECORDS + TUNING], y[RECORDS : RECORDS + TUNING]
    lines = []
    for epochs, epsilon in CELLS:
        line = {"epochs": str(epochs), "epsilon": f"{epsilon:g}"}
        for name, way in strategies(epochs).items():
            pilot = {
                rate: accuracy(data, tuning, way, epochs=epochs, epsilon=epsilon, rate=rate, seed=1000)
                for rate in RATES
            }
            rate = max(pilot, key=lambda found: pilot[found])
            runs = [
                accuracy(data, test, way, epochs=epochs, epsilon=epsilon, rate=rate, seed=seed) for seed in range(seeds)
            ]
            line[name] = f"{statistics.mean(runs):.1f} +- {statistics.stdev(runs):.1f}"
            print(epochs, epsilon, name, pilot, line[name], flush=True)
        lines.append(line)
    write_section(SCRIPT, markdown_table(lines), PAGE)


if __name__ == "__main__":
    main()
