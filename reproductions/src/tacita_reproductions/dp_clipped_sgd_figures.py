"""The figures of the DP-Clipped-SGD experiments, drawn from their tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tacita.report.style import FAINT, INK, PALETTE, heading, new_figure, plain_log, styled
from tacita_reproductions.runner import Row


@styled
def floor(rows: Sequence[Row]) -> Any:
    """Draw the measured gaps and the line that predicts them."""
    figure, axes = new_figure(size=(6.4, 4.2))
    c = [row["C"] for row in rows]
    axes.loglog(c, [row["predicted gap"] for row in rows], color=FAINT, label="predicted")
    axes.loglog(c, [row["median gap"] for row in rows], "o", color=PALETTE[0], ms=7, label="measured, median of runs")
    axes.set(xlabel="clipping threshold C", ylabel="f(average) − f*")
    plain_log(axes.xaxis, c)
    plain_log(axes.yaxis)
    axes.legend()
    heading(figure, "Clipping leaves a floor; it shrinks as C grows")
    return figure


@styled
def trade_off(rows: Sequence[Row]) -> Any:
    """Draw one curve for each epsilon, and mark its best threshold."""
    figure, axes = new_figure(size=(7.2, 4.6))
    c = [row["C"] for row in rows]
    names = list(rows[0])[1:]
    for name, color in zip(names, [INK, *PALETTE], strict=False):
        y = [row[name] for row in rows]
        best = min(range(len(y)), key=y.__getitem__)
        axes.loglog(c, y, color=color, ls="--" if name == "no privacy" else "-", label=name.replace("epsilon", "ε ="))
        axes.plot(c[best], y[best], "o", color=color, ms=7, mec="white", mew=1.2, zorder=4)
    axes.axhline(12.5, color=FAINT, lw=1, ls=":")
    axes.annotate(
        "before the first step", (c[0], 12.5), xytext=(0, 4), textcoords="offset points", color=FAINT, fontsize=9
    )
    axes.set(xlabel="clipping threshold C", ylabel="f(average) − f*, median", ylim=(0.02, 200))
    plain_log(axes.xaxis, c)
    plain_log(axes.yaxis)
    figure.legend(loc="outside right center")
    heading(figure, "Less privacy, larger best threshold (dots)")
    return figure


@styled
def quantiles(rows: Sequence[Row]) -> Any:
    """Draw quantiles of the last iterate's gap, one panel for each noise distribution."""
    degrees = sorted({row["degrees"] for row in rows})
    figure, panels = new_figure(1, len(degrees), size=(1.2 + 3.8 * len(degrees), 4.0))
    panels = np.atleast_1d(panels)
    for axes, degree in zip(panels, degrees, strict=True):
        lines = [row for row in rows if row["degrees"] == degree and row["iterate"] == "last"]
        for row, color in zip(lines, (PALETTE[1], PALETTE[0], PALETTE[2]), strict=False):
            levels = [name for name in row if name.endswith(" %")]
            axes.semilogy(range(len(levels)), [row[name] for name in levels], "o-", color=color, label=row["method"])
            axes.set_xticks(range(len(levels)), levels)
        axes.set(title=f"{degree:g} degrees of freedom", xlabel="quantile of the runs")
    for axes in panels:
        plain_log(axes.yaxis)
    panels[0].set_ylabel("f(last) − f*")
    panels[0].legend(loc="upper left")
    for axes in panels[1:]:
        axes.set_ylim(panels[0].get_ylim())
    heading(figure, "Clipping removes the tail")
    return figure


@styled
def rate(rows: Sequence[Row]) -> Any:
    """Draw the gap against the steps: the left panel without privacy, the right panel with it."""
    figure, (left, right) = new_figure(1, 2, size=(9.0, 4.2))
    steps = [row["steps"] for row in rows]
    left.loglog(steps, [row["C = 4: 95 % over floor"] for row in rows], "o-", label="C = 4: 95 % minus floor")
    left.loglog(steps, [row["C = 16: 95 % over floor"] for row in rows], "o-", label="C = 16: 95 % minus floor")
    left.loglog(steps, [row["growing C: median"] for row in rows], "o-", label="growing C: median")
    guide = rows[0]["C = 4: 95 % over floor"] * 1.6
    left.loglog(steps, [guide * (k / steps[0]) ** -0.5 for k in steps], color=FAINT, lw=1, ls="--", label="1 / √steps")
    left.set(title="without privacy", xlabel="steps", ylabel="f(average) − f*")
    left.legend()
    right.loglog(steps, [row["C = 4, epsilon 8: 95 %"] for row in rows], "o-", label="C = 4")
    right.loglog(steps, [row["growing C, epsilon 8: 95 %"] for row in rows], "o-", color=PALETTE[2], label="growing C")
    right.set(title="with privacy, ε = 8: 95 % quantile", xlabel="steps")
    right.legend()
    for axes in (left, right):
        plain_log(axes.xaxis, steps)
        plain_log(axes.yaxis)
    heading(figure, "A threshold that grows with the steps helps without privacy, and hurts with it")
    return figure
