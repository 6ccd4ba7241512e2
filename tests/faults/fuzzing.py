"""Fuzz tests: how many examples they take, and what became of each: read, or refused in one line. Both must happen."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

MORE = 20 if os.environ.get("TACITA_AUDIT") else 1
LONGEST = 2000  # characters of a message
TRACEBACK = ("Traceback (", 'File "', " object at 0x")


def fuzz(examples: int) -> settings:
    """The same examples every time; twenty times as many, and others, with TACITA_AUDIT=1."""
    return settings(
        max_examples=examples * MORE,
        deadline=None,
        database=None,
        derandomize=MORE == 1,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def one_line(error: BaseException) -> None:
    """Fail unless what an error says is one line of words: no traceback, no address of an object."""
    kind, said = type(error).__name__, str(error)
    assert said.strip(), f"{kind} says nothing."
    assert said.splitlines() == [said], f"{kind} says more than one line: {said!r}"
    assert len(said) < LONGEST, f"{kind} says {len(said)} characters."
    assert not [mark for mark in TRACEBACK if mark in said], f"{kind} shows the program: {said!r}"


def one_of_ours(error: BaseException, errors: tuple[type[Exception], ...]) -> None:
    """Fail unless the error is of just these kinds, or of tacita's own."""
    ours = type(error) in errors or type(error).__module__ == "tacita.errors"
    assert ours, f"{type(error).__name__} is not an error of ours: {error}"


class Outcomes:
    """Counts, over all examples of a test, how many inputs were read and how many were refused."""

    def __init__(self) -> None:
        self.read = self.refused = 0

    def of(self, read: Callable[[], Any], *errors: type[Exception]) -> Any:
        """What ``read()`` gives, or ``None`` if it raises one of ``errors``, in one line; any other error comes out.

        An error of Python's or of a library, such as ``UnicodeDecodeError`` for ``ValueError``, is not ours, and fails.
        """
        try:
            found = read()
        except errors as error:
            one_of_ours(error, errors)
            one_line(error)
            self.refused += 1
            return None
        assert found is not None, "None stands for refused: read() must give what was read."
        self.read += 1
        return found

    def check(self) -> None:
        """Fail unless something was read and something was refused."""
        assert self.read, f"all of {self.refused} inputs were refused: what is read was never looked at."
        assert self.refused, f"all of {self.read} inputs were read: no refusal was ever seen."
