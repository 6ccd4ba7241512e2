"""The figures of noisy SGD, drawn from their tables: accuracy along the run for each nominal epsilon."""

from collections.abc import Sequence
from typing import Any

from tacita.report.style import INK, PALETTE, heading, new_figure, styled
from tacita_reproductions.runner import Row

SHARES = (0.25, 0.5, 0.75, 1.0)


@styled
def accuracies(rows: Sequence[Row], part: str, title: str) -> Any:
    """Draw the mean accuracy and the band from least to most against the epochs: a panel for each method with noise."""
    plain = [row for row in rows if row["nominal epsilon"] is None]
    methods = [name for name in dict.fromkeys(row["method"] for row in rows) if name != plain[0]["method"]]
    figure, axes = new_figure(1, len(methods), size=(4.2 * len(methods) + 1.4, 4.2))
    for place, (panel, method) in enumerate(zip([axes] if len(methods) == 1 else axes, methods, strict=True)):
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
