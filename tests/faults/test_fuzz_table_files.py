"""Fuzzing of what tables bring: settings, schema, recipe, statement, exports and data. And no message quotes a cell."""

import gzip
import json
import pickle
import shutil
import warnings
from contextlib import suppress

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacita
from tacita.errors import DataStructureError
from tacita.pipeline import TableSettings, check_run, report, train_table
from tacita.pipeline.predict import predict_file
from tacita.pipeline.preprocessing import Preprocessing
from tacita.tables import read_table
from tacita.tables.encoding import Encoder
from tacita.tables.readers import Reading
from tacita.tables.schema import Schema
from tests.conftest import table_text
from tests.faults.mutations import as_json, changes, edits, with_changes, with_edits
from tests.faults.test_fuzz_run_files import Bomb, fuzz, one_line

MARK = "S3CR3TMARK"  # stands in a cell, or is one

SCHEMA = """
rows = 400
privacy_unit = "one row"
missing = ["", "?"]
unit = "patient"
max_rows_per_unit = 3
[reading]
delimiter = ","
[target]
column = "label"
classes = ["no", "yes"]
[columns.x]
kind = "number"
lower = -3
upper = 3.5
steps = [0, 1, 2.5]
[columns.when]
kind = "date"
format = "%Y-%m-%d"
lower = "2000-01-01"
upper = "2020-12-31"
[columns.kind]
kind = "category"
values = ["red", "green", 3]
[columns.image]
kind = "array"
shape = [2, 3]
lower = 0
upper = 255
[columns.note]
kind = "text"
"""


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


def refused(read, *errors):
    """Nothing but one of ``errors``, in one line; or what was read."""
    try:
        return read()
    except errors as error:
        one_line(error)
        return None


# --- settings ------------------------------------------------------------------------------------------------------


def toml(tree, name=""):
    """TOML text of plain values, wrong ones included."""
    inner = {key: value for key, value in tree.items() if isinstance(value, dict)}
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in tree.items() if key not in inner]
    head = [f"[{name}]"] if name else []
    return "\n".join([*head, *lines, *(toml(v, f"{name}.{json.dumps(k)}".lstrip(".")) for k, v in inner.items())])


