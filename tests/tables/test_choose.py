"""Choosing among trainings of a network: what a run is given, what it may do, and what comes out."""

import importlib
import json
import math
import os
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import scipy.stats
import torch

import tacita
from tacita.errors import LedgerError, ResumeError, TacitaError
from tacita.random import Randomness
from tacita.runs.sealed_run import SealedRun
from tacita.tables import NumberOfRuns, check_run, clipped_training, select
from tacita.tables.trials import RunBudget
from tests.faults.calls import Stopped, Stopping, watched

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(300, 3, generator=GENERATOR)
Y = (X.sum(1) > 0).float()
RELATION = "add_or_remove_one"
QUERIES = 8
SAMPLER = tacita.PoissonSampler(sample_rate=0.3, num_records=240)


def parts(seed=0):
    return tacita.split((X, Y), [0.8, 0.2], randomness=Randomness.insecure(seed))


def loss(model, batch):
    return torch.nn.functional.softplus(-model(batch[0]).squeeze(1) * (2 * batch[1] - 1))


class Runs:
    """A training on ``records``; remembers what it was given."""

    def __init__(self, records, *, noise=1.0, queries=QUERIES, sampler=SAMPLER, stop_at=None):
        self.records, self.noise, self.queries, self.sampler = records, noise, queries, sampler
        self.stop_at, self.trials = stop_at, []

    def __call__(self, trial):
        if len(self.trials) == self.stop_at:
            raise KeyboardInterrupt
        self.trials.append(trial)
        model = torch.nn.Linear(3, 1)
        oracle = tacita.ClippedGradientOracle(
            model,
            loss,
            self.records,
            ledger=trial.ledger,
            sampler=self.sampler,
            clipper=tacita.FlatClipper(max_grad_norm=trial.settings.get("max_grad_norm", 1.0)),
            mechanism=tacita.GaussianMechanism(noise_multiplier=self.noise * trial.noise_multiplier),
            planned_queries=self.queries,
            randomness=trial.randomness,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.settings["lr"])
        for _ in range(self.queries):
            oracle.backward()
            optimizer.step()
        return model


def right(held):
    return lambda model: ((model(X[held.rows]).squeeze(1) > 0) == (Y[held.rows] > 0)).float()


def chosen(seed=0, *, make_run=None, score=None, held=None, ledger=None, **changes):
    kept, held_out = parts()
    ledger = ledger or tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one row")
    settings = {
        "held_out": held or held_out,
        "training": clipped_training(SAMPLER, QUERIES, RELATION),
        "ledger": ledger,
        "target_epsilon": 4.0,
        "target_delta": 1e-4,
        "mean_runs": 3,
        "shape": 1,
        "randomness": Randomness.insecure(seed),
    }
    grid = changes.pop("grid", {"lr": [0.05, 1.0], "max_grad_norm": [0.5, 2.0]})
    return select(make_run or Runs(kept), score or right(held or held_out), grid, **{**settings, **changes})


def test_the_best_comes_out_and_the_whole_is_within_the_target():
    runs = Runs(parts()[0])
    found = chosen(make_run=runs)
    assert found.winner.settings in [trial.settings for trial in runs.trials]
    model = torch.nn.Linear(3, 1)
    model.load_state_dict(found.winner.weights)
    assert 3.99 < found.ledger.epsilon(1e-4) <= 4.0
    assert [session.id for session in found.ledger.sessions] == ["select-1"]
    said = found.statement.to_json()
    assert said["selection"]["result"] == found.winner.settings
    assert said["selection"]["settings_in_grid"] == 4
    assert said["selection"]["one_run_epsilon"] < 3.3
    assert said["planned_queries"] == 1
    assert said["max_grad_norm"] is None
    assert said["sampler"].startswith("Poisson")
    assert "epsilon includes the price of that choice" in " ".join(found.statement.text.split())


def test_the_number_of_runs_comes_out_nowhere():
    """The same words and lines, but for what the winner is, whether 1 run was made or 9."""
    texts = []
    for seed in range(40):
        runs = Runs(parts()[0])
        found = chosen(seed, make_run=runs, grid={"lr": [1.0]})
        if len(runs.trials) in (1, 6):
            fields = found.statement.to_json()
            said = {k: v for k, v in fields.items() if not k.startswith("ledger_sha256")}
            texts.append((len(runs.trials), json.dumps(said)))
        if {number for number, _ in texts} == {1, 6}:
            break
    assert {number for number, _ in texts} == {1, 6}
    assert len({text for _, text in texts}) == 1


