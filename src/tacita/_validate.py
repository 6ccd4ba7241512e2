"""Checks of settings, whose errors name the argument, the condition, the value and the way out.

Conditions are written as ``not (x > 0)`` so that NaN is refused too. A ``hint`` is appended to the error message.
"""

import inspect
import math
from typing import Any, NoReturn

LEAST_THRESHOLD = 2.0**-40  # 9.1e-13, of a clipping threshold
LARGE_DELTA = 0.01  # too large for any data set of 100 units and more
LEAST_DELTA = 1e-300  # below it float64 loses digits: sums and differences of deltas are not held to 1e-9 any more


def positive(name: str, value: float, *, hint: str = "") -> float:
    """Return ``value`` if it is a finite number > 0."""
    if not _is_number(value) or not (0 < _as_float(value) < math.inf):
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}.{_tail(hint)}")
    return float(value)


def threshold(name: str, value: float) -> float:
    r"""Return ``value`` if it is a finite number >= 2^-40, about 9.1e-13: a clipping threshold C.

    Below the smallest normal number of float32, :math:`2^{-126}`, a product rounds by up to :math:`2^{-150}`, whatever
    its size. Over d coordinates a clipped vector moves by up to :math:`2^{-150} \sqrt d`. Where a gradient is a sum
    of T products, and a factor of d coordinates is weighted, the other factors multiply that. They are shorter than
    :math:`2^{63}`, so that the sum moves by up to :math:`2^{-87} T \sqrt d`. Clip weights leave room for
    :math:`2 \cdot 2^{-24} C` (:func:`~tacita.clipping.bounded_quotient`), which is no less for :math:`T \sqrt d \le
    2^{24}`. Noise in proportion to C is a multiple of :math:`2^{-149}`, far finer than C.
    """
    if positive(name, value) < LEAST_THRESHOLD:
        raise ValueError(
            f"{name} must be >= 2^-40 = {LEAST_THRESHOLD:.2g}, got {float(value):g}: float32 has no numbers fine "
            "enough for sums clipped to it, nor for their noise. Multiply the loss by a public number."
        )
    return float(value)


def non_negative(name: str, value: float, *, hint: str = "") -> float:
    """Return ``value`` if it is a finite number >= 0."""
    if not _is_number(value) or not (value >= 0) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}.{_tail(hint)}")
    return float(value)


def probability(name: str, value: float, *, hint: str = "") -> float:
    """Return ``value`` if it is in (0, 1]."""
    if not _is_number(value) or not (0 < value <= 1):
        raise ValueError(f"{name} must be in (0, 1], got {value!r}.{_tail(hint)}")
    return float(value)


def below_one(name: str, value: float) -> float:
    """Return ``value`` if it is in [0, 1)."""
    found = non_negative(name, value)
    if not found < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}.")
    return found


def inside(name: str, value: float, *, hint: str = "") -> float:
    """Return ``value`` if it is in (0, 1)."""
    if not _is_number(value) or not (0 < value < 1):
        raise ValueError(f"{name} must be in (0, 1), got {value!r}.{_tail(hint)}")
    return float(value)


def delta(name: str, value: float) -> float:
    """Return ``value`` if it is in (0, 1), and not so small that float64 cannot compute with it."""
    found = inside(name, value, hint="It should be well below 1 / (number of records).")
    if found < LEAST_DELTA:
        raise ValueError(
            f"{name} must be >= {LEAST_DELTA:g}, got {value!r}: float64 has no numbers fine enough below it."
        )
    return found


def delta_below(name: str, value: float, num_records: int) -> float:
    """Return ``value`` if it is in (0, 1) and below 1 / ``num_records``, a public number."""
    if delta(name, value) >= 1 / num_records:
        raise ValueError(
            f"{name} must be below 1 / num_records = {1 / num_records:.3g}, got {value:g}: at that delta a whole "
            "record may be published. Choose a smaller one."
        )
    return value


def count(name: str, value: int, *, at_least: int = 1, hint: str = "") -> int:
    """Return ``value`` if it is an integer >= ``at_least``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < at_least:
        raise ValueError(f"{name} must be an integer >= {at_least}, got {value!r}.{_tail(hint)}")
    return value.__index__()


def one_line(name: str, text: str, says: str) -> str:
    """Return ``text`` if it is a text of one line; ``says`` tells what it must say."""
    if not isinstance(text, str) or "\n" in text:
        raise ValueError(f"{name} must say in one line {says}, got {text!r}.")
    return text


def check_no_promise_inherited(cls: type, way_out: str) -> None:
    """Raise ``TypeError`` if ``cls`` derives from a class that is not abstract.

    A class that states a guarantee is abstract or final: a subclass that does something else would be charged for what
    its parent does. For ``__init_subclass__`` of an abstract class.
    """
    for base in cls.__bases__:
        if base is not object and not inspect.isabstract(base):
            raise TypeError(
                f"{cls.__name__} cannot be derived from {base.__name__}: it would be charged for what "
                f"{base.__name__} does, whatever it does itself. {way_out}"
            )


def _is_number(value: object) -> bool:
    """Return whether the value can be compared with a number. Comparing a text raises an error without a name."""
    return hasattr(value, "__float__") and not isinstance(value, bool)


def _as_float(value: float) -> float:
    """Return ``value`` as it will be used: a fraction > 0 may be too small for a float, and become 0."""
    try:
        return float(value)
    except OverflowError:  # a whole number that is too large
        return math.inf


def _tail(hint: str) -> str:
    return f" {hint}" if hint else ""


class FrozenDict(dict):
    """A dictionary that cannot be changed, for settings: what a session has paid for stays what it is.

    Example:
        >>> FrozenDict({"layer": 1.0})["layer"]
        1.0
    """

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a setting cannot be changed after it was built: build another one.")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return FrozenDict, (dict(self),)
