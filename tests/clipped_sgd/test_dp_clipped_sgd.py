"""Theorems C.2 and F.2: reference values, the same by another road, where they hold and where they are silent."""

import math

import numpy as np
import pytest

from tacita.clipped_sgd import (
    ConvexProblem,
    NonConvexProblem,
    average_iterate_bound,
    bound_at_lr,
    clip_bias_bound,
    clip_variance_bound,
    convergence_bound,
    lr_limits,
    neighbourhood,
    random_iterate_bound,
)
from tests.convex import settings as s


def bound(case):
    problem, settings = case
    return convergence_bound(problem, **settings)


INF = math.inf
DIGITS = 5e-6  # six significant digits
REFERENCE = {
    "C-A": (s.C_A, "bias", 23.9542, {
        "smooth": 0.125, "stat": 4.32513e-5, "bias": 4.20897e-5, "dp": INF, "ball": 0.117157, "jump": 2.50004e-4,
        "energy": INF,
    }),
    "C-B": (s.C_B, "bias", 23.9542, {
        "bias": 4.20897e-5, "dp": 5.40637e-4, "ball": 0.115289, "energy": 0.0590688,
    }),
    "C-C": (s.C_C, "bias", 513363, {"stat": 8.31279e-6, "bias": 5.58664e-7, "ball": 0.281489, "jump": 6.25009e-4}),
    "C-D": (s.C_D, "stat", 10.8798, {
        "smooth": 0.0625, "stat": 3.60279e-5, "bias": 6.69643e-5, "ball": 0.0585786, "jump": 9.81294e-5,
    }),
    "C-E": (s.C_E, "jump", 0.154152, {"stat": 2.51568e-3, "bias": 0.119048, "ball": 0.146447, "jump": 2.69126e-4}),
    "N-A": (s.N_A, "bias", 16.7289, {
        "smooth": 0.25, "stat": 8.65027e-5, "bias": 8.41794e-5, "ball": 0.01, "jump": 5.00007e-4,
    }),
    "N-B": (s.N_B, "bias", 16.7289, {
        "smooth": 0.125, "stat": 4.32513e-5, "bias": 4.20897e-5, "dp": 1.08127e-3, "ball": 4.92026e-3,
        "jump": 2.50004e-4, "energy": 0.0590688,
    }),
    "N-C": (s.N_C, "bias", 257039, {"bias": 5.58664e-7, "ball": 0.0120133}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE)
def test_reference_values(name):
    case, binding, value, limits = REFERENCE[name]
    found = bound(case)
    assert found.value == pytest.approx(value, rel=DIGITS)
    assert found.binding_term == binding
    assert found.lr == found.lr_limits[binding] == min(found.lr_limits.values())
    assert {name: found.lr_limits[name] for name in limits} == {
        name: pytest.approx(limit, rel=DIGITS) for name, limit in limits.items()
    }


@pytest.mark.parametrize(
    ("case", "terms"),
    [
        (s.C_A, {"smooth": 0.00320164, "stat": 22.9331, "bias": 23.9542, "dp": 0.0, "jump": 2.00957}),
        (s.C_B, {"smooth": 0.00320164, "stat": 22.9331, "bias": 23.9542, "dp": 0.827453, "jump": 2.00957}),
        (s.N_B, {"smooth": 0.00320082, "stat": 16.0907, "bias": 16.7289, "dp": 0.380882, "jump": 1.80477}),
    ],
    ids=["C-A", "C-B", "N-B"],
)
def test_reference_terms(case, terms):
    assert bound(case).terms == {name: pytest.approx(term, rel=DIGITS) for name, term in terms.items()}


@pytest.mark.parametrize(
    ("case", "bias", "variance"),
    [
        (s.C_A, 0.0848528, 0.795495),
        (s.C_C, 6.39280, 21.5349),
        (s.C_D, 0.016, 0.81),
        (s.C_E, 3e-6, 2.025e-5),
    ],
    ids=["C-A", "C-C", "C-D", "C-E"],
)
def test_reference_moments_at_the_largest_gradient(case, bias, variance):
    problem, settings = case
    moments = {
        "max_grad_norm": settings["max_grad_norm"],
        "moment_scale": problem.moment_scale,
        "moment_order": problem.moment_order,
    }
    assert clip_bias_bound(problem.grad_cap, **moments) == pytest.approx(bias, rel=DIGITS)
    assert clip_variance_bound(problem.grad_cap, **moments) == pytest.approx(variance, rel=DIGITS)


def printed_limits(problem, *, max_grad_norm, steps, failure_probability, mean_noise_std):
    """gamma_1 and gamma_2 as the paper prints them, without Lemma B.1."""
    c, n, alpha, sigma = max_grad_norm, steps + 1, problem.order, problem.scale
    convex = isinstance(problem, ConvexProblem)
    length, factor = (problem.length, (42, 28)) if convex else (problem.length, (21, 14))
    p, log8 = 2 ** (2 * alpha - 1), np.log(8 * n / failure_probability)
    excess = np.maximum(0, problem.grad_cap - c / 2)
    r = 1 + excess**alpha / sigma**alpha
    root = np.sqrt(p + 1) * sigma ** (alpha / 2) * c ** (1 - alpha / 2) * np.sqrt(6 * n * log8 * r)
    bracket = excess / c + 0.5 + c ** (alpha - 1) * excess / (p * (sigma**alpha + excess**alpha)) + r ** (-1 / alpha)
    second = length * c ** (alpha - 1) / (factor[1] * n * p * sigma**alpha * r * bracket)
    return {"stat": length / (factor[0] * root), "bias": second}


def section_8_terms(problem, *, max_grad_norm, steps, failure_probability, mean_noise_std):
    """The five terms with their own constants."""
    convex = isinstance(problem, ConvexProblem)
    moments = {
        "max_grad_norm": max_grad_norm,
        "moment_scale": problem.moment_scale,
        "moment_order": problem.moment_order,
    }
    b, v = clip_bias_bound(problem.grad_cap, **moments), clip_variance_bound(problem.grad_cap, **moments)
    c, n, noise, d = max_grad_norm, steps + 1, mean_noise_std, problem.dim
    log8 = np.log(8 * n / failure_probability)
    phi = 1 + np.sqrt(3 * np.log(4 * n / failure_probability))
    p, g = problem.error_scale, problem.gradient_scale
    square = p * g
    first = (112, 224 * math.sqrt(2)) if convex else (112, 112 * math.sqrt(2))
    k = (4096, 301056, 50176, 401408, 200704) if convex else (2048, 150528, 25088, 50176, 100352)
    return {
        "smooth": 32 * square / n + k[0] * square * (g / (c * n)) ** 2,
        "stat": 112 * p * np.sqrt(6 * v * log8 / n) + k[1] * square * v * log8 / (c**2 * n),
        "bias": 112 * p * b + k[2] * square * (b / c) ** 2,
        "dp": first[1] * p * noise * np.sqrt(d / n) * phi + k[3] * square * noise**2 * d * phi**2 / (c**2 * n),
        "jump": 224 * p * c * log8 / n + k[4] * square * (log8 / n) ** 2,
    }


@pytest.mark.parametrize("kind", [0, 1], ids=["convex", "non-convex"])
def test_short_forms_equal_the_printed_ones(kind):
    """gamma_1 and gamma_2 through V and B, against the paper's own lines, on random settings."""
    random = s.random_settings(5000)[kind]
    limits, printed = lr_limits(**random), printed_limits(**random)
    for name, value in printed.items():
        assert limits[name] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("kind", [0, 1], ids=["convex", "non-convex"])
def test_the_bound_is_the_largest_of_the_terms(kind):
    """Of the closed forms with their own constants, and of the right-hand side at the smallest limit."""
    random = s.random_settings(5000, seed=1)[kind]
    found, terms = convergence_bound(**random), section_8_terms(**random)
    for name, term in terms.items():
        assert found.terms[name] == pytest.approx(term, rel=1e-12)
    at_lr = bound_at_lr(random["problem"], lr=found.lr, max_grad_norm=random["max_grad_norm"], steps=random["steps"])
    assert found.value == pytest.approx(at_lr, rel=1e-12)
    assert np.array_equal(found.value, np.max(list(found.terms.values()), axis=0))


@pytest.mark.parametrize("kind", [0, 1], ids=["convex", "non-convex"])
def test_two_of_the_seven_limits_never_bind(kind):
    limits = lr_limits(**s.random_settings(400_000, seed=2)[kind])
    assert np.all(limits["energy"] > limits["dp"])
    assert np.all(limits["ball"] > np.minimum(limits["dp"], limits["jump"]))


def test_jump_may_not_be_dropped():
    """Corollary C.3 drops it for "large K"; at K = 99 999 it binds, and nine tenths of the step would be too much."""
    limits = bound(s.C_E).lr_limits
    assert limits["jump"] < 0.2 * limits["stat"] == min(v for k, v in limits.items() if k != "jump") * 0.2


@pytest.mark.parametrize("kind", [0, 1], ids=["convex", "non-convex"])
def test_scaling_laws(kind):
    """f -> c f and x -> u x: steps and bounds change as their units say."""
    random = s.random_settings(1000, seed=3)[kind]
    problem, c, u = random["problem"], 3.7, 0.29
    base = convergence_bound(**random)
    convex = isinstance(problem, ConvexProblem)

    def scaled(objective, parameter):
        """Gradients scale with objective / parameter."""
        own = (
            {"radius": np.multiply(problem.radius, parameter)}
            if convex
            else {"initial_gap": np.multiply(problem.initial_gap, objective)}
        )
        other = type(problem)(
            smoothness=np.multiply(problem.smoothness, objective / parameter**2),
            moment_scale=np.multiply(problem.moment_scale, objective / parameter),
            moment_order=problem.moment_order,
            dim=problem.dim,
            **own,
        )
        gradients = {name: random[name] * objective / parameter for name in ("max_grad_norm", "mean_noise_std")}
        return convergence_bound(**{**random, "problem": other, **gradients})

    times, across = scaled(c, 1.0), scaled(1.0, u)
    assert times.lr == pytest.approx(base.lr / c, rel=1e-9)
    assert times.value == pytest.approx(base.value * (c if convex else c**2), rel=1e-9)
    assert across.lr == pytest.approx(base.lr * u**2, rel=1e-9)
    assert across.value == pytest.approx(base.value if convex else base.value / u**2, rel=1e-9)


def unit(order=1.5, scale=0.1, **more):
    return ConvexProblem(smoothness=1, radius=1, moment_scale=scale, moment_order=order, **more)


@pytest.mark.parametrize(
    ("threshold", "bias", "left"),
    [
        (1, 16.9426, 1.44050e7),
        (2, 4.20366, 222133),
        (3.9, 0.165312, 108.667),
        (4, 0.0948683, 38.8493),
        (5, 0.0848528, 23.9542),
        (50, 0.0268328, 3.01973),
        (5000, 0.00268328, 0.300528),
        (1e6, 1.89737e-4, 0.0212505),
    ],
)
def test_neighbourhood(threshold, bias, left):
    at = clip_bias_bound(2.0, max_grad_norm=threshold, moment_scale=0.1, moment_order=1.5)
    assert at == pytest.approx(bias, rel=DIGITS)
    assert neighbourhood(unit(), max_grad_norm=threshold) == pytest.approx(left, rel=DIGITS)


@pytest.mark.parametrize(("threshold", "left"), [(2, 111302), (4, 24.7373), (50, 3.01250)])
def test_neighbourhood_of_a_non_convex_problem(threshold, left):
    problem = NonConvexProblem(smoothness=4, initial_gap=0.25, moment_scale=0.1, moment_order=1.5)
    assert neighbourhood(problem, max_grad_norm=threshold) == pytest.approx(left, rel=DIGITS)


def test_infinitely_many_steps_leave_the_neighbourhood():
    problem, settings = s.C_A
    far = convergence_bound(problem, **{**settings, "steps": 1e12})
    assert far.value == pytest.approx(neighbourhood(problem, max_grad_norm=5), rel=1e-6)


def test_large_thresholds_have_the_simple_bias():
    """From 4 L R on: 1.5 p sigma^alpha / C^(alpha - 1)."""
    for c in (4.0, 7.0, 1e4):
        simple = 1.5 * 2**2 * 0.1**1.5 / c**0.5
        assert clip_bias_bound(2.0, max_grad_norm=c, moment_scale=0.1, moment_order=1.5) == pytest.approx(simple)


# -- what the user may be given


def test_reference_averages():
    for case, value in ((s.C_A, 4.75176), (s.C_C, 506.284)):
        problem, settings = case
        steps, c = settings["steps"], settings["max_grad_norm"]
        found = average_iterate_bound(problem, lr=bound(case).lr, max_grad_norm=c, steps=steps)
        assert found == pytest.approx(value, rel=DIGITS)


def test_the_average_is_no_worse_than_the_theorem():
    """For C >= sqrt(2) L R, at any step size."""
    random = s.random_settings(20_000, seed=4)[0]
    problem, steps = random["problem"], random["steps"]
    c = np.maximum(random["max_grad_norm"], math.sqrt(2) * problem.gradient_scale)
    found = convergence_bound(**{**random, "max_grad_norm": c})
    average = average_iterate_bound(problem, lr=found.lr, max_grad_norm=c, steps=steps)
    assert np.all(average <= found.value * (1 + 1e-12))


def test_a_random_iterate_of_a_non_convex_problem():
    """f = 1 - cos x from 1, small noise: the bound says something, and over half of the iterates are within it."""
    problem = NonConvexProblem(smoothness=1, initial_gap=0.5, moment_scale=1e-4)
    steps, c = 200_000, 3.0
    found = convergence_bound(problem, max_grad_norm=c, steps=steps, failure_probability=0.05)
    limit = random_iterate_bound(problem, lr=found.lr, max_grad_norm=c, steps=steps)
    assert limit**2 < problem.trivial_value
    assert not found.is_vacuous
    rng, x = np.random.default_rng(0), np.full(20, 1.0)
    norms = np.empty((steps, 20))
    for t in range(steps):
        norms[t] = np.abs(np.sin(x))
        x = x - found.lr * np.clip(np.sin(x) + 1e-4 * rng.standard_normal(20), -c, c)
    assert np.all(norms.min(axis=0) ** 2 < found.value)
    assert np.all((norms <= limit).mean(axis=0) >= 0.5)


# -- where it says nothing


def test_small_thresholds_are_vacuous_whatever_the_steps():
    """Convex: up to (4 - 1/112) L R. Non-convex: up to (4 - 1/28) sqrt(L Delta). Nearly no noise, endless steps."""
    convex = {"steps": 1e15, "failure_probability": 0.5}
    for problem, edge in (
        (ConvexProblem(smoothness=3, radius=2, moment_scale=1e-9), (4 - 1 / 112) * 6),
        (NonConvexProblem(smoothness=3, initial_gap=2, moment_scale=1e-9), (4 - 1 / 28) * math.sqrt(6)),
    ):
        below = convergence_bound(problem, max_grad_norm=edge * np.array([0.01, 0.5, 0.999999]), **convex)
        assert np.all(below.is_vacuous)
        assert not convergence_bound(problem, max_grad_norm=edge * 1.01, **convex).is_vacuous


def test_composition_makes_privacy_vacuous():
    """Noise for K-fold composition: vacuous at every threshold and number of steps, at any mu that protects."""
    problem = ConvexProblem(smoothness=1, radius=1, moment_scale=1e-6, dim=10)
    c, steps = np.geomspace(0.1, 1e6, 50)[:, None], np.geomspace(10, 1e9, 20)
    mu = 8.0
    found = convergence_bound(
        problem, max_grad_norm=c, steps=steps, failure_probability=0.05, mean_noise_std=c * np.sqrt(steps + 1) / mu
    )
    assert np.all(found.is_vacuous)
    assert np.all(found.terms["dp"] > 0.5)
    phi = 1 + np.sqrt(3 * np.log(4 * (steps + 1) / 0.05))
    assert np.all(found.terms["dp"] >= 401408 * 10 * phi**2 / mu**2)


# -- its interface


def test_the_extension_to_batches_divides_the_variance():
    problem, settings = s.C_A
    one, many = (convergence_bound(problem, **settings, batch_size=b) for b in (1, 64))
    assert many.lr_limits["stat"] == pytest.approx(8 * one.lr_limits["stat"])
    assert {k: v for k, v in many.lr_limits.items() if k != "stat"} == {
        k: v for k, v in one.lr_limits.items() if k != "stat"
    }


def test_it_sweeps():
    found = convergence_bound(
        unit(dim=10), max_grad_norm=np.geomspace(1, 100, 7)[:, None], steps=np.array([100, 10_000]),
        failure_probability=0.05,
    )  # fmt: skip
    assert found.value.shape == found.binding_term.shape == found.is_vacuous.shape == (7, 2)
    assert set(found.binding_term.ravel()) <= set(found.terms)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: ConvexProblem(smoothness=0, radius=1, moment_scale=1), "smoothness must be finite and > 0, got 0"),
        (lambda: ConvexProblem(smoothness=1, radius=-1, moment_scale=1), "radius must be finite and > 0, got -1"),
        (lambda: ConvexProblem(smoothness=1, radius=1, moment_scale=-1), "moment_scale must be finite and >= 0"),
        (lambda: NonConvexProblem(smoothness=1, initial_gap=0, moment_scale=1), "initial_gap must be finite and > 0"),
        (lambda: unit(order=3), r"moment_order must be in \(1, 2\], got 3"),
        (lambda: unit(dim=0), "dim must be finite and > 0"),
        (
            lambda: convergence_bound(unit(), max_grad_norm=1, steps=0, failure_probability=0.1),
            "steps must be finite and > 0, got 0",
        ),
        (
            lambda: convergence_bound(unit(), max_grad_norm=1, steps=9, failure_probability=0),
            r"failure_probability must be in \(0, 1\], got 0",
        ),
        (
            lambda: convergence_bound(unit(), max_grad_norm=1, steps=9, failure_probability=1, mean_noise_std=-1),
            "mean_noise_std must be finite and >= 0, got -1",
        ),
    ],
)
def test_settings_are_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()
