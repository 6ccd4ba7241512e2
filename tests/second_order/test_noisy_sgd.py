"""Noisy SGD and second-order points: reference values, what holds in simulation, what the plan must flag."""

import math

import numpy as np
import pytest

from tacita.accounting import GaussianSumEvent, PoissonLaw, Spend, epsilon, gaussian_delta, gaussian_mu
from tacita.second_order import noisy_sgd
from tacita.second_order.noisy_sgd_plan import NoisySGDSetting, plan_noisy_sgd

DIGITS = 5e-6


def bound(L, gap, sigma, n, T, *, delta, c=1.0):
    return noisy_sgd.gradient_norm_bound(
        smoothness=L, initial_gap=gap, gradient_noise=sigma, num_records=n, steps=T, delta=delta, c=c
    )


def noise(C, T, delta, n, epsilon):
    return noisy_sgd.paper_mean_noise_std(gradient_bound=C, steps=T, delta=delta, num_records=n, epsilon=epsilon)


def test_the_gradient_bound_has_the_values_of_the_specification():
    assert bound(1, 1, 1, 50_000, 10_000, delta=1e-5) == pytest.approx(14.4209, rel=DIGITS)
    assert bound(2, 0.5, 0.3, 1000, 500, delta=1e-6) == pytest.approx(14.0736, rel=DIGITS)
    assert bound(1, math.log(10), 1, 50_000, 2328, delta=0.01) == pytest.approx(13.0058, rel=DIGITS)
    assert bound(1, 1, 1, 50_000, 10_000, delta=1e-5, c=0) == 2
    assert bound(2, 0.5, 0.3, 1000, 500, delta=1e-6, c=0) == 2


def test_the_gradient_bound_has_no_unit():
    """Ten times the objective should be ten times the bound: 144.209; the formula gives 121.008."""
    scaled = bound(10, 10, 10, 50_000, 10_000, delta=1e-5)
    assert scaled == pytest.approx(121.008, rel=DIGITS)
    assert 10 * bound(1, 1, 1, 50_000, 10_000, delta=1e-5) == pytest.approx(144.209, rel=DIGITS)


def test_formula_1_gives_the_noise_of_the_specification():
    c = bound(1, 1, 1, 50_000, 10_000, delta=1e-5)
    found = noise(c, 10_000, 1e-5, 50_000, 1)
    assert found == pytest.approx(0.0978619, rel=DIGITS)
    assert noise(c, 10_000, 1e-5, 50_000, 8) == pytest.approx(0.0122327, rel=DIGITS)
    multiplier = found * 500 / c
    assert multiplier == pytest.approx(3.39307, rel=DIGITS)
    assert multiplier == pytest.approx(0.01 * math.sqrt(10_000 * math.log(1e5)))  # q sqrt(T ln(1/delta)) / epsilon


@pytest.mark.parametrize(
    ("epsilon", "total"),
    [(1 / 8, 0.0313315), (1 / 4, 0.0328403), (1 / 2, 0.0364872), (1, 0.0471828), (2, 0.0938906), (4, 0.565982),
     (8, 29.8296)],
)  # fmt: skip
def test_the_honest_delta_is_two_plus_e_to_the_epsilon_times_delta(epsilon, total):
    assert noisy_sgd.honest_delta(epsilon, 0.01, capped=False) == pytest.approx(total, rel=DIGITS)
    assert noisy_sgd.honest_delta(epsilon, 0.01) == pytest.approx(min(total, 1.0), rel=DIGITS)
    assert noisy_sgd.honest_delta(epsilon, 1e-5) == pytest.approx(total / 1000, rel=DIGITS)


def test_the_honest_delta_takes_the_failure_probability_of_its_event():
    assert noisy_sgd.honest_delta(1.0, 1e-5, 1e-7) == pytest.approx(1e-5 + (1 + math.e) * 1e-7)
    assert noisy_sgd.honest_delta(1.0, 1e-5, 0.0) == 1e-5


