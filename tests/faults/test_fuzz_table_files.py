"""Fuzzing of what tables bring: recipe, statement, exports and data. And no message quotes a cell."""

import csv
import gzip
import io
import json
import math
import pickle
import shutil
import warnings
import zipfile
from contextlib import suppress

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import safetensors.torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file

import tacita
from tacita.errors import DataStructureError
from tacita.tables import TableSettings, check_run, read_table, train_table
from tacita.tables.predict import predict_file
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.readers import FileFormat
from tacita.tables.table_model import as_table
from tests.conftest import table_text
from tests.faults.fuzzing import Outcomes, fuzz
from tests.faults.mutations import as_json, changes, edits, with_changes, with_edits
from tests.faults.test_fuzz_run_files import Bomb
from tests.tables.forging import resealed

MARK = "S3CR3TMARK"  # stands in a cell, or is one


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on a table."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "table.csv").write_text(table_text())
    settings = TableSettings(
        data=str(folder / "table.csv"), output=str(folder / "run"), epsilon=20.0, delta=1e-3, target="label",
        drop=("patient",), sample_rate=0.5, queries=2,
    )  # fmt: skip
    train_table(settings, randomness=tacita.Randomness.insecure(0))
    return folder / "run"


# --- recipe, statement, export -------------------------------------------------------------------------------------


@fuzz(50)
@given(chosen=edits)
@example(chosen=[("token", 0, 0, 8)])  # a line break before it all, which is surely read
def test_preprocessing_bytes(run, tmp_path_factory, outcomes, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "preprocessing.json"
    path.write_bytes(with_edits((run / "preprocessing.json").read_bytes(), chosen))
    found = outcomes.of(lambda: Preprocessing.load(path), tacita.TacitaError)
    if found is not None:
        found.save(path)
        assert Preprocessing.load(path) == found


ROWS = {"x": [1.0, -1e300, math.nan], "y": [1, -7, 0], "kind": ["red", "none of them", MARK]}


@fuzz(100)
@given(chosen=changes)
def test_a_model_of_another_preprocessing(run, tmp_path_factory, outcomes, chosen):
    """The statement's hashes fit, so that only what it says can be wrong: loaded and used, or one clear error."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run, folder)
    tree = with_changes(json.loads((run / "preprocessing.json").read_bytes()), chosen)
    (folder / "preprocessing.json").write_bytes(as_json(tree))
    resealed(folder)
    model = outcomes.of(lambda: tacita.load(folder), tacita.TacitaError, ValueError)
    if model is not None:
        frame = {name: ROWS.get(name, [0, 0, 0]) for name in model.encoder.columns(with_target=False)}
        check_predictions(model, frame or ROWS)


def check_predictions(model, frame):
    """A class that there is, or a number, for each row; and of one row what it is among others."""
    assert model.encoder.encode(as_table(frame, list(frame)), with_target=False).features.isfinite().all()
    found = model.predict(frame)
    alone = [model.predict({name: cells[i : i + 1] for name, cells in frame.items()})[0] for i in range(3)]
    assert found.shape == (3,)
    assert found.tolist() == alone
    if model.encoder.task == "classification":
        assert set(found) <= {*model.classes, ""}
    else:
        assert np.isfinite(found.astype(float)).all()


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        *(
            (name, "standard library")
            for name in ("operator:add", "os.path:join", "builtins:pow", "shutil:copyfileobj")
        ),
        ("torch.hub:urlopen", "re-exported"),
        ("numpy:eye", "returns an nn.Module"),
    ],
)
def test_an_export_calls_nothing_of_pythons_own(run, tmp_path, name, refusal):
    """A model may be the user's own callable, named in the file; the standard library has none, by whatever name."""
    shutil.copytree(run, tmp_path / "run")
    tree = json.loads((run / "preprocessing.json").read_bytes())
    tree["model"]["name"] = name
    (tmp_path / "run" / "preprocessing.json").write_bytes(as_json(tree))
    resealed(tmp_path / "run")
    with pytest.raises(ValueError, match=refusal):
        tacita.load(tmp_path / "run", trust_code=True)


@fuzz(150)
@given(chosen=edits)
def test_a_model_of_other_weights(run, tmp_path_factory, outcomes, chosen):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run, folder)
    path = folder / "model.safetensors"
    path.write_bytes(with_edits(path.read_bytes(), chosen))
    resealed(folder)
    model = outcomes.of(lambda: tacita.load(folder), tacita.TacitaError)
    if model is not None:
        assert safetensors.torch.save(model.model.state_dict()) == safetensors.torch.save(load_file(path))


