"""What hardened noise costs: the noise alone, and a whole step; writes ``docs/hardened.md``.

    python benchmarks/hardened.py
    python benchmarks/hardened.py --rounds 5 --print

All versions take turns in one process, in a new order each round; a figure is the median over rounds of (its time / the
time of the same thing with floating-point noise in that round). No bare seconds: they are the machine's.
"""

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import torch
from cells import CELLS, Cell, losses
from torch import nn

import tacita
from tacita.hardened import GridSum
from tacita.hardened.integer_noise import rounded_normals
from tacita.linear import LinearSource, MultinomialLoss
from tacita.oracles import GradientOracle
from tacita.random import Key

PAGE = Path(__file__).parents[1] / "docs" / "hardened.md"
BASE = "floating point"
SIZE = 10**6
SCALE = 2.0**23  # about noise_std over the step of 10^6 coordinates, at noise multiplier 1
QUERIES = 10**6
Work = Callable[[], object]
MECHANISMS = {
    BASE: tacita.GaussianMechanism(noise_multiplier=1.0),
    "rounded": tacita.RoundedGaussian(noise_multiplier=1.0),
}


def noises() -> dict[str, Work]:
    """10^6 values from one stream; the base is float32 normals, as the plain oracle draws them."""
    stream = Key.insecure(0).stream("benchmark")
    return {
        BASE: lambda: stream.normals(SIZE),
        "float64 normals": lambda: stream.normals(SIZE, dtype=torch.float64),
        "rounded": lambda: rounded_normals(stream, SIZE, SCALE),
    }


def stepping(oracle: GradientOracle) -> Work:
    """One query and one update."""
    model = oracle.source.model  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        oracle.backward()
        optimizer.step()

    return step


def settings(cell: Cell, noise: str) -> dict:
    return {
        "ledger": tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        "sampler": tacita.FullBatchSampler(num_records=cell.batch),
        "mechanism": MECHANISMS[noise],
        "planned_queries": QUERIES,
    }


def network(cell: Cell, noise: str, rows: int | None = None) -> Work:
    """A whole oracle on one batch of a cell."""
    given = {**settings(cell, noise), "clipper": tacita.FlatClipper(max_grad_norm=1.0), "max_physical_batch_size": rows}
    return stepping(tacita.ClippedGradientOracle(cell.model(), losses, cell.rows(cell.batch), **given))


def linear(cell: Cell, noise: str) -> Work:
    """A whole oracle on one batch of a linear model, each row computed alone in closed form."""
    model = cell.model()
    layer = next(module for module in model.modules() if isinstance(module, nn.Linear))
    x, y = cell.rows(cell.batch)
    source = LinearSource(x, y, MultinomialLoss(layer.out_features), exact=True, model=layer)
    estimator = GridSum(tacita.FlatClipper(max_grad_norm=1.0), together=False)
    return stepping(GradientOracle(source, estimator=estimator, **settings(cell, noise)))


def steps(name: str) -> dict[str, Work]:
    """The versions of one cell that a step has."""
    cell = CELLS[name]
    found = {BASE: network(cell, BASE)}
    found["rounded, program (capped)"] = network(cell, "rounded")
    if name == "g":
        found["rounded, linear model, each row alone"] = linear(cell, "rounded")
    found["rounded, each row alone"] = network(cell, "rounded", rows=1)
    return found


def ratios(work: Mapping[str, Work], rounds: int, seed: int) -> dict[str, list[float]]:
    """Time of each over the base's, round by round."""
    order, found = random.Random(seed), {name: [] for name in work}
    for one in work.values():
        one()
    for _ in range(rounds):
        taken = {}
        for name in order.sample(list(work), len(work)):
            start = time.perf_counter()
            work[name]()
            taken[name] = time.perf_counter() - start
        for name, seconds in taken.items():
            found[name].append(seconds / taken[BASE])
    return found


def rows(found: Mapping[str, list[float]]) -> str:
    lines = []
    for name, values in found.items():
        low, _, high = statistics.quantiles(values, n=4)
        lines.append(f"| {name} | {statistics.median(values):.2f} ({low:.2f} to {high:.2f}) |")
    return "\n".join(lines)


def page(rounds: int) -> str:
    load = os.getloadavg()[0]
    parts = [
        "# What hardened noise costs",
        f"*Written by `python benchmarks/hardened.py`.* {platform.machine()}, {torch.get_num_threads()} thread(s); "
        f"torch {metadata.version('torch')}, tacita {tacita.__version__}. "
        f"Load of the machine before the run: {load:.1f}.",
        "Versions take turns in one process, in a new order each round; a figure is the median over rounds "
        f"({rounds} for the noise, a third for steps) of (its time / that of floating-point noise in the same round), "
        "quartiles beside it.",
        f"## The noise alone, {SIZE:,} values at {SCALE:,.0f} steps of standard deviation",
        "| noise | ratio |\n| --- | ---: |\n" + rows(ratios(noises(), rounds, 0)),
        "## A whole step: oracle, ledger in memory, update",
    ]
    for name, words in (
        ("a", "MLP 784-256-10, batch 256"),
        ("b", "CNN, two conv layers of 16 channels, 28x28, batch 256"),
        ("g", "logistic regression, 1000 features, batch 4096"),
    ):
        table = rows(ratios(steps(name), max(5, rounds // 3), 1))
        parts.append(f"**{name}**: {words}\n\n| step | ratio |\n| --- | ---: |\n{table}")
    parts.append(
        "The base is the engine with floating-point noise. *Each row alone* is what the full claim takes; the "
        "others make the weaker one: see the [threat model](threat-model.md#hardened-runs)."
    )
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--print", action="store_true", help="do not write the page")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    text = page(asked.rounds)
    print(text) if asked.print else PAGE.write_text(text)


if __name__ == "__main__":
    main()
