"""A run finished by hand, by ``fit`` or from a selection: whatever is changed in its folder shows."""

import json

import pytest
import safetensors.torch
import torch

import tacita
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.ledger.hash_chain import canonical, sha256
from tacita.runs.folder import RunFolder
from tacita.runs.sealed_run import SealedRun, seal_run
from tacita.tables import check_run
from tests.faults import runs


def by_fit(folder):
    runs.train(folder)


def by_hand(folder):
    """A loop of one's own."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    ledger = tacita.Ledger(folder / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = tacita.ClippedGradientOracle(
        model,
        runs.losses,
        runs.DATA,
        ledger=ledger,
        sampler=tacita.PoissonSampler(sample_rate=0.25, num_records=40),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=2,
    )
    oracle.backward()
    with pytest.raises(tacita.LedgerError, match="close train-1 first"):
        seal_run(ledger, tacita.statement(ledger, 1e-3), weights=model.state_dict())
    oracle.session.close()
    (folder / "notes.txt").write_bytes(b"lr 0.1\n")
    seal_run(ledger, tacita.statement(ledger, 1e-3), weights=model.state_dict(), files=["notes.txt"])
    ledger.close()


RUNS = {"fit": by_fit, "by_hand": by_hand}


def append(path, data):
    path.write_bytes(path.read_bytes() + data)


def edited(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def other_model(run):
    before = sha256((run / "model.safetensors").read_bytes())
    append(run / "model.safetensors", b"x")
    after = sha256((run / "model.safetensors").read_bytes())
    for name in ("statement.json", "statement.txt"):
        (run / name).write_text((run / name).read_text().replace(before, after))


def without_line(run, number):
    lines = (run / "ledger.jsonl").read_bytes().splitlines()
    del lines[number]
    (run / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def twice(run):
    """Who reads on to the end finds the epsilon that was sealed; who stops at the first finds another."""
    text = (run / "statement.json").read_text()
    (run / "statement.json").write_text(text.replace("{\n", '{\n  "epsilon": 0.01,\n', 1))


def other_model_in_the_seal(run):
    """The seal is written anew over another model, and the anchor put back to the line before."""
    append(run / "model.safetensors", b"x")
    *lines, seal = (run / "ledger.jsonl").read_bytes().splitlines()
    fields = json.loads(seal)
    fields["files"]["model.safetensors"] = sha256((run / "model.safetensors").read_bytes())
    (run / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in [*lines, canonical(fields)]))
    anchor_back(run, len(lines))


def anchor_back(run, count):
    lines = (run / "ledger.jsonl").read_bytes().splitlines()
    head = sha256(lines[count - 1]) if count else "0" * 64
    (run / "ledger.head.json").write_bytes(canonical({"count": count, "head": head}) + b"\n")


def named_in_the_statement(run):
    return "model.safetensors" in json.loads((run / "statement.json").read_bytes()).get("files", {})


TAMPERED = {
    "an epsilon before the epsilon": twice,
    "the statement in other bytes": lambda run: edited(run / "statement.json"),
    "an anchor of nothing": lambda run: anchor_back(run, 0),
    "an earlier anchor": lambda run: anchor_back(run, 3),
    "another model": lambda run: safetensors.torch.save_file({"x": torch.zeros(1)}, run / "model.safetensors"),
    "another model, its hash in the statement": other_model,
    "statement.txt": lambda run: append(run / "statement.txt", b"It is safe.\n"),
    "a smaller epsilon": lambda run: edited(run / "statement.json", epsilon=0.1),
    "a blank line in the ledger": lambda run: append(run / "ledger.jsonl", b"\n"),
    "the anchor removed": lambda run: (run / "ledger.head.json").unlink(),
    "a line of the ledger removed": lambda run: without_line(run, 3),
    "the seal removed": lambda run: without_line(run, -1),
}


@pytest.fixture(scope="module", params=RUNS)
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    folder.parent.mkdir(exist_ok=True)
    RUNS[request.param](folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for path in finished.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_run_that_nobody_changed(run):
    assert SealedRun.intact(run).faults == check_run(run).faults == ()
    assert SealedRun(run).read("model.safetensors") == (run / "model.safetensors").read_bytes()
    assert "PRIVACY STATEMENT" in check_run(run).text


def test_the_anchor_may_be_one_line_behind(run):
    """A process that is killed between the seal and its anchor leaves a run that is finished."""
    anchor_back(run, len((run / "ledger.jsonl").read_bytes().splitlines()) - 1)
    assert SealedRun(run).faults == ()


def test_a_seal_over_another_model_than_the_statement_names(run):
    if not named_in_the_statement(run):
        pytest.skip("this statement names no model")
    other_model_in_the_seal(run)
    assert any("names another model.safetensors" in fault for fault in SealedRun(run).faults)


@pytest.mark.parametrize("name", TAMPERED, ids=lambda name: name.replace(" ", "_"))
def test_tampering_is_found(run, name):
    TAMPERED[name](run)
    assert SealedRun(run).faults
    assert check_run(run).faults
    with pytest.raises(tacita.TacitaError):
        SealedRun.intact(run)


def test_only_sealed_bytes_are_read(run):
    sealed = SealedRun.intact(run)
    append(run / "model.safetensors", b"x")  # between the check and the use
    with pytest.raises(tacita.TacitaError, match=r"model.safetensors is not a file that its ledger was sealed with"):
        sealed.read("model.safetensors")
    (run / "more.txt").write_bytes(b"")
    with pytest.raises(tacita.TacitaError, match=r"more.txt is not a file"):
        sealed.read("more.txt")


def test_a_run_without_preprocessing_predicts_no_table(run):
    with pytest.raises(tacita.TacitaError, match=r"no model of a table: without preprocessing.json"):
        tacita.load(run)


def test_a_statement_of_another_moment_is_not_sealed(tmp_path):
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    words = tacita.statement(ledger, 1e-3)
    event = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
    )
    ledger.register(event, planned_queries=1)
    with pytest.raises(ValueError, match="make it again"):
        seal_run(ledger, words)
    memory = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    with pytest.raises(ValueError, match="in memory"):
        seal_run(memory, tacita.statement(memory, 1e-3))
    for files in ({"model.safetensors": "0" * 64}, {"more.txt": "0" * 64}):
        with pytest.raises(ValueError, match="'files'"):
            seal_run(ledger, tacita.statement(ledger, 1e-3, files=files))
    assert ledger.sealed is None
    seal_run(ledger, tacita.statement(ledger, 1e-3))
    with pytest.raises(tacita.LedgerError, match="this ledger is sealed"):
        seal_run(ledger, tacita.statement(ledger, 1e-3), weights={"x": torch.zeros(1)})
    assert not (tmp_path / "model.safetensors").exists()


def test_a_run_changed_while_it_was_stopped_after_its_seal_is_not_finished_in_silence(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", lambda self: None)  # killed after the seal
        runs.train(folder)
    append(folder / "model.safetensors", b"x")
    with pytest.raises(tacita.ResumeError, match="was changed since"):
        runs.train(folder)
    assert (folder / "private").is_dir()
