"""Arrays of an NPZ file: those that are chosen, and one error without a word of the file for everything else."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from tacita._npz import read_arrays
from tacita.errors import DataStructureError
from tacita.tables.parquet_file import words_kept_back

SAYS = "data must be such a file"


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "file.npz", a=np.arange(3), b=np.zeros((2, 2)))
    return tmp_path / "file.npz"


def test_the_chosen_arrays_are_read_in_their_order(path):
    found = read_arrays(path, SAYS, reversed)
    assert list(found) == ["b", "a"]
    assert found["a"].tolist() == [0, 1, 2]
    assert not read_arrays(path, SAYS, lambda names: ())


def test_what_the_choice_refuses_is_said(path):
    def choose(names):
        raise DataStructureError("there must be a column c.")

    with pytest.raises(DataStructureError, match="a column c"):
        read_arrays(path, SAYS, choose)


def test_a_file_that_does_not_exist_is_said_not_to(path):
    path.unlink()
    with pytest.raises(DataStructureError, match=rf"^{SAYS}: there is no file '.*file\.npz'\.$"):
        read_arrays(path, SAYS, lambda names: ["a"])


@pytest.mark.parametrize("kind", ["text", "folder", "single", "objects", "no array", "another name"])
def test_everything_else_is_one_error(path, kind):
    path.unlink()
    if kind == "text":
        path.write_bytes(b"secret")
    if kind == "folder":
        path.mkdir()
    if kind == "single":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    if kind == "objects":
        np.savez(path, a=np.array(["secret", None], dtype=object))
    if kind == "no array":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", b"secret")
    if kind == "another name":
        np.savez(path, secret=np.zeros(3))
    with pytest.raises(DataStructureError, match=rf"^{SAYS}, got '.*file\.npz'\.$") as caught:
        read_arrays(path, SAYS, lambda names: ["a"])
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_what_does_not_fit_into_memory_is_said_to_be_that(path):
    """A header that says so is enough: no file of this size would fit on a disk."""
    with zipfile.ZipFile(path) as whole:
        data = whole.read("a.npy").replace(b"(3,), }" + 20 * b" ", f"({10**17},), }}".encode().ljust(27))
    with zipfile.ZipFile(path, "w") as forged:
        forged.writestr("a.npy", data)
    with pytest.raises(DataStructureError, match="holds more than fits into memory") as caught:
        read_arrays(path, SAYS, lambda names: ["a"])
    assert caught.value.__suppress_context__


def test_parquet_words_are_kept_back_and_what_memory_does_not_hold_is_said():
    for error, says in (
        (MemoryError("Ada"), "more than fits into memory"),
        (OSError("Ada"), "must be a readable Parquet"),
    ):
        with pytest.raises(DataStructureError, match=says) as found, words_kept_back(Path("a.parquet")):
            raise error
        assert "Ada" not in str(found.value)