def test_a_score_beside_the_training_is_free():
    """With rows held out by coin the selection costs what a score of constants would."""
    _, held = parts()
    training = clipped_training(SAMPLER, QUERIES, RELATION)
    budget = RunBudget(training, held, RELATION, None)
    spend = training(6.0)
    orders = np.array([2.0, 4.0, 32.0])
    assert np.array_equal(budget.event(6.0).guarantee(1).rdp(orders), spend.event.guarantee(spend.queries).rdp(orders))
    everybody = tacita.Records(dataset=(X, Y), rows=np.arange(300))
    paid = RunBudget(training, everybody, RELATION, None).event(6.0).guarantee(1).rdp(orders)
    assert np.all(paid > spend.event.guarantee(spend.queries).rdp(orders))
    assert np.all(paid <= 1.2 * spend.event.guarantee(spend.queries).rdp(orders))
    assert np.all(RunBudget(training, everybody, RELATION, 3.0).event(6.0).guarantee(1).rdp(orders) > paid)


def test_a_score_on_the_records_of_the_training_is_paid_for():
    everybody = tacita.Records(dataset=(X, Y), rows=np.arange(300))
    found = chosen(make_run=Runs((X, Y)), held=everybody)
    assert found.ledger.epsilon(1e-4) <= 4.0
    assert "; then " in found.ledger.sessions[0].event.describe()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"noise": 0.99}, "planned more than was declared"),
        ({"queries": QUERIES + 1}, "planned more than was declared"),
        ({"sampler": tacita.PoissonSampler(sample_rate=0.4, num_records=240)}, "planned more than was declared"),
    ],
)
def test_a_run_that_plans_more_than_it_declared_is_refused(how, message):
    with pytest.raises(LedgerError, match=message):
        chosen(make_run=Runs(parts()[0], **how))


def test_a_run_on_the_records_that_score_is_refused():
    with pytest.raises(LedgerError, match="planned more than was declared"):
        chosen(make_run=Runs((X, Y), sampler=SAMPLER))


def test_a_run_may_spend_less():
    assert chosen(make_run=Runs(parts()[0], noise=1.5, queries=QUERIES - 2)).winner is not None


def test_values_are_clamped_and_noise_has_the_stated_scale(monkeypatch):
    """The score less the exact sum of clamped values, over the stated noise, is standard normal: 200 runs."""
    _, held = parts()
    values = torch.linspace(-2, 3, len(held.rows), dtype=torch.float64)
    values[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    exact = float((torch.where(values.isnan(), 0.0, values).clamp(0, 1) - 0.5).sum())
    seen = []
    module = importlib.import_module("tacita.tables.choose")
    monkeypatch.setattr(module, "best_of", lambda session, sweep, randomness, attempt, place: seen.append(attempt))
    monkeypatch.setattr(module, "statement", lambda *args, **kwargs: None)
    chosen(make_run=lambda trial: torch.nn.Linear(3, 1), score=lambda model: values)
    (attempt,) = seen
    budget = attempt.__self__.budget
    noise_std = budget.score_noise_std(attempt.__self__.noise_multiplier)
    found = np.array([attempt(0, Randomness.insecure(seed)).score for seed in range(200)])
    ratio = float((((found - exact) / noise_std) ** 2).sum())
    low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], 200)
    assert low < ratio < high
    assert not low < ratio * 0.5**2 < high  # half the noise is seen


def attempts(monkeypatch, **changes):
    """The function that makes one run of a selection, with whatever came before it done."""
    seen = []
    module = importlib.import_module("tacita.tables.choose")
    monkeypatch.setattr(module, "best_of", lambda session, sweep, randomness, attempt, place: seen.append(attempt))
    monkeypatch.setattr(module, "statement", lambda *args, **kwargs: None)
    chosen(**{"make_run": lambda trial: torch.nn.Linear(3, 1), **changes})
    return seen[0]


