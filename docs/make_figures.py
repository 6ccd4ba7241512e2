"""Draw the pictures of docs/concepts.md, from tacita's own accounting and clipping.

python -m docs.make_figures
"""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

import tacita
from tacita.accounting import (
    FullBatchLaw,
    GaussianSumEvent,
    PoissonLaw,
    Spend,
    attack_accuracy,
    curve_accuracy,
    epsilon,
    gaussian_mu,
    privacy_curve,
)
from tacita.report.style import FAINT, GRID, INK, PALETTE, new_figure, styled

FOLDER = Path(__file__).parent / "figures"
BLUE, RED, GREEN = PALETTE[0], PALETTE[1], PALETTE[2]
DELTA = 1e-5
EPSILONS = (0.5, 1.0, 3.0, 8.0)


def the_line() -> Any:
    """The stages of a query on the two sides of the line."""
    figure, axes = new_figure(size=(10, 2.3))
    axes.set(xlim=(0, 100), ylim=(4, 27))
    axes.axis("off")
    axes.add_patch(FancyBboxPatch((0.5, 8), 70, 17, boxstyle="round,pad=0.3", facecolor="#fdf1ea", edgecolor="none"))
    stages = ["data", "sampler", "gradients\nof each record", "clipping", "noise"]
    places = [*range(8, 70, 14), 80, 93]
    for x, words in zip(places, [*stages, "optimizer", "model"], strict=True):
        colour = RED if x < 70 else GREEN
        axes.add_patch(
            FancyBboxPatch((x - 4.8, 11), 9.6, 7, boxstyle="round,pad=0.5", facecolor="white", edgecolor=colour)
        )
        axes.text(x, 14.5, words, ha="center", va="center", fontsize=9)
    for left, right in pairwise(places):
        axes.add_patch(
            FancyArrowPatch((left + 5.4, 14.5), (right - 5.4, 14.5), arrowstyle="-|>", mutation_scale=11, color=INK)
        )
    axes.plot([72, 72], [6, 26], color=INK, linewidth=2.5)
    axes.text(1.5, 22, "inside the oracle: private", color=RED, fontsize=10, fontweight="bold")
    axes.text(74, 22, "outside: may be published", color=GREEN, fontsize=10, fontweight="bold")
    axes.text(71, 5, "the ledger, written before anything passes the line", ha="right", fontsize=9, color=INK)
    return figure


def neighbours() -> Any:
    """One pair of neighbouring data sets for each relation."""
    figure, axes = new_figure(1, 3, size=(10, 1.7))
    pairs = {
        "add_or_remove_one": (("full",) * 6, ("full",) * 5 + ("none",)),
        "replace_one": (("full",) * 6, ("full",) * 5 + ("other",)),
        "zero_out_one": (("full",) * 6, ("full",) * 5 + ("empty",)),
    }
    looks = {"full": {"facecolor": BLUE, "edgecolor": BLUE}, "other": {"facecolor": RED, "edgecolor": RED}}
    for panel, (relation, pair) in zip(axes, pairs.items(), strict=True):
        panel.set(xlim=(-0.7, 6), ylim=(-0.7, 1.7), title=relation, aspect="equal")
        panel.axis("off")
        for row, records in zip((1, 0), pair, strict=True):
            for place, kind in enumerate(records):
                look = looks.get(
                    kind, {"facecolor": "white", "edgecolor": FAINT, "linestyle": ":" if kind == "none" else "-"}
                )
                panel.add_patch(Circle((place, row), 0.33, **look))
        panel.text(5, 0, {"none": "", "other": "", "empty": "0"}[pair[1][-1]], ha="center", va="center", color=INK)
    return figure


def what_epsilon_means() -> Any:
    """What an attacker can do at most, from the whole curve of a Gaussian session and from its epsilon alone."""
    figure, (rates, guesses) = new_figure(1, 2, size=(10, 4.2))
    false = np.linspace(0, 1, 400)
    curves = [privacy_curve([Spend(_of_mu(gaussian_mu(one, DELTA)), 1)]) for one in EPSILONS]
    for colour, one, curve in zip(PALETTE, EPSILONS, curves, strict=False):
        allowed = np.minimum(np.exp(one) * false + DELTA, 1 - np.exp(-one) * (1 - DELTA - false)).clip(0, 1)
        rates.plot(false, allowed, color=colour, linestyle=":", linewidth=1)
        true = curve.true_positives(false, np.linspace(0, one, 1000))
        rates.plot(false, np.minimum(true, allowed), color=colour, label=f"epsilon {one:g}")
    rates.plot([0, 1], [0, 1], color=FAINT, linestyle="--", label="a guess")
    rates.set(
        xlabel="false alarms: said of people who did not take part",
        ylabel="hits: said of people who took part",
    )
    rates.set(title='An attack that says "took part", at most', xlim=(0, 1), ylim=(0, 1.01))
    rates.legend(loc="lower right", title="whole curve; dotted: epsilon alone")
    places = np.arange(len(EPSILONS))
    alone = [100 * attack_accuracy(one, DELTA) for one in EPSILONS]
    whole = [100 * curve_accuracy(curve.deltas) for curve in curves]
    guesses.barh(places + 0.2, alone, 0.36, color=GRID)
    bars = guesses.barh(places - 0.2, whole, 0.36, color=PALETTE[: len(EPSILONS)])
    for drawn, chances in ((guesses.containers[0], alone), (bars, whole)):
        digits = [10 if chance < 99.9 else 100 for chance in chances]
        labels = [f"{math.ceil(chance * k) / k:g} %" for chance, k in zip(chances, digits, strict=True)]
        guesses.bar_label(drawn, labels, padding=4)
    guesses.set_yticks(places, [f"{one:g}" for one in EPSILONS])
    guesses.axvline(50, color=FAINT, linestyle="--")
    guesses.invert_yaxis()
    guesses.grid(visible=False, axis="y")
    guesses.set(
        title="An attacker who is undecided before",
        xlabel="is right after at most this often (%); grey: by epsilon alone",
        ylabel="epsilon",
        xlim=(0, 115),
    )
    return figure


