"""The table of argument names and their allowed values in theory, and the decorator that enforces it.

An argument's name means the same in every function, so the name alone decides which values are allowed. A function
with an argument that is missing from the table cannot be imported; a public function without the decorator fails
tests/clipped_sgd/test_contract.py.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from tacita._choices import check_relation

F = TypeVar("F", bound=Callable[..., Any])


class Domain(NamedTuple):
    """The values that an argument may take.

    Attributes:
        holds: Maps a float64 array to booleans, ``True`` where the value is allowed; ``False`` for NaN.
        words: The allowed values in words, for error messages.
    """

    holds: Callable[[Any], Any]
    words: str


POSITIVE = Domain(lambda x: (x > 0) & np.isfinite(x), "finite and > 0")
NON_NEGATIVE = Domain(lambda x: (x >= 0) & np.isfinite(x), "finite and >= 0")
ABOVE_ONE = Domain(lambda x: (x > 1) & np.isfinite(x), "finite and > 1")
MAY_BE_INFINITE = Domain(lambda x: x > 0, "> 0")
ANY_SIZE = Domain(lambda x: x >= 0, ">= 0")
NUMBER = Domain(lambda x: ~np.isnan(x), "a number")
FINITE = Domain(np.isfinite, "finite")
PROBABILITY = Domain(lambda x: (x > 0) & (x <= 1), "in (0, 1]")
ORDER = Domain(lambda x: (x > 1) & (x <= 2), "in (1, 2]")
AT_LEAST_TWO = Domain(lambda x: (x >= 2) & np.isfinite(x), "finite and >= 2")
INSIDE = Domain(lambda x: (x > 0) & (x < 1), "in (0, 1)")
SHARE = Domain(lambda x: (x >= 0) & (x <= 1), "in [0, 1]")
COUNT = Domain(lambda x: (x >= 1) & (x == np.floor(x)) & np.isfinite(x), "an integer >= 1")

DOMAINS: dict[str, Domain] = {
    **dict.fromkeys(("delta", "level", "false_alarm"), INSIDE),
    **dict.fromkeys(("failure_probability", "sample_rate", "momentum_weight", "feedback_factors"), PROBABILITY),
    **dict.fromkeys(("event_delta",), SHARE),
    **dict.fromkeys(("moment_order",), ORDER),
    **dict.fromkeys(("order",), AT_LEAST_TWO),
    **dict.fromkeys(("messages", "rounds", "candidates", "blocks", "shares", "num_groups"), COUNT),
    **dict.fromkeys(("size", "honest_messages"), COUNT),
    **dict.fromkeys(("step", "noise_scale"), POSITIVE),
    **dict.fromkeys(
        (
            *("bias", "variance", "distance"),
            *("moment_scale", "gradient_noise", "mean_noise_std", "noise_std", "noise_ratio", "mean_norm", "grad_norm"),
            *("total_noise_variance", "eigenvalue_error", "deviation_of_the_mean", "residual_bound", "kappa"),
            *(
                "participations",
                "mean_square_grad",
                "c",
                "max_feedback_norm",
                "ratio",
                "multiplier",
                "theorem_constant",
            ),
        ),
        NON_NEGATIVE,
    ),
    **dict.fromkeys(
        (
            *("epsilon", "epsilons", "accuracy", "smoothness", "hessian_lipschitz", "initial_gap", "curvature"),
            *("curvature_step", "lr", "steps", "queries", "num_records", "num_clients", "batch_size", "divisor", "dim"),
            *("max_grad_norm", "max_hessian_norm", "max_sample_norm", "gradient_bound", "largest_grad", "lyapunov"),
            *("mu", "eta", "room", "thresholds", "sizes", "rho", "radius", "diameter", "lipschitz", "strong_convexity"),
            *("moment_bound", "second_moment_bound", "coordinate_moment", "risk_lipschitz", "sc_constant", "a"),
            *("reg_strength", "max_coordinate"),
            *("c1", "c2", "c_lr", "constant", "steps_multiplier"),
        ),
        POSITIVE,
    ),
    **dict.fromkeys(("start", "points"), FINITE),
    "bound": NUMBER,
}
NO_NUMBERS = (
    *("schedule", "method"),  # one of a few words; checked by the function
    *("problem", "setting", "other", "plan", "constants"),  # checked when they are built
    "draws",  # measurements; any value is allowed
    "neighboring_relation",  # checked by the function
    *("sharper", "capped", "corrected", "replaced", "mirrored", "concentrated"),
)


def checked(**own: Domain) -> Callable[[F], F]:
    """Return a decorator that raises ``ValueError``, naming the argument, for values outside their domain.

    Arguments annotated ``ArrayLike`` (or as a sequence) may be arrays; others must be single numbers.

    Args:
        own: Domains of arguments for which this function differs from the table.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        domains = {
            name: (own.get(name) or DOMAINS[name], _is_array(parameter.annotation))
            for name, parameter in signature.parameters.items()
            if name not in (*NO_NUMBERS, "relation")
        }

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name == "relation":
                    check_relation(value)
                elif name in domains and not (value is None and signature.parameters[name].default is None):
                    check(name, value, *domains[name])
            return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def check(name: str, value: Any, domain: Domain, arrays: bool) -> None:
    """Raise ``ValueError`` unless ``value`` is in ``domain`` and, without ``arrays``, a single number."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be {domain.words}, got {value!r}.") from None
    if array.ndim and not arrays:
        raise ValueError(f"{name} must be a single number here, got an array of shape {array.shape}.")
    if not np.all(domain.holds(array)):
        raise ValueError(f"{name} must be {domain.words}, got {value!r}.")


def _is_array(annotation: Any) -> bool:
    """Return whether the annotation allows an array."""
    return annotation not in (int, float, int | None, float | None)