@pytest.mark.parametrize("held", ["some", "nobody"])
def test_a_score_is_the_sum_plus_the_draws_of_the_run_s_own_key(monkeypatch, held):
    """Exactly; and a score on no record has its noise like any other."""
    records = parts()[1]
    if held == "nobody":
        records = tacita.Records(dataset=(X, Y), rows=np.arange(0), part=records.part)
    values = torch.linspace(0, 1, len(records.rows), dtype=torch.float64)
    attempt = attempts(monkeypatch, held=records, score=lambda model: values, score_noise_std=30.0)
    for seed in range(3):
        key = Randomness.insecure(seed).key
        draw = key.stream("score-1", "noise", 0, "score").normals(1, dtype=torch.float64).item()
        expected = float((values - 0.5).sum()) + 30.0 * draw
        assert attempt(0, Randomness.insecure(seed)).score == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("relation", "moved"), [("add_or_remove_one", 0.5), ("zero_out_one", 0.5), ("replace_one", 1.0)]
)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_unit_of_a_score_is_half_a_record(relation, moved, rows):
    """A value in [0, 1] less 1/2, times the rows of a person; by default as loud as the training's curve allows."""
    part = parts()[1].part if relation != "replace_one" else None
    held = tacita.Records(dataset=(X, Y), rows=np.arange(60), part=part, max_rows_per_unit=rows)
    training = clipped_training(tacita.FullBatchSampler(num_records=300), QUERIES, relation)
    assert RunBudget(training, held, relation, 7.0).score_event(2.0).query_mu == pytest.approx(moved * rows / 7)
    share = 1.0 if part is not None else 0.1
    free = RunBudget(training, held, relation, None).score_noise_std(2.0)
    assert moved * rows / free == pytest.approx(math.sqrt(share * QUERIES) / 2.0, rel=1e-6)


def test_every_line_of_a_run_is_in_its_ledger():
    runs = Runs(parts()[0])
    chosen(make_run=runs)
    assert runs.trials
    for trial in runs.trials:
        made = {session.purpose: session.queries_made for session in trial.ledger.sessions}
        assert made == {"score": 1, "train": QUERIES}


@pytest.mark.parametrize(("mean", "shape"), [(3, 1), (2.5, 0), (3, math.inf)])
def test_the_law_that_is_charged_is_the_one_that_is_drawn_from(mean, shape):
    event = chosen(mean_runs=mean, shape=shape).ledger.sessions[0].event
    assert (event.mean, event.shape) == (mean, shape)


def test_wrong_shapes_and_kinds_are_refused():
    with pytest.raises(TacitaError, match="one value for each of held_out"):
        chosen(score=lambda model: torch.ones(3))
    with pytest.raises(TacitaError, match="one value for each of held_out"):
        chosen(score=lambda model: 0.5)
    with pytest.raises(TypeError, match="make_run must return the trained model"):
        chosen(make_run=lambda trial: None)
    with pytest.raises(TypeError, match="held_out must be Records"):
        chosen(held=(X, Y))
    with pytest.raises(TypeError, match="training must give a Spend"):
        chosen(training=lambda noise: None)
    with pytest.raises(ValueError, match="score_noise_std must be"):
        chosen(score_noise_std=0.0)
    with pytest.raises(ValueError, match="cannot be reached"):
        chosen(score_noise_std=0.01)


def test_no_run_is_a_legal_outcome():
    seed = next(s for s in range(100) if number_of(s, 1.0, math.inf) == 0)
    found = chosen(seed, mean_runs=1, shape=math.inf)
    assert found.winner is None
    assert found.statement.to_json()["selection"]["result"] == "none"
    assert "no model" in " ".join(found.statement.text.split())


def number_of(seed, mean, shape):
    key = Randomness.insecure(seed).session_key("select-1")
    return NumberOfRuns(mean_runs=mean, shape=shape).draw(key.stream("number of runs"))


def test_what_the_ledger_holds_already_is_part_of_the_target():
    ledger = tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one row")
    event = tacita.accounting.GaussianSumEvent(
        sampling=tacita.accounting.FullBatchLaw(), relation=RELATION, max_contribution=(1.0,), noise_std=(3.0,)
    )
    ledger.register(event, planned_queries=1, purpose="bounds")
    alone, beside = chosen(), chosen(ledger=ledger)
    assert ledger.epsilon(1e-4) <= 4.0
    assert beside.noise_multiplier > 1.03 * alone.noise_multiplier


# -- going on after a stop


