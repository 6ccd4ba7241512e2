"""The five-line path: meets its target, writes what it says, resumes, and refuses what it should."""

import copy
import hashlib
import itertools
import json
import math
import shutil
from functools import partial

import pytest
import safetensors.torch
import torch

import tacita
from tacita.ledger.verdict import verdict
from tacita.runs.run_list import ListedRun
from tacita.tables import check_run
from tacita.training import callbacks
from tests.devices import models_move_to_the_device, on_each_device

pytestmark = pytest.mark.usefixtures("models_move")
device, models_move = on_each_device, models_move_to_the_device

SETTINGS = dict(
    target_epsilon=2.0,
    target_delta=1e-3,
    epochs=4,
    num_records=200,
    expected_batch_size=50,
    max_grad_norm=1.0,
    privacy_unit="one row = one patient",
    progress=False,
)


def loss_fn(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def problem(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 3, generator=generator)
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    return model, loss_fn, (x, (x[:, 0] > 0).long())


def test_meets_its_target_and_learns():
    model, _, data = problem()
    run = tacita.fit(
        model, loss_fn, data, **{**SETTINGS, "epochs": 30, "target_epsilon": 8.0},
        optimizer=lambda params: torch.optim.SGD(params, lr=1.0),
    )  # fmt: skip
    assert run.ledger.epsilon(1e-3) <= 8.0
    assert run.ledger.epsilon(1e-3) >= 8.0 * 0.995
    assert (model.cpu()(data[0]).argmax(1) == data[1]).float().mean() > 0.8
    assert run.model is model


def test_planned_queries_are_epochs_over_the_rate_rounded_up():
    run = tacita.fit(*problem(), **{**SETTINGS, "epochs": 4.1})
    assert run.ledger.sessions[0].planned_queries == math.ceil(4.1 * 4)
    assert run.ledger.sessions[0].queries_made == 17


def test_what_tacita_chose_is_marked_and_what_was_given_is_not():
    settings = {
        name: SETTINGS[name] for name in ("target_epsilon", "target_delta", "epochs", "num_records", "progress")
    }
    run = tacita.fit(*problem(), **settings)
    chosen = " ".join(run.statement.to_json()["chosen_by_tacita"])
    for name in ("expected_batch_size", "max_grad_norm", "privacy_unit", "optimizer"):
        assert name in chosen
    given = " ".join(tacita.fit(*problem(), **SETTINGS).statement.to_json()["chosen_by_tacita"])
    assert "max_grad_norm" not in given
    assert "privacy_unit" not in given


def test_writes_what_may_be_shared_and_removes_the_rest(tmp_path):
    run = tacita.fit(*problem(), **SETTINGS, folder=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"model.safetensors", "statement.txt", "statement.json", "ledger.jsonl", "ledger.head.json"}
    weights = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(weights[name], value.cpu()) for name, value in run.model.state_dict().items())
    stated = json.loads((tmp_path / "run" / "statement.json").read_text())
    ledger = tacita.Ledger.load(tmp_path / "run" / "ledger.jsonl")
    assert stated["ledger_sha256"] == ledger.before_seal.head
    assert ledger.verify().sealed
    assert set(ledger.sealed.files) == {"model.safetensors", "statement.txt"}
    assert stated["secure_randomness"] is True
    assert stated["epsilon"] <= 2.0


def test_system_keys_differ_from_run_to_run():
    first, second = tacita.fit(*problem(), **SETTINGS), tacita.fit(*problem(), **SETTINGS)
    assert not torch.equal(first.model.weight, second.model.weight)


