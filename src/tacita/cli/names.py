"""Options that hold several names."""

import csv


def names_of(option: str, text: str, *, keep_empty: bool = False) -> tuple[str, ...]:
    """Split names at commas, as in a line of a CSV file: a name that holds a comma is quoted.

    Args:
        option: Its name, for the message.
        text: Its value.
        keep_empty: Whether a place between two commas is a name, an empty one.

    Raises:
        ValueError: A quote is not closed.

    Example:
        >>> names_of("drop", '"blood pressure, sys", age')
        ('blood pressure, sys', 'age')
    """
    try:
        found = [part.strip() for line in csv.reader([text], skipinitialspace=True, strict=True) for part in line]
    except csv.Error:
        raise ValueError(
            f"{option} must hold names separated by commas; a name that holds one is quoted as a whole "
            f"(--{option} '\"one, two\",three'), got {text!r}."
        ) from None
    return tuple(part for part in found if part or keep_empty)
