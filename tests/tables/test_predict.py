"""Scored files: the rows as they were, plus predictions."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

import tacita
from tacita.errors import DataStructureError
from tacita.tables import predict as predict_module
from tacita.tables import predict_file, train_table
from tacita.tables.source import declared_schema
from tacita.tables.table_model import as_dates


@pytest.fixture
def model(settings, table):
    return tacita.load(train_table(settings(queries=20)).folder)


def test_lines_stay_as_they_are(model) -> None:
    lines = [
        b"x,y,kind,extra",
        b'1.0, 2 ,red,"quoted, ""twice"""',
        b"too,narrow",
        b"",
        b"\xff\xfe,1,\xe9t\xe9,",
        b"-1.0,2,blue,last\r",
    ]
    Path("new.csv").write_bytes(b"\n".join(lines) + b"\n")
    predict_file(model, "new.csv", "scored.csv")
    scored = Path("scored.csv").read_bytes().split(b"\n")
    assert scored[0] == b"x,y,kind,extra,prediction,probability_no,probability_yes"
    for before, after in zip(lines[1:], scored[1:], strict=False):
        assert after.startswith(before.removesuffix(b"\r") + b",")
    assert scored[2] == b"too,narrow,,,"
    predicted = model.predict({"x": ["1.0"], "y": ["2"], "kind": ["red"]})[0]
    chance = model.predict_proba({"x": ["1.0"], "y": ["2"], "kind": ["red"]})[0]
    assert scored[1].split(b",")[-3] == predicted.encode()
    written = [float(cell) for cell in scored[1].split(b",")[-2:]]
    assert written == pytest.approx(chance.tolist(), rel=1e-5)  # float32, six digits; alone in its batch or not


def test_gzip_and_a_file_without_header(settings, table) -> None:
    body = "".join(table.read_text().splitlines(keepends=True)[1:])
    Path("bare.csv").write_text(body)
    train_table(settings(data="bare.csv", columns=("x", "y", "kind", "patient", "label")))
    Path("new.csv.gz").write_bytes(gzip.compress(b"1.0,2,red,p1,\n"))
    predict_file(tacita.load("run"), "new.csv.gz", "scored.csv")
    assert Path("scored.csv").read_bytes().startswith(b"1.0,2,red,p1,,")


def test_parquet(model, table) -> None:
    cells = pyarrow.csv.read_csv(table)
    pyarrow.parquet.write_table(cells, "new.parquet")
    predict_file(model, "new.parquet", "scored.parquet")
    predict_file(model, "new.parquet", "scored.csv")
    scored = pyarrow.parquet.read_table("scored.parquet")
    assert scored.select(cells.column_names).equals(cells)
    assert scored["prediction"].to_pylist() == list(model.predict(cells))
    np.testing.assert_allclose(
        pyarrow.csv.read_csv("scored.csv")["probability_yes"].to_numpy(), scored["probability_yes"].to_numpy()
    )


@pytest.mark.parametrize("output", ["scored.parquet", "scored.csv"])
def test_parquet_goes_through_memory_piece_by_piece(model, table, monkeypatch, output) -> None:
    """Predictions come in chunks of other sizes than the rows do; what is written is never held as a whole."""
    cells = pyarrow.csv.read_csv(table)
    pyarrow.parquet.write_table(cells, "new.parquet", row_group_size=90)
    predict_file(model, "new.parquet", output)
    whole, pieces = _read(output), []
    monkeypatch.setattr("tacita.tables.parquet_file.ROWS", 37)
    monkeypatch.setattr(predict_module, "ROWS", 50)
    replace = predict_module.replace_in_pieces
    monkeypatch.setattr(
        predict_module,
        "replace_in_pieces",
        lambda path, given: replace(path, (pieces.append(len(piece)) or piece for piece in given)),
    )
    predict_file(model, "new.parquet", output)
    found = _read(output)
    chances = [name for name in whole.column_names if name.startswith("probability_")]
    assert found.drop_columns(chances).equals(whole.drop_columns(chances))
    for name in chances:  # a processor may round a product of 50 rows otherwise than one of all
        np.testing.assert_allclose(found[name].to_numpy(), whole[name].to_numpy(), rtol=1e-4)
    assert whole["label"].to_pylist() == cells["label"].to_pylist()
    assert len(pieces) > 8
    assert max(pieces) < sum(pieces) / 3