def test_a_test_stream_is_not_private_and_the_statement_says_so():
    run = tacita.fit(*problem(), **SETTINGS, randomness=tacita.Randomness.insecure(0))
    assert run.statement.to_json()["secure_randomness"] is False
    assert "NOT PRIVATE" in run.statement.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(target_epsilon=0.0), "target_epsilon must be"),
        (dict(target_epsilon=math.inf), "target_epsilon must be"),
        (dict(target_delta=0.005), "target_delta must be below 1 / num_records"),
        (dict(target_delta=0.01, num_records=50), "below 0.01, got 0.01.*or pass allow_large_delta=True"),
        (dict(epochs=0), "epochs must be"),
        (dict(num_records=0), "num_records must be"),
        (dict(expected_batch_size=201), "expected_batch_size"),
        (dict(max_grad_norm=-1.0), "max_grad_norm must be"),
        (dict(neighboring_relation="add_one"), "neighboring_relation must be one of"),
        (dict(clipper=tacita.FlatClipper(max_grad_norm=1.0)), "both given"),
        (dict(optimizer=torch.optim.SGD([torch.zeros(1)], lr=1)), r"Write optimizer=lambda params: torch.optim.SGD\("),
    ],
)
def test_wrong_settings_raise_before_anything_is_spent(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        tacita.fit(*problem(), **{**SETTINGS, **wrong}, folder=tmp_path / "run")


def test_a_large_delta_is_accepted_when_asked_for_and_said():
    settings = {**SETTINGS, "target_delta": 0.01, "num_records": 50, "expected_batch_size": 50}
    stated = tacita.fit(*problem(), **settings, allow_large_delta=True).statement.to_json()
    assert stated["verdict"] == "private"
    assert stated["verdict_warnings"] == ["delta is so large that whole records may be published"]


@pytest.mark.parametrize(
    ("unknown", "message"),
    [
        ("num_worker", r"fit\(\) has no argument 'num_worker'. Did you mean 'num_workers'"),
        ("qqqq", r"fit\(\) has no argument 'qqqq'. Its arguments are model, loss_fn, .*, randomness\."),
        ("learning_rate", r"'learning_rate': it is the optimizer's. Give .*torch.optim.SGD\(params, lr=\.\.\.\)\."),
        ("planned_queries", r"fit\(\) has no argument 'planned_queries': .*\(planned_queries=.*your-own-loop.md"),
        ("sampler", r"fit\(\) has no argument 'sampler': .*write your own loop"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_way_out(tmp_path, unknown, message):
    with pytest.raises(TypeError, match=message):
        tacita.fit(*problem(), **SETTINGS, **{unknown: 2}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": lambda params: torch.optim.SGD([*params][:1], lr=0.1)}, "must take all parameters .* misses"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS asks for more gradients"),
        ({"scheduler": 3}, r"scheduler must be a function \(optimizer, steps\)"),
    ],
)
def test_what_could_take_no_step_is_refused_before_a_query_is_paid(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        tacita.fit(*problem(), **SETTINGS, **given, folder=tmp_path / "run")
    if (tmp_path / "run" / "ledger.jsonl").exists():
        assert tacita.Ledger.load(tmp_path / "run" / "ledger.jsonl").epsilon_spent(1e-5) == 0.0


def test_an_interrupted_run_says_how_it_goes_on_and_may_then_hold_fewer_rows_in_memory(tmp_path):
    def interrupt(releases, spent):
        if releases[0].query == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        tacita.fit(*problem(), **SETTINGS, folder=tmp_path / "run", callbacks=[interrupt])
    assert "repeat the same call" in stopped.value.__notes__[0]
    run = tacita.fit(*problem(), **SETTINGS, folder=tmp_path / "run", max_physical_batch_size=3)
    assert run.ledger.sessions[0].queries_made == run.ledger.sessions[0].planned_queries


SETTINGS_WITHOUT_COUNT = {name: value for name, value in SETTINGS.items() if name != "num_records"}


def test_a_number_of_records_that_is_protected_must_be_declared(tmp_path):
    with pytest.raises(ValueError, match=r"num_records must be given under add_or_remove_one.*declare a public guess"):
        tacita.fit(*problem(), **SETTINGS_WITHOUT_COUNT, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_number_of_records_that_is_public_is_the_datas():
    settings = dict(neighboring_relation="replace_one", randomness=tacita.Randomness.insecure(0))
    run = tacita.fit(*problem(), **SETTINGS_WITHOUT_COUNT, **settings)
    given = tacita.fit(*problem(), **SETTINGS, **{**settings, "randomness": tacita.Randomness.insecure(0)})
    assert torch.equal(run.model.weight, given.model.weight)
    assert "num_records = 200" in " ".join(run.statement.to_json()["chosen_by_tacita"])
    with pytest.raises(ValueError, match=r"num_records must be the number of records.*got 100\. Pass len\(data\)"):
        tacita.fit(*problem(), **{**SETTINGS, "num_records": 100}, **settings)


class Stop(Exception):
    pass


def interrupted(monkeypatch, folder, at, optimizer=None, **changes):
    """Start a run in ``folder`` and stop it after ``at`` queries; returns the settings to resume with."""
    model, _, data = problem()
    query = tacita.GradientOracle.query

    def stopping(self, params):
        if self.gate.position == at:
            raise Stop
        return query(self, params)

    settings = {**SETTINGS, "randomness": tacita.Randomness.insecure(0), **changes}
    with monkeypatch.context() as patch:
        patch.setattr(tacita.GradientOracle, "query", stopping)
        with pytest.raises(Stop):
            tacita.fit(model, loss_fn, data, **settings, optimizer=optimizer, folder=folder)
    return model


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.9),
        lambda params: torch.optim.AdamW(params, lr=0.1),
        lambda params: torch.optim.Adagrad(params, lr=0.1),
    ],
)
def test_resumed_equals_uninterrupted_bit_for_bit(monkeypatch, tmp_path, optimizer):
    whole = tacita.fit(*problem(), **SETTINGS, optimizer=optimizer, randomness=tacita.Randomness.insecure(0),
                       folder=tmp_path / "whole")  # fmt: skip
    interrupted(monkeypatch, tmp_path / "run", 7, optimizer)
    resumed = tacita.fit(*problem(), **SETTINGS, optimizer=optimizer, folder=tmp_path / "run")
    assert torch.equal(whole.model.weight, resumed.model.weight)
    assert torch.equal(whole.model.bias, resumed.model.bias)
    assert resumed.ledger.sessions[0].queries_made == 16


@pytest.mark.parametrize(
    "changes",
    [
        dict(target_epsilon=3.0),
        dict(max_grad_norm=0.5),
        dict(epochs=5),
        dict(neighboring_relation="zero_out_one"),
        dict(privacy_unit="one row = one visit"),
    ],
)
def test_changed_settings_on_resume_are_an_error(monkeypatch, tmp_path, changes):
    interrupted(monkeypatch, tmp_path / "run", 7)
    with pytest.raises(tacita.TacitaError):
        tacita.fit(*problem(), **{**SETTINGS, **changes}, folder=tmp_path / "run")
    tacita.fit(*problem(), **SETTINGS, folder=tmp_path / "run")  # nothing was lost: the right settings still resume


def test_changed_data_on_resume_are_an_error_that_tells_nothing_of_them(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path / "run", 7)
    model, _, data = problem()
    changed = (data[0].clone(), data[1])
    changed[0][17, 1] = 123456.0
    with pytest.raises(tacita.ResumeError) as raised:
        tacita.fit(model, loss_fn, changed, **SETTINGS, folder=tmp_path / "run")
    assert "123456" not in str(raised.value)
    assert "17" not in str(raised.value)


def test_changed_optimizer_settings_on_resume_get_fresh_noise_and_a_new_charge(monkeypatch, tmp_path):
    """The checkpoint is of the old optimizer; a step size changed by hand leads elsewhere, so lines do not match."""
    interrupted(monkeypatch, tmp_path / "run", 7)
    model, _, data = problem()
    step = torch.optim.Adam.step

    def doubled(self, *args, **kwargs):
        for group in self.param_groups:
            group["lr"] = 1.0
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", doubled)
    before = copy.deepcopy(tacita.Ledger.load(tmp_path / "run" / "ledger.jsonl").sessions[0].queries_made)
    run = tacita.fit(model, loss_fn, data, **SETTINGS, folder=tmp_path / "run")
    assert before == 7
    assert run.ledger.sessions[0].queries_made == 16  # never more than the plan
    assert run.ledger.epsilon(1e-3) <= 2.0


def test_an_edited_ledger_is_not_resumed(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path / "run", 7)
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]))
    with pytest.raises(tacita.TacitaError):
        tacita.fit(*problem(), **SETTINGS, folder=tmp_path / "run")