@fuzz(60)
@given(chosen=edits, name=st.sampled_from(["statement.json", "statement.txt", "ledger.jsonl", "ledger.head.json"]))
def test_statement_and_ledger_bytes(run, tmp_path_factory, outcomes, chosen, name):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run, folder)
    (folder / name).write_bytes(with_edits((run / name).read_bytes(), chosen))
    check_no_change_is_missed(run, folder, outcomes)


@fuzz(60)
@given(chosen=changes)
def test_statement_values(run, tmp_path_factory, outcomes, chosen):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run, folder)
    tree = with_changes(json.loads((run / "statement.json").read_bytes()), chosen)
    (folder / "statement.json").write_bytes(as_json(tree))
    check_no_change_is_missed(run, folder, outcomes)


def check_no_change_is_missed(run, folder, outcomes):
    """Refused, or at fault, or what it says is word for word what the run's statement said."""
    checked = outcomes.of(lambda: check_run(folder), tacita.TacitaError)
    if checked is not None:
        assert all(fault.splitlines() == [fault] for fault in checked.faults)
    if checked is not None and not checked.faults:
        assert checked.text == (run / "statement.txt").read_text()
        assert fields(folder) == fields(run)
        assert (folder / "statement.txt").read_bytes() == (run / "statement.txt").read_bytes()
        assert same_ledger(folder, run)
    model = outcomes.of(lambda: tacita.load(folder), tacita.TacitaError)
    if model is not None:
        assert np.array_equal(model.predict_proba(ROWS), tacita.load(run).predict_proba(ROWS))


def fields(folder):
    """As text, so that 1 is not ``true``."""
    return json.dumps(json.loads((folder / "statement.json").read_bytes()), sort_keys=True)


def same_ledger(folder, run):
    one, other = (tacita.Ledger.load(path / "ledger.jsonl") for path in (folder, run))
    return one.anchor == other.anchor and one.bound(1e-3) == other.bound(1e-3)


@pytest.mark.parametrize(
    "name",
    ["statement.json", "statement.txt", "preprocessing.json", "model.safetensors", "ledger.jsonl", "config.toml"],
)
def test_no_file_of_an_export_is_unpickled(run, tmp_path, name):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    if name not in ("statement.json", "ledger.jsonl"):
        resealed(tmp_path / "run")
    with suppress(tacita.TacitaError):
        tacita.load(tmp_path / "run")
    with suppress(tacita.TacitaError):
        check_run(tmp_path / "run")
    assert not (tmp_path / "ran").exists()


# --- data ----------------------------------------------------------------------------------------------------------

CELLS = table_text(60).replace("red", f"{MARK}red").replace("p1", f"{MARK}1")


def data_files(folder):
    """The same rows in each format, with the mark in their cells."""
    lines = [line.split(",") for line in CELLS.splitlines()]
    columns = dict(zip(lines[0], zip(*lines[1:], strict=True), strict=True))
    (folder / "t.csv").write_text(CELLS)
    (folder / "t.csv.gz").write_bytes(gzip.compress(CELLS.encode(), mtime=0))
    typed = {"x": [float(v) for v in columns["x"]], "y": [int(v) for v in columns["y"]]}
    texts = {name: list(columns[name]) for name in ("kind", "patient", "label")}
    pyarrow.parquet.write_table(pa.table({**typed, **texts}), folder / "t.parquet")
    np.savez(folder / "t.npz", **{name: np.array(v) for name, v in {**typed, **texts}.items()})
    np.savez_compressed(folder / "z.npz", **{name: np.array(v) for name, v in {**typed, **texts}.items()})
    return ("t.csv", "t.csv.gz", "t.parquet", "t.npz", "z.npz")