@fuzz(60)
@given(chosen=edits)
def test_schema_bytes(tmp_path_factory, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "schema.toml"
    path.write_bytes(with_edits(SCHEMA.encode(), chosen))
    refused(lambda: Schema.load(path), ValueError)


@fuzz(100)
@given(chosen=changes)
def test_schema_values(chosen):
    tree = with_changes(Schema.loads(SCHEMA).to_dict(), chosen)
    refused(lambda: Schema.from_dict(tree), ValueError)
    refused(lambda: Schema.loads(toml(tree)), ValueError)


CONFIG = TableSettings(
    data="a.csv", output="run", epsilon=1.0, delta=1e-5, target="y", columns=("a", "y"), drop=("z",), lr=0.5, rows=100
)


@fuzz(60)
@given(chosen=edits)
def test_config_bytes(chosen):
    text = with_edits(CONFIG.to_toml().encode(), chosen).decode("utf-8", "replace")
    refused(lambda: TableSettings.from_toml(text), ValueError)


@fuzz(100)
@given(chosen=changes)
def test_config_values(chosen):
    tree = with_changes(CONFIG.to_dict(), chosen)
    found = refused(lambda: TableSettings.from_dict(tree), ValueError)
    refused(lambda: TableSettings.from_toml(toml(tree)), ValueError)
    if found is not None:
        refused(lambda: TableSettings.from_toml(found.to_toml()), ValueError)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a" + ".a" * 5000 + " = 1", "a = " + "9" * 5000, "[[a]]\n" * 9])
def test_toml_that_is_deep_or_long(tmp_path, text):
    for read in (Schema.loads, TableSettings.from_toml):
        with pytest.raises(ValueError) as caught:
            read(text)
        one_line(caught.value)


# --- recipe, statement, export -------------------------------------------------------------------------------------


@fuzz(50)
@given(chosen=edits)
def test_preprocessing_bytes(run, tmp_path_factory, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "preprocessing.json"
    path.write_bytes(with_edits((run / "preprocessing.json").read_bytes(), chosen))
    refused(lambda: Preprocessing.load(path), tacita.TacitaError)
    refused(lambda: Encoder.load(path), ValueError)


@fuzz(100)
@given(chosen=changes)
def test_a_model_of_another_preprocessing(run, tmp_path_factory, chosen):
    """The statement's hashes fit, so that only what it says can be wrong: loaded and used, or one clear error."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run, folder)
    tree = with_changes(json.loads((run / "preprocessing.json").read_bytes()), chosen)
    (folder / "preprocessing.json").write_bytes(as_json(tree))
    rehash(folder)
    model = refused(lambda: tacita.load(folder), tacita.TacitaError, ValueError)
    if model is not None:
        rows = {"x": [1.0], "y": [1], "kind": ["red"]}
        refused(lambda: model.predict({**{name: [0] for name in model.encoder.columns()}, **rows}), ValueError)


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
    rehash(tmp_path / "run")
    with pytest.raises(ValueError, match=refusal):
        tacita.load(tmp_path / "run")


@fuzz(50)
@given(chosen=edits)
def test_a_model_of_other_weights(run, tmp_path_factory, chosen):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run, folder)
    path = folder / "model.safetensors"
    path.write_bytes(with_edits(path.read_bytes(), chosen))
    rehash(folder)
    refused(lambda: tacita.load(folder), tacita.TacitaError)


def rehash(folder):
    stated = json.loads((folder / "statement.json").read_bytes())
    stated["files"] = {name: report.file_sha256(folder / name) for name in stated["files"]}
    (folder / "statement.json").write_bytes(json.dumps(stated).encode())


@fuzz(40)
@given(chosen=edits, name=st.sampled_from(["statement.json", "statement.txt", "ledger.jsonl", "ledger.head.json"]))
def test_statement_and_ledger_bytes(run, tmp_path_factory, chosen, name):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run, folder)
    (folder / name).write_bytes(with_edits((run / name).read_bytes(), chosen))
    checked = refused(lambda: check_run(folder), tacita.TacitaError)
    if checked is not None and (folder / name).read_bytes() != (run / name).read_bytes() and name != "statement.json":
        assert checked.faults or name == "ledger.jsonl"  # a torn last line is no fault
    refused(lambda: tacita.load(folder), tacita.TacitaError)


@fuzz(60)
@given(chosen=changes)
def test_statement_values(run, tmp_path_factory, chosen):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(run, folder)
    tree = with_changes(json.loads((run / "statement.json").read_bytes()), chosen)
    (folder / "statement.json").write_bytes(as_json(tree))
    checked = refused(lambda: check_run(folder), tacita.TacitaError)
    if checked is not None:
        assert all("\n" not in fault for fault in checked.faults)
    refused(lambda: tacita.load(folder), tacita.TacitaError)


@pytest.mark.parametrize(
    "name",
    ["statement.json", "statement.txt", "preprocessing.json", "model.safetensors", "ledger.jsonl", "config.toml"],
)
def test_no_file_of_an_export_is_unpickled(run, tmp_path, name):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    if name != "statement.json":
        rehash(tmp_path / "run")
    with suppress(tacita.TacitaError):
        tacita.load(tmp_path / "run")
    with suppress(tacita.TacitaError):
        check_run(tmp_path / "run")
    assert not (tmp_path / "ran").exists()


# --- data ----------------------------------------------------------------------------------------------------------

CELLS = table_text(12).replace("red", f"{MARK}red").replace("p1", f"{MARK}1")


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


def says_nothing_of_cells(read, *errors):
    """A reading, or one of ``errors``; neither message nor warning nor chained error shows the mark."""
    caught = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            read()
        except errors as error:
            caught = error
    if caught is not None:
        one_line(caught)
        assert MARK not in str(caught)
        assert caught.__cause__ is None
        assert caught.__suppress_context__ or caught.__context__ is None
    assert not any(MARK in str(warning.message) for warning in warned)


@pytest.mark.parametrize("name", FORMATS)
@fuzz(60)
@given(chosen=edits)
def test_data_bytes(valid, tmp_path_factory, name, chosen):
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(with_edits(valid[name], chosen))
    for only in (None, ["x", "kind"]):
        says_nothing_of_cells(lambda only=only: read_table(path, only=only), DataStructureError)


@pytest.mark.parametrize("name", FORMATS)
@fuzz(12)
@given(chosen=edits)
def test_prediction_of_data_bytes(run, valid, tmp_path_factory, name, chosen):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / name).write_bytes(with_edits(valid[name], chosen))
    model = tacita.load(run)
    says_nothing_of_cells(lambda: predict_file(model, str(folder / name), str(folder / "out.csv")), DataStructureError)


@pytest.mark.parametrize("name", FORMATS)
@fuzz(6)
@given(chosen=edits)
def test_training_on_data_bytes(valid, tmp_path_factory, name, chosen):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / name).write_bytes(with_edits(valid[name], chosen))
    settings = TableSettings(
        data=str(folder / name), output=str(folder / "run"), epsilon=20.0, delta=1e-3, target="label",
        sample_rate=0.5, queries=1,
    )  # fmt: skip
    says_nothing_of_cells(lambda: train_table(settings), tacita.TacitaError, ValueError)


@pytest.mark.parametrize("content", ["empty", "bomb in an array", "bomb as the file", "bomb in a zip", "zip of texts"])
def test_npz_that_holds_no_numbers(tmp_path, content):
    import zipfile

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
        Reading(),
        Reading(delimiter=";"),
        Reading(quote="'"),
        Reading(encoding="latin-1"),
        Reading(header=False, columns=("x", "y", "kind", "patient", "label")),
        Reading(header=False, columns=("a",)),
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
        msgspec.convert({"header": 1}, Reading)