@pytest.mark.parametrize(
    ("accuracy", "rest", "expected"),
    [
        (0.1, (1, 1, 1, 1, 100, 100, 0.1), (1.01, 0.00497512, 1_286_400, 635.618, 0.316228, 0.0316228)),
        (0.05, (4, 6, 0.5, 2, 64, 1000, 0.3), (90.0625, 6.86342e-6, 1.86496e9, 266_011, 0.0912871, 0.00456435)),
    ],
)
def test_the_escape_parameters_are_those_of_definition_b_1(accuracy, rest, expected):
    names = ("smoothness", "hessian_lipschitz", "initial_gap", "gradient_noise", "batch_size", "dim", "mean_noise_std")
    found = noisy_sgd.escape_parameters(accuracy=accuracy, **dict(zip(names, rest, strict=True)))
    values = (
        found.total_noise_variance,
        found.lr,
        found.steps,
        found.escape_steps,
        found.escape_radius,
        found.escape_decrease,
    )
    assert values == pytest.approx(expected, rel=DIGITS)


def least(**change):
    settings = {"gradient_bound": 2.5, "smoothness": 1, "initial_gap": 1, "delta": 1e-5, "num_records": 50_000}
    dim = change.pop("dim", 1000)
    return noisy_sgd.least_accuracy(noisy_sgd.kappa(**{**settings, "epsilon": 1, **change}), dim)


def test_the_least_accuracy_scales_with_records_epsilon_and_dimension():
    assert noisy_sgd.kappa(
        gradient_bound=2.5, smoothness=1, initial_gap=1, delta=1e-5, num_records=50_000, epsilon=1
    ) == pytest.approx(1.84207e-6, rel=DIGITS)
    assert least() == pytest.approx(0.207222, rel=DIGITS)
    assert least(epsilon=4) == pytest.approx(0.103611, rel=DIGITS)
    assert least(num_records=200_000) == pytest.approx(0.103611, rel=DIGITS)
    assert least(dim=16 * 1001 - 1) == pytest.approx(0.414443, rel=DIGITS)


def test_the_steps_of_the_least_accuracy_ask_for_the_noise_they_assume():
    """Noise 0.05 = sigma / sqrt(B): the steps that this accuracy takes ask formula (1) for the same noise."""
    variance = 0.05**2 * 1001
    steps = 64 * variance / least() ** 4
    assert noise(2.5, steps, 1e-5, 50_000, 1) == pytest.approx(0.05)


SETTING = NoisySGDSetting(
    num_records=50_000,
    dim=1000,
    batch_size=500,
    epsilon=1,
    delta=1e-5,
    relation="add_or_remove_one",
    smoothness=1,
    hessian_lipschitz=1,
    initial_gap=1,
    gradient_noise=1,
    accuracy=0.25,
    gradient_bound=2.5,
)


def changed(**change):
    from dataclasses import replace

    return plan_noisy_sgd(replace(SETTING, **change))


def test_the_plan_has_the_numbers_of_the_specification():
    plan = plan_noisy_sgd(SETTING)
    assert plan.mean_noise_std == pytest.approx(0.0447214, rel=DIGITS)
    assert plan.parameters.total_noise_variance == pytest.approx(2.002, rel=DIGITS)
    assert plan.parameters.lr == pytest.approx(0.0208195, rel=DIGITS)
    assert plan.parameters.steps == pytest.approx(49184.8, rel=DIGITS)
    assert SETTING.formula_at(plan.parameters.steps) == pytest.approx(0.0376251, rel=DIGITS)
    assert plan.parameters.steps * 0.01**2 == pytest.approx(4.91848, rel=DIGITS)


def test_the_plan_flags_what_the_paper_does_not_check():
    plan = plan_noisy_sgd(SETTING)
    assert plan.broken == ("lr <= 1 / (sigma sqrt(T)), Lemma 3.2",)
    assert 1 / math.sqrt(plan.parameters.steps) == pytest.approx(0.00450905, rel=DIGITS)
    assert 8 * math.sqrt(plan.parameters.lr) / 0.25 == pytest.approx(4.61726, rel=DIGITS)


def test_other_conditions_are_flagged():
    assert "epsilon < c1 T B^2 / n^2, Theorem 3.1" in changed(c1=1e-3).broken
    assert "delta < 1 / n" in changed(delta=0.01).broken


