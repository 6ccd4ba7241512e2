"""The figure of error feedback in one pass, drawn from its table."""

from collections.abc import Sequence
from typing import Any

from tacita.report.style import PALETTE, heading, new_figure, plain_log, styled
from tacita_reproductions.runner import Row


@styled
def risks(rows: Sequence[Row]) -> Any:
    """Draw a row for each method and a colour for each epsilon; dots are medians, bars are quartiles."""
    names = list(dict.fromkeys(row["method"] for row in rows))[::-1]
    epsilons = sorted({row["epsilon"] for row in rows})
    figure, axes = new_figure(size=(7.2, 1.2 + 0.4 * len(names)))
    for color, epsilon in zip(PALETTE, epsilons, strict=False):
        found = {row["method"]: row for row in rows if row["epsilon"] == epsilon}
        middle, low, high = (
            [found[name][column] for name in names]
            for column in ("median excess risk", "lower quartile", "upper quartile")
        )
        axes.hlines(range(len(names)), low, high, color=color, lw=2, alpha=0.5)
        axes.plot(middle, range(len(names)), "o", color=color, ms=7, label=f"ε = {epsilon:g}")
    axes.set(xscale="log", xlabel="excess risk, median of runs and quartiles")
    axes.set_yticks(range(len(names)), names)
    plain_log(axes.xaxis)
    if len(epsilons) > 1:
        figure.legend(loc="outside right center")
    heading(figure, "One pass: giving back the error in small shares needs less noise")
    return figure
