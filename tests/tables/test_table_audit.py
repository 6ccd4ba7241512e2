"""A configuration audited in one run: what it leaves behind, what it may say, what it sees."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import tacita.oracles.gate as gate_module
import tacita.tables.table_audit as audit_module
from tacita.errors import ResumeError, TacitaError
from tacita.ledger import Ledger
from tacita.random import Randomness
from tacita.tables import train_table
from tacita.tables.table_audit import audit_table
from tests.conftest import table_text

KEPT = {"audit.json", "ledger.head.json", "ledger.jsonl", "statement.txt"}
RELATIONS = ("add_or_remove_one", "zero_out_one", "replace_one")


@pytest.fixture
def less_noise(monkeypatch):
    """Every oracle adds ``factor`` times the noise that it is charged for."""

    def plant(factor: float) -> None:
        begin = gate_module.ReleaseGate.__init__
        monkeypatch.setattr(gate_module.ReleaseGate, "_check_paid", lambda self: None)  # which would refuse less

        def wrong(self, session, mechanism, noise_std, randomness, *more, **rest):
            begin(
                self,
                session,
                mechanism,
                {block: factor * std for block, std in noise_std.items()},
                randomness,
                *more,
                **rest,
            )

        monkeypatch.setattr(gate_module.ReleaseGate, "__init__", wrong)

    return plant


def test_it_leaves_ledger_statement_and_result_and_nothing_else(settings, table):
    audit = audit_table(settings(), canaries=200)
    assert {path.name for path in Path("run").iterdir()} == KEPT
    said = json.loads(Path("run/audit.json").read_bytes())
    assert said["audit"] == audit.result.to_json()
    assert said["audit"]["verdict"] == "consistent"
    assert said["secure_randomness"] is True
    assert Path("run/statement.txt").read_text() == audit.statement
    assert "published no model" in " ".join(audit.statement.split())
    assert "not a model that was exported" in audit.result.text


def test_it_is_a_session_of_its_own_at_the_configurations_noise(settings, table):
    train_table(settings(output="trained"))
    audit = audit_table(settings(), canaries=100)
    sessions = [{s.purpose: s for s in Ledger.load(f"{name}/ledger.jsonl").sessions} for name in ("trained", "run")]
    assert sessions[0]["train"].event == sessions[1]["train"].event
    assert "score" not in sessions[1]
    assert all(session.closed for session in sessions[1].values())
    ledger = Ledger.load("run/ledger.jsonl")
    assert ledger.verify().ok
    assert audit.result.epsilon_claimed < audit.result.ledger_epsilon == ledger.epsilon(1e-3) <= 20.0
    assert sessions[1]["train"].queries_made == 4


def test_what_it_tells_is_a_function_of_its_releases(settings, table, monkeypatch):
    """Two tables, one key, the releases of the first played back to the second: the same result, to the byte."""
    tape, position = [], [None]
    noisy, survey = gate_module.ReleaseGate.release, audit_module.TableTask.preprocess

    def taped(value):
        if position[0] is None:
            tape.append(value)
            return value
        position[0] += 1
        return tape[position[0] - 1]

    def taped_noisy(self, *dtypes):
        released = noisy(self, *dtypes)
        return taped(released) if self.session.purpose == "train" else released

    monkeypatch.setattr(gate_module.ReleaseGate, "release", taped_noisy)
    monkeypatch.setattr(audit_module.TableTask, "preprocess", lambda *a: taped(survey(*a)))
    found = []
    for kind in ("planted", "rows"):
        tape.clear()
        position[0] = None
        for name, rows in (("one", table_text(400, 0)), ("other", table_text(170, 1))):
            Path("table.csv").write_text(rows)
            audit = audit_table(
                settings(output=f"{kind}-{name}"), canaries=60, kind=kind, randomness=Randomness.insecure(0)
            )
            found.append(audit.result.to_json())
            position[0] = 0
        assert found[-1] == found[-2]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", ["planted", "rows"])
def test_true_claims_stand(settings, table, relation, kind):
    how = {"neighboring_relation": relation, "sample_rate": 0.2, "queries": 20, "epsilon": 3.0}
    found = audit_table(settings(**how), canaries=200, kind=kind).result
    assert found.verdict == "consistent"
    assert found.relation == relation
    assert found.bound.canaries == 200


def test_persons_with_several_rows(settings, table):
    audit = audit_table(settings(unit_column="patient", max_rows_per_unit=2, drop=()), canaries=100)
    assert audit.result.verdict == "consistent"
    assert "at most 2" in " ".join(audit.statement.split())


def test_models_tasks_hardened_noise_and_a_public_test_file(settings, table):
    for i, changes in enumerate(
        (
            {"model": "mlp", "width": 5},
            {"target": "x"},
            {"hardened": True},
            {"test_file": "table.csv"},
            {"non_private_holdout": True},
        )
    ):
        audit = audit_table(settings(output=f"run{i}", **changes), canaries=60)
        assert audit.result.verdict == "consistent"
    assert "score" not in audit.statement.split("Bought")[1].split("Settings chosen")[0]


def test_the_final_models_loss_alone(settings, table):
    found = audit_table(settings(), canaries=60, kind="rows", attack="black_box").result
    assert "black box" in found.adversary


def test_a_tenth_of_the_noise_is_refuted(settings, table, less_noise):
    less_noise(0.1)
    audit = audit_table(settings(epsilon=1.0, sample_rate=0.2, queries=100), canaries=1000)
    assert audit.result.verdict == "refuted"
    assert audit.result.bound.epsilon > 2.5 > audit.result.epsilon_claimed
    assert "refuted" in audit.statement


def test_no_noise_gives_a_large_bound_and_its_coins_away(settings, table, less_noise):
    less_noise(0.0)
    found = audit_table(settings(epsilon=1.0, sample_rate=0.2, queries=40), canaries=1000).result
    assert found.membership.auc.value > 0.999
    assert found.membership.tpr[0.01].value > 0.99
    assert found.bound.epsilon > 4.0


def test_all_the_noise_is_not(settings, table, less_noise):
    less_noise(1.0)
    assert audit_table(settings(epsilon=1.0, sample_rate=0.2, queries=40), canaries=1000).result.verdict == "consistent"


def test_a_run_that_fails_leaves_its_ledger_and_nothing_private(settings, table, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("stopped")

    monkeypatch.setattr(audit_module, "judged", broken)
    with pytest.raises(RuntimeError, match="stopped"):
        audit_table(settings(), canaries=60)
    assert {path.name for path in Path("run").iterdir()} == {"ledger.head.json", "ledger.jsonl"}
    assert Ledger.load("run/ledger.jsonl").epsilon_spent(1e-3) > 1
    with pytest.raises(ResumeError, match="never resumed"):
        audit_table(settings(), canaries=60)


def test_no_key_is_ever_on_disk(settings, table, monkeypatch):
    seen = []
    train = audit_module.train_with_canaries

    def watched(*arguments):
        seen.extend(path.name for path in Path("run").rglob("*"))
        train(*arguments)

    monkeypatch.setattr(audit_module, "train_with_canaries", watched)
    audit_table(settings(), canaries=60)
    assert set(seen) == {"ledger.head.json", "ledger.jsonl", "private", "preprocessing.json"} or set(seen) == {
        "ledger.jsonl", "private", "preprocessing.json",
    }  # fmt: skip


def test_an_insecure_audit_says_so(settings, table):
    audit = audit_table(settings(), canaries=60, randomness=Randomness.insecure(0))
    assert audit.statement.startswith("NOT PRIVATE") or "not private" in audit.statement.lower()


def test_rows_keep_to_the_sampling_of_the_others(settings, table):
    """Of m canaries about half are in; which, the coins alone say."""
    first, second = (
        audit_table(settings(output=f"run{i}"), canaries=400, randomness=Randomness.insecure(i)).result.included
        for i in range(2)
    )
    assert 150 < first.sum() < 250
    assert 140 < np.sum(first == second) < 260


@pytest.mark.parametrize(
    ("changes", "how", "says"),
    [
        ({}, {"canaries": 49}, "canaries must be >= 50"),
        ({}, {"confidence": 1.0}, "confidence"),
        ({}, {"guesses": 101}, "guesses must be <= canaries = 100"),
        ({}, {"kind": "ghosts"}, "kind must be one of planted, rows"),
        ({}, {"attack": "grey_box"}, "attack must be one of white_box, black_box"),
        ({}, {"attack": "black_box"}, "attack must be white_box with planted canaries"),
        ({"target": "nobody"}, {}, "no column 'nobody'"),
        ({"model": "nowhere:net"}, {}, "model must be importable"),
        ({"output": "table.csv"}, {}, "output must be a new or an empty folder"),
    ],
)
def test_wrong_settings_are_named_and_spend_nothing(settings, table, changes, how, says):
    with pytest.raises((ValueError, TacitaError), match=says):
        audit_table(settings(**changes), **{"canaries": 100, **how})
    assert not Path("run").exists()


def test_a_claim_beyond_reach_is_said_to_be(settings, table):
    found = audit_table(settings(), canaries=60).result
    assert found.powerless
    assert math.isfinite(found.bound.largest)
