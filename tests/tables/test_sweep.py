"""``tacita train --sweep``: files, ledger, statement, what is refused, and no word of the number of runs."""

import importlib
import json
import math
import stat
import sys
from pathlib import Path

import pytest

import tacita
import tacita.tables.sweep as sweep_module
from tacita.errors import ResumeError, TacitaError, UnsupportedModuleError
from tacita.random import Randomness
from tacita.tables import NumberOfRuns, TableSettings, check_run, sweep_table, train_table
from tacita.tables.selection_events import RepeatAndSelectEvent
from tests.conftest import CLASSIFICATION, RUN_FILES

GRID = "mean_runs = 3\n[grid]\nlr = [0.1, 1.0]\nmax_grad_norm = [0.5, 2.0]\n"


def seed_for(wanted, mean=3.0, shape=1.0):
    """A test seed whose number of runs is ``wanted``."""
    law = NumberOfRuns(mean_runs=mean, shape=shape)
    keys = ((seed, Randomness.insecure(seed).session_key("select-1")) for seed in range(10_000))
    return next(seed for seed, key in keys if law.draw(key.stream("number of runs")) == wanted)


@pytest.fixture
def sweeping(settings):
    def make(**changes):
        return settings(**{"sweep": GRID, "schema": None, **changes})

    return make


def test_a_sweep_leaves_the_files_of_a_run_and_nothing_private(sweeping, table):
    run = sweep_table(sweeping())
    assert {path.name for path in Path("run").iterdir()} == RUN_FILES
    assert run.fields["epsilon"] <= 20.0
    said = run.fields["selection"]
    assert said["settings_in_grid"] == 4
    assert said["number_of_runs"] == "secret, geometric, 3 on average"
    assert set(said["result"]) == {"lr", "max_grad_norm"}
    assert 0 < said["one_run_epsilon"] < 20
    assert [session["purpose"] for session in run.fields["sessions"]] == ["rows", "survey", "refinement", "select"]
    assert run.fields["holdout_score"]["private"] is True
    assert [one["session"] for one in run.fields["purchases"]] == ["rows", "survey", "refinement", "select"]
    assert any(choice.startswith("shape = 1") for choice in run.fields["chosen_by_tacita"])
    assert not any(choice.startswith(("lr", "max_grad_norm")) for choice in run.fields["chosen_by_tacita"])
    assert "the time that they took reveals something about it" in " ".join(run.statement.split())
    assert check_run("run").faults == ()
    ledger = tacita.Ledger.load("run/ledger.jsonl")
    assert isinstance(ledger.sessions[-1].event, RepeatAndSelectEvent)
    assert ledger.epsilon(1e-3) == run.fields["epsilon"]
    assert len(tacita.load("run").predict({"x": [0.1], "y": [3], "kind": ["red"]})) == 1


def test_the_winner_s_settings_made_the_model(sweeping, table):
    """What is written as the model is of the kind that the statement names."""
    run = sweep_table(sweeping(sweep="mean_runs = 2\n[grid]\nmodel = ['linear', 'mlp']\n"))
    name = run.fields["selection"]["result"]["model"]
    assert run.fields["model"] == name
    layers = [key for key in tacita.load("run").model.state_dict() if key.endswith("weight")]
    assert len(layers) == {"linear": 1, "mlp": 2}[name]


def test_its_config_runs_again_and_a_finished_one_is_refused(sweeping, table):
    sweep_table(sweeping())
    again = TableSettings.from_toml(Path("run/config.toml").read_text())
    assert again == sweeping()
    with pytest.raises(ResumeError, match="output must be a new or an empty folder"):
        sweep_table(again)
    with pytest.raises(ValueError, match=r"sweep is for tacita\.tables\.sweep_table"):
        train_table(again)


