"""Heavy-tailed planning: the reference values of the specification, and what the planner does with its inputs."""

import inspect
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, optimize

import tacita
from tacita.accounting import Spend, ZCDPEvent, epsilon, gaussian_delta, gaussian_epsilon, gaussian_mu
from tacita.convex import heavy_tailed, minimax
from tacita.convex.heavy_tailed import (
    HeavyTailedSetting,
    accelerated_bound,
    accelerated_theorem,
    bias_constant,
    clipped_mean_error,
    plan_heavy_tailed,
    plan_localized,
    proximal_bound,
    proximal_theorem,
    rho_of_budget,
    strongly_convex_bound,
    strongly_convex_schedule,
    strongly_convex_theorem,
)
from tacita.convex.heavy_tailed_setting import moment_of_coordinates
from tacita.convex.localized_phases import localized_constants, localized_phases, reduction_sizes
from tacita.convex.one_pass_bounds import last_iterate_risk
from tacita.convex.one_pass_theorems import (
    accelerated_branches,
    optimal_smoothness,
    proximal_error,
)

SIX = {"rel": 5e-6}  # the specification gives six digits


def convex(n, d, k, eps, diameter, *, beta, r_2, r_k):
    return HeavyTailedSetting(
        num_records=n, dim=d, rho=eps**2 / 2, diameter=diameter, smoothness=beta, moment_bounds={2: r_2, k: r_k}
    )


FIRST = convex(65536, 20, 2, 1, 2, beta=1, r_2=3, r_k=3)
SECOND = convex(100_000, 50, 4, 0.5, 2, beta=5, r_2=1, r_k=2)
AFFINE = convex(16384, 10, 2, 1, 1, beta=0, r_2=1, r_k=1)
STRONG = HeavyTailedSetting(
    num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=2, strong_convexity=0.5, initial_gap=5,
    moment_bounds={2: 3},
)  # fmt: skip


def localized(k, r_k, r_2k):
    return HeavyTailedSetting(
        num_records=4096, dim=10, rho=0.5, diameter=2, moment_bounds={2: 1}, uniform_moment_bounds={k: r_k, 2 * k: r_2k}
    )


# -- V1: the noise


@pytest.mark.parametrize(
    ("c", "s", "eps", "variance"), [(1.5, 64, 0.8, 0.00343323), (10, 1, 1, 400), (3, 250, 0.5, 0.002304)]
)
def test_v1_the_noise_of_the_mean(c, s, eps, variance):
    setting = replace(FIRST, rho=eps**2 / 2)
    planned = clipped_mean_error(setting, batch_size=s, max_grad_norm=c, order=2).mean_noise_std
    assert planned**2 == pytest.approx(variance, **SIX)
    oracle = tacita.ClippedGradientOracle(
        torch.nn.Linear(2, 1), lambda model, batch: model(batch[0]).squeeze(1), (torch.zeros(s, 2),),
        ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row"),
        sampler=tacita.FullBatchSampler(num_records=s), clipper=tacita.FlatClipper(max_grad_norm=c),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1 / setting.mu), planned_queries=1,
    )  # fmt: skip
    assert oracle.noise_std["all"] / oracle.divisor == pytest.approx(planned, rel=1e-6)


def test_v1_a_hundred_full_batches():
    """C = 2, T = 100, n = 500: variance 0.0064 a query, rho 0.005 a query and 0.5 in all."""
    setting = replace(FIRST, num_records=500)
    noise = 10 * clipped_mean_error(setting, batch_size=500, max_grad_norm=2, order=2).mean_noise_std
    assert noise**2 == pytest.approx(0.0064)
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    tacita.ClippedGradientOracle(
        torch.nn.Linear(2, 1), lambda model, batch: model(batch[0]).squeeze(1), (torch.zeros(500, 2),), ledger=ledger,
        sampler=tacita.FullBatchSampler(num_records=500), clipper=tacita.FlatClipper(max_grad_norm=2.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=noise * 500 / 4), planned_queries=100,
    )  # fmt: skip
    assert ledger.epsilon(1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-6)  # rho 0.5


