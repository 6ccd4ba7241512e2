"""One contract for every public function of theory: bad input is refused by name; arrays work where they are taken."""

import importlib
import inspect
import math
import pkgutil
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from numpy.typing import ArrayLike

from tacita._domains import DOMAINS, checked
from tacita.clipped_sgd import ConvexProblem, NonConvexProblem, PlanSetting, planner
from tacita.convex.heavy_tailed import HeavyTailedSetting
from tacita.federated.clip21 import StochasticConstants
from tacita.federated.clip21_plan import FederatedSetting
from tacita.second_order.noisy_sgd_plan import NoisySGDSetting

CONVEX = ConvexProblem(smoothness=1.5, radius=2.0, moment_scale=0.7, moment_order=1.6, dim=5)
NON_CONVEX = NonConvexProblem(smoothness=1.5, initial_gap=2.0, moment_scale=0.7, moment_order=1.6, dim=5)
ONE_PASS = PlanSetting(
    problem=CONVEX, num_records=2000, batch_size=20, steps=100, epsilon=3.0, delta=1e-5, relation="replace_one",
    sampling="one_pass",
)  # fmt: skip
SOSP = NoisySGDSetting(
    num_records=50_000, dim=100, batch_size=500, epsilon=1.0, delta=1e-5, relation="replace_one", smoothness=1.0,
    hessian_lipschitz=1.0, initial_gap=1.0, gradient_noise=1.0, gradient_bound=2.5,
)  # fmt: skip
HEAVY = HeavyTailedSetting(
    num_records=5000, dim=20, rho=0.5, diameter=2.0, smoothness=1.0, strong_convexity=0.5, initial_gap=2.0,
    risk_lipschitz=1.5, moment_bounds={2: 2.0, 4: 3.0}, uniform_moment_bounds={2: 2.0, 4: 3.0, 8: 4.0},
)  # fmt: skip
FEDERATED = FederatedSetting(num_clients=9, rounds=100, dim=5, epsilon=2.0, delta=1e-5, smoothness=1.0,
                             initial_gap=1.0, largest_grad=1.0, gradient_noise=0.1)  # fmt: skip
CONSTANTS = StochasticConstants(
    smoothness=1.0, lyapunov=1.0, max_grad_norm=1.0, largest_grad=1.0, gradient_noise=0.1, num_clients=4, steps=1000,
    failure_probability=0.05, dim=10, noise_std=0.01,
)  # fmt: skip
# A value that every function takes, by the name of the argument; some functions want another one.
VALUES = {
    "epsilon": 2.0, "delta": 1e-5, "level": 0.9, "false_alarm": 0.05, "failure_probability": 0.05, "sample_rate": 0.1,
    "momentum_weight": 0.1, "feedback_factors": [0.9, 0.5, 0.2], "event_delta": 1e-6, "moment_order": 1.6,
    "messages": 20, "rounds": 50, "candidates": 5, "blocks": 2, "shares": 3, "moment_scale": 0.7, "gradient_noise": 0.5,
    "mean_noise_std": 0.02, "noise_std": 1.5, "noise_ratio": 0.1, "mean_norm": 1.0, "grad_norm": 0.8,
    "total_noise_variance": 0.3, "eigenvalue_error": 0.01, "deviation_of_the_mean": 0.1, "residual_bound": 3.0,
    "kappa": 1e-6, "participations": 3, "mean_square_grad": 2.0, "c": 1.0, "max_feedback_norm": 1.0, "ratio": 0.1,
    "multiplier": 1.2, "epsilons": [1.0, 2.0], "accuracy": 0.2, "smoothness": 1.5, "hessian_lipschitz": 1.1,
    "initial_gap": 2.0, "curvature": 0.5, "curvature_step": 0.02, "lr": 0.05, "steps": 100, "queries": 50,
    "num_records": 5000, "num_clients": 4, "batch_size": 10, "divisor": 10.0, "dim": 20, "max_grad_norm": 4.0,
    "max_hessian_norm": 3.0, "max_sample_norm": 1.0, "gradient_bound": 2.5, "largest_grad": 15.0, "lyapunov": 3.0,
    "mu": 0.5, "eta": 0.2, "room": 0.25, "thresholds": [1.0, 2.0], "sizes": [10, 20], "theorem_constant": 100.0,
    "c2": 1.0, "c_lr": 1.0, "constant": 1.0,
    "steps_multiplier": 1.0, "start": (0.1, 0.2), "points": [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], "bound": 0.5,
    "draws": [0.1, 0.4, 0.9], "problem": CONVEX, "setting": ONE_PASS, "other": replace(ONE_PASS, epsilon=6.0),
    "plan": planner.plan_dp_clipped_sgd(ONE_PASS), "constants": CONSTANTS, "relation": "replace_one", "sharper": True,
    "order": 2.0, "rho": 0.5, "radius": 1.0, "diameter": 2.0, "lipschitz": 50.0, "strong_convexity": 0.5,
    "moment_bound": 3.0, "second_moment_bound": 2.0, "coordinate_moment": 1.5, "risk_lipschitz": 1.0,
    "sc_constant": 4.0, "a": 30.0, "reg_strength": 2.0, "max_coordinate": 3.0, "num_groups": 5,
    "step": 0.01, "size": 5, "neighboring_relation": "replace_one",
    "bias": 0.1, "variance": 0.4, "distance": 1.0,
    "method": "accelerated", "schedule": "economy", "capped": True, "corrected": True, "replaced": True,
    "mirrored": True, "concentrated": True,
}  # fmt: skip
HEAVY_TAILED = ("heavy_tailed_setting", "one_pass_bounds", "one_pass_theorems", "localized_phases", "localized_plan",
                "heavy_tailed")  # fmt: skip # modules of one paper