def test_an_accuracy_out_of_reach_is_refused_in_the_words_of_the_caller():
    assert plan_noisy_sgd(SETTING).least_accuracy == pytest.approx(0.207222, rel=DIGITS)
    with pytest.raises(ValueError, match=r"accuracy must be at least 0.2072 .* got 0.1: no noise is enough"):
        changed(accuracy=0.1)
    assert changed(accuracy=0.21, batch_size=20).accuracy == 0.21
    with pytest.raises(ValueError, match="accuracy must be at least"):
        changed(accuracy=0.5, gradient_bound=None)


def test_between_the_least_accuracy_and_the_edge_more_noise_does():
    """kappa d < alpha^4 < kappa (d + 1): more noise than that of the least accuracy."""
    cost = noisy_sgd.kappa(gradient_bound=2.5, smoothness=1, initial_gap=1, delta=1e-5, num_records=50_000, epsilon=1)
    plan = changed(accuracy=(cost * 1000.5) ** 0.25)
    assert plan.mean_noise_std**2 == pytest.approx((1 + 1 / 500) / 0.5)
    with pytest.raises(ValueError, match="accuracy must be at least"):
        changed(accuracy=(cost * 999.9) ** 0.25)


@pytest.mark.parametrize("bound", [None, 2.5])
@pytest.mark.parametrize(("n", "d", "b"), [(50_000, 1000, 500), (10**6, 10, 1), (2000, 50_000, 2000)])
@pytest.mark.parametrize("sigma", [1.0, 0.0, 30.0])
def test_the_least_accuracy_is_always_feasible(bound, n, d, b, sigma):
    """By its definition; the noise is 1 + sigma^2 / B where the first limit on the step size binds."""
    plan = changed(accuracy=None, gradient_bound=bound, num_records=n, dim=d, batch_size=b, gradient_noise=sigma)
    assert plan.accuracy == plan.least_accuracy
    assert "noise >= formula (1)" not in plan.broken
    assert "noise^2 >= sigma^2 / B, Theorem 3.4" not in plan.broken
    again = changed(
        accuracy=plan.accuracy * (1 + 1e-9), gradient_bound=bound, num_records=n, dim=d, batch_size=b,
        gradient_noise=sigma,
    )  # fmt: skip
    assert again.mean_noise_std == pytest.approx(plan.mean_noise_std, rel=1e-3)
    if bound == 2.5 and plan.accuracy < 1:
        assert plan.mean_noise_std**2 == pytest.approx(1 + sigma**2 / b, rel=1e-6)


def fixed_point(setting, rounds=200_000):
    """Definition B.1 and formula (1), each put into the other until nothing changes: slow, and sure."""
    noise = setting.gradient_noise / math.sqrt(setting.batch_size)
    for _ in range(rounds):
        steps = setting.parameters_at(setting.accuracy, noise).steps
        needed = max(noise, setting.formula_at(steps))
        if needed <= noise * (1 + 1e-14):
            return noise, steps
        noise = needed
    raise AssertionError("did not close")


@pytest.mark.parametrize(
    "change",
    [
        dict(accuracy=0.25),
        dict(accuracy=0.22, batch_size=5000),
        dict(accuracy=0.4, batch_size=50_000),
        dict(accuracy=2.0, gradient_bound=None),
        dict(accuracy=0.75, gradient_bound=None, batch_size=20_000),
        dict(accuracy=0.5, initial_gap=0.002, gradient_noise=3.0),
    ],
)
def test_the_closed_form_is_where_the_loop_ends(change):
    from dataclasses import replace

    plan = changed(**change)
    noise, steps = fixed_point(replace(SETTING, **change))
    assert plan.mean_noise_std == pytest.approx(noise, rel=1e-6)
    assert plan.parameters.steps == pytest.approx(steps, rel=1e-6)


