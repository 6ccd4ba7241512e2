"""Plain values, read from a file, as settings: strictly, with a message of one line that names what is wrong."""

import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec

from tacita._near_names import did_you_mean

LONGEST_REASON = 500  # characters of a message, because names and values in it may be of any length


def strict(settings: Any, kind: Any, where: str) -> Any:
    """Convert ``settings`` to a ``kind``, or raise a ``ValueError`` of one line that says what is wrong with ``where``.

    Args:
        settings: Plain values.
        kind: A struct of msgspec, or a union of structs.
        where: What is read, for the message.

    Example:
        >>> class Size(msgspec.Struct, forbid_unknown_fields=True):
        ...     width: int = 1
        >>> strict({"width": 2}, Size, "size")
        Size(width=2)
    """
    near = ""
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        why = " ".join(str(error).split()).rstrip(".")  # names in it may hold line breaks
        unknown = re.match("Object contains unknown field `(.*?)`", why)
        near = did_you_mean(unknown[1], _names(kind)) if unknown else ""
    except UnicodeEncodeError:
        why = "it holds half a character, which no text file can hold"
    raise ValueError(f"The {where} is not valid: {why[:LONGEST_REASON]}.{near}")


def _names(kind: Any) -> set[str]:
    """Return the names of all settings of a ``kind``, and of the structs directly inside it."""
    outer = list(_structs(kind))
    inner = (found for one in outer for hint in get_type_hints(one).values() for found in _structs(hint))
    return {name for one in (*outer, *inner) for name in one.__struct_fields__}


def _structs(kind: Any) -> Iterator[Any]:
    """Yield ``kind`` if it is a struct, or those structs that it is a union of."""
    for one in get_args(kind) or (kind,):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            yield one