def test_the_number_of_runs_is_nowhere(sweeping, table, capfd, monkeypatch):
    """One run and six leave the same words, lines, files and sizes, where all runs find the same."""
    told = {}
    Path("schema.toml").write_text(CLASSIFICATION)
    monkeypatch.setattr(sweep_module.TableTask, "trained", _alike(sweep_module.TableTask.trained))
    for wanted in (1, 6):
        words = []
        grid = "mean_runs = 3\n[grid]\nlr = [1.0]\n"
        settings = sweeping(
            output=f"run{wanted}", dataset_name=f"rows {wanted}", sweep=grid, schema="schema.toml", drop=()
        )
        run = sweep_table(settings, say=words.append, progress=True, randomness=Randomness.insecure(seed_for(wanted)))
        shown = capfd.readouterr()
        assert shown.out == ""
        lines = (run.folder / "ledger.jsonl").read_text().splitlines()
        kinds = [(json.loads(line)["kind"], json.loads(line)["session"]) for line in lines]
        sizes = {path.name: path.stat().st_size for path in run.folder.iterdir() if path.suffix != ".json"}
        told[wanted] = (words, kinds, sizes, run.fields["selection"], _words_of(shown.err))
    assert told[1] == told[6]


def _alike(trained):
    """All runs find the same, so that whatever differs tells of their number."""

    def once(self, encoded, preprocessing, sessions):
        state, _ = trained(self, encoded, preprocessing, sessions)
        found = {
            "measure": "accuracy",
            "value": 0.5,
            "private": True,
            "how": "",
            "noise_std": {"score": 1.0, "classes": 2.0},
        }
        return state, {**found, "interval": [0.4, 0.6], "rows": 40.0}

    return once


def _words_of(shown):
    return sorted({word for word in shown.split() if word.isascii() and word.isalpha()})


def test_no_run_at_all_is_told_and_leaves_no_model(sweeping, table):
    grid = "mean_runs = 1\nshape = inf\n[grid]\nlr = [0.1, 1.0]\n"
    seed = seed_for(0, 1.0, math.inf)
    run = sweep_table(sweeping(sweep=grid), randomness=Randomness.insecure(seed))
    assert {path.name for path in Path("run").iterdir()} == RUN_FILES - {"model.safetensors"}
    assert run.fields["selection"]["result"] == "none"
    assert run.fields["holdout_score"]["value"] is None
    assert "there is no model" in " ".join(run.statement.split())
    assert check_run("run").faults == ()
    with pytest.raises(TacitaError, match="holds no model: the number of runs drawn was 0"):
        tacita.load("run")


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_other_relations(sweeping, table, relation):
    run = sweep_table(sweeping(neighboring_relation=relation))
    assert run.fields["epsilon"] <= 20.0
    assert check_run("run").faults == ()


def test_hardened_noise(sweeping, table):
    """Every part of the budget is on a grid: purchases, trainings, scores; the statement says so."""
    run = sweep_table(sweeping(hardened=True, sweep="mean_runs = 2\n[grid]\nlr = [0.1, 1.0]\n"))
    assert run.fields["epsilon"] <= 20.0
    assert all("hardened" in session["event"] for session in run.fields["sessions"])
    assert "The noise is hardened" in " ".join(run.statement.split())
    assert check_run("run").faults == ()


def test_persons_with_several_rows(sweeping, table):
    run = sweep_table(sweeping(drop=(), unit_column="patient", max_rows_per_unit=3))
    assert run.fields["epsilon"] <= 20.0
    assert check_run("run").faults == ()


def test_a_public_test_file_costs_nothing(sweeping, table):
    run = sweep_table(sweeping(test_file="table.csv"))
    assert run.fields["holdout_score"]["private"] is False
    assert "the worst of" not in tacita.Ledger.load("run/ledger.jsonl").sessions[-1].event.describe()


def test_the_dearest_candidate_sets_the_noise(sweeping, table):
    """Candidates of different length have one noise: what is charged is the worst of them, order by order."""
    run = sweep_table(
        sweeping(
            queries=None, sample_rate=None, sweep="mean_runs = 2\n[grid]\nqueries = [2, 6]\nsample_rate = [0.2, 0.5]\n"
        )
    )
    event = tacita.Ledger.load("run/ledger.jsonl").sessions[-1].event
    assert event.inner.part_queries.count(6) == 2
    assert run.fields["epsilon"] <= 20.0


def test_runs_are_charged_for_what_they_plan(sweeping, table, monkeypatch):
    """A run with less noise than was declared is refused, whatever the data."""
    register_run = sweep_module.TablePlan.register_run
    monkeypatch.setattr(
        sweep_module.TablePlan,
        "register_run",
        lambda self, ledger, noise, score, settings: register_run(self, ledger, 0.9 * noise, score, settings),
    )
    with pytest.raises(TacitaError, match="planned more than was declared"):
        sweep_table(sweeping())