def test_an_older_copy_of_the_ledger_and_its_anchor_is_not_resumed(monkeypatch, tmp_path):
    """Whole in itself, so that only the checkpoint knows of the queries that it lacks."""
    interrupted(monkeypatch, tmp_path / "run", 7)
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)[:-3]
    path.write_bytes(b"".join(lines))
    anchor = {"count": len(lines), "head": hashlib.sha256(lines[-1].rstrip(b"\n")).hexdigest()}
    (tmp_path / "run" / "ledger.head.json").write_text(json.dumps(anchor))
    assert tacita.Ledger.load(path).verify().ok
    with pytest.raises(tacita.ResumeError, match="the ledger does not go on from the checkpoint"):
        tacita.fit(*problem(), **SETTINGS, folder=tmp_path / "run")


def test_the_key_is_private_while_the_run_goes_on(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path / "run", 7)
    private = tmp_path / "run" / "private"
    assert private.stat().st_mode & 0o777 == 0o700
    for name in ("key.json", "checkpoint.safetensors"):
        assert (private / name).stat().st_mode & 0o777 == 0o600


def test_batch_norm_is_refused_with_the_way_out():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    with pytest.raises(tacita.UnsupportedModuleError, match="GroupNorm"):
        tacita.fit(model, loss_fn, problem()[2], **SETTINGS)


