"""The figure of an audit in one run: the measured ROC curve beside the claimed limit, and the canaries' scores.

It is drawn from the audit's result, which is as public as the releases that it was computed from.
"""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from tacita._files import replace_durably
from tacita.report.style import FAINT, INK, PALETTE, heading, image_kind, new_figure, plain_log, styled
from tacita.testing.one_run.report import OneRunAudit

LOWEST = 1e-3  # the false positive rate at the left edge, unless there are few canaries
BINS = 48
OUT, IN, CLAIM = FAINT, PALETTE[0], PALETTE[1]


def allowed(fpr: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    r"""Return the largest true positive rate that (epsilon, delta)-DP allows in both directions.

    It is :math:`\min(1, e^{\epsilon} \alpha + \delta, 1 - e^{-\epsilon} (1 - \delta - \alpha))`.

    Example:
        >>> allowed(np.array([0.0, 0.1, 1.0]), math.log(4), 0.0)
        array([0. , 0.4, 1. ])
    """
    if math.isinf(epsilon):
        return np.ones_like(fpr)
    rising = math.exp(min(epsilon, 700.0)) * fpr + delta
    return np.minimum(1.0, np.minimum(rising, 1 - math.exp(-epsilon) * (1 - delta - fpr)))


def save_one_run(audit: OneRunAudit, path: str | Path) -> None:
    """Draw the figure and write it as PNG, SVG or PDF, according to the file's ending.

    Raises:
        TacitaError: matplotlib is not installed.
        ValueError: ``path`` has another ending.
    """
    kind = image_kind(path)
    buffer = io.BytesIO()
    plot_one_run(audit).savefig(buffer, format=kind, dpi=160)
    replace_durably(Path(path), buffer.getvalue())


@styled
def plot_one_run(audit: OneRunAudit) -> Any:
    """Return a figure with the ROC curve on two logarithmic axes, and histograms of the scores."""
    figure, (left, right) = new_figure(1, 2, size=(10.4, 4.9))
    heading(figure, _title(audit))
    _draw_roc(left, audit)
    _draw_scores(right, audit)
    return figure


def _title(audit: OneRunAudit) -> str:
    bound, claimed = audit.bound, audit.epsilon_claimed
    said = "no privacy claimed" if math.isinf(claimed) else f"ε = {claimed:.3g} claimed"
    return f"{audit.verdict.capitalize()}: ε ≥ {bound.epsilon:.3g} measured, {said} at δ = {bound.delta:g}"


def _draw_roc(axes: Any, audit: OneRunAudit) -> None:
    from matplotlib.patheffects import Normal, Stroke

    found = audit.membership
    lowest = max(LOWEST, 1 / found.others)
    fpr = np.geomspace(lowest, 1.0, 400)
    curve = allowed(fpr, audit.epsilon_claimed, audit.bound.delta)
    axes.fill_between(fpr, np.maximum(curve, fpr), 2.0, color=CLAIM, alpha=0.07, linewidth=0)
    axes.plot(fpr, curve, color=CLAIM, linewidth=1.6, linestyle=(0, (5, 2)), label="limit of the claim")
    axes.plot(fpr, fpr, color=FAINT, linewidth=1.2, label="guessing")
    roc = found.roc
    axes.fill_between(roc.fpr, *roc.band(), color=IN, alpha=0.15, linewidth=0)
    axes.plot(roc.fpr, roc.tpr, drawstyle="steps-pre", color=IN, label=f"measured, AUC {found.auc.value:.3f}")
    floor = max(min(lowest, 1 / found.members), 1e-4)
    for rate, tpr in found.tpr.items():
        if tpr.value > 0 and lowest <= rate < 1:
            axes.plot([rate], [tpr.value], "o", color=IN, markersize=6.5, markeredgecolor="white", zorder=3)
            axes.annotate(
                f"{tpr.value:.2g} at {rate:g}",
                (rate, tpr.value),
                xytext=(7, -11),
                textcoords="offset points",
                fontsize=8.5,
                color=INK,
                path_effects=[Stroke(linewidth=3, foreground="white"), Normal()],
            )
    axes.set(xscale="log", yscale="log", xlim=(lowest * 0.93, 1.04), ylim=(floor, 1.25))
    axes.set(xlabel="false positive rate", ylabel="true positive rate", title="Canaries distinguished")
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)
    axes.legend(loc="lower right")


def _draw_scores(axes: Any, audit: OneRunAudit) -> None:
    scores, included = audit.scores[np.isfinite(audit.scores)], audit.included[np.isfinite(audit.scores)]
    edges = _edges(scores)
    shown = np.clip(scores, edges[0], edges[-1])
    for mask, color, label in ((~included, OUT, "left out"), (included, IN, "in the data")):
        axes.hist(shown[mask], bins=edges, color=color, alpha=0.55, label=f"{label}: {int(mask.sum())}")
        axes.hist(shown[mask], bins=edges, histtype="step", color=color, linewidth=1.4)
    axes.set(xlabel="score of a canary", ylabel="canaries", title=f"Scores of {audit.adversary.split(',')[0]}")
    axes.set_xlim(edges[0], edges[-1])
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.18)  # room for the legend
    axes.grid(axis="x", visible=False)
    bound = audit.bound
    axes.legend(
        loc="upper left",
        ncols=2,
        title=f"{bound.correct} of the {bound.guesses} most extreme guessed correctly",
        title_fontsize=9,
        alignment="left",
    )


def _edges(scores: np.ndarray) -> np.ndarray:
    """Return the edges of bins over nearly all scores; the outermost bins also count the few outliers."""
    if not len(scores) or scores.min() == scores.max():
        centre = float(scores[0]) if len(scores) else 0.0
        return np.linspace(centre - 1, centre + 1, BINS + 1)
    low, high = np.quantile(scores, [0.002, 0.998])
    return np.linspace(low, high, BINS + 1) if high > low else np.linspace(scores.min(), scores.max(), BINS + 1)