def _read(path: str) -> pyarrow.Table:
    return pyarrow.csv.read_csv(path) if path.endswith(".csv") else pyarrow.parquet.read_table(path)


def test_parquet_with_a_column_that_the_model_does_not_need(model, table) -> None:
    """Nested, it cannot become a CSV; damaged, it cannot be written again: one error each, of one line."""
    cells = pyarrow.csv.read_csv(table)
    nested = cells.append_column("more", pyarrow.array([[1, 2]] * len(cells)))
    pyarrow.parquet.write_table(nested, "nested.parquet")
    predict_file(model, "nested.parquet", "scored.parquet")
    with pytest.raises(DataStructureError, match=r"flat columns to become a CSV.*--output that ends in .parquet"):
        predict_file(model, "nested.parquet", "scored.csv")
    pyarrow.parquet.write_table(cells.append_column("last", pyarrow.array(["z" * 50] * len(cells))), "new.parquet")
    place = pyarrow.parquet.ParquetFile("new.parquet").metadata.row_group(0).column(5).dictionary_page_offset
    data = bytearray(Path("new.parquet").read_bytes())
    data[place : place + 8] = b"\xff" * 8
    Path("new.parquet").write_bytes(data)
    with pytest.raises(DataStructureError, match=r"^data must be a readable Parquet file, got 'new\.parquet'\.$"):
        predict_file(model, "new.parquet", "scored.csv")


def test_npz(settings, table) -> None:
    np.savez("table.npz", image=np.zeros((30, 2, 2), dtype=np.uint8), digit=np.arange(30) % 2)
    train_table(settings(data="table.npz", target="digit", drop=()))
    predict_file(tacita.load("run"), "table.npz", "scored.csv")
    assert len(Path("scored.csv").read_text().splitlines()) == 31


def test_a_regression_has_one_new_column(settings, table) -> None:
    train_table(settings(target="x"))
    Path("new.csv").write_text("y,kind,label\n1,red,yes\n")
    predict_file(tacita.load("run"), "new.csv", "scored.csv")
    head, row = Path("scored.csv").read_text().splitlines()
    assert head == "y,kind,label,prediction"
    assert np.isfinite(float(row.rsplit(",", 1)[1]))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x,y\n1,2\n", "no column 'kind'"),
        ("x,y,kind,prediction\n1,2,red,yes\n", "already has a column 'prediction'"),
    ],
)
def test_structure(model, text: str, named: str) -> None:
    Path("new.csv").write_text(text)
    with pytest.raises(DataStructureError, match=named):
        predict_file(model, "new.csv", "scored.csv")
    assert not Path("scored.csv").exists()


def test_the_input_is_never_overwritten(model) -> None:
    text = "x,y,kind\n1,2,red\n"
    Path("new.csv").write_text(text)
    with pytest.raises(ValueError, match="output must not be the file that is read"):
        predict_file(model, "new.csv", "./new.csv")
    assert Path("new.csv").read_text() == text


def dated(days: np.ndarray, unit: str) -> pyarrow.Array:
    if unit == "D":
        return pyarrow.array(np.rint(days).astype(np.int32)).cast(pyarrow.date32())
    return pyarrow.array(np.rint(days * 86_400).astype(np.int64)).cast(pyarrow.timestamp("s"))


