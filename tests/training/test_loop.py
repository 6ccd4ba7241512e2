"""The loop: what is on disk, and in which order, whenever a checkpoint is written."""

import json
import os
import warnings
from pathlib import Path

import pytest
import torch

import tacita
from tacita.errors import UnsupportedModuleError
from tacita.runs import checkpoint
from tacita.training.loop import DROWNED


@pytest.fixture
def replaced(monkeypatch, tmp_path):
    """Run in a folder; for each private file put in its place: its name, its content, and lines not on disk yet."""
    replace, fsync, seen, durable = os.replace, os.fsync, [], [0]
    ledger = tmp_path / "run" / "ledger.jsonl"

    def flushing(handle):
        fsync(handle)
        if ledger.exists() and os.fstat(handle).st_ino == ledger.stat().st_ino:
            durable[0] = os.fstat(handle).st_size

    def replacing(source, target):
        if Path(target).parent.name == "private":
            lost = ledger.stat().st_size - durable[0] if ledger.exists() else 0
            seen.append((Path(target).name, Path(source).read_bytes(), lost))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "replace", replacing)
    x = torch.linspace(-1, 1, 40).view(-1, 1)
    tacita.fit(
        torch.nn.Linear(1, 1),
        lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1),
        (x, x),
        target_epsilon=3.0,
        target_delta=1e-3,
        epochs=2,
        num_records=40,
        expected_batch_size=10,
        folder=tmp_path / "run",
        progress=False,
    )
    return seen


def generation(name, content, folder):
    if name == "input.json":
        return None
    if name == "key.json":
        return json.loads(content)["generation"]
    (folder / name).write_bytes(content)
    return checkpoint.load(folder / name)[0]["oracle"]["generation"]


def test_lines_are_on_disk_before_a_checkpoint_and_the_key_comes_last(replaced, tmp_path):
    order = [(name, generation(name, content, tmp_path)) for name, content, _ in replaced]
    first = [("key.json", 0), ("input.json", None)]
    assert order == first + [(name, 1 + k) for k in range(9) for name in ("checkpoint.safetensors", "key.json")]
    assert not any(lost for name, _, lost in replaced if name == "checkpoint.safetensors")


def test_a_checkpoint_moves_the_key_on(replaced):
    keys = [json.loads(content)["key"] for name, content, _ in replaced if name == "key.json"]
    assert len(set(keys)) == len(keys) == 10


@pytest.mark.parametrize(("epsilon", "drowned"), [(1e-4, True), (1.0, False)])
def test_noise_that_drowns_all_queries_is_said_once(epsilon, drowned):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = tacita.fit(
            torch.nn.Linear(9, 1),
            lambda model, batch: model(batch[0]).square().sum(1),
            (torch.ones(1000, 9),),
            target_epsilon=epsilon,
            target_delta=1e-4,
            epochs=1,
            num_records=1000,
            progress=False,
        )
    assert ["noise drowns this training" in str(one.message) for one in said] == [True] * drowned
    (session,) = run.ledger.sessions
    noise = session.event.noise_std[0]  # of a threshold of 1
    ratio = 256 * session.planned_queries**0.5 / (noise * 10**0.5)
    assert (ratio < DROWNED) == drowned


def normalized():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))


@pytest.mark.parametrize("whole", [False, True], ids=["a module in eval mode", "the model in eval mode"])
def test_modules_keep_their_modes_unless_the_model_is_not_in_train_mode(whole):
    """A batch norm in eval mode has fixed statistics and mixes no records, as its refusal advises."""
    model = normalized()
    model[1].requires_grad_(False)
    model.eval() if whole else model[1].eval()
    settings = dict(target_epsilon=3.0, target_delta=1e-3, epochs=1, num_records=100, progress=False)

    def fit():
        tacita.fit(model, lambda m, batch: m(batch[0]).square().sum(1), (torch.randn(100, 3),), **settings)

    if whole:
        with pytest.raises(UnsupportedModuleError, match="mixes samples"):
            fit()
    else:
        fit()
    assert [one.training for one in model] == [True, whole, True]
