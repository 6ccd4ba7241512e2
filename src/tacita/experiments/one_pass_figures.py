"""The figure of error feedback in one pass, drawn from its table.

Place: rows of an experiment -> [one_pass_figures] -> PNG, report.
"""

from collections.abc import Sequence
from typing import Any

from tacita.experiments.runner import Row
from tacita.report.style import FAINT, INK, PALETTE, heading, new_figure, plain_log, styled


@styled
def risks(rows: Sequence[Row]) -> Any:
    """Median excess risk against epsilon, a curve a method, quartiles as bars."""
    figure, axes = new_figure(size=(7.6, 4.4))
    epsilons = sorted({row["epsilon"] for row in rows})
    names = list(dict.fromkeys(row["method"] for row in rows))
    for name, color in zip(names, [INK, *PALETTE[:4], FAINT], strict=True):
        found = [row for row in rows if row["method"] == name]
        middle = [row["median excess risk"] for row in found]
        bars = [
            [row["median excess risk"] - row["lower quartile"] for row in found],
            [row["upper quartile"] - row["median excess risk"] for row in found],
        ]
        dashed = "--" if name.startswith("plain") else "-"
        axes.errorbar(epsilons, middle, bars, fmt="o", ls=dashed, color=color, capsize=2, ms=5, label=name)
    axes.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="excess risk, median of runs")
    plain_log(axes.xaxis, epsilons)
    plain_log(axes.yaxis)
    figure.legend(loc="outside right center")
    heading(figure, "One pass: error given back bit by bit needs less noise")
    return figure