def test_a_loud_score_is_refused(sweeping, table, monkeypatch):
    register_run = sweep_module.TablePlan.register_run
    monkeypatch.setattr(
        sweep_module.TablePlan,
        "register_run",
        lambda self, ledger, noise, score, settings: register_run(self, ledger, noise, 0.5 * score, settings),
    )
    with pytest.raises(TacitaError, match="planned more than was declared"):
        sweep_table(sweeping())


def test_interrupted_its_working_folder_is_private_and_then_gone(sweeping, table, monkeypatch):
    seed = seed_for(4)
    whole = sweep_table(sweeping(output="whole"), randomness=Randomness.insecure(seed))
    attempt, made = sweep_module._SweepTask.attempt, []

    def stopping(self, point, randomness):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(point)
        return attempt(self, point, randomness)

    monkeypatch.setattr(sweep_module._SweepTask, "attempt", stopping)
    with pytest.raises(KeyboardInterrupt):
        sweep_table(sweeping(), randomness=Randomness.insecure(seed))
    work = Path("run/private/selection")
    assert stat.S_IMODE(work.stat().st_mode) == stat.S_IMODE(work.parent.stat().st_mode) == 0o700
    assert {path.suffix for path in work.iterdir()} == {".json", ".safetensors"}
    assert len(list(work.glob("*.safetensors"))) == 1
    monkeypatch.setattr(sweep_module._SweepTask, "attempt", attempt)
    with pytest.raises(ResumeError, match="other settings"):
        sweep_table(sweeping(sweep=GRID.replace("3", "4", 1)))
    run = sweep_table(sweeping())
    assert not work.parent.exists()
    assert run.fields["selection"] == whole.fields["selection"]
    assert Path("run/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def interrupted(monkeypatch, settings, after=2):
    """A sweep of four runs, stopped after some of them."""
    attempt, made = sweep_module._SweepTask.attempt, []

    def stopping(self, point, randomness):
        if len(made) == after:
            raise KeyboardInterrupt
        made.append(point)
        return attempt(self, point, randomness)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_module._SweepTask, "attempt", stopping)
        with pytest.raises(KeyboardInterrupt):
            sweep_table(settings, randomness=Randomness.insecure(seed_for(4)))


def test_another_step_size_does_not_go_on_with_a_sweep(sweeping, table, monkeypatch):
    """Runs must be alike: a step size may change inside one training, and not between runs that are compared."""
    changes = {"sweep": "mean_runs = 3\n[grid]\nmax_grad_norm = [0.5, 2.0]\n"}
    interrupted(monkeypatch, sweeping(**changes, lr=0.5))
    config = Path("run/config.toml").read_bytes()
    with pytest.raises(ResumeError, match="other settings: repeat those"):
        sweep_table(sweeping(**changes, lr=50.0))
    assert Path("run/config.toml").read_bytes() == config
    Path("run/config.toml").unlink()
    with pytest.raises(TacitaError, match="registered for another selection"):
        sweep_table(sweeping(**changes, lr=50.0))
    Path("run/config.toml").write_bytes(config)
    assert sweep_table(sweeping(**changes, lr=0.5)).fields["epsilon"] <= 20.0


