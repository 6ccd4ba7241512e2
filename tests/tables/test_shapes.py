"""Shapes of a linear model: what each column adds, from weights and purchases alone."""

import json

import numpy as np
import pytest
import torch

import tacita
from tacita.cli.runs import explain_run
from tacita.tables import Encoder, Survey, train_table
from tacita.tables.features import BinsPiece, CategoryPiece, ClassTarget, Logarithm, NumberPiece, NumberTarget
from tacita.tables.models import ModelSpec
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.refinement import FINE_BINS, read_refinement
from tacita.tables.shapes import Shape, largest_terms, least_rows, shapes
from tacita.tables.survey import Bin, Facts

AGE = NumberPiece(column="age", lower=0.0, upper=4.0, centre=2.0, scale=1.0, steps=(2.0,))
KIND = CategoryPiece(column="kind", values=("a", "b"))
SURVEY = Survey(
    rows=100.0,
    columns=(
        Facts(column="age", kind="number", missing=10.0, bins=(Bin(0.0, 2.0, 60.0), Bin(2.0, 4.0, 30.0))),
        Facts(column="kind", kind="category", missing=0.0, values=(("a", 50.0), ("b", 30.0))),
    ),
    noise_std=1.0,
    threshold=5.0,
)
LOG = NumberTarget(column="y", lower=1.0, upper=9.0, centre=4.0, scale=2.0, log=Logarithm(centre=1.0, scale=0.5))


def preprocessing(target, survey=SURVEY):
    encoder = Encoder(pieces=(AGE, KIND), target=target, missing=("",))
    return Preprocessing(encoder=encoder, survey=survey, model=ModelSpec.of("linear", None, encoder), rows=100.0)


def test_a_shape_is_the_sum_of_a_columns_features_less_its_mean():
    weights = {"weight": torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.5, 2.0, -1.0]])}
    age, kind = shapes(preprocessing(ClassTarget(column="y", classes=("no", "yes"))), weights)
    assert age.cells == ("0 to 2", "2 to 4", "missing")
    raw = np.array([-1.0, 1.0 + 0.5, 0.0])
    rows = np.array([60.0, 30.0, 10.0])
    expected = raw - raw @ rows / 100
    assert np.array(age.values)[:, 0] == pytest.approx(expected)
    assert age.importance == pytest.approx((expected**2 @ rows / 100) ** 0.5)
    assert (kind.cells, kind.rows) == (("a", "b", "other"), (50.0, 30.0, 20.0))
    assert np.array(kind.values)[:, 0] == pytest.approx(np.array([2.0, -1.0, 0.0]) - 0.7)


@pytest.mark.parametrize(
    ("value", "bin", "counts", "expected"),
    [
        ("-1", Bin(-2, -1, 90.0), (10, 90), {"up to -1.98": 10, "-1": 90}),
        ("7", Bin(0, 4, 90.0), (60, 95), {"up to 0.08188": 60, "3.918 and above": 5, "7": 90}),
        ("0", Bin(0, 0, 90.0), (5, 98), {"0": 90, "other numbers": 13}),
    ],
)
def test_a_row_is_in_one_cell_and_end_bins_hold_what_lies_beyond_them(value, bin, counts, expected):
    """Else a value beyond the last edge counts twice, and its column looks important; and 5e-324 is shown."""
    facts = Facts(column="age", kind="number", missing=0.0, bins=(bin,), values=((value, 90.0),))
    survey = Survey(rows=100.0, columns=(facts,), noise_std=1.0, threshold=5.0)
    survey = read_refinement(survey, np.array([[counts[0], *[0] * (FINE_BINS - 2), counts[1]]]), 1.0)
    encoder = Encoder(pieces=(AGE, CategoryPiece(column="age", values=(value,))), target=LOG, missing=("",))
    model = ModelSpec.of("linear", None, encoder)
    weights = {"weight": torch.tensor([[1.0, 0.5, 2.0, 0.0]])}
    (age,) = shapes(Preprocessing(encoder=encoder, survey=survey, model=model, rows=100.0), weights)
    assert dict(zip(age.cells, age.rows, strict=True)) == expected


def test_a_number_of_which_no_bin_was_bought_has_one_cell():
    facts = Facts(column="x", kind="number", missing=0.0)
    survey = Survey(rows=100.0, columns=(facts,), noise_std=1.0, threshold=5.0)
    piece = NumberPiece(column="x", lower=0.0, upper=1.0, centre=0.5, scale=0.5)
    encoder = Encoder(pieces=(piece,), target=LOG, missing=("",))
    made = Preprocessing(encoder=encoder, survey=survey, model=ModelSpec.of("linear", None, encoder), rows=100.0)
    assert shapes(made, {"weight": torch.tensor([[2.0]])})[0].cells == ("any",)


