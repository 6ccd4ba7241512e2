"""Checkpoints: what goes in comes out, and nothing else can be loaded."""

import os
import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from tacita._files import replace_durably
from tacita.errors import ResumeError
from tacita.runs import checkpoint
from tacita.runs.folder import RunFolder


def test_a_tree_comes_back_bit_for_bit(tmp_path):
    tree = {
        "model": {"w": torch.randn(3, 2), "half": torch.randn(4).bfloat16(), "empty": torch.zeros(0, 5)},
        "numbers": [1, 0.1, float("inf"), True, None, "text"],
        "nested": {"0": {"step": torch.tensor(3.0)}},
    }
    checkpoint.save(tmp_path / "c.safetensors", tree, {"binding": "x"})
    found, head = checkpoint.load(tmp_path / "c.safetensors")
    assert head == {"binding": "x"}
    assert found["numbers"] == tree["numbers"]
    for name, value in tree["model"].items():
        assert torch.equal(found["model"][name], value)
        assert found["model"][name].dtype == value.dtype
    assert found["nested"]["0"]["step"] == 3.0


def test_a_checkpoint_cannot_hold_objects(tmp_path):
    with pytest.raises(TypeError, match="cannot hold"):
        checkpoint.save(tmp_path / "c.safetensors", {"x": object()}, {})


class _Runs:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_pickle_is_refused_and_not_run(tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(pickle.dumps(_Runs(str(tmp_path / "ran"))))
    with pytest.raises(ResumeError):
        checkpoint.load(path)
    torch.save({"w": torch.zeros(2)}, path)
    with pytest.raises(ResumeError):
        checkpoint.load(path)
    assert not (tmp_path / "ran").exists()


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 400), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_is_a_resume_error_or_the_tree(tmp_path_factory, position, byte, cut):
    path = tmp_path_factory.mktemp("damaged") / "c.safetensors"
    checkpoint.save(path, {"w": torch.arange(4.0), "n": 3}, {"binding": "x"})
    data = bytearray(path.read_bytes())
    position %= len(data)
    data = data[:position] if cut else data
    if not cut:
        data[position] = byte
    path.write_bytes(bytes(data))
    try:
        tree, _ = checkpoint.load(path)
    except ResumeError:
        return
    assert tree.keys() == {"w", "n"}
    assert torch.equal(tree["w"], torch.arange(4.0))
    assert tree["n"] == 3


@pytest.mark.parametrize("bias", [torch.ones(1), torch.ones(3, 1), torch.ones(3, dtype=torch.float64), True, 1.0])
def test_parameters_of_another_shape_or_type_are_another_model(bias):
    """Copied in they would be spread over the parameter, or rounded."""
    model = torch.nn.Linear(2, 3)
    before = model.bias.detach().clone()
    state = checkpoint.TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1), oracle=None)
    with pytest.raises(ResumeError, match="shape or dtype differ for bias"):
        state.from_tree({"model": {"weight": torch.ones(3, 2), "bias": bias}})
    assert torch.equal(model.bias, before)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_durably(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            replace_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_finish_removes_the_private_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.key.write_text("k")
    folder.checkpoint.write_text("c")
    assert folder.unfinished
    folder.finish()
    assert not folder.private.exists()
    assert not folder.unfinished
