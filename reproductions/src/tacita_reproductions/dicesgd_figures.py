"""The figures of the experiments on DiceSGD, drawn from their tables."""

from collections.abc import Sequence
from typing import Any

from tacita.report.style import PALETTE, heading, new_figure, plain_log, styled
from tacita_reproductions.runner import Row


@styled
def lines(rows: Sequence[Row], across: str, of: str, measure: str, title: str, *, log: bool = True) -> Any:
    """Draw mean and spread against ``across``: a panel for each data set, a line for each value of ``of``."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = new_figure(1, len(names), size=(max(4.2 * len(names) + 1, 6.5), 4.2))
    values = list(dict.fromkeys(row[of] for row in rows))
    for place, (panel, name) in enumerate(zip([axes] if len(names) == 1 else axes, names, strict=True)):
        for color, value in zip(PALETTE, values, strict=False):
            mine = sorted(
                (row[across], row["mean"], row["s.d."] or 0.0)
                for row in rows
                if row["data"] == name and row[of] == value and row[across] is not None
            )
            label = None if place else value if isinstance(value, str) else f"{of} {value:g}"
            if mine:
                x, means, spreads = zip(*mine, strict=True)
                panel.errorbar(x, means, yerr=spreads, fmt="o-", color=color, label=label, capsize=2)
        if log:
            panel.set_xscale("log")
            plain_log(panel.xaxis, sorted({row[across] for row in rows if row[across] is not None}))
        panel.set(title=name, xlabel=across, ylabel="" if place else measure)
    figure.legend(loc="outside lower center", ncols=min(3, 1 + len(names)))  # names of methods are long
    heading(figure, title)
    return figure
