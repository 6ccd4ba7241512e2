"""What a user may say of a run, for its statement: who, why, for whom, for how long. Nothing of it is checked."""

from collections.abc import Mapping

from tacita.ledger.statement_text import GIVEN


def check_about(about: object) -> None:
    """Refuse what a statement has no place for.

    Raises:
        TypeError: It is not a mapping.
        ValueError: A name is unknown, or a value is not one line of text.
    """
    if not isinstance(about, Mapping):
        raise TypeError(f"about must be a mapping of {', '.join(GIVEN)}, got {type(about).__name__}.")
    for name, value in about.items():
        if name not in GIVEN:
            raise ValueError(f"about must hold {', '.join(GIVEN)}, got {name!r}.")
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ValueError(f"about.{name} must be one line of text, got {value!r}.")
