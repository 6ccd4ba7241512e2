"""The plot of an audit."""

import sys
from dataclasses import replace

import pytest

from tacita.cli.named_audits import READY
from tacita.errors import TacitaError
from tacita.report import tradeoff
from tacita.report.tradeoff import save_tradeoff
from tacita.testing.audit import audit_oracle


@pytest.fixture(scope="module")
def result():
    case = READY["gaussian"]
    return audit_oracle(
        case.make("half"), relation=case.relation, delta=1e-2, runs=2000, adversaries=case.adversaries, columns=1
    )


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_it_is_saved_by_its_ending(result, tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve.{ending}"
    save_tradeoff(result, path)
    assert path.stat().st_size > 5000


def test_it_shows_claim_verdict_and_bound(result, tmp_path):
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    path = tmp_path / "curve.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        save_tradeoff(result, path)
    text = path.read_text()
    for words in ("refuted", "claimed at most (ε 2.32 at δ 0.01)", "measured, 2,000 runs a world", "95 % confidence"):
        assert words in text


def drawn(result, monkeypatch, tmp_path):
    """The figure that is saved."""
    figures = []
    make = tradeoff.new_figure

    def kept(*args, **kwargs):
        figures.append(make(*args, **kwargs))
        return figures[-1]

    monkeypatch.setattr(tradeoff, "new_figure", kept)
    save_tradeoff(result, tmp_path / "curve.png")
    figures[0][0].draw_without_rendering()
    return figures[0]


def test_only_rates_of_thirty_runs_are_drawn_with_a_band_of_both_errors(result, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    _, axes = drawn(result, monkeypatch, tmp_path)
    (measured,) = [line for line in axes.lines if line.get_label().startswith("measured")]
    assert measured.get_xdata()[0] == pytest.approx(30 / 2000, rel=0.05)
    (band,) = [shape for shape in axes.collections if "both rates" in shape.get_label()]
    low, high = result.roc.band()
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(low[result.roc.fpr > 29.5 / 2000].min())
    assert (low < result.roc.tpr_low)[result.roc.fpr < 0.1].all()
    assert (high > result.roc.tpr_high)[result.roc.fpr < 0.1].all()


@pytest.mark.parametrize("adversary", ["empty data set", "a row of constant gradients, three copies in a crowd of ten"])
def test_nothing_runs_past_the_edge_or_lies_on_a_curve(result, tmp_path, monkeypatch, adversary):
    pytest.importorskip("matplotlib")
    figure, axes = drawn(replace(result, adversary=adversary), monkeypatch, tmp_path)
    caption, page = axes.texts[0].get_window_extent(), figure.bbox
    assert page.x0 <= caption.x0
    assert caption.x1 <= page.x1
    assert caption.y1 <= axes.title.get_window_extent().y0 + 1
    (legend,) = figure.legends
    assert legend.get_window_extent().y1 <= axes.get_window_extent().y0
    assert legend.get_window_extent().x1 <= page.x1


def test_another_ending_is_refused(result, tmp_path):
    with pytest.raises(ValueError, match=r"plot must end in .png, .svg or .pdf"):
        save_tradeoff(result, tmp_path / "curve.gif")


def test_few_runs_are_drawn_too(tmp_path):
    pytest.importorskip("matplotlib")
    case = READY["gaussian"]
    few = audit_oracle(
        case.make("stated"), relation=case.relation, delta=1e-2, runs=20, adversaries=case.adversaries, columns=1
    )
    save_tradeoff(few, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000


def test_without_matplotlib_it_says_what_to_install(result, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TacitaError, match=r"pip install '\.\[report\]'"):
        save_tradeoff(result, tmp_path / "curve.png")
