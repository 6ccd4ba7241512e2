"""Rare cases of a rule's arithmetic, which depend on values: a bound that is right, and that more work makes tighter.

An ordinary pass looks whether the case is there. A traced step (``traced_step.py``) cannot branch and leaves it out.
Everything here is private.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_LEFT_OUT: ContextVar[bool] = ContextVar("left out", default=False)


def happens(rare: Tensor) -> bool:
    """Return whether a rare case is there, of one element; never while a step is traced."""
    return not _LEFT_OUT.get() and bool(rare)


@contextmanager
def rare_cases_left_out() -> Iterator[None]:
    """Take no rare case to be there meanwhile."""
    token = _LEFT_OUT.set(True)
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)
