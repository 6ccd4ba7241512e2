"""The charts of a run's page, as SVG that stands in the page itself: colours follow the page, points have tooltips."""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from tacita.accounting.gaussian import gaussian_mu
from tacita.ledger.text_lines import percent_up, rounded_up
from tacita.report.run_numbers import DELTAS, RATES, RunNumbers
from tacita.report.style import PALETTE, new_figure, plain_log, styled
from tacita.tables import TableModel
from tacita.tables.shapes import Shape, least_rows

TEXT, LINES = "#010203", "#040506"  # stand for colours of the page, which CSS knows
SIZE = (5.2, 3.3)
MOST_SHAPES, MOST_LABELS, LONGEST_WORDS = 6, 12, 25  # shapes that are drawn, their labels, and characters of a label


@dataclass(frozen=True)
class RunChart:
    """A chart, with the same numbers as a table.

    Attributes:
        title: What it shows, in a few words.
        says: What a reader sees in it, in a sentence.
        svg: The picture.
        header, rows: The table.
    """

    title: str
    says: str
    svg: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def charts_of(run: RunNumbers) -> list[RunChart]:
    """Return the charts that the run has numbers for; without a guarantee there are none of epsilon."""
    curves = (_by_delta, _tradeoff, _by_steps, _by_session) if run.verdict.guaranteed else ()
    found = (*(curve(run) for curve in curves), _public_losses(run))
    return [*(chart for chart in found if chart is not None), *score_charts([run])]


def _by_delta(run: RunNumbers) -> RunChart | None:
    if len(run.by_delta) < 2:
        return None
    rows = tuple((f"{delta:g}", rounded_up(value)) for delta, value in run.by_delta)

    def draw(axes: Any) -> None:
        _line(axes, run.by_delta, [f"epsilon {value} at delta {delta}" for delta, value in rows])
        axes.set(xscale="log", xlabel="delta", ylabel="epsilon", ylim=(0, None))

    says = "The same run, read at other deltas: a smaller delta has a larger epsilon."
    if none := [delta for delta in DELTAS if delta < run.by_delta[0][0]]:
        says += f" Nothing is guaranteed at a delta of {none[-1]:g} or less."
    return RunChart("Epsilon against delta", says, _svg(draw), ("delta", "epsilon at most"), rows)


def _tradeoff(run: RunNumbers) -> RunChart | None:
    if not run.by_delta:
        return None
    rates = np.geomspace(1e-4, 1.0, 200)
    most = run.most_true_positives(rates)
    shown = run.most_true_positives(np.array(RATES))
    rows = tuple((f"{rate:g}", percent_up(value)) for rate, value in zip(RATES, shown, strict=True))

    def draw(axes: Any) -> None:
        axes.fill_between(rates, rates, most, color=PALETTE[0], alpha=0.15, linewidth=0)
        axes.plot(rates, most, color=PALETTE[0], label="at most")
        axes.plot(rates, rates, color=LINES, linestyle=(0, (4, 2)), linewidth=1.2, label="guessing")
        _points(axes, RATES, shown.tolist(), [f"{value} found at {rate} false alarms" for rate, value in rows])
        axes.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.3))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        plain_log(axes.xaxis)
        plain_log(axes.yaxis)
        axes.legend(loc="lower right")

    says = "How often any attack on one unit can be right, against how often it raises a false alarm."
    return RunChart("What an attack can find", says, _svg(draw), ("false alarms", "found at most"), rows)


def _by_steps(run: RunNumbers) -> RunChart | None:
    if len(run.by_steps) < 2:
        return None
    rows = tuple((f"{made:,.0f}", rounded_up(value)) for made, value in run.by_steps)

    def draw(axes: Any) -> None:
        _line(axes, run.by_steps, [f"epsilon {value} after {made} {steps}" for made, value in rows])
        axes.set(xlabel=f"{steps} of the training", ylabel="epsilon", xlim=(0, None), ylim=(0, None))

    steps, who = ("rounds", "client that takes part") if run.clients else ("steps", "record that is trained on")
    says = f"Epsilon of the same plan with fewer {steps}, other purchases included, for a {who}."
    return RunChart(f"Epsilon against {steps}", says, _svg(draw), (steps, "epsilon at most"), rows)


def _public_losses(run: RunNumbers) -> RunChart | None:
    """Return the loss on public rows along the run: it follows from releases, so that the guarantee covers it."""
    if len(run.public_losses) < 2:
        return None
    rows = tuple((f"{made:,.0f}", f"{loss:.4g}") for made, loss in run.public_losses)

    def draw(axes: Any) -> None:
        _line(axes, run.public_losses, [f"loss {loss} after {made} steps" for made, loss in rows])
        axes.set(xlabel="steps of the training", ylabel="loss on public rows", xlim=(0, None))

    says = (
        "The loss on rows that were declared public, as the training went on. It follows from what was released, so "
        "that the guarantee covers it, if those rows are public."
    )
    return RunChart("Loss on public rows", says, _svg(draw), ("steps", "loss"), rows)


