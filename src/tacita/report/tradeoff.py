"""The figure of an audit: the claimed trade-off curve and the measured one.

Both axes are logarithmic, because rare false positives matter most for privacy.
"""

import os
import textwrap
from typing import Any

import numpy as np

from tacita.report.style import FAINT, INK, PALETTE, image_kind, new_figure, plain_log, styled
from tacita.testing.result import AuditResult

CLAIMED, MEASURED, REFUTED = PALETTE[7], PALETTE[0], PALETTE[1]
EVENTS = 30  # least number of false positives from which a rate is drawn
CAPTION = 84  # characters that fit on a line


@styled
def save_tradeoff(result: AuditResult, path: str | os.PathLike[str]) -> None:
    """Draw the claimed and the measured trade-off curve, true against false positive rate, and save the figure.

    Args:
        result: Result of an audit.
        path: File to write; its ending (.png, .svg or .pdf) names the format.

    Raises:
        TacitaError: matplotlib is not installed.
        ValueError: ``path`` has another ending.
    """
    kind = image_kind(path)
    figure, axes = new_figure(size=(6.4, 5.6))
    known = _known(result)
    floor = min(float(result.roc.fpr[known][0]), 0.5 * result.bound.false_rate)
    _draw_claim(axes, result, floor)
    _draw_measured(axes, result, known)
    _draw_event(axes, result)
    axes.set(xscale="log", yscale="log", xlim=(floor, 1.0), ylim=(_lowest(result, known), 1.15))
    for axis in (axes.xaxis, axes.yaxis):
        plain_log(axis)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    caption = _caption(result)
    axes.set_title(
        f"{result.name or 'audit'}: {result.verdict}",
        color=REFUTED if _refuted(result) else INK,
        pad=11 + 12.5 * (1 + caption.count("\n")),
    )
    axes.text(0, 1.025, caption, transform=axes.transAxes, fontsize=8.5, color=INK, alpha=0.75)
    figure.legend(loc="outside lower left", ncols=2)
    figure.savefig(path, format=kind, dpi=160)


def _known(result: AuditResult) -> np.ndarray:
    """Return where the false positive rate comes from enough events to be drawn: 30, or a twentieth of few runs."""
    return result.roc.fpr * result.runs > min(EVENTS, max(1, result.runs // 20)) - 0.5


def _draw_claim(axes: Any, result: AuditResult, floor: float) -> None:
    rates = np.concatenate([np.geomspace(floor, 0.5, 400), 1 - np.geomspace(0.5, floor, 400)])
    allowed = np.minimum(result.claim.allowed(rates), _allowed_mirrored(result, rates))
    label = f"claimed at most (ε {result.claim.epsilon:.3g} at δ {result.claim.delta:g})"
    axes.fill_between(rates, allowed, 2.0, color=CLAIMED, alpha=0.08, linewidth=0)
    axes.plot(rates, allowed, color=CLAIMED, linewidth=1.6, linestyle=(0, (5, 2)), label=label)
    axes.plot(rates, rates, color=FAINT, linewidth=1, label="guessing")


def _allowed_mirrored(result: AuditResult, rates: np.ndarray) -> np.ndarray:
    """Return the largest true positive rate by the claim's other direction: 1 - FPR <= allowed(1 - TPR)."""
    missed = np.concatenate([[0.0], np.geomspace(1e-9, 1, 4000)])
    return 1 - np.interp(1 - rates, result.claim.allowed(missed), missed, left=0.0)


def _draw_measured(axes: Any, result: AuditResult, known: np.ndarray) -> None:
    roc, color = result.roc, REFUTED if _refuted(result) else MEASURED
    low, high = roc.band()
    band = f"{100 * result.bound.confidence:g} % limits of both rates, point by point"
    axes.fill_between(roc.fpr[known], low[known], high[known], color=color, alpha=0.22, linewidth=0, label=band)
    axes.plot(roc.fpr[known], roc.tpr[known], color=color, label=f"measured, {result.runs:,} runs a world")


def _draw_event(axes: Any, result: AuditResult) -> None:
    """Draw the point that the bound comes from; with the stated confidence the true curve is above it."""
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


def _lowest(result: AuditResult, known: np.ndarray) -> float:
    """Return the lower end of the vertical axis, which is below everything that is drawn."""
    seen = [*result.roc.tpr[known], result.bound.true_rate]
    return 0.5 * min((rate for rate in seen if rate > 0), default=1 / result.runs)


def _caption(result: AuditResult) -> str:
    queries = "1 query" if result.queries == 1 else f"{result.queries} queries"
    sign = f"“{result.bound.event.direction}” is positive"
    parts = (result.adversary, result.statistic, result.relation.replace("_", " "), f"{queries} a run", sign)
    lines = [""]
    for part in parts:
        joined = f"{lines[-1]} · {part}" if lines[-1] else part
        lines[-1:] = [joined] if len(joined) <= CAPTION or not lines[-1] else [lines[-1], part]
    return "\n".join(textwrap.fill(line, CAPTION) for line in lines)


def _refuted(result: AuditResult) -> bool:
    return result.verdict == "refuted"
