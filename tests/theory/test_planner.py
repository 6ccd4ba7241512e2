"""The planner: its noise is what the ledger charges, its settings go into an oracle, its words follow from numbers."""

import math
from dataclasses import replace

import pytest
import torch

import tacita
from tacita.theory import ConvexProblem, NonConvexProblem, convergence_bound
from tacita.theory.planner import (
    SAMPLINGS,
    PlanSetting,
    error_by_epsilon,
    exact_noise_multiplier,
    moved_along,
    noise_ratio,
    plan_dp_clipped_sgd,
    rough_noise_multiplier,
)

PROBLEM = ConvexProblem(smoothness=1, radius=2, moment_scale=1, moment_order=1.5, dim=4)
SETTING = PlanSetting(
    problem=PROBLEM,
    num_records=200,
    batch_size=20,
    steps=10,
    epsilon=3.0,
    delta=1e-4,
    relation="add_or_remove_one",
)
# One pass over 10^8 records, little noise: the theorem says something in spite of privacy.
TELLING = PlanSetting(
    problem=ConvexProblem(smoothness=1, radius=1, moment_scale=1e-4),
    num_records=10**8,
    batch_size=1000,
    steps=100_000,
    epsilon=3.0,
    delta=1e-9,
    relation="add_or_remove_one",
    sampling="one_pass",
)


def changed(**change):
    return replace(SETTING, **change)


def as_sampling(sampling, relation="add_or_remove_one"):
    return changed(sampling=sampling, relation=relation, batch_size=200 if sampling == "full_batch" else 20)


def sampler(setting):
    if setting.sampling == "poisson":
        return tacita.PoissonSampler(sample_rate=setting.sample_rate, num_records=setting.num_records)
    if setting.sampling == "full_batch":
        return tacita.FullBatchSampler(num_records=setting.num_records)
    own = setting.relation == "add_or_remove_one"
    return tacita.DisjointSampler(
        num_batches=setting.steps, num_records=setting.num_records, assignment="coin" if own else "index"
    )


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "zero_out_one"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_plan_goes_into_an_oracle(sampling, relation):
    """Noise at the level of the sum, sensitivity and budget are the oracle's own; then it trains."""
    setting = as_sampling(sampling, relation)
    plan = plan_dp_clipped_sgd(setting)
    found = plan.thumb_settings
    ledger = tacita.Ledger(neighboring_relation=relation, privacy_unit="one row")
    model = torch.nn.Linear(3, 1)
    oracle = tacita.ClippedGradientOracle(
        model,
        lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square(),
        (torch.randn(200, 3), torch.randn(200)),
        ledger=ledger,
        sampler=sampler(setting),
        clipper=tacita.FlatClipper(max_grad_norm=found.max_grad_norm),
        mechanism=tacita.GaussianMechanism(noise_multiplier=found.noise_multiplier),
        planned_queries=found.planned_queries,
    )
    assert oracle.divisor == pytest.approx(found.expected_batch_size)
    assert next(iter(oracle.noise_std.values())) == pytest.approx(found.noise_std, rel=1e-9)
    assert plan.noise_ratio * found.max_grad_norm == pytest.approx(found.noise_std / oracle.divisor)
    assert 2.99 < ledger.epsilon(1e-4) <= 3.0 * (1 + 1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=found.lr)
    average = tacita.SuffixAverage(dict(model.named_parameters()), skip=found.skip)
    oracle.backward()
    optimizer.step()
    average.update(dict(model.named_parameters()))


def test_the_bound_is_that_of_the_planned_noise():
    """Mean-level noise in the theorem, sum-level noise in the oracle, one multiplier; K = steps - 1."""
    plan = plan_dp_clipped_sgd(changed(relation="replace_one"))
    c = plan.best.max_grad_norm
    assert plan.noise_ratio == pytest.approx(plan.noise_multiplier * 2 / 20)
    again = convergence_bound(
        PROBLEM,
        max_grad_norm=c,
        steps=9,
        failure_probability=0.05,
        mean_noise_std=plan.theory_settings.noise_std / 20,
        batch_size=20,
    )
    assert again.value == pytest.approx(plan.best.bound.value, rel=1e-9)
    assert plan.theory_settings.lr == pytest.approx(again.lr)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_rough_noise_is_exact_where_nothing_is_sampled(sampling):
    setting = as_sampling(sampling)
    ratio = rough_noise_multiplier(setting) / exact_noise_multiplier(setting)
    assert ratio == pytest.approx(1.0, rel=0.35 if sampling == "poisson" else 1e-12)