def _by_session(run: RunNumbers) -> RunChart | None:
    """Return the bars of the sessions; ``None`` for fewer than two, since a single bar would repeat the epsilon."""
    if len(run.by_session) < 2:
        return None
    whole, *parts = [
        gaussian_mu(e, run.fields["delta"]) ** 2 for e in (run.fields["epsilon"], *run.by_session.values())
    ]
    shares = [100 * part / whole for part in parts]
    rows = tuple(
        (name, rounded_up(value), f"{share:.1f} %")
        for (name, value), share in zip(run.by_session.items(), shares, strict=True)
    )

    def draw(axes: Any) -> None:
        bars = axes.barh([name for name, *_ in rows[::-1]], shares[::-1], color=PALETTE[0], height=0.6)
        for bar, (name, value, share) in zip(bars, rows[::-1], strict=True):
            bar.set_gid(_tip(axes, f"{name}: {share}; alone epsilon {value}"))
        axes.set(xlabel="share of the budget, mu^2, in percent", xlim=(0, max(100, *shares)))
        axes.grid(axis="y", visible=False)

    says = (
        "What each session takes of the budget, measured by mu^2 of the Gaussian query with its epsilon: such shares "
        "add up, while epsilons do not. Sessions on different rows may each take all that is left."
    )
    return RunChart("Where the budget went", says, _svg(draw), ("session", "epsilon alone", "share"), rows)


def score_charts(runs: Sequence[RunNumbers]) -> list[RunChart]:
    """Return a chart for each measure: the scores of runs with their intervals, beside a constant guess."""
    found = [(run.folder.name, run.fields.get("holdout_score")) for run in runs if run.verdict.verified]
    by_measure: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, score in found:
        if isinstance(score, dict) and score.get("value") is not None:
            by_measure.setdefault(str(score.get("measure", "score")), []).append((name, score))
    return [_score_chart(measure, scores) for measure, scores in by_measure.items()]


def _score_chart(measure: str, scores: Sequence[tuple[str, dict[str, Any]]]) -> RunChart:
    rows = tuple(_score_row(name, score) for name, score in scores)

    def draw(axes: Any) -> None:
        places = range(len(scores))
        for place, (name, score) in zip(places, scores, strict=True):
            low, high = score.get("interval", (score["value"], score["value"]))
            axes.plot([low, high], [place, place], color=PALETTE[0], linewidth=5, alpha=0.6)
            _points(axes, [score["value"]], [place], [", ".join(_score_row(name, score)[:4])])
            guess = score.get("constant_guess")
            if isinstance(guess, dict):
                axes.plot([guess["value"]] * 2, [place - 0.3, place + 0.3], color=PALETTE[1], linewidth=2)
        axes.set_yticks(list(places), [name for name, _ in scores])
        axes.set(ylim=(-0.6, len(scores) - 0.4), xlabel=measure)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)

    says = "The held-out score with its interval (band), beside that of a constant guess (orange line)."
    svg = _svg(draw, height=1.4 + 0.4 * len(scores))
    return RunChart(
        f"Score: {measure}", says, svg, ("run", "score", "interval", "constant guess", "AUC", "its interval"), rows
    )


def _score_row(name: str, score: dict[str, Any]) -> tuple[str, ...]:
    given = score.get("AUC")
    area = given if isinstance(given, dict) and isinstance(given.get("value"), float) else None
    guess = score.get("constant_guess")
    return (
        name,
        f"{score.get('measure')} {score['value']:.3f}",
        _ends(score),
        f"{guess['value']:.3f}" if isinstance(guess, dict) else "-",
        *((f"{area['value']:.3f}", _ends(area)) if area else ("-", "-")),
    )


def _ends(score: dict[str, Any]) -> str:
    low, high = score.get("interval", (None, None))
    return "exact" if low is None else f"{low:g} to {high:g}"


def shape_charts(model: TableModel) -> list[RunChart]:
    """Return the shapes of the columns that decide most in a linear or additive model, the largest first."""
    classes, least = model.encoder.classes, least_rows(model.preprocessing.survey)
    outputs = classes if len(classes) > 2 else ("value",)
    return [_shape_chart(shape, outputs, least) for shape in model.shapes()[:MOST_SHAPES] if shape.importance > 0]