def test_the_real_epsilon_stands_beside_the_nominal_one():
    """That of the clipped algorithm, by the accountant: 0.92 for a nominal 1, and above 9.6 for a nominal 8."""
    plan = changed()
    event = GaussianSumEvent(
        relation="add_or_remove_one",
        max_contribution=(1.0,),
        noise_std=(plan.mean_noise_std * 500 / 2.5,),
        sampling=PoissonLaw(0.01),
    )
    assert plan.real_epsilon == epsilon([Spend(event, 49185)], 1e-5).epsilon
    assert plan.noise_multiplier == pytest.approx(event.noise_std[0])
    assert changed(relation="replace_one").real_epsilon > 1.9 * plan.real_epsilon
    loose = changed(epsilon=8, accuracy=None, batch_size=50_000)
    assert loose.real_epsilon > 8 * 1.2  # full batches, where formula (1) with constant 1 is too small
    assert changed(gradient_bound=1e-9, accuracy=1e-3, dim=1).real_epsilon is None  # 10^14 steps


def test_without_concentration_more_noise_is_asked_for():
    """A choice: Appendix C in place of Assumption B; then formula (2), which needs it, is not there for C."""
    name = "noise^2 >= sigma^2 T / (B delta), Appendix C"
    plan = changed(concentrated=False, accuracy=None)
    assert name in plan.conditions
    assert name not in plan.broken
    event = 1e-5 / plan.parameters.steps
    assert plan.mean_noise_std**2 * event >= 1 / 500 * (1 - 1e-6)
    assert plan.accuracy > 10 * plan_noisy_sgd(SETTING).least_accuracy
    with pytest.raises(ValueError, match="gradient_bound must be given where gradients are not assumed to concentrate"):
        changed(concentrated=False, gradient_bound=None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(epsilon=-1.0), "epsilon must be a finite number > 0, got -1.0"),
        (dict(epsilon=math.nan), "epsilon must be a finite number > 0, got nan"),
        (dict(delta=2.0), r"delta must be in \(0, 1\), got 2.0"),
        (dict(batch_size=60_000), "batch_size must be at most num_records=50000, got 60000"),
        (dict(relation="swap"), "neighboring_relation must be one of"),
        (dict(accuracy=0.0), "accuracy must be a finite number > 0"),
        (dict(gradient_noise=-1.0), "gradient_noise must be a finite number >= 0"),
        (dict(hessian_lipschitz=math.inf), "hessian_lipschitz must be a finite number > 0"),
    ],
)
def test_wrong_settings_of_a_plan_are_refused_by_their_names(change, says):
    with pytest.raises(ValueError, match=says):
        changed(**change)


def test_the_plan_raises_the_noise_to_the_formula():
    plan = changed(batch_size=50_000, accuracy=0.4)
    assert plan.mean_noise_std > 1 / math.sqrt(50_000)
    assert plan.mean_noise_std == pytest.approx(noise(2.5, plan.parameters.steps, 1e-5, 50_000, 1), rel=1e-6)


def test_the_plan_finds_its_own_gradient_bound():
    plan = changed(gradient_bound=None, accuracy=2.0)
    steps = plan.parameters.steps
    assert plan.gradient_bound == pytest.approx(bound(1, 1, 1, 50_000, steps, delta=1e-5))


@pytest.mark.parametrize(
    ("settings", "epsilon", "one", "formula"),
    [
        ((20_000, 500, 3, 1e-5), 1, 0.0125129, 0.0113807),
        ((20_000, 500, 3, 1e-5), 8, 0.00201323, 0.00142259),
        ((1000, 100, 1, 1e-5), 2, 0.0199381, 0.0169654),
    ],
)
def test_the_formula_is_below_the_exact_noise_of_full_batches(settings, epsilon, one, formula):
    n, steps, c, delta = settings
    exact = c * math.sqrt(steps) / gaussian_mu(epsilon, delta)
    assert exact / n == pytest.approx(one, rel=DIGITS)
    assert noise(c, steps, delta, n, epsilon) == pytest.approx(formula, rel=DIGITS)
    assert formula < one


@pytest.mark.parametrize(
    ("nominal", "std", "multiplier"),
    [(1 / 8, 0.0414166, 8.48212), (1, 0.00517707, 1.06026), (2, 0.00258854, 0.530132), (8, 0.000647134, 0.132533)],
)
def test_the_formula_at_the_papers_settings(nominal, std, multiplier):
    found = noise(2.5, 2328, 0.01, 50_000, nominal)
    assert found == pytest.approx(std, rel=DIGITS)
    assert found * 512 / 2.5 == pytest.approx(multiplier, rel=DIGITS)