def _of_mu(mu: float) -> GaussianSumEvent:
    return GaussianSumEvent(
        relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(1 / mu,)
    )


def clipping() -> Any:
    """Gradients of records before and after clipping, and the sum that is released."""
    threshold, generator = 1.0, np.random.default_rng(5)
    before = np.concatenate([generator.normal((0.7, 0.4), 0.45, (11, 2)), [[-2.6, 1.9]]])
    weights = tacita.FlatClipper(max_grad_norm=threshold).weights(torch.tensor(np.linalg.norm(before, axis=1))[:, None])
    after = before * weights.numpy()
    figure, axes = new_figure(1, 3, size=(10, 3.6))
    titles = ("gradients of 12 records", "clipped to norm 1", "their sum is released with noise")
    for panel, title in zip(axes, titles, strict=True):
        panel.set(title=title, aspect="equal")
        panel.set_xticks([])
        panel.set_yticks([])
    for panel, gradients in zip(axes, (before, after), strict=False):
        panel.add_patch(Circle((0, 0), threshold, facecolor=GRID, edgecolor=FAINT))
        for k, gradient in enumerate(gradients):
            panel.annotate(
                "", gradient, (0, 0), arrowprops={"arrowstyle": "-|>", "color": RED if k == len(before) - 1 else BLUE}
            )
        panel.set(xlim=(-3, 2), ylim=(-1.6, 2.4))
    sums = after[:-1].sum(axis=0), after.sum(axis=0)
    noise = generator.normal(0, 1.5, (2, 400, 2))
    for colour, label, total, cloud in zip((FAINT, RED), ("without the long one", "with it"), sums, noise, strict=True):
        axes[2].plot(*(total + cloud).T, ".", color=colour, markersize=3, alpha=0.5)
        axes[2].plot(*total, "o", color=colour, markeredgecolor=INK, label=label)
    right, up = sums[1]
    axes[2].set(xlim=(right - 7, right + 7), ylim=(up - 6.4, up + 4.8))
    axes[2].legend(loc="lower right")
    return figure


def plan_and_spent() -> Any:
    """Epsilon of a session as planned, and of the queries so far."""
    queries = np.array([0, 1, 5, *range(20, 501, 20)])
    figure, axes = new_figure(size=(7.2, 3.8))
    sessions = {
        "1 % of the records a query (Poisson sampling), noise multiplier 1": (PoissonLaw(sample_rate=0.01), 1.0),
        "all records in every query, noise multiplier 40": (FullBatchLaw(), 40.0),
    }
    for colour, (words, (law, noise)) in zip((BLUE, RED), sessions.items(), strict=True):
        event = GaussianSumEvent(
            relation="add_or_remove_one", sampling=law, max_contribution=(1.0,), noise_std=(noise,)
        )
        spent = [epsilon([Spend(event, int(count))], DELTA).epsilon if count else 0.0 for count in queries]
        axes.plot(queries, spent, color=colour, label=words)
        axes.axhline(spent[-1], color=colour, linestyle="--", label=f"its plan of 500 queries: epsilon {spent[-1]:.2f}")
    axes.set(
        xlabel="queries made", ylabel=f"epsilon at delta = {DELTA:g}", xlim=(0, queries[-1]), title="Plan and spent"
    )
    axes.legend(loc="lower right")
    return figure


FIGURES: dict[str, Callable[[], Any]] = {
    "the-line.svg": the_line,
    "neighbours.svg": neighbours,
    "epsilon.svg": what_epsilon_means,
    "clipping.svg": clipping,
    "plan-and-spent.svg": plan_and_spent,
}


@styled
def draw(folder: Path) -> None:
    """Write each picture into ``folder``; the same bytes each time."""
    import matplotlib as mpl

    folder.mkdir(exist_ok=True)
    for name, figure in FIGURES.items():
        mpl.rcParams["svg.hashsalt"] = name
        figure().savefig(folder / name, metadata={"Date": None})


if __name__ == "__main__":
    draw(FOLDER)