# -- V2: conversions


@pytest.mark.parametrize(
    ("rho", "delta", "simple", "optimal", "exact"),
    [
        (0.5, 1e-5, 5.29853, 4.72839, 4.37718),
        (0.005, 1e-6, 0.530652, 0.429941, 0.396857),
        (2, 1e-5, 11.5971, 10.7248, 9.99726),
        (0.125, 1e-6, 2.75326, 2.41909, 2.25408),
    ],
)
def test_v2_conversions(rho, delta, simple, optimal, exact):
    zcdp = epsilon([Spend(ZCDPEvent(relation="replace_one", rho=rho), 1)], delta).epsilon
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) == pytest.approx(simple, **SIX)  # the paper's
    assert zcdp == pytest.approx(optimal, **SIX)
    assert gaussian_epsilon(math.sqrt(2 * rho), delta) == pytest.approx(exact, **SIX)
    assert 1.16 < simple / exact < 1.34


@pytest.mark.parametrize(("eps", "delta", "exact"), [(1, 1e-6, 0.0280145), (3, 1e-5, 0.258565)])
def test_v2_inverses(eps, delta, exact):
    assert rho_of_budget(epsilon=eps, delta=delta) == pytest.approx(exact, **SIX)


@pytest.mark.parametrize(("eps", "delta", "rho"), [(1, 1e-6, 0.0243560), (3, 1e-5, 0.224249)])
def test_v2_optimal_inverses(eps, delta, rho):
    """The rho at which the optimal conversion gives epsilon, by root finding."""

    def excess(at):
        return epsilon([Spend(ZCDPEvent(relation="replace_one", rho=at), 1)], delta).epsilon - eps

    assert optimize.brentq(excess, rho / 2, 2 * rho, rtol=1e-8) == pytest.approx(rho, **SIX)


def test_v2_the_gaussian():
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.126937, **SIX)
    assert gaussian_delta(0.5, 1.0) == pytest.approx(0.00682959, **SIX)
    assert gaussian_mu(2, 1e-5) == pytest.approx(0.501552, **SIX)
    assert gaussian_mu(1, 1e-6) == pytest.approx(0.236704, **SIX)


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.3, 5.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_v2_the_order_of_conversions(rho, delta):
    zcdp = epsilon([Spend(ZCDPEvent(relation="replace_one", rho=rho), 1)], delta).epsilon
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) >= zcdp >= gaussian_epsilon(math.sqrt(2 * rho), delta)
    assert rho_of_budget(epsilon=zcdp, delta=delta) >= rho


# -- V3, V4: one clipped mean


def test_v3_a_clipped_pareto_mean():
    """Density 3 x^-4 from 1, C = 4, s = 100: exact moments against the bounds, and a simulation of the estimator."""
    error = {
        which: clipped_mean_error(
            HeavyTailedSetting(num_records=100, dim=1, rho=0.5, diameter=1, moment_bounds={2: math.sqrt(3)}),
            batch_size=100, max_grad_norm=4, order=2, constants=which,
        )
        for which in ("paper", "sharp")
    }  # fmt: skip
    clipped = 1.46875
    variance = 3 * (1 - 1 / 4) + 16 / 64 - clipped**2
    assert 1.5 - clipped == 0.03125
    assert variance == pytest.approx(0.342773, **SIX)
    assert (error["paper"].bias, error["sharp"].bias) == pytest.approx((0.75, 0.1875))
    assert error["sharp"].mean_noise_std ** 2 == pytest.approx(0.0064)
    total = variance / 100 + 0.0064
    assert total == pytest.approx(0.00982773, **SIX)
    assert error["sharp"].variance == pytest.approx(0.0364)
    assert total + 0.03125**2 == pytest.approx(0.0108043, **SIX)
    runs = 20_000
    draws = torch.from_numpy(np.random.default_rng(0).pareto(3, (runs, 100, 1)) + 1)
    engine = tacita.gradients.given.GivenEngine(draws)
    (values, _) = tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=4.0))(engine, None)
    noise = 0.08 * torch.from_numpy(np.random.default_rng(1).standard_normal((runs, 1)))
    found = values["all"]["theta"].double() / 100 + noise
    squared = ((found - 1.5) ** 2).mean().item()
    assert squared == pytest.approx(0.0108043, rel=6 * math.sqrt(2 / runs))  # six standard errors