def test_a_loss_curve_is_drawn_on_public_data_only_and_changes_no_bit():
    model, loss_fn, data = problem()
    public = problem(seed=1)[2]
    key = dict(randomness=tacita.Randomness.insecure(0))
    run = tacita.fit(model, loss_fn, data, **SETTINGS, public_data=public, **key)
    last = loss_fn(copy.deepcopy(model).cpu(), public).double().mean().item()
    assert run.public_losses[-1] == (16, pytest.approx(last))
    assert "declares to be public" in run.statement.text
    without = tacita.fit(*problem(), **SETTINGS, randomness=tacita.Randomness.insecure(0))
    assert torch.equal(without.model.weight, model.weight)
    assert without.public_losses == ()
    assert model.training


def test_the_ledger_is_on_disk_before_a_loss_is_shown(monkeypatch):
    seen = []
    flush, loss = tacita.Ledger.flush, callbacks.public_loss
    monkeypatch.setattr(tacita.Ledger, "flush", lambda self: seen.append("flushed") or flush(self))
    monkeypatch.setattr(callbacks, "public_loss", lambda *all, **more: seen.append("shown") or loss(*all, **more))
    tacita.fit(*problem(), **SETTINGS, public_data=problem(seed=1)[2])
    assert seen.count("shown") == 16
    assert all(before == "flushed" for before, what in itertools.pairwise(seen) if what == "shown")
    assert seen[0] == "flushed"