OWN = {
    "random_iterate_bound": {"problem": NON_CONVEX},
    "plan_noisy_sgd": {"setting": SOSP},
    "plan_clip21": {"setting": FEDERATED},
    "theorem_rules": {"setting": FEDERATED},
}
STATEMENTS = {"plan_dp_clipped_sgd", "plan_noisy_sgd", "plan_clip21", "theorem_rules",
              "no_theorem", "exact_noise_multiplier", "rough_noise_multiplier",
              "stochastic_rule", "private_rule", "plan_heavy_tailed", "plan_localized", "step_cap",
              "need_strong_convexity", "check_constants"}  # fmt: skip # whose arguments were checked when built


SYSTEMS = ("clipped_sgd", "convex", "error_feedback", "federated", "second_order")


def modules_of_theory():
    """Yield the modules of all systems that take numbers by the table of arguments."""
    for system in SYSTEMS:
        path = importlib.import_module(f"tacita.{system}").__path__
        for info in pkgutil.iter_modules(path):
            module = importlib.import_module(f"tacita.{system}.{info.name}")
            if not info.name.startswith("_") and hasattr(module, "checked"):
                yield module


def public_functions():
    for module in modules_of_theory():
        for name, function in vars(module).items():
            if not name.startswith("_") and inspect.isfunction(function) and function.__module__ == module.__name__:
                yield pytest.param(function, id=f"{module.__name__.split('.')[-1]}.{name}")


FUNCTIONS = list(public_functions())


def arguments(function):
    """Every argument of a function, those with a default as well."""
    names = inspect.signature(function).parameters
    own = {"setting": HEAVY, "constants": "sharp"} if function.__module__.split(".")[-1] in HEAVY_TAILED else {}
    return {name: {**VALUES, **own, **OWN.get(function.__name__, {})}[name] for name in names}


def numeric(function):
    return [name for name in inspect.signature(function).parameters if name in DOMAINS]


def bad_values(name):
    """Values that make no sense, whatever the function."""
    yield from (math.nan, "two")
    if name not in ("bound", "start", "points"):
        yield -1.0
    if name in ("delta", "level", "false_alarm"):
        yield from (0.0, 1.0, 2.0)
    if name in ("failure_probability", "sample_rate", "momentum_weight", "feedback_factors", "event_delta"):
        yield 1.5
    if name == "order":
        yield 1.5
    if name in ("moment_order", "messages", "rounds", "candidates", "blocks", "shares", "num_groups"):
        yield 2.5
    if name in ("epsilons", "num_records", "steps", "dim", "max_grad_norm", "smoothness"):
        yield math.inf


def leaves(value):
    """The numbers of an answer, whatever it is made of."""
    if is_dataclass(value):
        return [leaf for field in fields(value) for leaf in leaves(getattr(value, field.name))]
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in leaves(part)]
    return [] if value is None else [value]