def test_v4_bias_constants():
    assert [bias_constant(k, "paper") for k in (2, 3, 4)] == pytest.approx([1, 0.5, 1 / 3])
    assert [bias_constant(k) for k in (2, 3, 4, 8)] == pytest.approx([0.25, 0.148148, 0.105469, 0.0490870], **SIX)
    at_two = HeavyTailedSetting(num_records=1, dim=1, rho=0.5, diameter=1, moment_bounds={2: 2.0})
    assert clipped_mean_error(at_two, batch_size=1, max_grad_norm=1, order=2).bias == 1.0  # z = 2 is clipped to 1


@pytest.mark.parametrize("k", [2.0, 2.5, 3.0, 4.0, 8.0])
def test_the_sharp_constant_is_attained_and_never_passed(k):
    """(a - C)_+ <= c_k a^k / C^(k-1) for every a, with equality at a = k C / (k - 1)."""
    a = np.linspace(0.01, 20, 5000)
    assert np.all(np.maximum(a - 1, 0) <= bias_constant(k) * a**k * (1 + 1e-12))
    worst = k / (k - 1)
    assert worst - 1 == pytest.approx(bias_constant(k) * worst**k)


# -- V7, V8: Algorithm 2


def test_v7_theorem_31_and_its_bounds():
    found = accelerated_theorem(FIRST, order=2)
    assert accelerated_branches(FIRST, order=2) == pytest.approx((7.03894, 13.0639), **SIX)
    assert found.steps == 8
    assert found.max_grad_norm == pytest.approx(215.939, **SIX)
    assert found.rate == pytest.approx(0.153734, **SIX)
    at = {"steps": found.steps, "max_grad_norm": found.max_grad_norm, "order": 2}
    paper, sharp = (accelerated_bound(FIRST, constants=which, **at) for which in ("paper", "sharp"))
    assert paper.batch_size == 8192
    assert paper.error.mean_noise_std**2 == pytest.approx(0.00277935, **SIX)
    assert paper.error.bias == pytest.approx(0.0416784, **SIX)
    assert paper.error.variance == pytest.approx(0.0566855, **SIX)
    assert 1 / (2 * paper.lr) == pytest.approx(2.73461, **SIX)
    assert paper.value == pytest.approx(0.975903, **SIX)
    assert sharp.error.bias == pytest.approx(0.0104196, **SIX)
    assert 1 / (2 * sharp.lr) == 2
    assert sharp.value == pytest.approx(0.323520, **SIX)


def test_v7_with_four_moments():
    found = accelerated_theorem(SECOND, order=4)
    assert accelerated_branches(SECOND, order=4) == pytest.approx((32.3542, 39.7635), **SIX)
    assert found.steps == 33
    assert found.max_grad_norm == pytest.approx(11.8464, **SIX)
    at = {"steps": found.steps, "max_grad_norm": found.max_grad_norm, "order": 4}
    paper = accelerated_bound(SECOND, constants="paper", **at)
    assert paper.batch_size == 3030
    assert paper.error.mean_noise_std**2 == pytest.approx(0.000244573, **SIX)
    assert 1 / (2 * paper.lr) == pytest.approx(10.6265, **SIX)
    assert paper.value == pytest.approx(0.213150, **SIX)
    assert accelerated_bound(SECOND, **at).value == pytest.approx(0.0873563, **SIX)


def test_v7_an_affine_risk_takes_one_step():
    found = accelerated_theorem(AFFINE, order=2)
    assert (found.unclamped_steps, found.steps) == (0.0, 1)
    assert found.max_grad_norm == pytest.approx(71.9797, **SIX)
    noise = clipped_mean_error(AFFINE, batch_size=16384, max_grad_norm=found.max_grad_norm, order=2).mean_noise_std
    assert noise**2 == pytest.approx(7.72040e-05, **SIX)


