"""How figures look: one palette, quiet axes. matplotlib is optional and loaded when a figure is drawn.

Place: the ground of every figure; draws nothing itself.
"""

import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tacita.errors import TacitaError

P = ParamSpec("P")
T = TypeVar("T")

# Okabe and Ito's palette, in an order in which neighbours differ in lightness too: it serves the colour-blind.
INK, GRID, FAINT = "#22262b", "#e6e8eb", "#8a9099"
SHORT_RANGE = 300  # below it, 2 and 5 get ticks too
WRITTEN_OUT = (1e-4, 1e6)  # numbers outside are written as powers
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6bb3", "#5a5a5a")

_RC = {
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Let ``draw`` draw in the house's style; no global setting is changed."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        need_matplotlib()
        import matplotlib as mpl
        from cycler import cycler

        settings: Any = {**_RC, "axes.prop_cycle": cycler(color=PALETTE)}
        with mpl.rc_context(settings):
            return draw(*args, **kwargs)

    return inside


def new_figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes (an array of them if there are several), to be saved or shown by the caller.

    No window is opened. Inside a function marked :func:`styled` it has the house's style.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


def need_matplotlib() -> None:
    """Say how to get matplotlib, if it is not there.

    Raises:
        TacitaError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise TacitaError(
            "a figure needs matplotlib, which is not installed: pip install 'tacita[report]'. Everything else works "
            "without it."
        ) from error


def image_kind(path: str | os.PathLike[str]) -> str:
    """The format that the name's ending asks for."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"plot must end in .png, .svg or .pdf, got {str(path)!r}.")
    return kind


def heading(figure: Any, text: str) -> None:
    """A title over the whole figure, flush left."""
    figure.suptitle(text, x=0.005, ha="left", fontsize=12.5, fontweight="bold", color=INK)


def plain_log(axis: Any, values: Sequence[float] | None = None) -> None:
    """Logarithmic ticks written as plain numbers: at ``values``, or at 1 (and 2, 5 where the range is short).

    Args:
        axis: ``axes.xaxis`` or ``axes.yaxis``, its data drawn and its scale logarithmic.
        values: Where ticks shall be.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high / low < SHORT_RANGE else (1.0,)
    axis.set_major_locator(FixedLocator(list(values)) if values is not None else LogLocator(subs=steps, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _number(value: float) -> str:
    """1000 as 1,000 and 1e7 as 10⁷."""
    if not WRITTEN_OUT[0] <= value <= WRITTEN_OUT[1]:
        exponent = math.floor(math.log10(value) + 1e-9)
        factor = value / 10**exponent
        power = f"10$^{{{exponent}}}$"
        return power if abs(factor - 1) < 1e-6 else f"{factor:g}·{power}"
    return f"{value:,.0f}" if value >= 1 and value == int(value) else f"{value:g}"
