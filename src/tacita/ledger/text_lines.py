"""Lines of a statement's text: wrapped, indented, with numbers that are still bounds where they are printed."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple

WIDTH = 100
GUESSED = {  # neighboring relation -> what an attacker is unsure of
    "add_or_remove_one": "whether one unit is in the data",
    "replace_one": "which of two possible values the data of one unit have",
    "zero_out_one": "whether the contribution of one unit is in the sums",
}
_EXACT = 2.0**53  # below it, float64 holds every integer


def wrapped(text: str, first: str = "", indent: str = "") -> list[str]:
    """Return a paragraph in lines of at most ``WIDTH`` columns, where no single word is longer."""
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def rounded_up(value: float | Decimal, digits: int = 4) -> str:
    """Round up to a few significant digits, so that a printed bound is still a bound.

    Example:
        >>> rounded_up(1.65431), rounded_up(0.0), rounded_up(73.1061, 3), rounded_up(0.0000020005)
        ('1.655', '0', '73.2', '2.001e-06')
    """
    return _rounded(value, digits, ROUND_CEILING)


def percent_up(share: float) -> str:
    """Round a share up to three digits of percent, or to as many as it takes to keep it below 100 %.

    Example:
        >>> percent_up(0.731061), percent_up(0.99966), percent_up(1.0)
        ('73.2 %', '99.97 %', '100 %')
    """
    found = next((found for digits in range(3, 16) if (found := rounded_up(100 * share, digits)) != "100"), "100")
    return f"{found} %"


def attacker_in_words(relation: Any, share: float | None) -> str:
    """Say of what, and how often, an attacker's guess is right; 100 % only where no limit is guaranteed.

    Example:
        >>> attacker_in_words("add_or_remove_one", 0.731061)[-67:]
        'whether one unit is in the data is right at most 73.2 % of the time'
        >>> attacker_in_words("replace_one", 1.0)[-42:]
        'may be right more than 99.99 % of the time'
    """
    if share is None:
        right = "may be right 100 %"
    elif (most := percent_up(share)) == "100 %":
        right = "may be right more than 99.99 %"
    else:
        right = f"is right at most {most}"
    about = GUESSED.get(relation, "one unit")
    return f"an attacker who knows all other units and is 50 : 50 before about {about} {right} of the time"


def names_in_words(names: Iterable[Any]) -> str:
    """List names; one that holds a comma or a quote is quoted, as in a CSV file.

    Example:
        >>> names_in_words(["age", "blood pressure, sys"])
        'age, "blood pressure, sys"'
    """
    quoted = ('"' + text.replace('"', '""') + '"' if set(text) & set(',"') else text for text in map(str, names))
    return ", ".join(quoted)


def rounded_down(value: float, digits: int = 4) -> str:
    """Round down to a few significant digits, so that a printed "at least" is still true.

    Example:
        >>> rounded_down(1.65489), rounded_down(0.0)
        ('1.654', '0')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float | Decimal, digits: int, rounding: str) -> str:
    """Round, and write a number below 0.0001 as ``:g`` writes it everywhere else."""
    found = Context(prec=digits, rounding=rounding).create_decimal(value).normalize()
    return f"{float(found):.{digits}g}" if 0 < found < Decimal("0.0001") else f"{found:f}"


def in_words(value: Any, *, nested: bool = False) -> str:
    """Return a field in words: short numbers, mappings as "name: value; name: value".

    Example:
        >>> in_words({"what": "counts", "noise_std": 43.350369982, "released": {"rows": 2001234.0}, "private": True})
        'what: counts; noise_std: 43.3504; released: (rows: 2001234); private: yes'
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < _EXACT else f"{value:.6g}"
    if isinstance(value, Mapping):
        words = "; ".join(f"{name}: {in_words(part, nested=True)}" for name, part in value.items())
        return f"({words})" if nested else words
    if isinstance(value, list | tuple):
        return "; ".join(in_words(part, nested=True) for part in value) or "none"
    return "none" if value is None else str(value)


class Words(NamedTuple):
    """A paragraph: its text, how far its first line is indented, and how far the others are."""

    text: str
    first: str = "  "
    indent: str = "  "


def row(name: str, text: str) -> Words:
    """Return a paragraph beside its name."""
    return Words(text, f"  {name + ':':<12} ", " " * 15)


def listed(entries: Iterable[Any] | None) -> Iterator[Words]:
    """Yield the entries of a list."""
    return (Words(in_words(entry), "  - ", "    ") for entry in entries or ())