def test_another_test_file_does_not_go_on_with_a_sweep(sweeping, table, monkeypatch):
    """The runs are compared on it."""
    test = Path("test.csv")
    test.write_bytes(table.read_bytes())
    interrupted(monkeypatch, sweeping(test_file="test.csv"))
    test.write_text("".join(test.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ResumeError, match="data or schema or test_file are not those"):
        sweep_table(sweeping(test_file="test.csv"))
    test.write_bytes(table.read_bytes())
    assert sweep_table(sweeping(test_file="test.csv")).fields["holdout_score"]["private"] is False


def test_a_candidate_that_is_refused_is_found_before_the_number_is_drawn(sweeping, table, monkeypatch):
    """It is not told whether it was drawn, the sweep is not spent, and a mended model goes on with what was bought."""
    net = Path("own_sweep_net.py")
    text = (
        "from torch import nn\ndef deep(i, o):\n    return nn.Sequential(nn.Linear(i, 4), nn.{}(4), nn.Linear(4, o))\n"
    )
    net.write_text(text.format("BatchNorm1d"))
    monkeypatch.syspath_prepend(str(table.parent))
    grid = "mean_runs = 1\n[grid]\nmodel = ['linear', 'own_sweep_net:deep']\n"
    drawn = []
    draw = NumberOfRuns.draw
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, stream: drawn.append(1) or draw(self, stream))
    for seed in range(4):  # whether the linear model is drawn alone or not
        sys.modules.pop("own_sweep_net", None)
        with pytest.raises(UnsupportedModuleError, match="BatchNorm1d"):
            sweep_table(sweeping(sweep=grid, output=f"run{seed}"), randomness=Randomness.insecure(seed))
        session = tacita.Ledger.load(f"run{seed}/ledger.jsonl").sessions[-1]
        assert (session.purpose, session.opened) == ("select", False)
    assert not drawn
    bought = Path("run0/preprocessing.json").read_bytes()
    net.write_text(text.format("LayerNorm"))
    sys.modules.pop("own_sweep_net")
    importlib.invalidate_caches()
    run = sweep_table(sweeping(sweep=grid, output="run0"))
    assert [one["queries_spent"] for one in run.fields["sessions"]] == [1, 1, 1, 1]
    assert json.loads(Path("run0/preprocessing.json").read_bytes())["survey"] == json.loads(bought)["survey"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sweep": "mean_runs = 3\n[grid]\nepsilon = [1.0, 2.0]\n"}, "grid cannot have 'epsilon'"),
        ({"sweep": "mean_runs = 3\n[grid]\nseed = [1]\n"}, "grid cannot have 'seed'"),
        ({"sweep": "mean_runs = 3\n[grid]\nlr = [1.0, -2.0]\n"}, "lr must be"),
        ({"sweep": "mean_runs = 3\n[grid]\nlr = ['fast']\n"}, "lr must be"),
        ({"sweep": "mean_runs = 3\n[grid]\nmodel = ['forest']\n"}, "model must be"),
        ({"sweep": "mean_runs = 3\n[grid]\nwidth = [8]\n"}, "width belongs to model = mlp"),
        ({"lr": 0.3}, "lr is given twice"),
        ({"non_private_holdout": True}, "sweep needs a private score"),
        ({"sweep": "[grid]\nlr = [1]"}, "mean_runs is missing"),
    ],
)
def test_wrong_sweeps(sweeping, table, changes, message):
    with pytest.raises(ValueError, match=message):
        sweep_table(sweeping(**changes))
    assert not Path("run").exists()


# -- the command line


def test_the_command(table, tacita_command):
    Path("grid.toml").write_text(GRID)
    flags = "--target label --epsilon 20 --delta 1e-3 --drop patient --sample-rate 0.5 --queries 4"
    words = f"train table.csv {flags} --sweep grid.toml --output run"
    done = tacita_command(*words.split())
    assert done.code == 0, done.err
    assert "Progress is not shown" in done.err
    assert "PRIVACY STATEMENT" in done.out
    assert tacita_command("predict", "run", "table.csv", "--output", "scored.csv").code == 0
    assert tacita_command("statement", "run").code == 0
    again = tacita_command("train", "--config", "run/config.toml", "--output", "again", "--quiet")
    assert again.code == 0, again.err
    assert json.loads(Path("again/statement.json").read_text())["selection"]["settings_in_grid"] == 4
    missing = tacita_command(*words.replace("grid.toml", "nothing.toml").split())
    assert missing.code == 2
    assert "sweep must be a readable text file" in missing.err


def test_the_command_says_that_there_is_no_model(table, tacita_command, monkeypatch):
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, stream: 0)
    Path("grid.toml").write_text("mean_runs = 1\nshape = inf\n[grid]\nlr = [1.0]\n")
    flags = "--target label --epsilon 20 --delta 1e-3 --drop patient --sample-rate 0.5 --queries 4"
    done = tacita_command(*f"train table.csv {flags} --sweep grid.toml --output run".split())
    assert done.code == 0
    assert "no model was trained: the secret number of runs came out as 0" in done.err
    refused = tacita_command("predict", "run", "table.csv", "--output", "scored.csv")
    assert refused.code == 2
    assert "holds no model" in refused.err