@pytest.mark.parametrize(
    ("setting", "bound", "steps", "c", "eta"),
    [
        (FIRST, 0.189560, 15, 61.0553, 2),
        (SECOND, 0.0581690, 53, 6.62399, 10),
        (AFFINE, 0.03125, 1, 32, 0.0117188),
    ],
)
def test_v8_the_planner_finds_the_least_bound(setting, bound, steps, c, eta):
    plan = plan_heavy_tailed(setting)
    assert plan.bound == pytest.approx(bound, rel=1e-4)
    assert plan.steps == plan.num_queries == steps
    assert plan.max_grad_norm == pytest.approx(c, rel=0.01)
    assert 1 / (2 * plan.lr) == pytest.approx(eta, rel=0.01)
    assert plan.order == max(setting.orders)


# -- V9, V10: Algorithm 6


def strong(mu, beta):
    return replace(STRONG, strong_convexity=mu, smoothness=beta)


def test_v9_the_schedule():
    found = strongly_convex_schedule(strong(1, 1), steps=4)
    assert found.lrs == pytest.approx([2 / 3, 2 / 3, 2 / 3, 4 / 7, 1 / 2])
    assert found.weights.tolist() == [0, 0, 6, 7, 8]
    found = strongly_convex_schedule(strong(0.5, 2), steps=40)
    assert (found.lrs[0], found.lrs[40]) == pytest.approx((0.444444, 0.210526), **SIX)
    assert (found.weights[20], found.weights[40], found.weights.sum()) == (18, 38, 588)
    assert (found.lrs * found.weights).sum() == pytest.approx(168)
    found = strongly_convex_schedule(strong(0.5, 2), steps=40, constants="paper")
    assert found.lrs[40] == pytest.approx(0.222222, **SIX)
    assert found.weights.sum() == 546
    found = strongly_convex_schedule(strong(0.5, 2), steps=6)
    assert found.lrs == pytest.approx(np.full(7, 0.444444), **SIX)
    assert found.weights[[0, 3, 6]] == pytest.approx([1.125, 1.60181, 2.28070], **SIX)
    assert found.weights.sum() == pytest.approx(11.5263, **SIX)


def test_v10_theorem_34():
    paper = strongly_convex_theorem(STRONG, order=2, constants="paper")
    assert paper.unclamped_steps == pytest.approx(16 * 10.4812, **SIX)
    assert paper.steps == 168
    assert paper.max_grad_norm == pytest.approx(100.873, **SIX)
    assert paper.rate == pytest.approx(0.00845573, **SIX)
    assert paper.gap == pytest.approx(6.66044, **SIX)
    bound = strongly_convex_bound(STRONG, steps=168, max_grad_norm=paper.max_grad_norm, order=2, constants="paper")
    assert bound.batch_size == 387
    assert bound.error.mean_noise_std**2 == pytest.approx(0.271763, **SIX)
    assert bound.value == pytest.approx(4.71762, **SIX)
    sharp = strongly_convex_theorem(STRONG, order=2)
    assert sharp.steps == 189
    assert sharp.max_grad_norm == pytest.approx(97.9464, **SIX)
    bound = strongly_convex_bound(STRONG, steps=189, max_grad_norm=sharp.max_grad_norm, order=2)
    assert bound.batch_size == 344
    assert bound.error.mean_noise_std**2 == pytest.approx(0.324280, **SIX)
    assert bound.value == pytest.approx(1.38461, **SIX)


def test_v11_the_batch_rule_of_algorithm_6():
    """n = 1000 and T = 9 make ten queries on batches of 100; ``tests/convex/test_solvers.py`` has the oracle."""
    bound = strongly_convex_bound(replace(STRONG, num_records=1000), steps=9, max_grad_norm=1, order=2)
    assert bound.batch_size == 100
    plan = plan_heavy_tailed(replace(STRONG, num_records=1000), method="strongly_convex")
    assert plan.num_queries == plan.steps + 1 == len(plan.schedule.lrs)
    assert plan.num_queries * plan.batch_size <= 1000


# -- V12, V13: Algorithm 4 and its reduction