def test_the_statement_names_the_run_and_says_what_it_is_for(tmp_path):
    about = {"responsible": "Ward analytics", "purpose": "to plan beds"}
    run = tacita.fit(*problem(), **SETTINGS, about=about, folder=tmp_path / "run")
    stated = run.statement.to_json()
    assert stated["about"] == about
    assert set(stated["run"]) == {"id", "date", "versions"}
    assert "Ward analytics" in run.statement.text
    assert check_run(tmp_path / "run").faults == ()
    with pytest.raises(ValueError, match="about must hold responsible"):
        tacita.fit(*problem(), **SETTINGS, about={"who": "me"}, folder=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_that_was_sealed_and_not_tidied_says_the_same_again(tmp_path, monkeypatch):
    """The process was killed after the seal: the next call has the statement, the public losses and the model."""
    public = problem(seed=1)[2]
    settings = {**SETTINGS, "folder": tmp_path / "run", "public_data": public, "about": {"contact": "a@example.org"}}
    settings["fields"] = lambda: {"model": "a line", "text_template": "none"}
    with monkeypatch.context() as patched:
        patched.setattr("tacita.runs.run_lifecycle.RunLifecycle.finish", lambda self: None)
        first = tacita.fit(*problem(), **settings)
    again = tacita.fit(*problem(), **settings)
    assert again.statement.text == first.statement.text == (tmp_path / "run" / "statement.txt").read_text()
    assert again.public_losses == first.public_losses
    assert "Model: a line." in " ".join(again.statement.text.split())
    assert again.statement.to_json()["text_template"] == "none"
    assert again.statement.to_json()["public_losses"] == [list(pair) for pair in first.public_losses]
    assert torch.equal(again.model.weight, first.model.weight)
    assert check_run(tmp_path / "run").faults == ()


def other_runs(run):
    return run.statement.to_json().get("dataset", {}).get("other_runs", 0)


@pytest.mark.parametrize(
    "kept",
    [tuple, lambda data: dict(zip("xy", data, strict=True)), lambda data: torch.utils.data.TensorDataset(*data)],
    ids=["tuple", "mapping", "data set"],
)
def test_a_cell_that_is_called_again_counts_its_runs(tmp_path, kept):
    """Without a name, in memory or in folders: the first to be looked at, and the best of them, do not stand alone."""
    model, _, data = problem()
    rows = kept(data)

    def losses(model, batch):
        return loss_fn(model, [*batch.values()] if isinstance(batch, dict) else batch)

    fit = partial(tacita.fit, model, losses, **SETTINGS)
    assert [other_runs(fit(rows)), other_runs(fit(rows)), other_runs(fit(rows, folder=tmp_path / "a"))] == [0, 1, 2]
    found = fit(rows)
    assert verdict(found.statement.to_json()).warnings == ("3 other runs on the same data cost in addition",)
    assert "3 of the same process on the same data, in no list" in " ".join(found.statement.text.split())
    assert check_run(tmp_path / "a").faults == ()
    assert other_runs(fit(kept(problem()[2]))) == 0  # other data
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit=SETTINGS["privacy_unit"])
    assert other_runs(fit(rows, ledger=ledger)) == 0  # it counts what it has paid for


