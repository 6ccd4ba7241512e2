"""The paper's noise: only through a wrapper that says what it guarantees."""

import math

import pytest
import torch

import tacita
from tacita.errors import BudgetExceededError, LedgerError
from tacita_reproductions.paper_noise import unsafe_paper_noise

TARGET = dict(nominal_epsilon=2.0, nominal_delta=1e-5)


def make(feedback=1.0, threshold=1.0, records=50_000, rate=0.02, feedback_settings=None, **changes):
    model = torch.nn.Linear(2, 1)
    settings = dict(
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=rate, num_records=records),
        clipper=tacita.FlatClipper(max_grad_norm=threshold),
        feedback=tacita.PrivateFeedback(max_feedback_norm=feedback, **(feedback_settings or {})),
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


@pytest.mark.parametrize(
    ("changes", "formula", "says"),
    [
        (dict(every=100), "theorem_3_7", "every must be 1, got 100: the paper claims nothing"),
        (dict(every=2), "automatic", "every must be 1, got 2"),
        (dict(leak=0.5), "automatic", "leak must be 0, got 0.5"),
        (dict(anti_windup=3.0), "theorem_3_7", "anti_windup must be inf, got 3"),
        (dict(normalised=True), "theorem_3_7", "normalised must be False"),
    ],
)
def test_what_the_paper_does_not_describe_is_refused(changes, formula, says, capsys):
    oracle = make(feedback_settings=changes)
    with pytest.raises(ValueError, match=says):
        unsafe_paper_noise(oracle, formula, **TARGET)
    assert oracle.session.state == "registered"
    assert not capsys.readouterr().out


def test_a_claim_that_holds_is_not_called_refuted(capsys):
    """One query: the error is still zero, and the prescribed noise is far more than enough."""
    oracle = make(planned_queries=1)
    with pytest.raises(ValueError, match=r"is enough here, for epsilon .*, so nothing is refuted"):
        unsafe_paper_noise(oracle, "theorem_3_7", **TARGET)
    assert oracle.session.state == "registered"
    assert not capsys.readouterr().out


def test_where_nothing_is_amplified_it_is_compared_with_any_batches(capsys):
    """Under replace_one there is no first-draw law."""
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    sampler = tacita.PoissonSampler(sample_rate=0.02, num_records=20)
    oracle = make(ledger=ledger, sampler=sampler)
    unsafe = unsafe_paper_noise(oracle, "automatic", **TARGET)
    assert unsafe.ledger.epsilon(1e-5) > 2
    assert "not (2, 1e-05)-DP as claimed" in capsys.readouterr().out


def test_other_sessions_of_the_ledger_are_not_compared_with_the_claim(capsys):
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    make(ledger=ledger, mechanism=tacita.GaussianMechanism(noise_multiplier=3.0))
    unsafe_paper_noise(make(ledger=ledger, randomness=tacita.Randomness.insecure(1)), "theorem_3_7", **TARGET)
    assert "rigorous epsilon 57." in capsys.readouterr().out
    assert ledger.epsilon(1e-5) > 60


def test_a_refused_replacement_leaves_the_session_as_it_was(capsys):
    capped = tacita.Ledger(
        neighboring_relation="add_or_remove_one", privacy_unit="one row", max_epsilon=10.0, max_delta=1e-5
    )
    oracle = make(ledger=capped, mechanism=tacita.GaussianMechanism(noise_multiplier=100.0))
    before = capped.epsilon(1e-5)
    with pytest.raises(BudgetExceededError):
        unsafe_paper_noise(oracle, "theorem_3_7", **TARGET)
    assert oracle.session.state == "registered"
    assert capped.epsilon(1e-5) == before
    assert len(capped.sessions) == 1
    assert oracle.query(dict(oracle.source.model.named_parameters())).query == 0


def test_a_release_made_meanwhile_refuses_it():
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    other, oracle = make(ledger=ledger), make(ledger=ledger, randomness=tacita.Randomness.insecure(1))
    other.query(dict(other.source.model.named_parameters()))
    with pytest.raises(LedgerError, match="queries were made on these records already"):
        unsafe_paper_noise(oracle, "theorem_3_7", **TARGET)
    assert oracle.session.state == "registered"


def test_the_cap_holds_for_the_new_session_without_the_old():
    """A cap that takes either session, and not both."""
    capped = tacita.Ledger(
        neighboring_relation="add_or_remove_one", privacy_unit="one row", max_epsilon=60.0, max_delta=1e-5
    )
    oracle = make(ledger=capped, mechanism=tacita.GaussianMechanism(noise_multiplier=1.7))
    assert capped.epsilon(1e-5) > 10
    unsafe_paper_noise(oracle, "theorem_3_7", **TARGET)
    assert capped.epsilon(1e-5) == pytest.approx(57.8225, rel=2e-3)


def test_settings_of_the_user_are_bound_to_the_new_session():
    unsafe, other = (
        unsafe_paper_noise(make(settings={"lr": lr}), "theorem_3_7", **TARGET).session.registration.settings_sha256
        for lr in (0.1, 0.2)
    )
    assert unsafe != other
    again = unsafe_paper_noise(make(settings={"lr": 0.1}), "theorem_3_7", **TARGET)
    assert again.session.registration.settings_sha256 == unsafe


def test_the_share_pays_for_the_new_session():
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    share, small = ledger.register_share(100.0, 1e-5), ledger.register_share(20.0, 1e-5)

    def paid_from(which):
        draft = make()
        session = ledger.register(
            draft.event, planned_queries=150, settings=draft.settings, share=which, secure_randomness=False
        )
        return make(ledger=ledger, session=session)

    before = ledger.epsilon(1e-4)
    oracle = paid_from(share)
    unsafe = unsafe_paper_noise(oracle, "theorem_3_7", **TARGET)
    assert unsafe.session.share == share.id
    assert ledger.epsilon(1e-4) == before
    oracle = paid_from(small)
    with pytest.raises(BudgetExceededError, match=f"would exceed {small.id}"):
        unsafe_paper_noise(oracle, "theorem_3_7", **TARGET)
    assert oracle.session.state == "registered"


def test_the_new_session_reads_back(tmp_path):
    settings = dict(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    with tacita.Ledger(tmp_path / "ledger.jsonl", **settings) as ledger:
        unsafe_paper_noise(make(ledger=ledger), "theorem_3_7", **TARGET)
    with tacita.Ledger(tmp_path / "ledger.jsonl", **settings) as ledger:
        assert [session.state for session in ledger.sessions] == ["withdrawn", "registered"]
        assert ledger.epsilon(1e-5) == pytest.approx(57.8225, rel=2e-3)