def test_v12_constants():
    found = localized_constants(localized(2, 1, 1), order=2)
    assert found.psi == pytest.approx(0.0628119, **SIX)
    assert found.lr == pytest.approx(0.000161684, **SIX)
    assert found.rate == pytest.approx(0.125624, **SIX)
    found = localized_constants(localized(4, 1.2, 1.5), order=4)
    assert (found.exponent, found.psi) == (1.25, pytest.approx(0.0258752, **SIX))
    assert found.lr == pytest.approx(0.00325521, **SIX)
    phase = localized_phases(localized(4, 1.2, 1.5), order=4, schedule="theory")[0]
    assert phase.reg_strength == pytest.approx(0.0891905, **SIX)
    assert phase.max_grad_norm == pytest.approx(5.80661, **SIX)
    assert phase.steps == 78617


def test_v12_phases():
    setting = localized(2, 1, 1)
    sharp = localized_phases(setting, order=2, schedule="theory")
    paper = localized_phases(setting, order=2, schedule="theory", constants="paper")
    first, fourth, last = (sharp[i] for i in (0, 3, 11))
    assert len(sharp) == 12
    assert [phase.num_records for phase in sharp] == [2048 // 2**i for i in range(12)]
    assert first.lr == pytest.approx(4.04211e-05, **SIX)
    assert first.reg_strength == pytest.approx(0.266930, **SIX)
    assert first.radius == pytest.approx(169.538, **SIX)
    assert first.max_grad_norm == pytest.approx(14.9852, **SIX)
    assert (first.steps, paper[0].steps) == (569928, 334384)
    assert first.mean_noise_std**2 == pytest.approx(122.052, **SIX)
    assert paper[0].mean_noise_std ** 2 == pytest.approx(71.6098, **SIX)
    assert fourth.reg_strength == pytest.approx(386.555, **SIX)
    assert fourth.radius == pytest.approx(0.331130, **SIX)
    assert fourth.max_grad_norm == pytest.approx(5.29808, **SIX)
    assert (fourth.steps, paper[3].steps) == (87711, 46459)
    assert fourth.mean_noise_std**2 == pytest.approx(150.269, **SIX)
    assert paper[3].mean_noise_std ** 2 == pytest.approx(79.5951, **SIX)
    assert (last.num_records, last.steps, paper[11].steps) == (1, 22, 12)
    assert last.max_grad_norm == pytest.approx(0.331130, **SIX)


def test_v12_economy():
    phases = localized_phases(localized(2, 1, 1), order=2)
    assert (phases[0].steps, phases[3].steps) == (467, 59)
    assert (phases[0].lr, phases[3].lr) == pytest.approx((0.0289426, 0.000177732), **SIX)
    theory = localized_phases(localized(2, 1, 1), order=2, schedule="theory")
    for few, many in zip(phases, theory, strict=True):
        assert few.lr <= (1 + 1e-12) / (8 * few.reg_strength)
        assert few.steps <= max(many.steps, math.ceil(8 * few.lr * few.reg_strength * few.steps))
        same = ("num_records", "reg_strength", "radius", "max_grad_norm")
        assert [getattr(few, name) for name in same] == [getattr(many, name) for name in same]
        assert few.noise_multiplier == pytest.approx(math.sqrt(few.steps))  # mu = 1: all queries together cost rho
        assert few.mean_noise_std == pytest.approx(2 * few.max_grad_norm * few.noise_multiplier / few.num_records)


def test_v13_the_reduction():
    assert reduction_sizes(65536) == (2048, 4096, 8192, 16384)
    assert reduction_sizes(10_000) == pytest.approx((376.287, 752.575, 1505.15, 3010.30), **SIX)
    plan = plan_localized(replace(localized(2, 1, 1), num_records=10_000, strong_convexity=0.5))
    assert [size for size in plan.sizes if size in (128, 256, 512, 1024)][:1] == [128]
    largest = [p.num_records for p, before in zip(plan.phases[1:], plan.phases, strict=False)
               if p.num_records > before.num_records]  # fmt: skip
    assert [plan.phases[0].num_records, *largest] == [128, 256, 512, 1024]  # halves of 256, 512, 1024, 2048
    assert sum(plan.sizes) == 10_000


# -- V14: Algorithm 8


def test_v14_theorem_48():
    found = proximal_theorem(STRONG, order=2, constants="paper")
    assert found.steps == 28
    assert found.max_grad_norm == pytest.approx(68.6317, **SIX)
    error = proximal_error(STRONG, steps=28, order=2, constants="paper")
    assert error == pytest.approx((0.131135, 0.0726305), **SIX)
    risk = last_iterate_risk(STRONG, steps=28, bias=error[0], variance=error[1], constants="paper")
    assert risk == pytest.approx(0.837518, **SIX)


def test_v14_with_four_moments():
    setting = HeavyTailedSetting(
        num_records=10**6, dim=20, rho=0.5, diameter=2, smoothness=2, strong_convexity=1, initial_gap=5,
        moment_bounds={2: 1, 4: 2},
    )  # fmt: skip
    found = proximal_theorem(setting, order=4, constants="paper")
    assert found.steps == 44
    assert found.max_grad_norm == pytest.approx(16.8864, **SIX)
    error = proximal_error(setting, steps=44, order=4, constants="paper")
    assert error == pytest.approx((0.00110760, 8.81643e-05), **SIX)
    risk = last_iterate_risk(setting, steps=44, bias=error[0], variance=error[1], constants="paper")
    assert risk == pytest.approx(0.000373474, **SIX)


# -- V15: lower bounds


def test_v15_lower_bounds():
    shared = {"second_moment_bound": 3, "num_records": 65536, "dim": 40, "rho": 0.5}
    for k, r, smooth, strongly in ((2, 3, 0.0467660, 0.00273128), (4, 4, 0.0167695, 0.000325679)):
        found = minimax.convex_lower_bound(radius=1, moment_bound=r, order=k, **shared)
        assert found == pytest.approx(smooth, **SIX)
        found = minimax.strongly_convex_lower_bound(strong_convexity=0.5, moment_bound=r, order=k, **shared)
        assert found == pytest.approx(strongly, **SIX)
    assert optimal_smoothness(FIRST, order=2) == pytest.approx(0.0182504, **SIX)
    assert not accelerated_theorem(FIRST, order=2).optimal
    assert accelerated_theorem(replace(FIRST, smoothness=0.018), order=2).optimal


def test_the_lower_bound_of_a_plan_uses_the_radius():
    plan = plan_heavy_tailed(replace(FIRST, dim=40))
    expected = minimax.convex_lower_bound(
        radius=1, second_moment_bound=3, moment_bound=3, order=2, num_records=65536, dim=40, rho=0.5
    )
    assert plan.lower_bound == expected
    assert not any("lower bound" in message for message in plan.messages)
    assert any("lower bound" in message for message in plan_heavy_tailed(FIRST).messages)


def test_the_worst_case_threshold_is_far_worse():
    lipschitz = minimax.uniformly_lipschitz_rate(lipschitz=1000, diameter=2, num_records=65536, dim=20, rho=0.5)
    assert lipschitz > 20 * accelerated_theorem(FIRST, order=2).rate


# -- V21: Example 1 of the paper


def test_v21_moments_of_example_1():
    """f = (w x1 - x2)^2 / 2 with normal x: uniform moments over |w| <= 1, and pointwise ones at w = 1."""

    def normal(x):
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def moment(k, longest):
        total, _ = integrate.dblquad(
            lambda b, a: abs(a) ** k * longest(a, b) ** k * normal(a) * normal(b), -13, 13, -13, 13, epsrel=1e-7
        )
        return total ** (1 / k)

    def uniform(a, b):
        return abs(a) + abs(b)

    def normal_difference(k):  # E|x1 (x1 - x2)|^k
        return moment(k, lambda a, b: abs(a - b))

    assert moment(2, uniform) == pytest.approx(2.55861, **SIX)
    assert moment(4, uniform) == pytest.approx(4.37682, **SIX)
    assert normal_difference(2) == pytest.approx(2, **SIX)
    assert normal_difference(4) == pytest.approx(3.77927, **SIX)
    HeavyTailedSetting(num_records=100, dim=1, rho=0.5, diameter=2, smoothness=1,
                       moment_bounds={2: 2, 4: 3.77927, 8: 7.33746},
                       uniform_moment_bounds={2: 2.55861, 4: 4.37682, 8: 7.96272})  # fmt: skip


def test_v21_moments_of_order_8():
    """In closed form: the eighth powers are binomial sums, and E|x|^j of a normal x is known."""

    def absolute(j):
        return 2 ** (j / 2) * math.gamma((j + 1) / 2) / math.sqrt(math.pi)

    def moment(k):
        terms = (math.comb(k, j) * absolute(2 * k - j) * absolute(j) for j in range(k + 1))
        return sum(terms) ** (1 / k)

    def signed(k):  # odd powers of a normal x have mean zero
        terms = (math.comb(k, j) * absolute(2 * k - j) * absolute(j) for j in range(0, k + 1, 2))
        return sum(terms) ** (1 / k)

    uniform, pointwise = [moment(k) for k in (2, 4, 8)], [signed(k) for k in (2, 4, 8)]
    assert uniform == pytest.approx([2.55861, 4.37682, 7.96272], **SIX)
    assert pointwise == pytest.approx([2, 3.77927, 7.33746], **SIX)
    assert all(one <= other for one, other in zip(pointwise, uniform, strict=True))
    assert all(found <= paper for found, paper in zip(uniform, (5, 8, 14), strict=True))
    assert (sorted(uniform), sorted(pointwise)) == (uniform, pointwise)


def test_moments_of_coordinates():
    """Lemma 21 says four times sqrt(d) gamma^(1/k); by Minkowski it is at most twice."""
    found = moment_of_coordinates(coordinate_moment=16.0, order=4, dim=9, risk_lipschitz=6.0)
    assert found == 6 + 3 * 2 <= 4 * 3 * 2


# -- V26 and the planner's own rules


def test_v26_a_plan_is_a_function_of_public_constants():
    again = plan_heavy_tailed(convex(65536, 20, 2, 1, 2, beta=1, r_2=3, r_k=3))
    assert again == plan_heavy_tailed(FIRST)
    for function in (plan_heavy_tailed, plan_localized):
        assert next(iter(inspect.signature(function).parameters)) == "setting"
        assert not {"data", "dataset", "records", "x"} & set(inspect.signature(function).parameters)


@pytest.mark.parametrize("method", ["accelerated", "strongly_convex", "proximal"])
@pytest.mark.parametrize("which", ["sharp", "paper"])
def test_no_other_steps_or_threshold_has_a_smaller_bound(method, which):
    plan = plan_heavy_tailed(STRONG, method=method, constants=which)
    bound = {"accelerated": accelerated_bound, "strongly_convex": strongly_convex_bound, "proximal": proximal_bound}
    steps = np.arange(1, 301)[:, None]
    others = bound[method](
        STRONG, steps=steps, max_grad_norm=np.geomspace(0.1, 1e4, 400), order=2, constants=which
    ).value
    assert plan.bound <= others.min() * (1 + 1e-6)
    here = bound[method](STRONG, steps=plan.steps, max_grad_norm=plan.max_grad_norm, order=2, constants=which)
    assert plan.bound == pytest.approx(here.value)


@pytest.mark.parametrize("method", ["accelerated", "strongly_convex", "proximal"])
def test_sharp_bounds_are_below_the_paper_s(method):
    assert plan_heavy_tailed(STRONG, method=method).bound < plan_heavy_tailed(STRONG, method=method,
                                                                             constants="paper").bound  # fmt: skip


def test_the_best_order_is_chosen():
    """With r_8 much larger than r_4 the middle order wins; with equal moments the highest does."""
    some = replace(FIRST, moment_bounds={2: 8.6, 4: 13.4, 8: 340.0})
    assert plan_heavy_tailed(some).order == 4
    assert plan_heavy_tailed(replace(some, moment_bounds={2: 3.0, 4: 3.0, 8: 3.0})).order == 8
    each = [plan_heavy_tailed(replace(some, moment_bounds={2: 8.6, k: some.moment(k)})).bound for k in (2, 4, 8)]
    assert plan_heavy_tailed(some).bound == pytest.approx(min(each), rel=1e-6)


def test_more_of_anything_helps():
    plan = plan_heavy_tailed(FIRST)
    assert plan_heavy_tailed(replace(FIRST, num_records=4 * 65536)).bound < plan.bound
    assert plan_heavy_tailed(replace(FIRST, rho=2.0)).bound < plan.bound
    assert plan_heavy_tailed(replace(FIRST, dim=5)).bound < plan.bound


def test_what_a_plan_says_about_itself():
    plan = plan_heavy_tailed(replace(FIRST, num_records=100, rho=1e-6))
    assert plan.is_vacuous
    assert any("vacuous" in message for message in plan.messages)
    assert not plan_heavy_tailed(FIRST).is_vacuous
    assert plan_heavy_tailed(FIRST).gradient_evaluations == 15 * (65536 // 15) == 65535
    assert "1 of 65536 records are not used." in plan_heavy_tailed(FIRST).messages
    flat = plan_heavy_tailed(replace(STRONG, num_records=50, strong_convexity=0.01, smoothness=2.0), method="proximal")
    assert any("smoothness / strong_convexity" in message for message in flat.messages)
    assert plan_heavy_tailed(FIRST).ratio_to_lower_bound == pytest.approx(0.153734 / 0.0411898, rel=1e-5)


def test_a_localized_plan():
    plan = plan_localized(replace(localized(2, 1, 1), num_records=5000))
    assert plan.sizes == (*(2048 // 2**i for i in range(12)), 905)
    assert sum(plan.sizes) == 5000
    assert plan.num_queries == sum(phase.steps for phase in plan.phases)
    assert plan.gradient_evaluations == sum(phase.steps * phase.num_records for phase in plan.phases)
    assert plan_localized(replace(localized(2, 1, 1), num_records=512)).phases[0].steps > 5000  # the theory's
    small = plan.phases[0].with_minibatches
    assert (small.batch_size, small.gradient_evaluations) == (46, 46 * small.steps)


def test_the_order_of_a_localized_plan_needs_twice_the_moment():
    setting = replace(localized(2, 1, 1), uniform_moment_bounds={2: 1.0, 4: 1.0, 8: 1.0})
    assert plan_localized(setting).order == 4
    with pytest.raises(ValueError, match="uniform_moment_bounds must hold an order of at least 4"):
        plan_localized(replace(setting, uniform_moment_bounds={2: 1.0}))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: replace(FIRST, moment_bounds={1.5: 1.0}), "moment_bounds must have orders >= 2"),
        (lambda: replace(FIRST, moment_bounds={2: 3.0, 4: 2.0}), "moment_bounds must not fall"),
        (lambda: replace(FIRST, moment_bounds={}), "moment_bounds must hold at least one order"),
        (lambda: replace(FIRST, strong_convexity=2.0), "strong_convexity must be at most smoothness"),
        (lambda: plan_heavy_tailed(FIRST, method="newton"), "method must be one of"),
        (lambda: plan_heavy_tailed(FIRST, constants="tight"), "constants must be one of"),
        (lambda: plan_heavy_tailed(FIRST, method="proximal"), "strong_convexity and smoothness must be > 0"),
        (lambda: plan_heavy_tailed(replace(STRONG, initial_gap=None), method="proximal"), "initial_gap must be given"),
        (lambda: accelerated_bound(FIRST, steps=70_000, max_grad_norm=1, order=2), "steps must leave a record"),
        (lambda: accelerated_bound(FIRST, steps=7, max_grad_norm=1, order=3), "order must be one of moment_bounds"),
        (lambda: localized_phases(localized(2, 1, 1), order=2, schedule="lazy"), "schedule must be one of"),
        (lambda: heavy_tailed.accelerated_risk(FIRST, steps=3, lr=1.0, bias=0, variance=0), "lr must be at most"),
    ],
)
def test_wrong_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()
