"""Draw docs/figures/how-good.svg: accuracy against epsilon, of benchmarks/records.jsonl and as published.

    python benchmarks/records_figure.py [--records FILE] [--figure FILE]

records.jsonl holds a line for each run of records.py with the settings that stand in it.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from results import ROOT

from tacita.report.style import FAINT, INK, PALETTE, styled

# (epsilon, test accuracy, whose), delta 1e-5, from the papers.
PUBLISHED = {
    "MNIST": [
        (2.93, 0.987, "Tramèr and Boneh 2021, linear"),
    ],
    "CIFAR-10": [
        (3.0, 0.670, "Tramèr and Boneh 2021, linear"),
        (3.0, 0.693, "Tramèr and Boneh 2021, small CNN"),
        (7.53, 0.662, "Papernot et al. 2021, CNN"),
        (8.0, 0.814, "De et al. 2022, 40-layer Wide-ResNet"),
    ],
}
PANELS = {"MNIST": "mnist-", "CIFAR-10": "cifar-"}
NOTE = {"MNIST": "", "CIFAR-10": " (ours: on a lossy JPEG copy)"}
LIMITS = {"MNIST": (0.95, 1.0), "CIFAR-10": (0.5, 0.85)}
TICKS = (0.5, 1, 2, 3, 8)
MARKERS = "s^Dv"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@styled
def draw(runs: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "how-good"  # the same bytes for the same runs
    figure, axes = plt.subplots(1, 2, figsize=(10, 5.6), layout="constrained")
    for panel, (title, prefix) in zip(axes, PANELS.items(), strict=True):
        _panel(panel, title, [run for run in runs if run["recipe"].startswith(prefix)])
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _panel(panel: Any, title: str, runs: list[dict[str, Any]]) -> None:
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run["epsilon"] is not None:
            found[run["recipe"]][round(run["epsilon"], 2)].append(run["test_accuracy"])
    for colour, (recipe, points) in zip(PALETTE, sorted(found.items()), strict=False):
        spent = sorted(points)
        panel.plot(spent, [mean(points[e]) for e in spent], color=colour)
        each = [(e, accuracy) for e in spent for accuracy in points[e]]
        panel.plot(*zip(*each, strict=True), "o", color=colour, markersize=4, label=f"tacita, {recipe}: each run")
    for marker, (epsilon, accuracy, whose) in zip(MARKERS, PUBLISHED[title], strict=False):
        panel.plot(epsilon, accuracy, marker, mfc="none", mec=INK, linestyle="none", label=f"published: {whose}")
    for run in runs:
        if run["epsilon"] is None:
            panel.axhline(run["test_accuracy"], color=FAINT, linestyle="--", label=f"without privacy, {run['recipe']}")
    panel.set(title=title + NOTE[title], xlabel="epsilon (delta = 1e-5)", ylabel="test accuracy", xscale="log")
    panel.set(xlim=(0.4, 10), ylim=LIMITS[title])
    panel.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    panel.set_xticks([], minor=True)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=Path(__file__).with_name("records.jsonl"))
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "figures" / "how-good.svg")
    given = parser.parse_args()
    draw(read(given.records), given.figure)


if __name__ == "__main__":
    main()
