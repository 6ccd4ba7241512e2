"""Results of single runs: computed once, read again, whatever an interruption left."""

import math

import pytest
import torch

from tacita_reproductions import kept
from tacita_reproductions.kept import Kept, data_hash


def counted(calls, value):
    return lambda: calls.append(value) or {"loss": value}


def test_a_result_is_computed_once_and_read_by_the_next_run(tmp_path):
    path, calls = tmp_path / "deep" / "runs.jsonl", []
    runs = Kept(path)
    for _ in range(2):
        assert runs.result("one", counted(calls, 0.1)) == {"loss": 0.1}
    assert runs.result("two", counted(calls, math.inf)) == {"loss": math.inf}
    again = Kept(path)
    assert again.result("one", counted(calls, 9.0)) == {"loss": 0.1}
    assert again.result("two", counted(calls, 9.0)) == {"loss": math.inf}
    assert calls == [0.1, math.inf]


def test_nothing_is_kept_without_a_file():
    calls = []
    Kept().result("one", counted(calls, 0.1))
    Kept().result("one", counted(calls, 0.1))
    assert calls == [0.1, 0.1]


def test_a_line_that_is_cut_off_is_computed_again(tmp_path):
    path, calls = tmp_path / "runs.jsonl", []
    Kept(path).result("one", counted(calls, 0.1))
    Kept(path).result("two", counted(calls, 0.2))
    path.write_text(path.read_text()[:-20])
    assert Kept(path).result("two", counted(calls, 0.3)) == {"loss": 0.3}
    last = Kept(path)
    assert last.result("one", counted(calls, 9.0)) == {"loss": 0.1}
    assert last.result("two", counted(calls, 9.0)) == {"loss": 0.3}


def test_strange_lines_and_other_versions_are_not_used(tmp_path, monkeypatch):
    path, calls = tmp_path / "runs.jsonl", []
    Kept(path).result("one", counted(calls, 0.1))
    path.write_text(path.read_text() + "[]\n3\n{}\n\n")
    assert Kept(path).result("one", counted(calls, 9.0)) == {"loss": 0.1}
    monkeypatch.setattr(kept, "tacita_version", lambda: "another")
    assert Kept(path).result("one", counted(calls, 0.2)) == {"loss": 0.2}
    monkeypatch.setattr(kept.torch, "__version__", "another")
    assert Kept(path).result("one", counted(calls, 0.4)) == {"loss": 0.4}


ROWS = (torch.arange(6.0).reshape(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("tensors", "texts"),
    [
        ((ROWS[0] + torch.tensor([0.0, 0.0, 1e-6]), ROWS[1]), ()),
        ((ROWS[0].reshape(3, 2), ROWS[1]), ()),
        ((ROWS[0].view(torch.int32), ROWS[1]), ()),
        ((ROWS[0], ROWS[1].flip(0)), ()),
        (ROWS[::-1], ()),
        (ROWS[:1], ()),
        (ROWS, ("a",)),
        (ROWS, ("",)),
    ],
)
def test_other_data_have_another_hash(tensors, texts):
    assert data_hash(tensors, texts) != data_hash(ROWS)


def test_the_hash_is_that_of_the_values_whatever_their_strides():
    strided = ROWS[0].t().contiguous().t()
    assert data_hash((strided, ROWS[1])) == data_hash(ROWS)
    assert data_hash(ROWS) == data_hash(list(ROWS)) == "7a92d2c290e9acdb"  # as files of runs hold it
    assert data_hash([], ["ab", "c"]) != data_hash([], ["a", "bc"])


@pytest.mark.parametrize("tensor", [torch.tensor(3.0), torch.zeros(0, 2), torch.zeros(2, dtype=torch.bfloat16)])
def test_scalars_nothing_and_short_floats_have_a_hash(tensor):
    assert len(data_hash([tensor])) == 16
