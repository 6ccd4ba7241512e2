"""The encoder: fixed, row by row, finite whatever a cell holds, and the same after a round trip."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacita.errors import DataStructureError
from tacita.tables import Encoder, FileFormat, Schema, make_encoder, read_table
from tacita.tables.features import NumberPiece

SCHEMA = """
[target]
column = "y"
classes = ["no", "yes"]
[columns.x]
kind = "number"
lower = -10
upper = 10
[columns.c]
kind = "category"
values = ["a", "b"]
"""


def encode(table, text=SCHEMA, **options):
    return make_encoder(Schema.loads(text)).encode(table, **options)


def test_values_by_the_public_rules(table_of):
    text = SCHEMA.replace("upper = 10", "upper = 10\nsteps = [0.0, 5.0]")
    found = encode(table_of("x,c,y", "0,a,no", "1e300,b,yes", "-99,z,no", "?,,yes"), text)
    edge = math.sqrt(3)  # (10 - 0) / (20 / sqrt(12))
    expected = [
        [0, 1, 0, 0, 1, 0],
        [edge, 1, 1, 0, 0, 1],
        [-edge, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
    ]
    torch.testing.assert_close(found.features, torch.tensor(expected))
    assert found.target.tolist() == [0, 1, 0, 1]
    assert found.valid.all()


def test_standardised_numbers_are_clamped(table_of):
    piece = NumberPiece(column="x", lower=-100, upper=100, centre=1, scale=2)
    values = piece.encode(table_of("x", "99", "-99", "3", "9").column("x"), ())
    assert values[:, 0].tolist() == [4, -4, 1, 4]


@pytest.mark.parametrize("row", ["1,a,no,4", "1,a", "", "1,a,maybe", "1,a,", "1,a,NO"])
def test_wrong_width_or_unknown_label_keeps_the_row_and_counts_for_nothing(table_of, row):
    found = encode(table_of("x,c,y", "1,a,no", row, "2,b,yes"))
    assert found.valid.tolist() == [True, False, True]
    assert not found.features[1].any()
    assert found.target[1] == 0


CELLS = st.one_of(
    st.sampled_from(
        ["1", "1_000", "nan", "inf", "-inf", "1e999", "-1e308", '"', '"a', "\0", "no", "yes", "a", "?", ""]
    ),
    st.text(max_size=4).map(lambda text: text.replace("\n", "")),
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS).map(",".join), max_size=4), extra=CELLS)
def test_any_content_is_finite_and_acts_on_its_own_row_alone(tmp_path, rows, extra):
    def features(lines):
        path = tmp_path / "t.csv"
        path.write_bytes("".join(f"{line}\n" for line in ["x,c,y", *lines]).encode("utf-8", "replace"))
        return encode(read_table(path))

    found, longer = features(rows), features([*rows, extra])
    assert found.features.isfinite().all()
    assert (found.features.abs() <= 4).all()
    torch.testing.assert_close(longer.features[: len(rows)], found.features)
    assert longer.valid[: len(rows)].tolist() == found.valid.tolist()


def test_no_rows_are_an_ordinary_table(table_of):
    found = encode(table_of("x,c,y"))
    assert found.features.shape[0] == 0
    assert found.target.shape == found.valid.shape == (0,)


def test_prediction_needs_no_target_and_only_the_features(table_of):
    found = encode(table_of("c,x", "a,1"), with_target=False)
    assert found.target is None
    assert found.valid.tolist() == [True]
    with pytest.raises(DataStructureError, match="'x'"):
        encode(table_of("c,z", "a,1"), with_target=False)


def test_a_regression_target_is_clamped_and_standardised(table_of):
    text = "[columns.x]\nkind='number'\nlower=0\nupper=1\n[target]\ncolumn='y'\nlower=0\nupper=12"
    encoder = make_encoder(Schema.loads(text))
    found = encoder.encode(table_of("x,y", "1,6", "1,99", "1,-99", "1,lots", "1,"))
    edge = math.sqrt(3)
    torch.testing.assert_close(found.target, torch.tensor([0.0, edge, -edge, 0.0, 0.0]))
    assert found.valid.tolist() == [True, True, True, False, False]
    np.testing.assert_allclose(encoder.decode(found.target.numpy()[:3]), [6, 12, 0], atol=1e-6)


def test_arrays_are_scaled_clamped_and_flattened(tmp_path):
    x = np.array([[[0, 255], [51, 0]], [[0, 0], [0, 0]]], dtype=np.uint8)
    np.savez(tmp_path / "t.npz", x=x, y=np.array([3, 4]))
    text = "[columns.x]\nkind='array'\nshape=[2, 2]\nlower=0\nupper=255\n[target]\ncolumn='y'\nclasses=[3, 4]"
    encoder = make_encoder(Schema.loads(text))
    found = encoder.encode(read_table(tmp_path / "t.npz"))
    torch.testing.assert_close(found.features, torch.tensor([[0, 1, 0.2, 0], [0, 0, 0, 0]]))
    assert found.target.tolist() == [0, 1]
    assert encoder.pieces[0].shape == (2, 2)
    assert encoder.decode(np.array([1, 0])) == ["4", "3"]


def test_arrays_that_are_not_finite_become_zero(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.array([[np.nan, np.inf, -np.inf, 2.0]]))
    text = "[columns.x]\nkind='array'\nshape=[4]\nlower=-1\nupper=1"
    assert encode(read_table(tmp_path / "t.npz"), text).features.tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        ({"piece": "number", "lower": 0, "upper": 1, "centre": 0, "scale": 0}, "scale above 0"),
        ({"piece": "number", "lower": 2, "upper": 1, "centre": 0, "scale": 1}, "lower at most upper"),
        ({"piece": "number", "lower": 0, "upper": 1, "centre": math.inf, "scale": 1}, "finite"),
        ({"piece": "number", "lower": 0, "upper": 1, "centre": 0, "scale": 1, "steps": [math.nan]}, "steps"),
        ({"piece": "number", "lower": 0, "upper": 1, "centre": 0, "scale": 1, "buckets": [math.inf]}, "buckets"),
        ({"piece": "array", "shape": [2**40, 2**40], "lower": 0, "upper": 1}, "16777216 numbers a row"),
        ({"piece": "array", "shape": [2], "lower": 1, "upper": 1}, "lower must be below upper"),
    ],
)
def test_a_piece_that_would_not_give_finite_numbers_is_refused(piece, why):
    with pytest.raises(ValueError, match=f"^The preprocessing is not valid: .*{why}"):
        Encoder.from_dict({"pieces": [{"column": "x", **piece}], "missing": []})


def test_a_target_that_would_pass_float32_is_refused():
    target = {"task": "regression", "column": "y", "lower": 0, "upper": 1e10, "centre": 0, "scale": 1e-30}
    with pytest.raises(ValueError, match="scale must be larger"):
        Encoder.from_dict({"pieces": [], "missing": [], "target": target})


def test_a_file_that_is_nested_too_deeply_is_no_encoder(tmp_path):
    (tmp_path / "preprocessing.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="must be a readable JSON file"):
        Encoder.load(tmp_path / "preprocessing.json")


def test_dates_become_days(table_of):
    text = "[columns.d]\nkind='date'\nformat='%Y-%m-%d'\nlower='2000-01-01'\nupper='2000-01-03'"
    found = encode(table_of("d", "2000-01-02", "2000-01-03", "1900-01-01", "soon"), text)
    edge = math.sqrt(3)
    expected = torch.tensor([[0.0, 0], [edge, 0], [-edge, 0], [0, 1]])
    torch.testing.assert_close(found.features, expected)


def test_the_round_trip_is_exact(tmp_path, table_of):
    schema = Schema.loads(SCHEMA + "[columns.z]\nkind='number'\nlower=0.1\nupper=0.3\n")
    encoder = make_encoder(Schema.from_dict({**schema.to_dict(), "reading": {"delimiter": ";"}}))
    encoder.save(tmp_path / "preprocessing.json")
    again = Encoder.load(tmp_path / "preprocessing.json")
    assert again == encoder
    assert again.reading == FileFormat(delimiter=";")
    table = table_of("x,c,z,y", "1,a,.2,no", "2,b,.15,yes")
    assert torch.equal(again.encode(table).features, encoder.encode(table).features)
    assert len(encoder.feature_names) == encoder.num_features == encoder.encode(table).features.shape[1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("pieces"),
        lambda d: d.update(extra=1),
        lambda d: d.update(format=2),
        lambda d: d["pieces"][0].update(scale="1"),
        lambda d: d["pieces"][0].update(piece="pickle"),
        lambda d: d["target"].update(classes=[1]),
    ],
)
def test_a_changed_file_is_refused(tmp_path, damage):
    settings = json.loads(json.dumps(make_encoder(Schema.loads(SCHEMA)).to_dict()))
    damage(settings)
    (tmp_path / "p.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="not valid"):
        Encoder.load(tmp_path / "p.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_no_preprocessing_file(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ValueError, match="preprocessing"):
        Encoder.load(tmp_path / "p.json")


def test_what_is_encoded_shows_no_data(table_of):
    assert "SECRET" not in repr(encode(table_of("x,c,y", "1,SECRET,no")))
    assert "1." not in repr(encode(table_of("x,c,y", "1,SECRET,no")))