FORMATS = ("t.csv", "t.csv.gz", "t.parquet", "t.npz", "z.npz")


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    assert data_files(folder) == FORMATS
    return {name: (folder / name).read_bytes() for name in FORMATS}


def damaged(valid, name, chosen, inside):
    """The file with a few bytes changed; ``inside``: a whole file of changed cells, or with one changed member."""
    if not inside or name == "t.csv":
        return with_edits(valid[name], chosen)
    cells = with_edits(CELLS.encode(), chosen)
    if name == "t.csv.gz":
        return gzip.compress(cells, mtime=0)
    sink = io.BytesIO()
    if name == "t.parquet":
        rows = [line.split(",") for line in cells.decode("utf-8", "replace").split("\n")]
        names = CELLS.splitlines()[0].split(",")  # the file's structure
        columns = [pa.array([row[i] if i < len(row) else None for row in rows]) for i in range(len(names))]
        pyarrow.parquet.write_table(pa.Table.from_arrays(columns, names), sink)
        return sink.getvalue()
    with zipfile.ZipFile(io.BytesIO(valid[name])) as before, zipfile.ZipFile(sink, "w") as after:
        members = before.infolist()
        for number, member in enumerate(members):
            data = before.read(member)
            ours = number == chosen[0][1] % len(members)
            after.writestr(member, with_edits(data, chosen) if ours else data)
    return sink.getvalue()


@pytest.fixture
def damage(valid, tmp_path_factory):
    """``damage(name, chosen, inside)``: a new folder with a damaged file of that name in it."""

    def make(name, chosen, inside):
        folder = tmp_path_factory.mktemp("fuzz")
        (folder / name).write_bytes(damaged(valid, name, chosen, inside))
        return folder

    return make


def says_nothing_of_cells(read, *errors, outcomes=None):
    """What was read, or ``None`` after one of ``errors``; no message, warning or chained error shows the mark."""
    outcomes, caught = outcomes or Outcomes(), []

    def watched():
        try:
            return read()
        except errors as error:
            caught.append(error)
            raise

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = outcomes.of(watched, *errors)
    for error in caught:
        assert MARK not in str(error)
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None
    assert not any(MARK in str(warning.message) for warning in warned)
    return found


@pytest.mark.parametrize("name", FORMATS)
@fuzz(60)
@given(chosen=edits, inside=st.booleans())
def test_data_bytes(damage, outcomes, name, **drawn):
    path = damage(name, **drawn) / name
    whole = says_nothing_of_cells(lambda: read_table(path), DataStructureError, outcomes=outcomes)
    two = says_nothing_of_cells(lambda: read_table(path, only=["x", "kind"]), DataStructureError, outcomes=outcomes)
    for found in (whole, two):
        if found is not None:
            check_table(found, path.with_name("again.csv"))
    if whole is not None and two is not None:
        assert two.valid.tolist() == whole.valid.tolist()
        assert {name: texts(two, name) for name in two.names} == {name: texts(whole, name) for name in two.names}


def check_table(table, path):
    """Each column says something of each row, and says the same when it is written as a CSV and read again."""
    assert all(len(table.column(name)) == table.num_rows for name in table.names)
    flat = [texts(table, name) for name in table.names if table.column(name).storage != "array"]
    rows = [[text.replace("\n", " ") for text in cells] for cells in zip(*flat, strict=True)]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
            [[f"c{i}" for i in range(len(flat))], *rows]
        )
    if flat:
        again = read_table(path)
        assert again.valid.all()
        assert list(zip(*(texts(again, name) for name in again.names), strict=True)) == [tuple(row) for row in rows]


def texts(table, name):
    codes, values = table.column(name).texts()
    return [values[code] for code in codes]


