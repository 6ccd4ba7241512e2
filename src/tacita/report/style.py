"""The style of all figures. matplotlib is optional and is imported only when a figure is drawn."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tacita._extras import not_installed
from tacita.errors import TacitaError

P = ParamSpec("P")
T = TypeVar("T")

INK, GRID, FAINT = "#22262b", "#e6e8eb", "#8a9099"
SHORT_RANGE = 300  # a ratio of the axis' ends, below which 2 and 5 get ticks too
WRITTEN_OUT = (1e-4, 1e6)  # numbers outside are written as powers
# Okabe and Ito's palette for the colour-blind, in an order in which neighbours also differ in lightness.
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
    """Return ``draw`` with this module's style applied while it runs; global settings stay as they are."""

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
    """Return a figure and its axes (an array if there are several); no window is opened.

    The style is applied only inside a function decorated with :func:`styled`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


def need_matplotlib() -> None:
    """Raise ``TacitaError``, with the command that installs it, unless the extra [report] is installed.

    Raises:
        TacitaError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise TacitaError(f"figures and pages: {not_installed('matplotlib', 'report')}") from error


def image_kind(path: str | os.PathLike[str]) -> str:
    """Return the image format, ``png``, ``svg`` or ``pdf``, that the file's ending names."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"plot must end in .png, .svg or .pdf, got {str(path)!r}.")
    return kind


def heading(figure: Any, text: str) -> None:
    """Put a left-aligned title over the whole figure."""
    figure.suptitle(text, x=0.005, ha="left", fontsize=12.5, fontweight="bold", color=INK)


def plain_log(axis: Any, values: Sequence[float] | None = None) -> None:
    """Write the ticks of a logarithmic axis as plain numbers.

    Args:
        axis: ``axes.xaxis`` or ``axes.yaxis``, after its data were drawn and its scale was set to logarithmic.
        values: Positions of the ticks; ``None`` for powers of ten, and twice and five times them on a short range.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high / low < SHORT_RANGE else (1.0,)
    axis.set_major_locator(FixedLocator(list(values)) if values is not None else LogLocator(subs=steps, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _number(value: float) -> str:
    """Return 1000 as 1,000 and 1e7 as 10⁷."""
    if not WRITTEN_OUT[0] <= value <= WRITTEN_OUT[1]:
        exponent = math.floor(math.log10(value) + 1e-9)
        factor = value / 10**exponent
        power = f"10$^{{{exponent}}}$"
        return power if abs(factor - 1) < 1e-6 else f"{factor:g}·{power}"
    return f"{value:,.0f}" if value >= 1 and value == int(value) else f"{value:g}"
