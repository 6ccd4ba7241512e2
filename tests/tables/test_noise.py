"""``tacita train --noise``: the choice is stated and paid beside the purchases, and a stopped run goes on."""

import pytest
import torch

import tacita
from tacita.errors import ResumeError
from tacita.random import Randomness
from tacita.tables import check_run, train_table
from tacita.tables.dry_run import plan_in_words
from tests.tables.test_feedback import weights

PASS = {"sample_rate": 0.05, "queries": 20}  # one pass in 20 batches, where correlated noise wins at epsilon 20


@pytest.mark.parametrize("noise", ["correlated", "auto"])
def test_the_choice_is_stated_and_everything_together_keeps_to_the_target(settings, table, noise):
    chosen = settings(noise=noise, **PASS)
    run = train_table(chosen)
    assert 0.9 * 20.0 <= run.fields["epsilon"] <= 20.0 * (1 + 1e-9)
    assert check_run("run").faults == ()
    (words,) = (words for words in run.fields["chosen_by_tacita"] if words.startswith("noise = "))
    assert words.startswith("noise = correlated, ")
    assert "20 cyclic batches by secret coin" in words
    assert words in plan_in_words(settings(noise=noise, output="other", **PASS))
    (training,) = (one for one in tacita.Ledger.load("run/ledger.jsonl").sessions if one.purpose == "train")
    assert "Cyclic batches, 20 a cycle" in training.event.describe()


def test_auto_stays_with_independent_noise_where_it_is_better(settings, table):
    words = plan_in_words(settings(noise="auto", epsilon=1.0, sample_rate=0.1, queries=100))
    assert "noise = independent, " in words


def test_a_stopped_run_goes_on_to_the_same_bits(settings, table, train_until):
    train_table(settings(output="whole", noise="correlated", **PASS), randomness=Randomness.insecure(0))
    chosen = settings(output="stopped", noise="correlated", **PASS)
    train_until(chosen, 7)
    with pytest.raises(ResumeError, match="other settings"):
        train_table(settings(output="stopped", **PASS))
    run = train_table(chosen, randomness=Randomness.insecure(0))
    assert run.fields["queries_made"] == 20
    assert all(torch.equal(value, weights("whole")[name]) for name, value in weights("stopped").items())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"noise": "some"}, "noise must be independent, correlated or auto, got 'some'"),
        ({"noise": "auto", "hardened": True}, "noise = auto must go without hardened"),
        ({"noise": "correlated", "feedback": "released"}, "noise = correlated must go without feedback"),
        ({"noise": "correlated", "unit_column": "id", "max_rows_per_unit": 2}, "must go without unit_column"),
    ],
)
def test_what_is_not_proved_is_refused(settings, table, changes, says):
    with pytest.raises(ValueError, match=says):
        settings(**changes)
