"""The grid: what a file may say, and with which chance each point is drawn."""

import numpy as np
import pytest
import scipy.stats

from tacita.random import Key
from tacita.tables import Grid, Sweep

FILE = """
mean_runs = 4
shape = inf
pad_to = 9
[grid]
lr = [0.1, 1]
model = ["linear", "mlp"]
[weights]
lr = [1, 3]
"""


def drawn(grid, count=20_000):
    key = Key.insecure(3)
    return np.bincount([grid.draw(key.stream("point", i)) for i in range(count)], minlength=len(grid.points))


def assert_chances(counts, chances):
    """Pearson's chi-square, false alarm 1e-6."""
    wanted = counts.sum() * np.asarray(chances)
    statistic = float(((counts - wanted) ** 2 / wanted).sum())
    assert statistic < scipy.stats.chi2.isf(1e-6, len(wanted) - 1), "not these chances"


def test_every_point_is_as_likely():
    grid = Grid({"lr": (0.1, 1.0, 2.0), "width": (8, 16)})
    assert_chances(drawn(grid), [1 / 6] * 6)
    with pytest.raises(AssertionError, match="not these chances"):
        assert_chances(drawn(grid), np.array([1.1, 1, 1, 1, 1, 0.9]) / 6)


def test_weights_make_a_value_likelier():
    grid = Grid({"lr": (0.1, 1.0), "width": (8, 16)}, weights={"lr": (1, 3)})
    assert_chances(drawn(grid), [1 / 8, 1 / 8, 3 / 8, 3 / 8])
    with pytest.raises(AssertionError, match="not these chances"):
        assert_chances(drawn(grid), [1 / 4] * 4)


def test_a_file():
    sweep = Sweep.from_toml(FILE)
    assert str(sweep.runs) == "Poisson, 4 on average"
    assert sweep.pad_to == 9
    assert sweep.shape_given
    assert sweep.grid.points == [
        {"lr": 0.1, "model": "linear"},
        {"lr": 0.1, "model": "mlp"},
        {"lr": 1, "model": "linear"},
        {"lr": 1, "model": "mlp"},
    ]
    assert sweep.grid.chances == pytest.approx([1 / 8, 1 / 8, 3 / 8, 3 / 8])
    assert sweep.to_dict()["shape"] == "inf"
    assert not Sweep.from_toml("mean_runs = 4\n[grid]\nlr = [1]").shape_given


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mean_runs =", "must be the text of a TOML file"),
        ("[grid]\nlr = [1]", "mean_runs is missing"),
        ("mean_runs = 5", "grid is missing"),
        ("mean_runs = 5\nmean = 3\n[grid]\nlr = [1]", r"unknown key 'mean'; .*\. Did you mean 'mean_runs'\?$"),
        ("mean_runs = '5'\n[grid]\nlr = [1]", "mean_runs must be a number"),
        ("mean_runs = true\n[grid]\nlr = [1]", "mean_runs must be a number"),
        ("mean_runs = 0.5\n[grid]\nlr = [1]", "mean_runs must be in"),
        ("mean_runs = 5\nshape = -1\n[grid]\nlr = [1]", "shape must be"),
        ("mean_runs = 5\npad_to = 0\n[grid]\nlr = [1]", "pad_to must be"),
        ("mean_runs = 5\npad_to = 2.5\n[grid]\nlr = [1]", "pad_to must be"),
        ("mean_runs = 5\ngrid = [1]", "grid must be a table"),
        ("mean_runs = 5\n[grid]\nlr = 1", "list of values for lr"),
        ("mean_runs = 5\n[grid]\nlr = []", "list of values for lr"),
        ("mean_runs = 5\n[grid]\nlr = 'abc'", "list of values for lr"),
        ("mean_runs = 5\n[grid]\nlr = [nan]", "texts and numbers for lr"),
        ("mean_runs = 5\n[grid]\nlr = [[1]]", "texts and numbers for lr"),
        ("mean_runs = 5\n[grid]\nlr = [1, 1.0]", "every value of lr once"),
        ("mean_runs = 5\n[grid]\nlr = [1, 2]\n[weights]\nlr = [1]", "as many as its values"),
        ("mean_runs = 5\n[grid]\nlr = [1, 2]\n[weights]\nlr = [1, 0]", "weights of lr must be"),
        ("mean_runs = 5\n[grid]\nlr = [1, 2]\n[weights]\nwidth = [1]", "weights must only name settings of the grid"),
        ("mean_runs = 5\n[grid]\n", "at least one setting"),
    ],
)
def test_a_wrong_file(text, message):
    with pytest.raises(ValueError, match=message):
        Sweep.from_toml(text)


def test_a_grid_has_an_end():
    with pytest.raises(ValueError, match="at most 100000 combinations"):
        Grid({name: tuple(range(50)) for name in "abcd"})