def test_rows_that_noise_hid_are_in_the_shape():
    """Of 1,000 rows noise hid all but those of one end bin: the step above it decides, and is shown."""
    facts = Facts(column="x", kind="number", missing=0.0, bins=(Bin(1.0, 2.0, 200.0),))
    survey = Survey(rows=1000.0, columns=(facts,), noise_std=10.0, threshold=50.0)
    survey = read_refinement(survey, np.array([[800.0, *[3.0] * (FINE_BINS - 1)]]), 10.0)
    piece = NumberPiece(column="x", lower=1.005, upper=1.02, centre=1.0125, scale=0.005)
    encoder = Encoder(pieces=(piece,), target=LOG, missing=("",))
    made = Preprocessing(encoder=encoder, survey=survey, model=ModelSpec.of("linear", None, encoder), rows=1000.0)
    (shape,) = shapes(made, {"weight": torch.tensor([[2.0]])})
    assert sum(shape.rows) == pytest.approx(1000)
    assert (shape.cells[0], shape.cells[-1]) == ("up to 1.02", "1.98 and above")
    assert shape.values[-1][0] - shape.values[0][0] == pytest.approx(2.0 * 3 * 0.5)
    assert shape.importance == pytest.approx(3 * (0.8 * 0.2) ** 0.5, rel=1e-6)


def test_units_are_those_of_the_target_or_its_logarithm():
    weights = {"weight": torch.tensor([[1.0, 0.5, 2.0, -1.0]])}
    plain = NumberTarget(column="y", lower=1.0, upper=9.0, centre=4.0, scale=2.0)
    one, other = (shapes(preprocessing(target), weights)[1].importance for target in (plain, LOG))
    assert one == pytest.approx(4 * other)


def test_declared_columns_have_shapes_without_counts():
    weights = {"weight": torch.tensor([[1.0, 0.5, 2.0, -1.0]])}
    age, kind = shapes(preprocessing(LOG, survey=None), weights)
    assert not age.bought
    assert len(age.cells) == 32
    assert np.average(np.array(kind.values)[:, 0]) == pytest.approx(0.0, abs=1e-12)
    assert any(line.startswith("age") for line in largest_terms((age, kind), 1.0))


@pytest.mark.parametrize(("others", "highest"), [(1.0, "+3 (other, few rows or none)"), (20.0, "+3 (other)")])
def test_an_end_that_may_be_empty_is_marked(others, highest):
    shape = Shape(column="c", cells=("a", "b", "other"), rows=(50.0, 30.0, others), values=((-1.0,), (2.0,), (3.0,)))
    (line,) = largest_terms((shape,), 10.0)
    assert line.endswith(f"-1 (a); {highest}")


def test_noise_alone_is_no_end():
    """Of 500 refinements of 8 columns, whose rows are all in a bin of the first half, none names a bin of the other."""
    bought, noise, false = (Bin(0.0, 64.0, 6000.0),), np.random.default_rng(0), 0
    columns = tuple(Facts(column=f"c{i}", kind="number", missing=0.0, bins=bought) for i in range(8))
    survey = Survey(rows=6000.0, columns=columns, noise_std=49.4, threshold=200.0)
    exact = np.tile(np.where(np.arange(64) == 3, 6000.0, 0.0), (8, 1))
    for _ in range(500):
        found = read_refinement(survey, np.rint(exact + 27.4 * noise.normal(size=exact.shape)), 27.4)
        kept = [bin.count for facts in found.columns for bin in facts.fine if bin.lower > 32]
        false += any(count >= least_rows(found) for count in kept)
    assert false <= 5  # 0.5 of 1000 expected; 20 and more where the noise of the survey was taken for that of all


def test_a_date_is_not_moved_by_its_digits():
    """2019-03-31, half past one, is day 17986.56: as 1.799e+04 it would be a day without rows, in April."""
    piece = BinsPiece(column="day", edges=(17733.12, 17986.56, 18240.0))
    fine = tuple(Bin(low, low + 253.44, 100.0) for low in (17733.12, 17986.56))
    facts = Facts(column="day", kind="number", missing=0.0, bins=(Bin(16384.0, 32768.0, 200.0),), fine=fine)
    survey = Survey(rows=200.0, columns=(facts,), noise_std=1.0, threshold=9.0)
    encoder = Encoder(pieces=(piece,), target=LOG, missing=())
    model = ModelSpec.of("additive", None, encoder)
    weights = {"weight": torch.zeros(1, piece.width)}
    (shape,) = shapes(Preprocessing(encoder=encoder, survey=survey, model=model, rows=200.0), weights)
    assert shape.cells == ("up to 17733", "17733 to 17986.6", "17986.6 to 18240", "18240 and above")


def test_explain(settings, table, capsys):
    train_table(settings(queries=60, sample_rate=0.2))
    explain_run("run")
    said = capsys.readouterr().out
    assert "log odds of 'yes'" in said
    lines = said.splitlines()[2:]
    assert {line.split()[0] for line in lines} == {"x", "y", "kind"}
    assert lines[0].startswith("x")  # it decides most
    explain_run("run", column="kind")
    assert "red" in capsys.readouterr().out
    explain_run("run", json=True)
    found = json.loads(capsys.readouterr().out)
    assert found[0]["column"] == "x"
    assert found == json.loads(json.dumps(found, allow_nan=False))
    with pytest.raises(ValueError, match="column must be one that the model uses"):
        explain_run("run", column="patient")
    train_table(settings(output="net", model="mlp", width=3))
    with pytest.raises(ValueError, match="belongs to a linear or additive model: this one is 'mlp'"):
        explain_run("net")
    assert len(tacita.load("run").shapes()) == 3