def stopped(base, stop_at, seed=0, name="ledger.jsonl", **changes):
    with tacita.Ledger(base / name, neighboring_relation=RELATION, privacy_unit="one row") as ledger:
        runs = Runs(parts()[0], stop_at=stop_at)
        return chosen(seed, make_run=runs, ledger=ledger, **{"folder": base / "work", **changes}), runs


def test_stopped_it_goes_on_to_the_same_bits(tmp_path):
    seed = next(s for s in range(100) if number_of(s, 3.0, 1.0) == 4)
    whole = chosen(seed)
    for stop_at in (0, 2):
        folder = tmp_path / str(stop_at)
        with pytest.raises(KeyboardInterrupt):
            stopped(folder, stop_at, seed)
        assert (folder / "work" / "private").stat().st_mode & 0o777 == 0o700
        assert [path.name for path in (folder / "work").iterdir()] == ["private"]
        found, runs = stopped(folder, None, seed)
        assert len(runs.trials) == 4 - stop_at
        assert found.winner.settings == whole.winner.settings
        assert found.winner.score == whole.winner.score
        assert all(torch.equal(found.winner.weights[name], value) for name, value in whole.winner.weights.items())
        assert not (folder / "work").exists()


def test_without_its_working_folder_it_is_not_continued(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stopped(tmp_path, 0)
    (tmp_path / "work" / "private" / "key.json").unlink()
    with pytest.raises(ResumeError, match="has lost its private key"):
        stopped(tmp_path, None)
    shutil.rmtree(tmp_path / "work")
    with pytest.raises(ResumeError, match="private working folder is not here"):
        stopped(tmp_path, None)


def test_a_finished_selection_is_not_made_again(tmp_path):
    stopped(tmp_path, None)
    with pytest.raises(ResumeError, match="private working folder is not here"):
        stopped(tmp_path, None)
    assert not Path(tmp_path / "work" / "runs.json").exists()


@cache
def of_four_runs():
    """A seed whose selection has four runs, and the score of its winner where nothing stops it."""
    seed = next(s for s in range(100) if number_of(s, 3.0, 1.0) == 4)
    return seed, chosen(seed).winner.score


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    """A selection stopped after two of its four runs."""
    folder = tmp_path_factory.mktemp("halfway")
    with pytest.raises(KeyboardInterrupt):
        stopped(folder, 2, of_four_runs()[0])
    return folder


@pytest.fixture
def left_behind(halfway, tmp_path):
    """Copy what the stopped selection left to ``tmp_path``; return its seed."""
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    return of_four_runs()[0]


@pytest.mark.parametrize("name", ["ledger.jsonl", "other.jsonl"])
@pytest.mark.parametrize(
    "changes",
    [
        {"target_epsilon": 0.5},
        {"target_delta": 1e-5},
        {"grid": {"lr": [0.05, 1.0], "max_grad_norm": [0.5, 3.0]}},
        {"mean_runs": 4},
        {"shape": 2},
        {"pad_to": 2},
        {"score_noise_std": 30.0},
        {"training": clipped_training(SAMPLER, QUERIES + 1, RELATION)},
        {"held": parts(1)[1]},
        {"held": tacita.Records(dataset=(X, 1 - Y), rows=parts()[1].rows, part=parts()[1].part)},
    ],
)
def test_another_selection_is_not_continued(tmp_path, left_behind, name, changes):
    """Not under another budget, grid, law of runs or records, and neither in its ledger nor in another one."""
    seed = left_behind
    says = "interrupted selection with another training" if "training" in changes else "records are not those"
    with pytest.raises(ResumeError, match=says):
        stopped(tmp_path, None, seed, name, **changes)
    found, _ = stopped(tmp_path, None, seed)
    assert found.winner.score == of_four_runs()[1]


def test_another_ledger_does_not_go_on_with_it(tmp_path, left_behind):
    """Its own ledger says what its runs cost; a fresh one knows nothing of the interrupted session."""
    with pytest.raises(ResumeError, match="or of another ledger"):
        stopped(tmp_path, None, left_behind, "other.jsonl")
    with pytest.raises(ValueError, match="folder needs a ledger with a path"):
        chosen(left_behind, folder=tmp_path / "work")
    assert not (tmp_path / "other.jsonl").exists() or not (tmp_path / "other.jsonl").read_text()


def test_runs_of_a_session_that_never_opened_are_refused(tmp_path, left_behind):
    (tmp_path / "ledger.head.json").unlink()
    path = tmp_path / "ledger.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])  # the register line alone
    with pytest.raises(ResumeError, match="was never opened"):
        stopped(tmp_path, None, left_behind)


def test_a_folder_of_somebody_else_is_refused_untouched(tmp_path):
    work = tmp_path / "work"
    work.mkdir(mode=0o755)
    (work / "notes.txt").write_text("mine")
    mode = work.stat().st_mode
    with pytest.raises(ResumeError, match="folder must be a new or an empty folder"):
        stopped(tmp_path, None)
    assert [path.name for path in work.iterdir()] == ["notes.txt"]
    assert work.stat().st_mode == mode
    for folder in (tmp_path, tmp_path / "work" / ".."):
        with pytest.raises(ValueError, match="folder must not hold the ledger"):
            stopped(tmp_path, None, folder=folder)
    assert (tmp_path / "work" / "notes.txt").read_text() == "mine"


def test_what_others_put_into_the_folder_stays(tmp_path, left_behind):
    (tmp_path / "work" / "notes.txt").write_text("mine")
    found, _ = stopped(tmp_path, None, left_behind)
    assert found.winner is not None
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["notes.txt"]


# --- the seal ------------------------------------------------------------------------------------------------------

SEALED = {"ledger.jsonl", "ledger.head.json", "model.safetensors", "statement.json", "statement.txt"}


def sealing(base, **changes):
    """A selection that writes its winner and seals it; or goes on with one that was stopped."""
    base.mkdir(exist_ok=True)
    with tacita.Ledger(base / "out" / "ledger.jsonl", neighboring_relation=RELATION, privacy_unit="one row") as ledger:
        return chosen(ledger=ledger, folder=base / "work", seal=True, **changes)


def test_the_winner_is_sealed(tmp_path):
    best = sealing(tmp_path / "a")
    out = tmp_path / "a" / "out"
    assert {path.name for path in out.iterdir()} == SEALED
    assert check_run(out).faults == ()
    assert "model.safetensors" in best.statement.text
    assert SealedRun.intact(out).read("model.safetensors") == safetensors.torch.save(dict(best.winner.weights))
    (out / "model.safetensors").write_bytes(safetensors.torch.save({"weight": torch.zeros(1, 3)}))
    assert check_run(out).faults == ("model.safetensors is not the file that the ledger was sealed with",)


def test_stopped_around_its_seal_it_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("tacita.ledger.registry.secrets.token_hex", lambda size: "0" * 2 * size)  # a ledger's name
    base, seen = tmp_path / "whole", []
    base.mkdir()
    with watched(base, lambda call: (seen.append(call.path.name), call.do())[1]):
        sealing(base)
    wanted = {path.name: path.read_bytes() for path in (base / "out").iterdir()}
    first = seen.index(".model.safetensors.tmp")
    last = len(seen) - 1 - seen[::-1].index("key.json")  # without its key nothing is left to go on with
    assert last - first > 15
    for number in range(first, last, 1 if os.environ.get("TACITA_AUDIT") else 4):
        base = tmp_path / f"run{number}"
        base.mkdir()
        with watched(base, Stopping(number)), pytest.raises(Stopped):
            sealing(base)
        again = sealing(base)
        assert {path.name: path.read_bytes() for path in (base / "out").iterdir()} == wanted, number
        assert not (base / "work").exists()
        assert again.statement.to_json() == SealedRun.intact(base / "out").stated


def test_what_cannot_be_sealed_is_refused_before_anything_is_spent(tmp_path):
    with pytest.raises(ValueError, match="seal needs a ledger with a path"):
        chosen(seal=True)
    with tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation=RELATION, privacy_unit="one row") as ledger:
        event = tacita.accounting.GaussianSumEvent(
            sampling=tacita.accounting.FullBatchLaw(), relation=RELATION, max_contribution=(1.0,), noise_std=(99.0,)
        )
        other = ledger.register(event, planned_queries=1)
        other.open()
        with pytest.raises(ValueError, match="close train-1 first"):
            chosen(ledger=ledger, seal=True)
        assert [session.id for session in ledger.sessions] == ["train-1"]
