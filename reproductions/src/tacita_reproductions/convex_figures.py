"""The figures of the experiments on heavy-tailed convex learning, drawn from their tables."""

from collections.abc import Sequence
from typing import Any

from tacita.report.style import FAINT, INK, PALETTE, heading, new_figure, plain_log, styled
from tacita_reproductions.runner import Row


def _line(axes: Any, x: Sequence[float], rows: Sequence[Row], name: str, color: str, **style: Any) -> None:
    """Draw a column's means against x, with bars of one standard error."""
    means, errors = [row[name] for row in rows], [row[f"{name}, s.e."] for row in rows]
    axes.errorbar(x, means, yerr=errors, fmt="o-", color=color, label=name, capsize=2, **style)


def _method(axes: Any, rows: Sequence[Row], name: str, color: str, **style: Any) -> None:
    """Draw a method's means against the number of records, with bars of one standard error."""
    here = [row for row in rows if row["method"] == name]
    sizes, means = [row["n"] for row in here], [row["excess risk"] for row in here]
    errors = [row["s.e."] for row in here]
    axes.errorbar(sizes, means, yerr=errors, fmt="o-", color=color, label=name, capsize=2, **style)


def _risks() -> tuple[Any, Any]:
    figure, axes = new_figure(size=(7.4, 4.4))
    axes.set(xscale="log", yscale="log", xlabel="records", ylabel="excess risk, mean of runs")
    return figure, axes


def _finished(figure: Any, axes: Any, rows: Sequence[Row], title: str) -> Any:
    plain_log(axes.xaxis, sorted({row["n"] for row in rows}))
    figure.legend(loc="outside right center")
    heading(figure, title)
    return figure


@styled
def against_records(rows: Sequence[Row], names: Sequence[str], start: float, title: str) -> Any:
    """Draw one line a method against the number of records, and the excess risk at the start."""
    figure, axes = _risks()
    for name, color in zip(names, [*PALETTE, INK], strict=False):
        _method(axes, rows, name, color)
    axes.axhline(start, color=FAINT, lw=1, ls=":")
    return _finished(figure, axes, rows, title)


@styled
def orders(rows: Sequence[Row], known: Sequence[float]) -> Any:
    """Draw planner and theorem for each order of the moment, against the number of records."""
    figure, axes = _risks()
    for order, color in zip(known, PALETTE, strict=False):
        _method(axes, rows, f"k = {order}, planner", color)
        _method(axes, rows, f"k = {order}, theorem", color, alpha=0.4)
    return _finished(figure, axes, rows, "A larger order helps while its moment is not too large")


@styled
def acceleration(rows: Sequence[Row]) -> Any:
    """Draw both methods against the number of steps, one panel for each privacy level."""
    ratios = sorted({row["mu"] for row in rows})
    figure, panels = new_figure(1, len(ratios), size=(1.4 + 3.6 * len(ratios), 4.0))
    for axes, mu in zip(panels if len(ratios) > 1 else [panels], ratios, strict=True):
        here = [row for row in rows if row["mu"] == mu]
        steps = [row["T"] for row in here]
        axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="excess risk, mean of runs", title=f"μ = {mu:g}")
        for name, color in zip(("accelerated", "averaged"), PALETTE, strict=False):
            _line(axes, steps, here, name, color)
        plain_log(axes.xaxis, steps)
        axes.legend()
    heading(figure, "Acceleration pays once there are enough steps")
    return figure


@styled
def rates(rows: Sequence[Row]) -> Any:
    """Draw the excess risk against the number of records, one panel a kind of risk, one line an order."""
    kinds = list(dict.fromkeys(row["risk"] for row in rows))
    figure, panels = new_figure(1, len(kinds), size=(8.4, 4.0))
    for axes, kind in zip(panels, kinds, strict=True):
        axes.set(xscale="log", yscale="log", xlabel="records", title=kind)
        for order, color in zip(sorted({row["k"] for row in rows}), PALETTE, strict=False):
            here = [row for row in rows if (row["risk"], row["k"]) == (kind, order)]
            sizes, means = [row["n"] for row in here], [row["excess risk"] for row in here]
            axes.errorbar(sizes, means, yerr=[row["s.e."] for row in here], fmt="o-", color=color, label=f"k = {order}")
            power = (1 if kind == kinds[0] else 2) * (order - 1) / order
            axes.plot(sizes, [means[0] * (n / sizes[0]) ** -power for n in sizes], color=FAINT, lw=1, ls=":")
        axes.legend()
    panels[0].set(ylabel="excess risk, mean of runs")
    heading(figure, "Measured excess, and the theory's slopes (dotted)")
    return figure


@styled
def mean_oracles(rows: Sequence[Row], names: Sequence[str]) -> Any:
    """Draw the squared noise of each mean oracle against the number of users; dots are measured errors."""
    figure, axes = new_figure(size=(7.4, 4.2))
    for name, color in zip(names, [INK, *PALETTE], strict=False):
        here = [row for row in rows if row["method"] == name]
        axes.loglog([row["n"] for row in here], [row["noise, squared"] for row in here], color=color, label=name)
        known = [row for row in here if row["squared error"] is not None]
        axes.plot([row["n"] for row in known], [row["squared error"] for row in known], "o", color=color)
    axes.set(xlabel="users", ylabel="squared error of the mean")
    return _finished(figure, axes, rows, "Noise of a mean (lines), and its whole error (dots)")
