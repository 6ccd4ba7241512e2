"""Whole numbers on the command line, also as people write large ones: 1e6."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from cyclopts import Parameter, Token

MOST_DIGITS = 18


def whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """Return the whole number that an option's value writes: ``1000``, ``1_000`` or ``1e3``.

    Raises:
        ValueError: It is no number, or not a whole one.
    """
    text = tokens[0].value
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value.adjusted() > MOST_DIGITS or value != value.to_integral_value():
        raise ValueError(f"it must be a whole number, such as 1000 or 1e3, got {text!r}.")
    return int(value)


WHOLE = Parameter(converter=whole_number)
