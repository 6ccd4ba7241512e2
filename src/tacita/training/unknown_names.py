"""Refuse an argument that a function does not have, and name the way out: one that is near, or where it belongs."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from tacita._near_names import did_you_mean
from tacita.oracles import ClippedGradientOracle

OF_OPTIMIZERS = {name: name for name in ("lr", "momentum", "weight_decay")} | {"learning_rate": "lr"}

P = ParamSpec("P")
R = TypeVar("R")


def refuse_unknown_names(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` refuse an argument that it does not have, and name the way out."""
    names = [*signature(function).parameters]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise TypeError(f"{function.__name__}() has no argument {name!r}{_way_out(name, names)}")
        return function(*args, **kwargs)

    return checked


def _way_out(name: str, names: list[str]) -> str:
    if name in OF_OPTIMIZERS:
        given = f"lambda params: torch.optim.SGD(params, {OF_OPTIMIZERS[name]}=...)"
        return f": it is the optimizer's. Give optimizer={given}."
    if name in signature(ClippedGradientOracle).parameters:
        return (
            ": it makes one oracle with one session, and goes on with them after an interruption if it has a folder. "
            f"To set {name}, build a tacita.ClippedGradientOracle({name}=...) and write your own loop "
            "(docs/your-own-loop.md)."
        )
    return "." + (did_you_mean(name, names) or f" Its arguments are {', '.join(names)}.")
