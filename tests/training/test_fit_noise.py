"""Correlated noise and batches by secret coin in the five-line path: chosen, stated, resumed, refused in words."""

from functools import partial

import pytest
import torch

import tacita
from tacita.accounting import calibrate, gaussian_sum_event
from tests.training.test_fit import SETTINGS, interrupted, problem
from tests.training.test_fit_variants import resumed_and_whole, sgd

MANY = {"target_epsilon": 8.0, "expected_batch_size": 10, "epochs": 1}  # 20 batches in one pass: correlated noise wins


def words_of(run):
    return next(words for words in run.statement.to_json()["chosen_by_tacita"] if words.startswith("noise = "))


@pytest.mark.parametrize("changes", [{}, MANY])
@pytest.mark.parametrize("noise", ["correlated", "auto"])
def test_the_choice_is_in_the_statement_and_keeps_to_the_target(noise, changes):
    settings = {**SETTINGS, **changes}
    run = tacita.fit(*problem(), **settings, noise=noise)
    assert 0.99 * settings["target_epsilon"] < run.ledger.epsilon(1e-3) <= settings["target_epsilon"]
    assert "predicted error of the last iterate" in words_of(run)
    expected = "correlated, " if noise == "correlated" or changes else "independent, "
    assert words_of(run).startswith(f"noise = {expected}")
    assert "correlated: " in run.ledger.sessions[0].event.describe() or expected == "independent, "
    assert "correlated, " in words_of(run)
    assert words_of(run).split(";")[0] in " ".join(str(run.statement).split())


@pytest.mark.parametrize("changes", [{"noise": "correlated"}, {"noise": "auto"}])
def test_a_resumed_run_has_the_same_bits(monkeypatch, tmp_path, changes):
    resumed, whole = resumed_and_whole(monkeypatch, tmp_path, **changes)
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert resumed.ledger.sessions[0].queries_made == 16
    assert words_of(resumed) == words_of(whole)


def test_another_optimizer_goes_on_without_a_second_look_at_any_query(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path, 7, sgd, noise="correlated")
    settings = {**SETTINGS, "noise": "correlated"}
    run = tacita.fit(*problem(), **settings, folder=tmp_path, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
    assert run.ledger.sessions[0].queries_made == 16
    assert "were not redone" in str(run.statement)


def test_another_noise_is_refused_at_a_resume(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path, 7, sgd, noise="correlated")
    with pytest.raises(tacita.LedgerError, match="registered for another event"):
        tacita.fit(*problem(), **SETTINGS, folder=tmp_path, optimizer=sgd)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"noise": "corelated"}, "noise must be one of independent, correlated, auto"),
        ({"noise": None}, "noise must be one of"),
        ({"noise": "auto", "hardened": True}, "noise='auto' must go without hardened"),
        ({"noise": "correlated", "feedback": tacita.PrivateFeedback(max_feedback_norm=1.0)}, "go without feedback"),
        ({"noise": "auto", "max_grad_norm": "adaptive"}, "with noise='independent'"),
        ({"noise": "correlated", "expected_batch_size": 200}, "two batches an epoch or more"),
        ({"noise_multiplier": 1.0}, "one of epochs and noise_multiplier must be given"),
        ({"epochs": None}, "one of epochs and noise_multiplier must be given"),
        ({"epochs": None, "noise_multiplier": 0.0}, "noise_multiplier must be a finite number > 0"),
        ({"epochs": None, "noise_multiplier": 0.2}, "noise_multiplier must be larger: at 0.2 one step costs more"),
        ({"epochs": None, "noise_multiplier": 1e6}, "noise_multiplier must be smaller: .* Give epochs"),
        ({"epochs": None, "noise_multiplier": 1.0, "noise": "auto"}, "must go with noise='independent'"),
    ],
)
def test_what_is_not_served_is_refused_before_a_record_is_read(changes, says, tmp_path):
    class Unread(torch.utils.data.Dataset):
        def __len__(self):
            return 200

        def __getitem__(self, index):
            raise AssertionError("a record was read")

    model, loss_fn, _ = problem()
    with pytest.raises(ValueError, match=says):
        tacita.fit(model, loss_fn, Unread(), **{**SETTINGS, **changes}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(("noise_multiplier", "epsilon"), [(1.0, 4.0), (3.0, 1.0)])
def test_a_training_of_given_noise_makes_as_many_steps_as_the_target_holds(relation, noise_multiplier, epsilon):
    """One step more would need more noise, and the noise of the steps that are made is the smallest that holds them."""
    changes = {"epochs": None, "target_epsilon": epsilon, "neighboring_relation": relation}
    run = tacita.fit(*problem(), **{**SETTINGS, **changes}, noise_multiplier=noise_multiplier)
    steps, event = run.ledger.sessions[0].queries_made, run.ledger.sessions[0].event
    law = tacita.PoissonSampler(expected_batch_size=50, num_records=200).law

    def least(queries):
        events = partial(gaussian_sum_event, law, (1.0,), relation=relation)
        return calibrate(
            lambda noise: events((noise,)), relation, target_epsilon=epsilon, target_delta=1e-3, queries=queries
        )

    assert least(steps) <= noise_multiplier < least(steps + 1)
    assert event.noise_std == pytest.approx((least(steps),), rel=1e-3)
    assert 0.99 * epsilon < run.ledger.epsilon(1e-3) <= epsilon


def test_a_share_of_a_ledger_pays_for_it():
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
    share = ledger.register_share(2.0, 1e-3)
    run = tacita.fit(*problem(), **SETTINGS, noise="correlated", ledger=ledger, share=share)
    assert run.ledger.epsilon(2e-3) <= 2.0 * (1 + 1e-9)
