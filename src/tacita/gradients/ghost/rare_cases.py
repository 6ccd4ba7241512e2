"""Rare cases of a rule's arithmetic, which depend on values.

An ordinary pass looks whether the case is there. A traced step (``traced_step.py``) cannot branch: it is made for the
case that is not, and its flags say whether that was right. Everything here is private.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_FLAGS: ContextVar[list[Tensor] | None] = ContextVar("flags", default=None)


def happens(rare: Tensor) -> bool:
    """Return whether a rare case is there, of one element; while a step is traced: no, and remember to ask."""
    flags = _FLAGS.get()
    if flags is None:
        return bool(rare)
    flags.append(rare)
    return False


@contextmanager
def rare_cases_flagged() -> Iterator[list[Tensor]]:
    """Take no rare case to be there meanwhile. The list holds a flag for each that was asked for."""
    flags: list[Tensor] = []
    token = _FLAGS.set(flags)
    try:
        yield flags
    finally:
        _FLAGS.reset(token)