def test_a_run_that_is_taken_up_again_is_no_other_run(tmp_path):
    given = problem()

    def stopped(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacita.fit(*given, **SETTINGS, folder=tmp_path / "a", callbacks=[stopped])
    assert other_runs(tacita.fit(*given, **SETTINGS, folder=tmp_path / "a")) == 0


def test_a_run_that_was_killed_before_it_said_that_it_is_finished_counts(tmp_path, monkeypatch):
    """A copy that goes on would stand for it."""
    given = {**SETTINGS, "dataset_name": "visits"}

    def copied(*_):
        if not (tmp_path / "b").exists():
            shutil.copytree(tmp_path / "a", tmp_path / "b")

    def killed(self, randomness, *, finished=False):
        if finished:
            raise KeyboardInterrupt
        record(self, randomness)

    record = ListedRun.record
    with monkeypatch.context() as patch:
        patch.setattr(ListedRun, "record", killed)
        with pytest.raises(KeyboardInterrupt):
            tacita.fit(*problem(), **given, folder=tmp_path / "a", callbacks=[copied])
    assert tacita.fit(*problem(), **given, folder=tmp_path / "a").statement
    assert other_runs(tacita.fit(*problem(), **given, folder=tmp_path / "b")) == 1
    assert "a copy of a run went on by itself" in check_run(tmp_path / "a").notes[0]


def test_runs_on_named_data_are_counted(tmp_path):
    first = tacita.fit(*problem(), **SETTINGS, folder=tmp_path / "a", dataset_name="visits")
    second = tacita.fit(*problem(), **SETTINGS, folder=tmp_path / "b", dataset_name="visits")
    assert first.statement.to_json()["dataset"]["other_runs"] == 0
    assert second.statement.to_json()["dataset"]["other_runs"] == 1
    assert "With this one they guarantee epsilon <=" in " ".join(second.statement.text.split())
    (note,) = check_run(tmp_path / "a").notes
    assert "(in tacita-runs.jsonl: b)" in note
    assert "added up" in note
    (tmp_path / "tacita-runs.jsonl").unlink()
    assert "which other runs used the same data is not known here" in check_run(tmp_path / "a").notes[0]
    for wrong in (
        {"dataset_name": "visits"},
        *({"dataset_name": name, "folder": tmp_path / "c"} for name in ("", "a\nVerdict: private.", "\x1b[1m", 3)),
    ):
        with pytest.raises(ValueError, match="dataset_name must"):
            tacita.fit(*problem(), **SETTINGS, **wrong)
    assert not (tmp_path / "c").exists()


def test_the_statement_has_the_declared_number_of_records():
    stated = tacita.fit(*problem(), **SETTINGS).statement
    assert stated.to_json()["rows"] == {"value": SETTINGS["num_records"], "how": "declared"}


def test_a_function_is_no_score():
    with pytest.raises(TypeError, match=r"score must be a tacita\.HeldOutLoss"):
        tacita.fit(*problem(), **SETTINGS, score=lambda model: 0.5)


def test_two_copies_of_a_run_that_both_go_on_share_no_noise_and_count_twice(monkeypatch, tmp_path):
    """The difference of two releases under one noise would be the data's."""
    named = {"dataset_name": "rows"}
    interrupted(monkeypatch, tmp_path / "a", 7, randomness=tacita.Randomness.system(), **named)
    runs = []
    for name in ("b", "c"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
        model = problem()[0]
        runs.append(tacita.fit(model, *problem()[1:], **SETTINGS, **named, folder=tmp_path / name))
        assert check_run(tmp_path / name).faults == ()
    lines = [(tmp_path / name / "ledger.jsonl").read_text().splitlines() for name in ("b", "c")]
    assert lines[0][:12] == lines[1][:12]  # what they had in common is redone
    assert lines[0][12] != lines[1][12]  # the first query of their own
    checked = check_run(tmp_path / "b")
    assert checked.verdict.word == "private"
    assert "1 other run on the same data cost in addition" in checked.verdict.in_words()
    assert any("jsonl: c)" in note and "a copy of a run went on by itself" in note for note in checked.notes)
    assert not torch.equal(*(run.model.weight for run in runs))


def test_a_run_that_is_taken_up_again_counts_once_and_its_backup_as_another(monkeypatch, tmp_path):
    """Whatever the folders are called: what tells them apart is which process had the key."""
    named = {"dataset_name": "rows"}
    interrupted(monkeypatch, tmp_path / "a", 3, randomness=tacita.Randomness.system(), **named)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    (tmp_path / "a").rename(tmp_path / "renamed")
    interrupted(monkeypatch, tmp_path / "renamed", 7, randomness=None, **named)
    tacita.fit(*problem(), **SETTINGS, **named, folder=tmp_path / "renamed")
    (tmp_path / "renamed").rename(tmp_path / "first")
    assert check_run(tmp_path / "first").verdict.in_words() == "private"
    (tmp_path / "backup").rename(tmp_path / "renamed")  # as if nothing had happened
    tacita.fit(*problem(), **SETTINGS, **named, folder=tmp_path / "renamed")
    for name in ("first", "renamed"):
        assert "1 other run on the same data" in check_run(tmp_path / name).verdict.in_words()
