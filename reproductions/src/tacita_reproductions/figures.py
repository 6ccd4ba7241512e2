"""The figures of all experiments, drawn from their tables."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tacita.report.style import FAINT, INK, PALETTE, heading, new_figure, plain_log, styled
from tacita_reproductions.runner import Row

SHARES = (0.25, 0.5, 0.75, 1.0)  # of a run, at which noisy SGD's accuracy is measured


def _column(rows: Iterable[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


def _names(rows: Iterable[Row], *columns: str) -> list[Any]:
    """Return the different values of a column, or of several columns together, in their order."""
    return list(dict.fromkeys(row[columns[0]] if len(columns) == 1 else tuple(row[c] for c in columns) for row in rows))


def _panels(count: int, width: float, more: float, height: float, *, least: float = 0.0) -> tuple[Any, Any]:
    figure, axes = new_figure(1, count, size=(max(width * count + more, least), height))
    return figure, np.atleast_1d(axes)


def _bars(axes: Any, x: Sequence[Any], rows: Sequence[Row], value: str, error: str, **style: Any) -> None:
    """Draw a column's means against x, with bars of its errors, none where the error is ``None``."""
    errors = [row[error] or 0.0 for row in rows]
    axes.errorbar(x, _column(rows, value), yerr=errors, **{"fmt": "o-", "capsize": 2, **style})


# -- Clip21-SGDM


@styled
def tuned(
    rows: Sequence[Row],
    value: str,
    column: str,
    says: str,
    *,
    reached: str = "",
    of: Sequence[str] = ("data",),
    width: float = 4.2,
) -> Any:
    """Draw what each method reaches against a column: a panel for each table, or combination of the columns ``of``.

    Args:
        rows, value, column: The table, and the columns that are drawn.
        says, reached: The names of the axes; by default ``value`` is its own.
        of, width: Which columns a panel has a value of, and its width in inches.
    """
    names, linear = _names(rows, *of), value == "test accuracy"
    figure, axes = _panels(len(names), width, 1, 3.6)
    for place, (panel, name) in enumerate(zip(axes, names, strict=True)):
        inside = [row for row in rows if _names([row], *of) == [name]]
        for color, method in zip(PALETTE, _names(inside, "method"), strict=False):
            mine = sorted((row[column], row[value]) for row in inside if row["method"] == method)
            draw = panel.semilogx if linear else panel.loglog
            draw(*zip(*mine, strict=True), "o-", color=color, label=None if place else method)
        plain_log(panel.xaxis, sorted(set(_column(inside, column))))
        if not linear:
            plain_log(panel.yaxis)
        title = name if isinstance(name, str) else ", ".join(name)
        panel.set(title=title, xlabel=says, ylabel="" if place else reached or value)
    figure.legend(loc="outside lower center", ncols=min(4 if len(of) == 1 else 3, 2 * len(names)))
    heading(figure, f"The {value} that is reached, {'without' if column == 'threshold' else 'with'} noise")
    return figure


# -- heavy-tailed convex learning


def _risks(panels: Sequence[str | None], width: float, more: float, height: float) -> tuple[Any, Any]:
    figure, axes = _panels(len(panels), width, more, height)
    for panel, title in zip(axes, panels, strict=True):
        panel.set(xscale="log", yscale="log", title=title or "")
    axes[0].set(ylabel="excess risk, mean of runs")
    return figure, axes


