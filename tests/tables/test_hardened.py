"""tacita train --hardened: every session in whole numbers, rows computed alone, the same bits, the right words."""

from pathlib import Path

import numpy as np
import pytest
import torch

import tacita.tables.purchases as purchases_module
from tacita import Ledger
from tacita.accounting import hardening
from tacita.oracles.gate import ReleaseGate
from tacita.random import Randomness
from tacita.tables import TableSettings, check_run, train_table
from tacita.tables.dry_run import plan_in_words


def events(folder="run"):
    return {
        session.purpose: hardening(session.event) for session in Ledger.load(Path(folder) / "ledger.jsonl").sessions
    }


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_every_session_is_hardened(settings, table, model) -> None:
    run = train_table(settings(hardened=True, model=model))
    found = events()
    assert set(found) == {"rows", "survey", "refinement", "train", "score"}
    assert {purpose: event.sums for purpose, event in found.items()} == {
        "rows": "counts",
        "survey": "counts",
        "refinement": "counts",
        "train": "alone",
        "score": "counts",
    }
    words = " ".join(run.statement.split())
    assert "Attacks on floating-point noise are closed." in words
    assert "are out of scope" not in words
    assert run.fields["epsilon"] <= 20.0
    assert not check_run("run").faults


def test_without_it_nothing_changes(settings, table) -> None:
    run = train_table(settings())
    assert set(events().values()) == {None}
    assert "floating-point arithmetic of the noise are out of scope" in " ".join(run.statement.split())


def test_rounded_noise_costs_what_the_gaussian_costs(settings, table) -> None:
    plain, hardened = (train_table(settings(hardened=form, output=f"run-{form}")) for form in (False, True))
    for name in ("noise_multiplier", "noise_std", "epsilon"):
        assert hardened.fields[name] == plain.fields[name]


def test_counts_are_bought_with_whole_noise(settings, table, monkeypatch) -> None:
    """What the mechanism adds is whole before anything rounds it."""
    seen = []
    commit, noisy = ReleaseGate.commit, ReleaseGate.release

    def watching(self, query, values, *more):
        self.exact = dict(values)  # which a commit empties
        return commit(self, query, values, *more)

    def releasing(self, *dtypes):
        released = noisy(self, *dtypes)
        seen.append((self.exact, released))
        return released

    monkeypatch.setattr(ReleaseGate, "commit", watching)
    monkeypatch.setattr(ReleaseGate, "release", releasing)
    train_table(settings(hardened=True))
    block, target = purchases_module.BLOCK, purchases_module.TARGET
    bought = [set(values) for values, _ in seen if "gradient" not in values and "all" not in values]
    assert bought == [{block}, {block, target}, {block}, {"score", "classes"}]
    for values, released in seen:
        for name in set(values) & {block, target, "score", "classes"}:
            for label, exact in values[name].items():
                noisy = released[name][label]
                assert torch.equal(noisy, noisy.round())
                assert exact.numel() < 100 or not torch.equal(noisy, exact)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_run_is_the_same_again(settings, table, model) -> None:
    for folder in ("one", "two"):
        train_table(settings(hardened=True, model=model, output=folder), randomness=Randomness.insecure(3))
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()


def test_predictions_for_the_score_are_made_row_by_row(settings, table, monkeypatch) -> None:
    import tacita.tables.held_out_score as score_module

    sizes = []
    outputs = score_module.outputs

    def watching(model, features, rows=8192):
        sizes.append(rows)
        return outputs(model, features, rows)

    monkeypatch.setattr(score_module, "outputs", watching)
    train_table(settings(hardened=True))
    assert sizes == [1]
    train_table(settings(output="plain"))
    assert sizes == [1, 8192]


def test_settings_keep_it(settings) -> None:
    for hardened in (False, True):
        assert TableSettings.from_toml(settings(hardened=hardened).to_toml()).hardened is hardened
    for wrong in ("exact", 3):
        with pytest.raises(ValueError, match="hardened must be"):
            settings(hardened=wrong)


def test_hardened_linear_training_follows_the_plain_one(settings, table) -> None:
    """The same noise but for its rounding, were the streams equal: here only that both learn alike."""
    accuracy = []
    for form in (False, True):
        run = train_table(settings(hardened=form, output=f"learn-{form}", queries=20, test_file="table.csv"))
        accuracy.append(run.fields["holdout_score"]["value"])
    assert np.min(accuracy) > 0.6


def test_the_command_line(table, tacita_command) -> None:
    train = ("train", "table.csv", "--target", "label", "--epsilon", "20", "--delta", "1e-3", "--drop", "patient")
    done = tacita_command(*train, "--sample-rate", "0.5", "--queries", "4", "--output", "run", "--hardened")
    assert done.code == 0
    assert events()["train"].sums == "alone"
    assert tacita_command("statement", "run").code == 0


def test_the_plan_of_hardened_noise_is_printed(settings, table) -> None:
    """Its events state no Gaussian noise of their own: that of the session inside is told."""
    plan = plan_in_words(settings(hardened=True))
    assert "whole steps of a grid" in plan
    assert plan.count("noise of") >= 3
