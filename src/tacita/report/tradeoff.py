"""The plot of an audit: the trade-off curve that is claimed, and the one that was measured.

Place: audit -> [report.tradeoff] -> the command line. Both axes are logarithmic: privacy is decided where false
positives are rare.
"""

import os
from typing import Any

import numpy as np

from tacita.audit.result import AuditResult
from tacita.report.style import FAINT, INK, PALETTE, new_figure, plain_log, styled

CLAIMED, MEASURED, REFUTED = PALETTE[7], PALETTE[0], PALETTE[1]


@styled
def save_tradeoff(result: AuditResult, path: str | os.PathLike[str]) -> None:
    """Draw the claimed and the measured trade-off curve, true against false positive rate, and save the figure.

    Args:
        result: Of an audit.
        path: PNG, SVG or PDF, by its ending.

    Raises:
        TacitaError: matplotlib is not installed.
    """
    figure, axes = new_figure(size=(6.4, 5.0))
    floor = 1 / max(result.bound.event.trials, result.bound.event.false_trials)
    _draw_claim(axes, result, floor)
    _draw_measured(axes, result)
    _draw_event(axes, result)
    axes.set(xscale="log", yscale="log", xlim=(floor, 1.0), ylim=(_lowest(result, floor), 1.15))
    for axis in (axes.xaxis, axes.yaxis):
        plain_log(axis)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.set_title(f"{result.name or 'audit'}: {result.verdict}", color=REFUTED if _refuted(result) else INK, pad=24)
    axes.text(0, 1.025, _caption(result), transform=axes.transAxes, fontsize=8.5, color=INK, alpha=0.75)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=160)


def _draw_claim(axes: Any, result: AuditResult, floor: float) -> None:
    rates = np.concatenate([np.geomspace(floor, 0.5, 400), 1 - np.geomspace(0.5, floor, 400)])
    allowed = np.minimum(result.claim.allowed(rates), _allowed_mirrored(result, rates))
    label = f"claimed at most (ε {result.claim.epsilon:.3g} at δ {result.claim.delta:g})"
    axes.fill_between(rates, allowed, 2.0, color=CLAIMED, alpha=0.08, linewidth=0)
    axes.plot(rates, allowed, color=CLAIMED, linewidth=1.6, linestyle=(0, (5, 2)), label=label)
    axes.plot(rates, rates, color=FAINT, linewidth=1, label="guessing")


def _allowed_mirrored(result: AuditResult, rates: np.ndarray) -> np.ndarray:
    """The claim read in the other direction: 1 - FPR is at most what is allowed at 1 - TPR."""
    missed = np.concatenate([[0.0], np.geomspace(1e-9, 1, 4000)])
    return 1 - np.interp(1 - rates, result.claim.allowed(missed), missed, left=0.0)


def _draw_measured(axes: Any, result: AuditResult) -> None:
    roc, color = result.roc, REFUTED if _refuted(result) else MEASURED
    band = f"{100 * result.bound.confidence:g} % limits, point by point"
    axes.fill_between(roc.fpr, roc.tpr_low, roc.tpr_high, color=color, alpha=0.22, linewidth=0, label=band)
    axes.plot(roc.fpr, roc.tpr, color=color, label=f"measured, {result.runs:,} runs a world")


def _draw_event(axes: Any, result: AuditResult) -> None:
    """The limits that the bound comes from: a point that the true curve is above, but for the stated chance."""
    bound = result.bound
    color = REFUTED if _refuted(result) else MEASURED
    label = f"ε is at least {bound.value:.3g} ({100 * bound.confidence:g} % confidence)"
    axes.plot(
        [bound.false_rate],
        [bound.true_rate],
        "o",
        color="white",
        markeredgecolor=color,
        markeredgewidth=1.8,
        label=label,
    )


def _lowest(result: AuditResult, floor: float) -> float:
    seen = result.roc.tpr[result.roc.tpr > 0]
    return max(floor, 0.5 * float(seen.min())) if len(seen) else floor


def _caption(result: AuditResult) -> str:
    queries = "1 query" if result.queries == 1 else f"{result.queries} queries"
    sign = f"“{result.bound.event.direction}” is positive"
    return f"{result.adversary}, {result.statistic} · {result.relation.replace('_', ' ')} · {queries} a run · {sign}"


def _refuted(result: AuditResult) -> bool:
    return result.verdict == "refuted"