@styled
def against_records(
    rows: Sequence[Row], names: Sequence[str], title: str, *, start: float | None = None, shades: int = 1
) -> Any:
    """Draw one line a method against the number of records, and the excess risk at the start.

    Args:
        rows, names, title, start: The table, the methods, the heading, and the excess risk before the first step.
        shades: How many methods in a row share a colour; all but the first of them are pale.
    """
    figure, (axes,) = _risks([None], 0, 7.4, 4.4)
    for place, name in enumerate(names):
        here = [row for row in rows if row["method"] == name]
        pale = {"alpha": 0.4} if place % shades else {}
        color = [*PALETTE, INK][place // shades]
        _bars(axes, _column(here, "n"), here, "excess risk", "s.e.", label=name, color=color, **pale)
    axes.set(xlabel="records")
    if start is not None:
        axes.axhline(start, color=FAINT, lw=1, ls=":")
    return _beside(figure, axes, rows, title)


def _beside(figure: Any, axes: Any, rows: Sequence[Row], title: str) -> Any:
    plain_log(axes.xaxis, sorted(set(_column(rows, "n"))))
    figure.legend(loc="outside right center")
    heading(figure, title)
    return figure


@styled
def acceleration(rows: Sequence[Row]) -> Any:
    """Draw both methods against the number of steps, one panel for each privacy level."""
    ratios = sorted(set(_column(rows, "mu")))
    figure, panels = _risks([f"μ = {mu:g}" for mu in ratios], 3.6, 1.4, 4.0)
    for axes, mu in zip(panels, ratios, strict=True):
        here = [row for row in rows if row["mu"] == mu]
        axes.set(xlabel="steps", ylabel="excess risk, mean of runs")
        for name, color in zip(("accelerated", "averaged"), PALETTE, strict=False):
            _bars(axes, _column(here, "T"), here, name, f"{name}, s.e.", label=name, color=color)
        plain_log(axes.xaxis, _column(here, "T"))
        axes.legend()
    heading(figure, "Acceleration pays once there are enough steps")
    return figure


@styled
def rates(rows: Sequence[Row]) -> Any:
    """Draw the excess risk against the number of records, one panel a kind of risk, one line an order."""
    kinds = _names(rows, "risk")
    figure, panels = _risks(kinds, 0, 8.4, 4.0)
    for axes, kind in zip(panels, kinds, strict=True):
        axes.set(xlabel="records")
        for order, color in zip(sorted(set(_column(rows, "k"))), PALETTE, strict=False):
            here = [row for row in rows if (row["risk"], row["k"]) == (kind, order)]
            sizes, first = _column(here, "n"), here[0]["excess risk"]
            _bars(axes, sizes, here, "excess risk", "s.e.", label=f"k = {order}", color=color, capsize=0)
            power = (1 if kind == kinds[0] else 2) * (order - 1) / order
            axes.plot(sizes, [first * (n / sizes[0]) ** -power for n in sizes], color=FAINT, lw=1, ls=":")
        axes.legend()
    heading(figure, "Measured excess, and the theory's slopes (dotted)")
    return figure


@styled
def mean_oracles(rows: Sequence[Row], names: Sequence[str]) -> Any:
    """Draw the squared noise of each mean oracle against the number of users; dots are measured errors."""
    figure, axes = new_figure(size=(7.4, 4.2))
    for name, color in zip(names, [INK, *PALETTE], strict=False):
        here = [row for row in rows if row["method"] == name]
        axes.loglog(_column(here, "n"), _column(here, "noise, squared"), color=color, label=name)
        known = [row for row in here if row["squared error"] is not None]
        axes.plot(_column(known, "n"), _column(known, "squared error"), "o", color=color)
    axes.set(xlabel="users", ylabel="squared error of the mean")
    return _beside(figure, axes, rows, "Noise of a mean (lines), and its whole error (dots)")


# -- DiceSGD, and error feedback in one pass


@styled
def lines(rows: Sequence[Row], across: str, of: str, measure: str, title: str, *, log: bool = True) -> Any:
    """Draw mean and spread against ``across``: a panel for each data set, a line for each value of ``of``."""
    names, values = _names(rows, "data"), _names(rows, of)
    figure, axes = _panels(len(names), 4.2, 1, 4.2, least=6.5)
    for place, (panel, name) in enumerate(zip(axes, names, strict=True)):
        for color, value in zip(PALETTE, values, strict=False):
            mine = [row for row in rows if (row["data"], row[of]) == (name, value) and row[across] is not None]
            mine.sort(key=lambda row: row[across])
            label = None if place else value if isinstance(value, str) else f"{of} {value:g}"
            if mine:
                _bars(panel, _column(mine, across), mine, "mean", "s.d.", label=label, color=color)
        if log:
            panel.set_xscale("log")
            plain_log(panel.xaxis, sorted({row[across] for row in rows if row[across] is not None}))
        panel.set(title=name, xlabel=across, ylabel="" if place else measure)
    figure.legend(loc="outside lower center", ncols=min(3, 1 + len(names)))  # names of methods are long
    heading(figure, title)
    return figure


@styled
def quartiles(rows: Sequence[Row]) -> Any:
    """Draw a row for each method and a colour for each epsilon; dots are medians, bars are quartiles."""
    names = _names(rows, "method")[::-1]
    epsilons = sorted(set(_column(rows, "epsilon")))
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


# -- noisy SGD


@styled
def accuracies(rows: Sequence[Row], part: str, title: str) -> Any:
    """Draw the mean accuracy and the band from least to most against the epochs: a panel for each method with noise."""
    plain = [row for row in rows if row["nominal epsilon"] is None]
    methods = [name for name in _names(rows, "method") if name != plain[0]["method"]]
    figure, axes = _panels(len(methods), 4.2, 1.4, 4.2)
    for place, (panel, method) in enumerate(zip(axes, methods, strict=True)):
        mine = plain + [row for row in rows if row["method"] == method]
        for row, color in zip(mine, (INK, *PALETTE, INK), strict=False):
            named = "SGD" if row["nominal epsilon"] is None else f"nominal ε = {row['nominal epsilon']:g}"
            means = [row[f"{part} after {share:.0%}"] for share in SHARES]
            label = None if place else named
            panel.plot(SHARES, means, marker="o", color=color, ls="--" if row in plain else "-", label=label)
            low, high = ([row[f"{part}, {end}"]] for end in ("least", "most"))
            panel.fill_between([0.97, 1.0], low * 2, high * 2, color=color, alpha=0.2, lw=0)
        panel.set(
            title=method, xlabel="share of the steps", ylabel=f"{part} accuracy", ylim=(0, 1.1 * panel.get_ylim()[1])
        )
    figure.legend(loc="outside lower center", ncols=4)
    heading(figure, title)
    return figure


@styled
def descent(rows: Sequence[Row]) -> Any:
    """Draw the share of stationary iterates and the gradient norm against epsilon."""
    noisy = [row for row in rows if row["epsilon"] is not None]
    epsilons = _column(noisy, "epsilon")
    figure, (left, right) = new_figure(1, 2, size=(8.4, 3.8))
    left.semilogx(epsilons, _column(noisy, "share of stationary iterates"), "o-", color=PALETTE[0])
    left.axhline(0.5, color=PALETTE[1], lw=1, ls=":")
    left.set(xlabel="epsilon", ylabel="share of stationary iterates", ylim=(0, 1))
    right.loglog(epsilons, _column(noisy, "mean gradient norm"), "o-", color=PALETTE[0])
    right.set(xlabel="epsilon", ylabel="mean gradient norm")
    for axes in (left, right):
        plain_log(axes.xaxis, epsilons)
    plain_log(right.yaxis)
    heading(figure, "More privacy, more noise; half of the iterates are stationary from ε = 1/2 on")
    return figure


# -- DP-Clipped-SGD


@styled
def floor(rows: Sequence[Row]) -> Any:
    """Draw the measured gaps and the line that predicts them."""
    figure, axes = new_figure(size=(6.4, 4.2))
    c = _column(rows, "C")
    axes.loglog(c, _column(rows, "predicted gap"), color=FAINT, label="predicted")
    axes.loglog(c, _column(rows, "median gap"), "o", color=PALETTE[0], ms=7, label="measured, median of runs")
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
    c = _column(rows, "C")
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
    degrees = sorted(set(_column(rows, "degrees")))
    figure, panels = _panels(len(degrees), 3.8, 1.2, 4.0)
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
    steps = _column(rows, "steps")
    left.loglog(steps, _column(rows, "C = 4: 95 % over floor"), "o-", label="C = 4: 95 % minus floor")
    left.loglog(steps, _column(rows, "C = 16: 95 % over floor"), "o-", label="C = 16: 95 % minus floor")
    left.loglog(steps, _column(rows, "growing C: median"), "o-", label="growing C: median")
    guide = rows[0]["C = 4: 95 % over floor"] * 1.6
    left.loglog(steps, [guide * (k / steps[0]) ** -0.5 for k in steps], color=FAINT, lw=1, ls="--", label="1 / √steps")
    left.set(title="without privacy", xlabel="steps", ylabel="f(average) − f*")
    left.legend()
    right.loglog(steps, _column(rows, "C = 4, epsilon 8: 95 %"), "o-", label="C = 4")
    right.loglog(steps, _column(rows, "growing C, epsilon 8: 95 %"), "o-", color=PALETTE[2], label="growing C")
    right.set(title="with privacy, ε = 8: 95 % quantile", xlabel="steps")
    right.legend()
    for axes in (left, right):
        plain_log(axes.xaxis, steps)
        plain_log(axes.yaxis)
    heading(figure, "A threshold that grows with the steps helps without privacy, and hurts with it")
    return figure
