"""The figures of the saddle experiments, drawn from their tables."""

from collections.abc import Sequence
from typing import Any

from tacita.report.style import PALETTE, heading, new_figure, plain_log, styled
from tacita_reproductions.runner import Row


@styled
def private(rows: Sequence[Row]) -> Any:
    """Draw the share of stationary iterates and the gradient norm against epsilon."""
    noisy = [row for row in rows if row["epsilon"] is not None]
    epsilons = [row["epsilon"] for row in noisy]
    figure, (left, right) = new_figure(1, 2, size=(8.4, 3.8))
    left.semilogx(epsilons, [row["share of stationary iterates"] for row in noisy], "o-", color=PALETTE[0])
    left.axhline(0.5, color=PALETTE[1], lw=1, ls=":")
    left.set(xlabel="epsilon", ylabel="share of stationary iterates", ylim=(0, 1))
    right.loglog(epsilons, [row["mean gradient norm"] for row in noisy], "o-", color=PALETTE[0])
    right.set(xlabel="epsilon", ylabel="mean gradient norm")
    for axes in (left, right):
        plain_log(axes.xaxis, epsilons)
    plain_log(right.yaxis)
    heading(figure, "More privacy, more noise; half of the iterates are stationary from ε = 1/2 on")
    return figure
