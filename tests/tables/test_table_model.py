"""A run loaded again: every kind of frame gives the same, and files that do not belong together are refused."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
import safetensors.torch

import tacita
from tacita.errors import DataStructureError, TacitaError
from tacita.tables import check_run, train_table
from tests.tables.forging import resealed


@pytest.fixture
def run(settings, table) -> Path:
    return train_table(settings(queries=20)).folder


def test_every_frame_gives_the_same(run, table) -> None:
    model = tacita.load(run)
    arrow = pyarrow.csv.read_csv(table)
    pandas = pd.read_csv(table)
    frames = [
        arrow,
        pandas,
        pandas.astype({"kind": "category", "y": "Int64"}),
        pandas.astype(str),
        arrow.to_pydict(),
        {name: pandas[name].to_numpy() for name in pandas},
        arrow.set_column(2, "kind", arrow["kind"].dictionary_encode()),
        pandas.rename(columns=lambda name: f" {name}"),  # as pandas reads a file with blanks after its commas
    ]
    expected = model.predict_proba(frames[0])
    for frame in frames[1:]:
        np.testing.assert_array_equal(model.predict_proba(frame), expected)
    assert set(model.predict(pandas)) <= {"no", "yes"}
    np.testing.assert_array_equal(model.predict(pandas), np.array(model.classes, dtype=object)[expected.argmax(1)])


def test_missing_values_of_every_kind(run) -> None:
    model = tacita.load(run)
    frames = [
        {"x": ["", "1.0"], "y": ["?", "2"], "kind": ["", "red"]},
        {"x": np.array([np.nan, 1.0]), "y": [None, 2], "kind": [None, "red"]},
        pd.DataFrame({"x": [np.nan, 1.0], "y": pd.array([None, 2], dtype="Int64"), "kind": [np.nan, "red"]}),
        pa.table({"x": pa.array([None, 1.0]), "y": pa.array([None, 2]), "kind": pa.array([None, "red"])}),
    ]
    found = [model.predict_proba(frame) for frame in frames]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_structure_of_a_frame(run) -> None:
    model = tacita.load(run)
    with pytest.raises(DataStructureError, match="frame must have the column 'y'"):
        model.predict({"x": [1.0], "kind": ["red"]})
    with pytest.raises(TypeError, match="frame must be a pandas or Arrow table"):
        model.predict(np.zeros((2, 3)))
    assert len(model.predict({"x": [], "y": [], "kind": []})) == 0


def test_files_that_do_not_belong_together(run) -> None:
    weights = safetensors.torch.load_file(run / "model.safetensors")
    safetensors.torch.save_file({name: value + 1 for name, value in weights.items()}, run / "model.safetensors")
    with pytest.raises(TacitaError, match=r"model.safetensors is not the file that the ledger was sealed with"):
        tacita.load(run)


def test_a_file_that_is_gone_is_called_missing(run) -> None:
    (run / "model.safetensors").unlink()
    (run / "ledger.jsonl").rename(run / "kept")
    assert check_run(run).faults[0] == "ledger.jsonl cannot be read: No such file or directory"
    (run / "kept").rename(run / "ledger.jsonl")
    with pytest.raises(TacitaError, match=r"model.safetensors, which the ledger was sealed with, is missing"):
        tacita.load(run)


def test_a_damaged_statement_is_no_unfinished_run(run) -> None:
    (run / "statement.json").write_text("{")
    with pytest.raises(TacitaError, match="is not what tacita wrote, so that it was changed or damaged"):
        tacita.load(run)


def test_preprocessing_of_another_run(run) -> None:
    path = run / "preprocessing.json"
    path.write_text(path.read_text().replace('"red"', '"blue"'))
    with pytest.raises(TacitaError, match=r"preprocessing.json is not the file"):
        tacita.load(run)


def test_no_run(tmp_path) -> None:
    with pytest.raises(TacitaError, match=r"there is no folder '.*nowhere'"):
        tacita.load(tmp_path / "nowhere")
    with pytest.raises(TacitaError, match="holds no finished run"):
        tacita.load(tmp_path)


class _Trap:
    """A pickle that leaves a trace when somebody unpickles it."""

    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


def test_nothing_is_unpickled(run) -> None:
    """Not even where the ledger was sealed with it."""
    path = run / "model.safetensors"
    path.write_bytes(pickle.dumps(_Trap()))
    resealed(run)
    with pytest.raises(TacitaError, match=r"model.safetensors does not fit"):
        tacita.load(run)
    assert not Path("unpickled").exists()
    pickle.loads(path.read_bytes())
    assert Path("unpickled").exists()  # the trap works
