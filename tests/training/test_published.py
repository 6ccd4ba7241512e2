"""What a run folder keeps of a model that trains a part of its weights: what was trained, and files under a seal."""

import json
import shutil

import pytest
import safetensors.torch
import torch

import tacita
from tacita.ledger.ledger import Ledger
from tacita.runs import checkpoint
from tacita.runs.folder import RunFolder
from tacita.runs.sealed_run import SealedRun
from tacita.tables import check_run
from tests.runs.second_verifier import NODE, asked
from tests.training.small_run import SETTINGS, loss_fn, rows

TRAINED = {"1.weight", "1.bias"}


def adapted(seed=0):
    """A frozen layer, and one that is trained on top."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    model[0].requires_grad_(False)
    return model


def export(run, folder):
    """An adapter as PEFT writes it: weights, and the scale that they are used with."""
    (folder / "adapter").mkdir()
    safetensors.torch.save_file({"w": run.model[1].weight.detach()}, folder / "adapter" / "adapter_model.safetensors")
    (folder / "adapter" / "adapter_config.json").write_text(
        json.dumps({"scale": 2.0, "epsilon": run.statement.to_json()["epsilon"]})
    )


def trained(folder, model=None, **changes):
    quick = {"epochs": 0.5, "method": "loop"}
    return tacita.fit(model or adapted(), loss_fn, rows(), folder=folder, **{**SETTINGS, **quick, **changes})


class KilledError(Exception):
    """Stands for the end of the process."""


def killed(*_, **__):
    raise KilledError


@pytest.mark.parametrize(("publish", "names"), [("all", TRAINED | {"0.weight", "0.bias"}), ("trainable", TRAINED)])
def test_the_folder_keeps_all_of_the_model_or_what_was_trained(publish, names, tmp_path):
    run = trained(tmp_path / "run", publish=publish)
    kept = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert kept.keys() == names
    assert all(torch.equal(kept[name], run.model.state_dict()[name]) for name in names)


def test_every_exported_file_is_sealed_and_nothing_else_of_the_model_is_written(tmp_path):
    trained(tmp_path / "run", publish="exported", export=export)
    files = SealedRun.intact(tmp_path / "run").stated["files"]
    assert [*files] == ["adapter/adapter_config.json", "adapter/adapter_model.safetensors"]
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / "private").exists()


def test_a_changed_scale_is_tampered(tmp_path):
    trained(tmp_path / "run", publish="exported", export=export)
    config = tmp_path / "run" / "adapter" / "adapter_config.json"
    assert not check_run(tmp_path / "run").faults
    config.write_text(config.read_text().replace("2.0", "4.0"))
    assert "adapter/adapter_config.json is not the file" in check_run(tmp_path / "run").faults[0]


def test_a_file_that_is_put_beside_sealed_ones_is_found(tmp_path):
    trained(tmp_path / "run", publish="exported", export=export)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (tmp_path / "other" / "adapter" / "special_tokens_map.json").write_text("{}")
    assert not check_run(tmp_path / "run").faults
    assert "adapter/special_tokens_map.json was not there" in check_run(tmp_path / "other").faults[0]
    if NODE is not None:
        (accepted, _), (refused, words) = asked([[tmp_path / "run"], [tmp_path / "other"]])
        assert (accepted, refused) == (0, 1)
        assert "special_tokens_map.json beside" in words


def test_export_is_handed_the_statement_of_the_run(tmp_path):
    run = trained(tmp_path / "run", publish="exported", export=export)
    said = json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text())
    assert said["epsilon"] == run.statement.to_json()["epsilon"]


def test_a_run_killed_before_its_seal_exports_anew(tmp_path, monkeypatch):
    def first(run, folder):
        export(run, folder)
        (folder / "adapter" / "stale.bin").write_bytes(b"x")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "seal", killed)
        with pytest.raises(KilledError):
            trained(tmp_path / "run", publish="exported", export=first)
    assert (tmp_path / "run" / "adapter" / "stale.bin").exists()
    trained(tmp_path / "run", publish="exported", export=export)
    assert not (tmp_path / "run" / "adapter" / "stale.bin").exists()
    assert not check_run(tmp_path / "run").faults


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger.head.json", "statement.txt", "private/key.json"])
def test_export_cannot_replace_a_file_of_the_run(name, tmp_path):
    def writes(run, folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")

    with pytest.raises(ValueError, match=f"export must not write {name}"):
        trained(tmp_path / "run", export=writes)


def test_a_checkpoint_holds_what_is_trained_and_a_digest_of_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "finish", lambda self: None)
    trained(tmp_path / "run")
    tree, _ = checkpoint.load(RunFolder(tmp_path / "run").checkpoint)
    assert tree["model"].keys() == TRAINED
    assert len(tree["frozen"]) == 64


def test_a_run_does_not_go_on_with_another_base(tmp_path):
    with pytest.raises(KilledError):
        trained(tmp_path / "run", callbacks=[killed])
    other = adapted(seed=1)
    other[1].load_state_dict(adapted()[1].state_dict())
    with pytest.raises(tacita.ResumeError, match="does not train differ from those that the run started with"):
        trained(tmp_path / "run", other)
    trained(tmp_path / "run")


@pytest.mark.parametrize("publish", ["all", "trainable"])
def test_a_sealed_run_gives_its_model_back_once_more(publish, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", killed)
        with pytest.raises(KilledError):
            trained(tmp_path / "run", publish=publish, export=export)
    model = adapted()
    trained(tmp_path / "run", model, publish=publish, export=export)
    kept = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in kept.items())
    assert not (tmp_path / "run" / "private").exists()


def test_a_sealed_run_that_only_exported_is_tidied_and_says_where_its_model_is(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", killed)
        with pytest.raises(KilledError):
            trained(tmp_path / "run", publish="exported", export=export)
    with pytest.raises(tacita.ResumeError, match="load its model from the files that export wrote"):
        trained(tmp_path / "run", publish="exported", export=export)
    assert not (tmp_path / "run" / "private").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"publish": "some"}, "publish must be one of"),
        ({"publish": "exported"}, "needs export"),
        ({"publish": "trainable"}, "need folder"),
        ({"export": export}, "need folder"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        trained(tmp_path / "run" if changes.get("publish") in ("some", "exported") else None, **changes)
    assert not (tmp_path / "run").exists()
