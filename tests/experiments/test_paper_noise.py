"""The paper's noise: only through a wrapper that says what it guarantees."""

import math

import pytest
import torch

import tacita
from tacita.errors import BudgetExceededError, LedgerError
from tacita.experiments.paper_noise import unsafe_paper_noise

TARGET = dict(nominal_epsilon=2.0, nominal_delta=1e-5)


def make(feedback=1.0, threshold=1.0, records=50_000, rate=0.02, **changes):
    model = torch.nn.Linear(2, 1)
    settings = dict(
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=rate, num_records=records),
        clipper=tacita.FlatClipper(max_grad_norm=threshold),
        feedback=tacita.PrivateFeedback(max_feedback_norm=feedback),
        mechanism=tacita.GaussianMechanism(noise_multiplier=30.0),
        planned_queries=150,
        randomness=tacita.Randomness.insecure(0),
    )
    data = (torch.ones(20, 2), torch.ones(20, 1))
    return tacita.ErrorFeedbackOracle(
        model, lambda model, b: (model(b[0]) - b[1]).square().sum(1), data, **{**settings, **changes}
    )


@pytest.mark.parametrize(
    ("formula", "mean_std", "rigorous"), [("automatic", 0.00407168, 1.81394e7), ("theorem_3_7", 3.32452, 57.8225)]
)
def test_the_rigorous_epsilon_stands_beside_the_nominal_one(formula, mean_std, rigorous, capsys):
    oracle = make()
    unsafe = unsafe_paper_noise(oracle, formula, **TARGET)
    assert unsafe.noise_std["gradient"] / 1000 == pytest.approx(mean_std, rel=2e-6)
    epsilon = unsafe.ledger.epsilon(1e-5)
    assert epsilon == pytest.approx(rigorous, rel=2e-3)
    printed = capsys.readouterr().out
    assert "claimed epsilon 2," in printed
    assert f"rigorous epsilon {epsilon:.6g} at delta 1e-05" in printed
    assert "not (2, 1e-05)-DP as claimed" in printed


def test_the_statement_begins_with_the_refuted_claim(capsys):
    unsafe = unsafe_paper_noise(make(), "theorem_3_7", **TARGET)
    words = tacita.statement(unsafe.ledger, delta=1e-5)
    assert words.to_json()["disclaimers"] == ["not (2, 1e-05)-DP as claimed by the paper's Theorem 3.7"]
    assert words.text.index("Not (2, 1e-05)-DP as claimed") < words.text.index("PRIVACY STATEMENT")
    assert words.to_json()["epsilon"] > 57
    assert "epsilon <= 2 " not in words.text


def test_only_the_session_with_the_papers_noise_is_charged():
    oracle = make()
    unsafe = unsafe_paper_noise(oracle, "theorem_3_7", **TARGET)
    assert oracle.session.state == "withdrawn"
    assert unsafe.session.state == "registered"
    release = unsafe.query(dict(unsafe.source.model.named_parameters()))
    assert release.query == 0
    assert unsafe.session.queries_made == 1
    assert unsafe.public_state is None


def test_a_cap_is_a_cap():
    capped = tacita.Ledger(
        neighboring_relation="add_or_remove_one", privacy_unit="one row", max_epsilon=10.0, max_delta=1e-5
    )
    mechanism = tacita.GaussianMechanism(noise_multiplier=100.0)
    with pytest.raises(BudgetExceededError):
        unsafe_paper_noise(make(ledger=capped, mechanism=mechanism), "theorem_3_7", **TARGET)


@pytest.mark.parametrize(
    ("changes", "formula", "says"),
    [
        ({}, "theorem", "formula must be one of theorem_3_7, automatic"),
        (dict(feedback=0.5), "automatic", "automatic: max_feedback_norm must be max_grad_norm"),
        (dict(feedback=0.5), "theorem_3_7", "max_feedback_norm must be at least 1"),
        (dict(rate=0.3), "theorem_3_7", "sample_rate must be at most 1/5"),
        (dict(records=10**9), "theorem_3_7", "must exceed 8 C1 / B"),
    ],
)
def test_its_own_hypotheses_are_checked(changes, formula, says):
    oracle = make(**changes)
    target = dict(TARGET, nominal_epsilon=1e8) if "records" in changes else TARGET
    with pytest.raises(ValueError, match=says):
        unsafe_paper_noise(oracle, formula, **target)
    assert oracle.session.state == "registered"


def test_other_feedback_and_used_oracles_are_refused():
    released = tacita.ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0)
    model = torch.nn.Linear(2, 1)
    oracle = tacita.ErrorFeedbackOracle(
        model,
        lambda model, b: (model(b[0]) - b[1]).square().sum(1),
        (torch.ones(20, 2), torch.ones(20, 1)),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.02, num_records=50_000),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        feedback=released,
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=10,
    )
    with pytest.raises(ValueError, match="oracle must be an ErrorFeedbackOracle with PrivateFeedback"):
        unsafe_paper_noise(oracle, "automatic", **TARGET)
    used = make()
    used.query(dict(used.source.model.named_parameters()))
    with pytest.raises(LedgerError):
        unsafe_paper_noise(used, "automatic", **TARGET)
    with pytest.raises(ValueError, match="nominal_epsilon must be"):
        unsafe_paper_noise(make(), "automatic", nominal_epsilon=math.inf, nominal_delta=1e-5)
