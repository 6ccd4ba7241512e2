"""The figures of Clip21: their legends fit, and accuracies are on a linear axis."""

import pytest

from tacita_reproductions.federated_grid import METHODS, RECORD

pytest.importorskip("matplotlib")

from tacita_reproductions import figures


def rows(names, methods, value):
    return [
        {"data": name, "method": method, "threshold": x, "ratio": x, value: 0.2 + place * x}
        for name in names
        for place, method in enumerate(methods)
        for x in (0.1, 1.0)
    ]


@pytest.mark.parametrize("names", [["CNN"], ["Duke", "Leukemia"]])
def test_a_legend_is_within_its_figure(names):
    figure = figures.tuned(
        rows(names, (*METHODS, RECORD), "training loss"), "training loss", "ratio", "noise-clipping ratio"
    )
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*METHODS, RECORD]
    inside, whole = legend.get_window_extent(), figure.bbox
    assert inside.x0 >= whole.x0
    assert inside.x1 <= whole.x1
    assert figure.axes[0].get_yscale() == "log"


def test_accuracies_are_on_a_linear_axis():
    figure = figures.tuned(
        rows(["global clipping", "layer-wise clipping"], METHODS, "test accuracy"),
        "test accuracy",
        "threshold",
        "threshold",
    )
    assert {(axes.get_xscale(), axes.get_yscale()) for axes in figure.axes} == {("log", "linear")}
