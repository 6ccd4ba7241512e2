"""Formula (1)'s noise: only through a wrapper that says what it guarantees; nominal and real epsilon in a table."""

import pytest
import torch

import tacita
from tacita.errors import BudgetExceededError, LedgerError
from tacita_reproductions import find
from tacita_reproductions.noisy_sgd_noise import EPSILONS, formula_multiplier, real_epsilon, unsafe_formula_1_noise
from tacita_reproductions.unclipped_sum import UnclippedSum

RATE, STEPS = 512 / 50_000, 2328
TARGET = dict(nominal_epsilon=8.0, nominal_delta=0.01)
# nominal epsilon -> multiplier, real epsilon at delta 0.01: computed once by other code, to three digits
TABLE = {
    1 / 8: (8.48212, 0.0352),
    1 / 2: (2.12053, 0.356),
    1.0: (1.06026, 1.18),
    2.0: (0.530132, 8.56),
    8.0: (0.132533, 848),
}


def make(clipped=True, clipper=None, rate=RATE, relation="add_or_remove_one", sampler=None, **changes):
    settings = dict(
        ledger=tacita.Ledger(neighboring_relation=relation, privacy_unit="one row"),
        sampler=sampler or tacita.PoissonSampler(sample_rate=rate, num_records=50_000),
        mechanism=tacita.GaussianMechanism(noise_multiplier=30.0),
        planned_queries=STEPS,
        randomness=tacita.Randomness.insecure(0),
    )
    estimator = (
        tacita.ClippedSum(clipper or tacita.FlatClipper(max_grad_norm=2.5))
        if clipped
        else UnclippedSum(declared_max_grad_norm=2.5, failure_probability=0.0)
    )
    source = tacita.NetworkSource(
        torch.nn.Linear(2, 1),
        lambda model, b: (model(b[0]) - b[1]).square().sum(1),
        (torch.ones(20, 2), torch.ones(20, 1)),
    )
    return tacita.GradientOracle(source, estimator=estimator, **{**settings, **changes})


@pytest.mark.parametrize("nominal", TABLE)
def test_the_formula_and_what_it_gives(nominal):
    z = formula_multiplier(epsilon=nominal, delta=0.01, sample_rate=RATE, steps=STEPS)
    assert z == pytest.approx(TABLE[nominal][0], rel=1e-5)
    assert real_epsilon(z, sample_rate=RATE, steps=STEPS, delta=0.01) == pytest.approx(TABLE[nominal][1], rel=0.005)


def test_the_table_holds():
    result = find("noisy-sgd-nominal")()
    assert [row["nominal epsilon"] for row in result.rows] == list(EPSILONS)
    assert not [check.says for check in result.checks if not check.held]


def test_the_rigorous_epsilon_stands_beside_the_nominal_one(capsys):
    oracle = make()
    unsafe = unsafe_formula_1_noise(oracle, **TARGET)
    assert (oracle.session.state, unsafe.session.state) == ("withdrawn", "registered")
    assert unsafe.noise_std["all"] == pytest.approx(0.132533 * 2.5, rel=1e-5)
    spent = unsafe.ledger.epsilon(0.01)
    assert spent == pytest.approx(848, rel=0.005)
    printed = capsys.readouterr().out
    assert f"claimed epsilon 8, rigorous epsilon {spent:.6g}, at delta 0.01" in printed
    words = tacita.statement(unsafe.ledger, delta=0.01)
    assert words.to_json()["disclaimers"] == ["not (8, 0.01)-DP as claimed by the paper's Theorem 3.1"]
    assert words.text.index("Not (8, 0.01)-DP as claimed") < words.text.index("PRIVACY STATEMENT")
    assert unsafe.query(dict(unsafe.source.model.named_parameters())).query == 0


def test_without_clipping_no_epsilon_is_stated(capsys):
    unsafe = unsafe_formula_1_noise(make(clipped=False), **TARGET)
    assert unsafe.ledger.epsilon(0.02) == float("inf")
    printed = capsys.readouterr().out
    assert "if no gradient is ever longer than declared, and inf without that, at delta 0.02" in printed
    assert "not (8, 0.02)-DP as claimed by the paper's Theorem 3.3" in printed


def test_the_noise_scales_with_the_constant_that_the_paper_does_not_give():
    assert unsafe_formula_1_noise(make(), c2=2.0, **TARGET).noise_std["all"] == pytest.approx(0.265066 * 2.5, rel=1e-5)
    with pytest.raises(ValueError, match="c2 must be"):
        unsafe_formula_1_noise(make(), c2=0.0, **TARGET)


def test_a_claim_that_holds_is_not_called_refuted():
    oracle = make()
    with pytest.raises(ValueError, match=r"is enough here, for epsilon 0\.3\d+ at delta 0.01, so nothing is refuted"):
        unsafe_formula_1_noise(oracle, nominal_epsilon=0.5, nominal_delta=0.01)
    assert oracle.session.state == "registered"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            dict(relation="zero_out_one", sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=20)),
            "oracle must have Poisson sampling under add_or_remove_one",
        ),
        (dict(sampler=tacita.FullBatchSampler(num_records=20)), "oracle must have Poisson sampling"),
        (
            dict(clipper=tacita.AutomaticClipper(max_grad_norm=1.0, gamma=0.1)),
            "a ClippedGradientOracle with a FlatClipper",
        ),
    ],
)
def test_what_the_theorems_are_not_about_is_refused(changes, says):
    oracle = make(**changes)
    with pytest.raises(ValueError, match=says):
        unsafe_formula_1_noise(oracle, **TARGET)
    assert oracle.session.state == "registered"


def test_twice_a_half_is_no_delta():
    with pytest.raises(ValueError, match="nominal_delta must be < 1/2"):
        unsafe_formula_1_noise(make(clipped=False), nominal_epsilon=8.0, nominal_delta=0.5)


def test_a_cap_is_a_cap_and_a_used_oracle_is_refused():
    capped = tacita.Ledger(
        neighboring_relation="add_or_remove_one", privacy_unit="one row", max_epsilon=10.0, max_delta=0.01
    )
    with pytest.raises(BudgetExceededError):
        unsafe_formula_1_noise(make(ledger=capped), **TARGET)
    used = make()
    used.query(dict(used.source.model.named_parameters()))
    with pytest.raises(LedgerError):
        unsafe_formula_1_noise(used, **TARGET)