def _shape_chart(shape: Shape, outputs: Sequence[str], least: float) -> RunChart:
    cells, values = [" ".join(cell.split()) for cell in shape.cells], np.array(shape.values)
    pale = [shape.bought and rows < least for rows in shape.rows]
    drawn = list(zip(outputs, PALETTE, values.T, strict=False))

    def draw(axes: Any) -> None:
        places, width = np.arange(len(cells)), 0.85 / len(drawn)
        axes.axhline(0, color=LINES, linewidth=0.8)
        for number, (output, color, heights) in enumerate(drawn):
            own = places + (number - (len(drawn) - 1) / 2) * width
            bars = axes.bar(own, heights, width, color=color, label=_no_formula(output))
            for bar, cell, value, faint in zip(bars, cells, heights, pale, strict=True):
                bar.set(gid=_tip(axes, f"{cell}: {output} {value:+.3g}"), alpha=0.35 if faint else None)
        named = places[:: -math.ceil(len(cells) / MOST_LABELS)]  # from the end, where missing cells are
        axes.set_xticks(named, [_no_formula(_short(cells[i])) for i in named], rotation=35, ha="right", fontsize=8)
        axes.set(ylabel="value less the mean")
        axes.grid(axis="x", visible=False)
        if len(drawn) > 1:
            for patch in axes.legend(loc="upper left", bbox_to_anchor=(1, 1)).legend_handles:
                patch.set_alpha(None)  # the first bar may be pale

    says = "A bar for each cell: its value less the mean of all rows."
    if len(drawn) < len(outputs):
        says += f" Of {len(outputs)} classes the first {len(drawn)} are drawn."
    if any(pale):
        says += " Pale: a cell of few rows, which may well be empty."
    rows = tuple(
        (cell, *(f"{value:+.3g}" for value in own), f"{count:,.0f}" if shape.bought else "-")
        for cell, own, count in zip(cells, shape.values, shape.rows, strict=True)
    )
    header = ("cell", *map(_short, outputs), "rows, about")
    return RunChart(f"Shape of {_short(shape.column)}", says, _svg(draw), header, rows)


def _short(words: str) -> str:
    """Return words of a table in one line that fits beside a picture.

    Example:
        >>> _short("Bachelor\\nof something that is very long")
        'Bachelor of something th…'
    """
    words = " ".join(words.split())
    return words if len(words) <= LONGEST_WORDS else f"{words[: LONGEST_WORDS - 1]}…"


def _no_formula(words: str) -> str:
    """Return words in which matplotlib takes no dollar for the start of a formula."""
    return words.replace("$", r"\$")


def with_own_ids(svg: str, name: str) -> str:
    """Return the picture with ``name`` in front of all its ids, so that a page may hold several.

    Example:
        >>> with_own_ids('<g id="a"/><use xlink:href="#a" clip-path="url(#b)"/>', "c")
        '<g id="c-a"/><use xlink:href="#c-a" clip-path="url(#c-b)"/>'
    """
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)


# --- drawing ---------------------------------------------------------------------------------------------------------

_TIPS = "tips"  # the attribute of axes that holds the texts of its tooltips


def _tip(axes: Any, text: str) -> str:
    """Keep a tooltip's text, and return the id of the part of the picture that it belongs to."""
    tips = axes.__dict__.setdefault(_TIPS, [])
    tips.append(text)
    return f"tip-{len(tips) - 1}"


def _line(axes: Any, points: Sequence[tuple[float, float]], tips: Sequence[str]) -> None:
    x, y = zip(*points, strict=True)
    axes.plot(x, y, color=PALETTE[0])
    _points(axes, x, y, tips)


def _points(axes: Any, x: Sequence[float], y: Sequence[float], tips: Sequence[str]) -> None:
    for one, other, tip in zip(x, y, tips, strict=True):
        axes.plot([one], [other], "o", color=PALETTE[0], markersize=7, gid=_tip(axes, tip), zorder=3)


@styled
def _svg(draw: Callable[[Any], None], height: float = SIZE[1]) -> str:
    """Return a picture without a background, whose texts and lines take the colours of the page."""
    import matplotlib as mpl

    colors: Any = {name: TEXT for name in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")}
    colors |= {"axes.edgecolor": LINES, "grid.color": LINES}
    settings = {**colors, "svg.fonttype": "path", "svg.hashsalt": "tacita", "grid.alpha": 0.25}
    # A letter that the font lacks is drawn as a box; the table beside the picture has it.
    with mpl.rc_context(settings), warnings.catch_warnings(action="ignore", category=UserWarning):
        figure, axes = new_figure(size=(SIZE[0], height))
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _in_page(buffer.getvalue(), axes.__dict__.get(_TIPS, []))


def _in_page(svg: str, tips: Sequence[str]) -> str:
    """Cut the picture out of its document, let it follow the page's colours, and give it its tooltips."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1), count=1
    )
    svg = svg.replace(TEXT, "currentColor").replace(LINES, "var(--line)")
    for number, tip in enumerate(tips):
        svg = svg.replace(f'<g id="tip-{number}">', f'<g class="tip"><title>{escape(tip)}</title>', 1)
    return svg
