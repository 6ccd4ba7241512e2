"""Step time against batch, width, length and depth, as a multiple of the plain step: a file of figures, and a plot.

    make sweep                                                   all axes; writes docs/sweep.md, .json and .svg
    python benchmarks/sweep.py --axes "MLP, batch" --rounds 3    figures on the screen alone

All implementations of a point live in one process and take turns, in a new order each round; a figure is the median
over rounds of (time of a step / plain step of the same round). An axis that stands in the file already is kept.
"""

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from cells import Block, Cell
from implementations import IMPLEMENTATIONS
from step_time import CLOCK_WORDS, PLAIN, processor, version
from step_worker import CLOCKS
from torch import Tensor, nn

CHOSEN = (PLAIN, "tacita, engine", "Opacus ghost")
WARM_UP = 2
TURN = 0.02  # seconds that a turn of the plain step takes; the others make as many steps, or what ten turns give


def mlp(width: int = 256, depth: int = 2) -> nn.Module:
    widths = [784, *[width] * (depth - 1), 10]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(width: int = 16) -> nn.Module:
    def block(before: int, after: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.GroupNorm(4, after), nn.ReLU()]

    layers = [*block(3, width, 1), *block(width, width, 2), *block(width, 2 * width, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


class Encoder(nn.Module):
    """A transformer without an embedding: blocks over vectors, and a head over their mean."""

    def __init__(self, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(dim=1))


def encoder(batch: int = 16, width: int = 128, length: int = 64, depth: int = 2) -> Cell:
    return Cell("transformer", lambda: Encoder(width, depth), (length, width), 10, batch)


def of_mlp(batch: int = 256, width: int = 256, depth: int = 2) -> Cell:
    return Cell("MLP", lambda: mlp(width, depth), (784,), 10, batch)


def of_cnn(batch: int = 64, width: int = 16) -> Cell:
    return Cell("CNN", lambda: cnn(width), (3, 32, 32), 10, batch)


AXES: dict[str, tuple[Callable[..., Cell], str, tuple[int, ...]]] = {
    "MLP, batch": (of_mlp, "batch", (16, 64, 256)),
    "MLP, width": (of_mlp, "width", (64, 256, 1024)),
    "MLP, depth": (of_mlp, "depth", (2, 4, 8)),
    "CNN, batch": (of_cnn, "batch", (16, 64, 256)),
    "CNN, width": (of_cnn, "width", (16, 32, 64)),
    "transformer, batch": (encoder, "batch", (4, 16, 64)),
    "transformer, width": (encoder, "width", (64, 128, 256)),
    "transformer, length": (encoder, "length", (16, 64, 256)),
    "transformer, depth": (encoder, "depth", (1, 4, 12)),
}


def measured(cell: Cell, rounds: int, now: Callable[[], float]) -> dict[str, float]:
    """Return the median ratio to the plain step by implementation; one that fails has none."""
    steps, counts = dict[str, Callable[[], None]](), dict[str, int]()
    for name in CHOSEN:
        torch.manual_seed(0)
        try:
            step = IMPLEMENTATIONS[name](cell)
            first = min(timed(step, 1, now) for _ in range(WARM_UP))
        except Exception as error:  # a peer is absent, or does not serve the network
            print(f"{name} does not run: {type(error).__name__}", file=sys.stderr)
        else:
            steps[name], counts[name] = step, max(1, round(TURN / first))
    counts = {name: min(counts[PLAIN], 10 * count) for name, count in counts.items()}
    order, times = random.Random(0), {name: list[float]() for name in steps}
    for _ in range(rounds):
        for name in order.sample(list(steps), len(steps)):
            times[name].append(timed(steps[name], counts[name], now))
    return {
        name: statistics.median(a / b for a, b in zip(taken, times[PLAIN], strict=True))
        for name, taken in times.items()
        if name != PLAIN
    }


def timed(step: Callable[[], None], count: int, now: Callable[[], float]) -> float:
    start = now()
    for _ in range(count):
        step()
    return (now() - start) / count


def plot(results: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    """Draw a panel for each axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = 3
    figure, axes = pyplot.subplots(-(-len(results) // columns), columns, figsize=(11, 9), squeeze=False)
    for panel in axes.flat[len(results) :]:
        panel.set_visible(False)
    for panel, (axis, points) in zip(axes.flat, results.items(), strict=False):
        at = [int(point) for point in points]
        for name in CHOSEN[1:]:
            panel.plot(at, [points[str(k)].get(name, float("nan")) for k in at], marker="o", label=name)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.set(title=axis, xscale="log", yscale="log", xticks=at, xticklabels=list(map(str, at)))
        panel.minorticks_off()
        panel.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.flat[0].set_ylabel("step time over the plain step")
    axes.flat[0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def page(results: dict[str, dict[str, dict[str, float]]], arguments: argparse.Namespace) -> str:
    """``docs/sweep.md``."""
    tables = []
    for axis, points in results.items():
        names = [name for name in CHOSEN[1:] if any(name in point for point in points.values())]
        lines = [f"| {axis} | {' | '.join(points)} |", "| --- |" + " ---: |" * len(points)]
        for name in names:
            ratios = (f"{point[name]:.2f}" if name in point else "–" for point in points.values())
            lines.append(f"| {name} | {' | '.join(ratios)} |")
        tables.append("\n".join(lines))
    versions = ", ".join(version(package) for package in ("torch", "opacus", "tacita"))
    return f"""# Step time against batch, width, length and depth

*Written by `make sweep`.* {processor("cpu")}, {arguments.threads} thread{"s" * (arguments.threads > 1)}, float32;
{versions}. Load of the machine when this was written: {os.getloadavg()[0]:.0f}.

A figure is the time of a private step over that of the plain step ({CLOCK_WORDS[arguments.clock]}):
the median over {arguments.rounds} rounds in one process, in which the implementations take turns.
[Benchmarks](benchmarks.md) has whole networks and says what a step is. Where it is not what varies: the MLP is
784-256-10 with batch 256; the CNN has three convolutions (16, 16 and 32 channels, GroupNorm, 32x32 images) and
batch 64; the transformer has 2 layers of 128, 64 positions and batch 16.

The fixed cost of a query is most of the ratio where the plain step takes a few milliseconds. It fades with batch,
width, length and depth.

![Step time over the plain step](sweep.svg)

{(chr(10) * 2).join(tables)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="*", default=list(AXES), choices=list(AXES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="cpu", choices=list(CLOCKS), help="cpu: for one thread on a busy machine")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    for axis in arguments.axes:
        if axis in results:
            continue
        make, name, values = AXES[axis]
        points = {}
        for value in values:
            points[str(value)] = measured(make(**{name: value}), arguments.rounds, CLOCKS[arguments.clock])
            print(axis, value, {key: round(ratio, 2) for key, ratio in points[str(value)].items()}, file=sys.stderr)
        results[axis] = points
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.plot:
        plot(results, arguments.plot)
    if arguments.page:
        arguments.page.write_text(page(results, arguments))


if __name__ == "__main__":
    main()