def test_the_formulas_noise_costs_far_more_than_its_nominal_epsilon():
    """A nominal 2 is 8.56 at the paper's delta of 0.01, and 16.4 at 1e-5 (Poisson sampling)."""
    event = GaussianSumEvent(
        relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(0.530132,), sampling=PoissonLaw(512 / 50_000)
    )
    for delta, real in ((0.01, 8.56), (1e-5, 16.4)):
        assert epsilon([Spend(event, 2328)], delta).epsilon == pytest.approx(real, rel=0.01)


def test_the_concentration_bound_has_the_values_of_the_specification():
    assert noisy_sgd.concentration_bound(1.0, 50_000) == pytest.approx(3.43799, rel=DIGITS)
    assert noisy_sgd.concentration_bound(1.0, 1000) == pytest.approx(2.81207, rel=DIGITS)
    moved = noisy_sgd.concentrated_mean_sensitivity(1.0, num_records=50_000, batch_size=500)
    assert moved == pytest.approx(0.0137522, rel=DIGITS)


def test_concentration_is_a_bound_on_every_record():
    """avg exp(|x|^2 / sigma^2) < e leaves no record above sigma sqrt(1 + ln N), and one just below it."""
    n = 1000
    top = noisy_sgd.concentration_bound(1.0, n)
    assert math.exp(top**2) / n == pytest.approx(math.e)
    assert (math.exp((0.9999 * top) ** 2) + (n - 1) * 1.0) / n > 1


def test_dimensions_that_break_the_gradient_bound():
    def dims(n, epsilon, steps, delta):
        return noisy_sgd.breaking_dimension(num_records=n, epsilon=epsilon, steps=steps, delta=delta)

    assert dims(1000, 1, 2, 1e-5) == pytest.approx(43429.4, rel=DIGITS)
    assert dims(50_000, 1, 2328, 0.01) == pytest.approx(233_191, rel=DIGITS)
    assert dims(50_000, 8, 2328, 0.01) == pytest.approx(1.49242e7, rel=DIGITS)
    assert noise(2.5, 2328, 0.01, 50_000, 8) * math.sqrt(2_274_880) == pytest.approx(0.976053, rel=DIGITS)


def test_the_gradient_bound_says_nothing_under_large_noise():
    """f_i = |x|^2 / 2, one step of size one from 0 in 10^6 dimensions: 4.8 times the "bound"."""
    c = bound(1, 0.5, 0.1, 1000, 2, delta=1e-5)
    std = noise(c, 2, 1e-5, 1000, 1)
    assert (c, std) == pytest.approx((6.25661, 0.0300225), rel=DIGITS)
    after = np.linalg.norm(std * np.random.default_rng(0).standard_normal(10**6))
    assert after == pytest.approx(30.04, abs=0.1)
    assert after / c == pytest.approx(4.79853, rel=3e-3)


def test_without_clipping_one_record_is_exposed():
    std = noise(1, 1, 1e-5, 100, 1)
    assert std == pytest.approx(0.0339307, rel=DIGITS)
    for size, found in ((1, 4.28436e-5), (10, 0.776730), (1000, 1.0)):
        assert gaussian_delta(size / (100 * std), 1.0) == pytest.approx(found, rel=DIGITS)
    assert 2 * 0.5 * (1 + math.erf(10 / (100 * std) / 2 / math.sqrt(2))) - 1 == pytest.approx(0.859408, rel=DIGITS)


def test_noise_is_enough_from_the_gradient_noise_on():
    settings = {"gradient_noise": 1.0, "batch_size": 100, "dim": 10, "delta": 1e-2, "steps": 100}
    assert noisy_sgd.noise_is_enough(**settings, mean_noise_std=0.1, concentrated=True)
    assert not noisy_sgd.noise_is_enough(**settings, mean_noise_std=0.099, concentrated=True)
    assert not noisy_sgd.noise_is_enough(**settings, mean_noise_std=9.9, concentrated=False)
    assert noisy_sgd.noise_is_enough(**settings, mean_noise_std=10.1, concentrated=False)
