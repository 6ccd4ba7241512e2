"""The unclipped oracle: same path as the clipped one under its condition; nothing without it."""

import copy
import warnings

import pytest
import torch

import tacita
from tacita.errors import BudgetExceededError
from tacita.gradients.given import GivenSource
from tacita.testing import check_oracle
from tests.testing.linear import Promised


@pytest.fixture
def make(problem):
    """``make(kind, bound, **changes)``: an oracle of either kind on its own copy of the problem's model."""

    def build(kind, bound, relation="add_or_remove_one", **changes):
        model, loss_fn, data = problem
        own = {
            tacita.ClippedGradientOracle: {"clipper": tacita.FlatClipper(max_grad_norm=bound)},
            tacita.UnclippedGradientOracle: {"declared_max_grad_norm": bound, "failure_probability": 1e-6},
        }
        settings = dict(
            ledger=tacita.Ledger(neighboring_relation=relation, privacy_unit="one row"),
            sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=60),
            mechanism=tacita.GaussianMechanism(noise_multiplier=0.001),
            planned_queries=10,
            randomness=tacita.Randomness.insecure(0),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return kind(copy.deepcopy(model), loss_fn, data, **{**settings, **own[kind], **changes})

    return build


def trained(oracle, lr=0.05):
    model = oracle.source.model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(oracle.planned_queries):
        oracle.backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_the_same_path_bit_for_bit_where_the_bound_holds(make, relation):
    paths = [
        trained(make(kind, 1e3, relation)) for kind in (tacita.ClippedGradientOracle, tacita.UnclippedGradientOracle)
    ]
    assert torch.equal(*paths)


def test_another_path_where_it_does_not(make):
    paths = [trained(make(kind, 1.0)) for kind in (tacita.ClippedGradientOracle, tacita.UnclippedGradientOracle)]
    assert not torch.allclose(*paths)


@pytest.mark.parametrize("kind", [tacita.ClippedGradientOracle, tacita.UnclippedGradientOracle])
def test_without_noise_on_all_rows_both_are_gradient_descent(problem, make, kind):
    full = dict(
        sampler=tacita.FullBatchSampler(num_records=60), mechanism=tacita.GaussianMechanism(noise_multiplier=0.0)
    )
    found = trained(make(kind, 1e3, **full))
    model, loss_fn, data = problem
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        loss_fn(model, data).mean().backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_statement_prints_the_condition_and_no_epsilon(make):
    oracle = make(tacita.UnclippedGradientOracle, 2.5, mechanism=tacita.GaussianMechanism(noise_multiplier=5.0))
    said = tacita.statement(oracle.ledger, delta=1e-4)
    assert said.to_json()["epsilon"] is None
    assert said.to_json()["conditional_epsilon"] > 0
    assert "at most 2.5" in said.text


def test_a_capped_ledger_refuses_it(make):
    ledger = tacita.Ledger(
        neighboring_relation="add_or_remove_one", privacy_unit="one row", max_epsilon=100.0, max_delta=1e-3
    )
    with pytest.raises(BudgetExceededError, match="guarantees nothing unless every record's gradient"):
        make(tacita.UnclippedGradientOracle, 2.5, ledger=ledger)


def test_calibration_pays_for_the_failure(make):
    target = tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-4)
    plain = make(tacita.ClippedGradientOracle, 2.5, mechanism=target)
    ours = make(tacita.UnclippedGradientOracle, 2.5, mechanism=target)
    assert ours.noise_multiplier > plain.noise_multiplier
    assert ours.ledger.conditional_bound(1e-4).epsilon == pytest.approx(2.0, rel=1e-3)


def test_noise_that_alone_may_pass_the_bound_is_told(problem):
    """5 parameters: noise of std s on the mean is about s sqrt(5) long."""
    model, loss_fn, data = problem
    settings = dict(
        sampler=tacita.FullBatchSampler(num_records=60),
        declared_max_grad_norm=2.0,
        failure_probability=0.0,
        planned_queries=3,
    )

    def build(noise_multiplier):
        ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
        mechanism = tacita.GaussianMechanism(noise_multiplier=noise_multiplier)
        tacita.UnclippedGradientOracle(model, loss_fn, data, ledger=ledger, mechanism=mechanism, **settings)

    limit = 60 / 5**0.5
    with pytest.warns(UserWarning, match="the noise of one mean gradient is about 2.02 long"):
        build(1.01 * limit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(0.99 * limit)


# -- the contract of every oracle, under the condition


def audited(keeps_the_promise):
    """Oracles on rows that are their own gradients, cut to the declared length or not."""

    def make_oracle(rows, ledger):
        if keeps_the_promise:
            norms = rows.double().norm(dim=1, keepdim=True)
            rows = (rows / norms.clamp(min=1.0) * (1 - 1e-6)).to(rows.dtype)  # what is not finite stays so, and is zero
        known = 10 if ledger.neighboring_relation == "add_or_remove_one" else len(rows)
        return tacita.GradientOracle(
            GivenSource(rows),
            estimator=Promised(declared_max_grad_norm=1.0, failure_probability=0.0),
            sampler=tacita.FullBatchSampler(num_records=known),
            mechanism=tacita.GaussianMechanism(noise_multiplier=2.0),
            ledger=ledger,
            planned_queries=2,
        )

    return make_oracle


def test_under_its_condition_it_keeps_the_contract():
    check_oracle(audited(keeps_the_promise=True))


def test_without_its_condition_it_is_refuted():
    with pytest.raises(AssertionError, match="is claimed"):
        check_oracle(audited(keeps_the_promise=False))