def test_moving_along_is_near_the_exact_noise():
    """A quarter of the rate, and twice epsilon: within 10 %."""
    base = changed(num_records=10_000, batch_size=200, steps=500)
    exact = exact_noise_multiplier(base)
    for other in (replace(base, num_records=40_000), replace(base, epsilon=6.0)):
        assert moved_along(base, other, exact) == pytest.approx(exact_noise_multiplier(other), rel=0.1)


def test_where_the_theory_says_something():
    plan = plan_dp_clipped_sgd(TELLING)
    assert not plan.is_vacuous
    assert plan.best.bound.value < 0.5 / 3
    assert plan.of_output < plan.best.bound.value
    assert plan.thumb.estimate < plan.of_output
    assert plan.theory_settings.skip == 0
    assert plan.thumb_settings.skip == 50_000


def test_where_it_says_nothing():
    plan = plan_dp_clipped_sgd(SETTING)
    assert plan.is_vacuous
    assert plan.best.bound.value > 100 * plan.best.bound.trivial_value


def test_a_non_convex_problem():
    problem = NonConvexProblem(smoothness=1, initial_gap=1, moment_scale=0.5, dim=3)
    plan = plan_dp_clipped_sgd(changed(problem=problem))
    assert plan.best.bound.metric == "|grad f(x)|^2"
    assert plan.of_output > 0
    assert any(help.change == "a start half as far" for help in plan.helps)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_help_helps_where_it_must(sampling):
    """None but fewer steps or a smaller gain makes the bound worse; the list is sorted."""
    plan = plan_dp_clipped_sgd(as_sampling(sampling))
    estimates = [help.estimate for help in plan.helps]
    assert estimates == sorted(estimates)
    for help in plan.helps:
        if "steps" not in help.change and "batch" not in help.change:
            assert help.bound <= plan.best.bound.value * (1 + 1e-9), help.change
            assert help.estimate <= plan.thumb.estimate * (1 + 1e-9), help.change


def test_one_pass_is_offered_where_it_fits():
    assert any("one pass" in help.change for help in plan_dp_clipped_sgd(changed(steps=10)).helps)
    assert not any("one pass" in help.change for help in plan_dp_clipped_sgd(changed(steps=11)).helps)


def test_error_by_epsilon_falls():
    plan = plan_dp_clipped_sgd(TELLING)
    bounds, rough = zip(*error_by_epsilon(plan, [0.1, 1.0, 3.0, 30.0]), strict=True)
    assert list(bounds) == sorted(bounds, reverse=True)
    assert list(rough) == sorted(rough, reverse=True)
    assert bounds[2] == pytest.approx(plan.best.bound.value, rel=1e-6)
    assert math.isclose(rough[2], plan.thumb.estimate, rel_tol=1e-6)


def test_noise_of_the_mean_falls_with_the_batch():
    assert noise_ratio(SETTING, 1.5) == 1.5 / 20
    assert noise_ratio(changed(relation="replace_one"), 1.5) == 3.0 / 20


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_records": 0}, "num_records must be an integer >= 1, got 0"),
        ({"batch_size": 201}, "batch_size must be at most num_records=200, got 201"),
        ({"steps": 1}, "steps must be an integer >= 2, got 1"),
        ({"epsilon": 0}, "epsilon must be a finite number > 0"),
        ({"delta": 1.0}, r"delta must be in \(0, 1\), got 1.0"),
        ({"relation": "replace"}, "neighboring_relation must be one of"),
        ({"sampling": "shuffled"}, "sampling must be one of poisson, full_batch, one_pass, got 'shuffled'"),
        ({"sampling": "full_batch"}, "batch_size must be num_records=200 under full_batch, got 20"),
        ({"sampling": "one_pass", "steps": 11}, "must be at most num_records=200 under one_pass, got 220"),
        ({"failure_probability": 0}, r"failure_probability must be in \(0, 1\], got 0"),
    ],
)
def test_settings_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        changed(**change)