@pytest.mark.parametrize("name", FORMATS)
@fuzz(20)
@given(chosen=edits, inside=st.booleans())
def test_prediction_of_data_bytes(run, damage, outcomes, name, **drawn):
    folder = damage(name, **drawn)
    model, out = tacita.load(run), folder / "out.csv"

    def predicted():
        predict_file(model, str(folder / name), str(out))
        return list(written_predictions(out, name))

    found = says_nothing_of_cells(predicted, DataStructureError, outcomes=outcomes)
    if found is not None:
        table = read_table(folder / name, only=["x", "y", "kind"])
        expected = model.predict_table(table)
        assert found == [cell if counts else "" for cell, counts in zip(expected, table.valid, strict=True)]


def written_predictions(path, name):
    """The cells called prediction: the third from the end, before two probabilities."""
    if name.endswith("parquet"):  # texts may hold line breaks
        options = pyarrow.csv.ParseOptions(newlines_in_values=True)
        return pyarrow.csv.read_csv(path, parse_options=options).column("prediction").to_pylist()
    return [line.split(b",")[-3].decode() for line in path.read_bytes().split(b"\n")[1:-1]]


@pytest.mark.parametrize("name", FORMATS)
@fuzz(12)
@given(chosen=edits, inside=st.booleans())
def test_training_on_data_bytes(damage, outcomes, name, **drawn):
    folder = damage(name, **drawn)
    settings = TableSettings(
        data=str(folder / name), output=str(folder / "run"), epsilon=20.0, delta=1e-3, target="label",
        sample_rate=0.5, queries=1,
    )  # fmt: skip
    done = says_nothing_of_cells(lambda: train_table(settings), tacita.TacitaError, ValueError, outcomes=outcomes)
    if done is not None:
        assert check_run(folder / "run").faults == ()
        assert 0 < tacita.Ledger.load(folder / "run" / "ledger.jsonl").epsilon(1e-3) <= 20


@pytest.mark.parametrize("content", ["empty", "bomb in an array", "bomb as the file", "bomb in a zip", "zip of texts"])
def test_npz_that_holds_no_numbers(tmp_path, content):
    path = tmp_path / "t.npz"
    if content == "bomb in an array":
        np.savez(path, x=np.array([Bomb(tmp_path / "ran")], dtype=object))
    elif content == "bomb as the file":
        path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    elif content == "empty":
        path.write_bytes(b"")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", pickle.dumps(Bomb(tmp_path / "ran")) if "bomb" in content else MARK)
    says_nothing_of_cells(lambda: read_table(path), DataStructureError)
    with pytest.raises(DataStructureError):
        read_table(path)
    assert not (tmp_path / "ran").exists()


def test_arrow_extension_types_are_not_unpickled(tmp_path):
    """A Parquet file may name a Python type in its metadata."""
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Bomb(tmp_path / "ran")),
    }
    schema = pa.schema([pa.field("x", pa.int64(), metadata=metadata)])
    pyarrow.parquet.write_table(pa.table({"x": [1, 2]}, schema=schema), tmp_path / "t.parquet")
    with warnings.catch_warnings(), suppress(DataStructureError):
        warnings.simplefilter("ignore")
        read_table(tmp_path / "t.parquet")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "reading",
    [
        FileFormat(),
        FileFormat(delimiter=";"),
        FileFormat(quote="'"),
        FileFormat(encoding="latin-1"),
        FileFormat(header=False, columns=("x", "y", "kind", "patient", "label")),
        FileFormat(header=False, columns=("a",)),
    ],
)
def test_no_way_to_read_quotes_a_cell(tmp_path, reading):
    (tmp_path / "t.csv").write_text(CELLS + f'"{MARK},\n{MARK}\n\x00{MARK}\n')
    for only in (None, ["nowhere"], ["kind"]):
        says_nothing_of_cells(lambda only=only: read_table(tmp_path / "t.csv", reading, only=only), DataStructureError)


def test_the_mark_can_be_found(tmp_path):
    """The check sees a message that quotes a cell."""

    def quotes():
        raise DataStructureError(f"invalid value {MARK!r}")

    with pytest.raises(AssertionError):
        says_nothing_of_cells(quotes, DataStructureError)


def test_msgspec_is_strict():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"header": 1}, FileFormat)
