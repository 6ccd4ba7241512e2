"""``tacita train --feedback``: the plan's event is the oracle's, the statement says it, and a stopped run goes on."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import tacita
from tacita.errors import ResumeError, UnsupportedEventError
from tacita.random import Randomness
from tacita.tables import check_run, train_table

KINDS = ["released", "bounded"]


def weights(folder):
    return safetensors.torch.load_file(Path(folder) / "model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_feedback_spends_what_was_asked(settings, table, kind):
    run = train_table(settings(feedback=kind))
    assert 0.9 * 20.0 <= run.fields["epsilon"] <= 20.0 * (1 + 1e-9)
    assert check_run("run").faults == ()
    assert any(words.startswith("feedback: residuals up to 2") for words in run.fields["chosen_by_tacita"])
    (training,) = (one for one in tacita.Ledger.load("run/ledger.jsonl").sessions if one.purpose == "train")
    assert np.size(training.event.noise_std) == (2 if kind == "released" else 1)  # residuals are a block, or hidden


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_with_feedback_goes_on_to_the_same_bits(settings, table, train_until, kind, model):
    train_table(settings(output="whole", feedback=kind, model=model), randomness=Randomness.insecure(0))
    chosen = settings(output="stopped", feedback=kind, model=model)
    train_until(chosen, 2)
    for other in (None, *(one for one in KINDS if one != kind)):
        with pytest.raises(ResumeError, match="other settings"):
            train_table(settings(output="stopped", feedback=other, model=model))
    run = train_table(chosen, randomness=Randomness.insecure(0))
    assert run.fields["queries_made"] == 4
    assert all(torch.equal(value, weights("whole")[name]) for name, value in weights("stopped").items())
    plain = train_table(settings(output="plain", model=model), randomness=Randomness.insecure(0))
    assert plain.fields["noise_std"] != run.fields["noise_std"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(feedback="hidden"), "feedback must be released or bounded, got 'hidden'"),
        (dict(feedback="released", hardened=True), "feedback must go without hardened"),
        (dict(feedback=1), "feedback must be text"),
    ],
)
def test_what_cannot_be_is_refused(settings, table, changes, says):
    with pytest.raises(ValueError, match=says):
        settings(**changes)


def test_a_unit_of_several_rows_is_refused_before_anything_is_spent(settings, table):
    """No guarantee is proved for feedback beside a cap on the rows of a person."""
    asked = settings(feedback="bounded", unit_column="patient", max_rows_per_unit=2, drop=())
    with pytest.raises(UnsupportedEventError):
        train_table(asked)


def test_the_command(tacita_command, table):
    done = tacita_command(
        "train", "table.csv", "--target", "label", "--epsilon", "20", "--delta", "1e-3", "--drop", "patient",
        "--sample-rate", "0.5", "--queries", "4", "--feedback", "released", "--output", "run", "--quiet",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert 'feedback = "released"' in Path("run/config.toml").read_text()
    assert "feedback: residuals up to 2" in done.out
    wrong = tacita_command("train", "table.csv", "--feedback", "private")
    assert wrong.code == 2
