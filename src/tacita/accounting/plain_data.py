"""Families of frozen dataclasses that are written to the ledger as plain data, and read back by class name.

Values that are read back are checked against the types of the fields.
"""

import dataclasses
import importlib
import inspect
import math
import types
import typing
from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from tacita.accounting.relations import RELATIONS, NeighboringRelation
from tacita.errors import LedgerError

# Where classes stand that ledgers may name although the core imports none of them.
SYSTEMS = (
    "accounting.events.counts",
    "accounting.events.coupled",
    "accounting.events.hardened",
    "accounting.events.laplace",
    "accounting.events.mixtures",
    "clipped_sgd",
    "convex",
    "correlated",
    "error_feedback",
    "federated.client_messages",
    "hardened",
    "linear",
    "second_order",
    "tables.selection_events",
)


class PlainData(ABC):
    """A family of frozen dataclasses; its root passes ``tag``, the key under which lines name a class.

    Two classes of one family cannot have the same name, because ledgers would then be read with the wrong one.
    """

    tag: ClassVar[str]
    kinds: ClassVar[dict[str, type["PlainData"]]]

    def __init_subclass__(cls, *, tag: str | None = None) -> None:
        super().__init_subclass__()
        if tag is not None:
            cls.tag, cls.kinds = tag, {}
        if cls.tag in cls.__annotations__:
            raise TypeError(f"{cls.__qualname__}: lines name its class under {cls.tag!r}. Give the field another name.")
        known = cls.kinds.get(cls.__name__)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__}: {known.__module__} has a class {cls.__name__} already, and "
                "ledgers name a class by its name alone. Give this one another name."
            )
        cls.kinds[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data for a JSON line, which ``from_dict`` reads back."""
        if not dataclasses.is_dataclass(self):
            raise TypeError(f"{type(self).__name__} must be a frozen dataclass: ledgers hold its fields.")
        fields = {field.name: _encode(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {self.tag: type(self).__name__, **fields}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the object that ``data`` describes. A field that has a default may be missing, as in older ledgers.

        Raises:
            LedgerError: ``data`` has an unknown class, an unknown or missing field, a wrong type, or a value that the
                class refuses.
        """
        kind: Any = cls._kind_of(data)
        fields = _field_types(kind)
        given = set(data) - {cls.tag}
        required = {field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING}
        missing, unknown = sorted(required - given), sorted(map(str, given - set(fields)))
        if missing or unknown:
            raise LedgerError(f"{kind.__name__}: missing fields {missing}, unknown fields {unknown}.")
        try:
            return kind(**{name: _decode(name, data[name], fields[name]) for name in given})
        except (ValueError, OverflowError) as error:
            raise LedgerError(f"{kind.__name__}: {' '.join(str(error).split())}") from None

    @classmethod
    def _kind_of(cls, data: Mapping[str, Any]) -> type[Self]:
        if not isinstance(data, Mapping) or not isinstance(data.get(cls.tag), str):
            raise LedgerError(f"{cls.tag} must be an object with a text field {cls.tag!r} that names its class.")
        kind = cls.kinds.get(data[cls.tag]) or cls._kind_of_a_system(data[cls.tag])
        if kind is None or inspect.isabstract(kind):
            known = sorted(name for name, kind in cls.kinds.items() if not inspect.isabstract(kind))
            raise LedgerError(
                f"Unknown {cls.tag} {data[cls.tag]!r}. If it is a class of your own, import its module before you read "
                f"the ledger; this version knows {', '.join(known)}."
            )
        return typing.cast(type[Self], kind)

    @classmethod
    def _kind_of_a_system(cls, name: str) -> type["PlainData"] | None:
        """Import one system after the other, whose classes join the family as they are defined, and look again."""
        for system in SYSTEMS:
            importlib.import_module(f"tacita.{system}")
            if name in cls.kinds:
                break
        return cls.kinds.get(name)


def _encode(value: Any) -> Any:
    if isinstance(value, PlainData):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_encode(entry) for entry in value]
    return "inf" if isinstance(value, float) and value == math.inf else value


def _field_types(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _decode(name: str, value: Any, wanted: Any) -> Any:
    """Convert a JSON value to the type of its field, which is a type or a type with ``None``."""
    if not isinstance(wanted, types.UnionType):
        return _decode_kind(name, value, wanted)
    return None if value is None else _decode_kind(name, value, typing.get_args(wanted)[0])


def _decode_kind(name: str, value: Any, wanted: Any) -> Any:
    if isinstance(wanted, type) and issubclass(wanted, PlainData):
        return wanted.from_dict(value)
    if wanted is NeighboringRelation and value in RELATIONS:
        return value
    if wanted is float and value == "inf":
        return math.inf
    if typing.get_origin(wanted) is tuple and isinstance(value, list):
        kind = typing.get_args(wanted)[0]  # tuple[kind, ...]
        return tuple(_decode_kind(name, entry, kind) for entry in value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if number and (wanted is float or (wanted is int and isinstance(value, int))):
        return wanted(value)
    if wanted in (str, bool) and isinstance(value, wanted):
        return value
    raise LedgerError(f"field {name!r} must be {_words(wanted)}, got a {type(value).__name__} ({str(value)[:40]!r}).")


def _words(wanted: Any) -> str:
    if wanted is NeighboringRelation:
        return "one of " + ", ".join(RELATIONS)
    if typing.get_origin(wanted) is tuple:
        kind = typing.get_args(wanted)[0]
        return f"a list of {kind.tag}s" if issubclass(kind, PlainData) else "a list of numbers"
    return f"a {wanted.__name__}"
