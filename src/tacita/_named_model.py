"""A user's own model by its name, "package.module:callable": the code that a command imports."""

import importlib
import sys
from collections.abc import Callable
from typing import Any, cast

from torch import nn


def named_callable(path: str) -> Callable[[int, int], nn.Module]:
    """Import the callable ``path``, (num_features, num_outputs) -> module.

    Raises:
        ValueError: There is no such callable, or it belongs to another package than the one that is named.
    """
    module_name, _, name = path.partition(":")
    if module_name.partition(".")[0] in sys.stdlib_module_names:  # a run's file from elsewhere may name os:kill
        raise ValueError(f"model must be a callable of your own, got {path!r} of Python's standard library.")
    try:
        made: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(
            f"model must be importable as package.module:callable, got {path!r}: is its folder on PYTHONPATH?"
        ) from None
    if not callable(made):
        raise ValueError(f"model must name a callable (num_features, num_outputs) -> nn.Module, got {path!r}.")
    if str(getattr(made, "__module__", "")).partition(".")[0] != module_name.partition(".")[0]:
        raise ValueError(f"model must name a callable defined in its own package, got {path!r}, which is re-exported.")
    return cast("Callable[[int, int], nn.Module]", made)


def named_model(path: str, num_features: int, num_outputs: int) -> nn.Module:
    """Return the module that the callable ``path`` makes; raise as :func:`named_callable` does, and if it is none."""
    made = named_callable(path)(num_features, num_outputs)
    if not isinstance(made, nn.Module):
        raise ValueError(f"model must name a callable that returns an nn.Module, got a {type(made).__name__}.")
    return made