def alike(whole, first, second):
    """Whether an answer for two numbers is the two answers for one."""
    whole, apart = np.broadcast_to(whole, 2), np.array([first, second])
    if whole.dtype.kind in "UO":
        return whole.tolist() == apart.tolist()
    return np.allclose(whole.astype(float), apart.astype(float), rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_answers_with_numbers(function):
    """The values of this test make sense, so that what it refuses below is refused for the bad one."""
    found = function(**arguments(function))
    for leaf in leaves(found):
        if isinstance(leaf, int | float | np.ndarray) and np.asarray(leaf).dtype.kind in "fi":
            assert not np.any(np.isnan(leaf))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_input_is_refused_by_its_name(function):
    assert numeric(function) or function.__name__ in STATEMENTS
    good = arguments(function)
    for name in numeric(function):
        for bad in bad_values(name):
            with pytest.raises(ValueError, match=f"^{name} must be "):
                function(**{**good, name: bad})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_another_relation_is_refused(function):
    if "relation" in inspect.signature(function).parameters:
        with pytest.raises(ValueError, match="must be one of"):
            function(**{**arguments(function), "relation": "swap"})


def array_arguments(function):
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation in (ArrayLike, ArrayLike | None) and name in DOMAINS and name != "feedback_factors"
    ]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arrays_work_where_they_may_be_given_and_are_refused_elsewhere(function):
    """Each argument in turn, against one call for each number."""
    good = arguments(function)
    for name in numeric(function):
        if np.ndim(good[name]):
            continue
        several = np.asarray(good[name], dtype=float) * np.array([1.0, 1.1 if name == "order" else 0.9])
        if name in array_arguments(function):
            together = leaves(function(**{**good, name: several}))
            apart = [leaves(function(**{**good, name: float(one)})) for one in several]
            for whole, first, second in zip(together, *apart, strict=True):
                assert alike(whole, first, second), name
        else:
            with pytest.raises(ValueError, match=f"^{name} must be "):
                function(**{**good, name: several})


@pytest.mark.parametrize("kind", [ConvexProblem, NonConvexProblem])
def test_problems_of_arrays(kind):
    """Where formulas take a problem they broadcast over its numbers; searches and plans ask for one problem."""
    own = {"radius": np.array([1.0, 2.0])} if kind is ConvexProblem else {"initial_gap": np.array([1.0, 2.0])}
    problem = kind(smoothness=1.5, moment_scale=0.7, moment_order=np.array([1.6, 2.0]), dim=5, **own)
    single = [
        replace(problem, moment_order=problem.order[i], **{name: value[i] for name, value in own.items()})
        for i in range(2)
    ]
    for function in (param.values[0] for param in FUNCTIONS):
        if "problem" not in inspect.signature(function).parameters:
            continue
        good = {**arguments(function), "problem": problem}
        if function.__name__ == ("random_iterate_bound" if kind is ConvexProblem else "average_iterate_bound"):
            continue
        if function.__name__ in ("numeric_threshold", "rule_of_thumb"):
            with pytest.raises(ValueError, match="problem must have single numbers here"):
                function(**good)
            continue
        whole = leaves(function(**good))
        apart = [leaves(function(**{**good, "problem": one})) for one in single]
        for one, first, second in zip(whole, *apart, strict=True):
            assert alike(one, first, second), function.__name__
    with pytest.raises(ValueError, match="problem must have single numbers here"):
        replace(ONE_PASS, problem=problem)


@pytest.mark.parametrize(
    ("of", "skipped"),
    [
        (CONVEX, ()),
        (NON_CONVEX, ()),
        (CONSTANTS, ("corrected",)),
        (SOSP, ("relation", "accuracy", "concentrated")),
        (ONE_PASS, ("problem", "relation", "sampling")),
        (HEAVY, ()),
    ],
    ids=lambda value: type(value).__name__ if is_dataclass(value) else "",
)
def test_settings_refuse_bad_values_when_they_are_built(of, skipped):
    for field in fields(of):
        if field.name in skipped:
            continue
        for bad in (math.nan, -1.0, math.inf):
            with pytest.raises(ValueError, match=f"^{field.name} must be "):
                replace(of, **{field.name: bad})


def test_an_unknown_argument_cannot_be_written():
    with pytest.raises(KeyError, match="novel"):

        @checked()
        def formula(*, novel: float) -> float:
            return novel
