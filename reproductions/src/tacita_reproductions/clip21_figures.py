"""The figures of Clip21-SGDM, drawn from their tables."""

from collections.abc import Sequence
from typing import Any

from tacita.report.style import PALETTE, heading, new_figure, plain_log, styled
from tacita_reproductions.runner import Row


@styled
def thresholds(rows: Sequence[Row]) -> Any:
    """Draw the gradient norm against the threshold: a panel for each table and gradient noise."""
    panels = list(dict.fromkeys((row["data"], row["gradient noise"]) for row in rows))
    figure, axes = new_figure(1, len(panels), size=(3.6 * len(panels) + 1, 3.6))
    for place, (panel, name) in enumerate(zip(axes, panels, strict=True)):
        inside = [row for row in rows if (row["data"], row["gradient noise"]) == name]
        _curves(panel, inside, "threshold", "gradient norm", label=place == 0)
        panel.set(title=f"{name[0]}, {name[1]}", xlabel="threshold", ylabel="norm of the gradient" if not place else "")
    figure.legend(loc="outside lower center", ncols=3)
    heading(figure, "The gradient norm that is reached, without noise")
    return figure


@styled
def ratios(rows: Sequence[Row], column: str, says: str) -> Any:
    """Draw the gradient norm against the ratio, or against epsilon: a panel for each table."""
    return _panels(rows, column, says, "gradient norm", "The gradient norm that is reached, with noise")


@styled
def losses(rows: Sequence[Row], column: str, says: str) -> Any:
    """Draw the training loss against the ratio, or against epsilon: a panel for each network."""
    return _panels(rows, column, says, "training loss", "The training loss that is reached, with noise")


@styled
def accuracies(rows: Sequence[Row]) -> Any:
    """Draw the test accuracy against the threshold: a panel for each way of clipping."""
    title = "The test accuracy that is reached, without noise"
    return _panels(rows, "threshold", "threshold", "test accuracy", title, linear=True)


def _panels(rows: Sequence[Row], column: str, says: str, value: str, title: str, *, linear: bool = False) -> Any:
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = new_figure(1, len(names), size=(4.2 * len(names) + 1, 3.6))
    for place, (panel, name) in enumerate(zip([axes] if len(names) == 1 else axes, names, strict=True)):
        inside = [row for row in rows if row["data"] == name]
        _curves(panel, inside, column, value, label=place == 0, linear=linear)
        panel.set(title=name, xlabel=says, ylabel=value if not place else "")
    figure.legend(loc="outside lower center", ncols=min(4, 2 * len(names)))  # a panel is as wide as two names
    heading(figure, title)
    return figure


def _curves(axes: Any, rows: Sequence[Row], column: str, value: str, *, label: bool, linear: bool = False) -> None:
    for color, method in zip(PALETTE, dict.fromkeys(row["method"] for row in rows), strict=False):
        mine = sorted((row[column], row[value]) for row in rows if row["method"] == method)
        draw = axes.semilogx if linear else axes.loglog
        draw(*zip(*mine, strict=True), "o-", color=color, label=method if label else None)
    plain_log(axes.xaxis, sorted({row[column] for row in rows}))
    if not linear:
        plain_log(axes.yaxis)