@pytest.mark.parametrize(("unit", "spread", "digits"), [("D", 100.0, 10), ("s", 0.2, 19)])
def test_dates_are_predicted_as_dates(settings, table, unit, spread, digits):
    """A Parquet file declares them by its type; a time of day is written where the target varies within a day."""
    x = np.random.default_rng(0).uniform(-1, 1, 3000)
    day = 18_262 + spread * x  # 2020-01-01 and around
    pyarrow.parquet.write_table(pyarrow.table({"x": x, "day": dated(day, unit)}), "dates.parquet")
    bounds = "" if unit == "D" else "lower = 18261\nupper = 18263\n"  # a bought scale is coarse so far from 0
    Path("d.toml").write_text(f'[target]\ncolumn = "day"\ntask = "regression"\n{bounds}')
    run = train_table(settings(data="dates.parquet", schema="d.toml", target=None, drop=(), epsilon=50.0, queries=40))
    model = tacita.load(run.folder)
    found = model.predict({"x": x})
    assert found.dtype == np.dtype(f"datetime64[{unit}]")
    off = found.astype("datetime64[s]").astype(np.int64) / 86_400 - day
    assert np.sqrt(np.mean(off**2)) < np.std(day)  # something was learned, in the right units
    for output in ("dates.csv", "out.parquet"):
        predict_file(model, "dates.parquet", output)
    written = pyarrow.parquet.read_table("out.parquet")["prediction"].to_pylist()
    assert written == found.astype(str).tolist()
    assert {len(cell) for cell in written} == {digits}
    assert written[0] in Path("dates.csv").read_text().splitlines()[1]


def test_dates_in_a_csv_are_declared(settings, table):
    days = np.datetime64("2020-01-01") + np.arange(600) % 300
    Path("d.csv").write_text("x,day\n" + "".join(f"{k % 300},{day}\n" for k, day in enumerate(days)))
    schema = '[target]\ncolumn = "day"\ntask = "regression"\ndates = {}\nlower = 18000\nupper = 19000\n'
    for declared in ("true", "false"):
        Path("d.toml").write_text(schema.format(declared))
        made = settings(data="d.csv", schema="d.toml", target=None, drop=(), queries=5, output=declared)
        found = tacita.load(train_table(made).folder).predict({"x": np.arange(3.0)})
        assert found.dtype.kind == ("M" if declared == "true" else "f")
    Path("d.toml").write_text('[columns.day]\nkind = "date"\nformat = "%Y-%m-%d"\n')
    made = settings(data="d.csv", schema="d.toml", target="day", drop=())
    assert declared_schema(made).target.dates


@pytest.mark.parametrize("declared", ["column", "target"])
def test_dates_in_a_notation_of_their_own_are_predicted_as_iso_dates(settings, table, declared):
    days = np.datetime64("2020-01-01") + np.arange(2400) % 300
    written = [f"{day.item():%d.%m.%Y}" for day in days]
    Path("d.csv").write_text("x,day\n" + "".join(f"{k % 300},{day}\n" for k, day in enumerate(written)))
    schema = {
        "column": '[columns.day]\nkind = "date"\nformat = "%d.%m.%Y"\nlower = "01.01.2020"\nupper = "01.12.2020"\n',
        "target": '[target]\ncolumn = "day"\ndates = true\nformat = "%d.%m.%Y"\n',
    }
    Path("d.toml").write_text(schema[declared])
    run = train_table(settings(data="d.csv", schema="d.toml", target="day", drop=(), queries=5, epsilon=30.0))
    model = tacita.load(run.folder)
    found = model.predict({"x": np.arange(300.0)})
    assert found.dtype.kind == "M"
    assert days.min() <= np.median(found.astype("datetime64[D]").astype(int)).astype("datetime64[D]") <= days.max()
    assert run.fields["holdout_score"]["value"] > 0.1  # the held-out targets are read by the same format


def test_a_prediction_beyond_the_calendar_is_its_last_day():
    assert as_dates(np.array([1e30, -1e30, np.nan]), 1.0).astype(str).tolist() == [
        "9999-12-31", "0001-01-01", "1970-01-01",
    ]  # fmt: skip
