"""Chat templates that write texts and numbers alone: nothing that is other in another process, or beside other records.

A method that is not called, a generator or a function would be written as an address of memory, a set of the keys of a
mapping in an order of its own. Here a template holds none: what is looked up, called or filtered comes back as a text,
a number, or a list or mapping of these (keys, too, are a list), and a method or a function can be called and nothing
else. Draws and clocks are left out; the date is a fixed one.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache, wraps
from typing import Any, Final

from jinja2 import TemplateError, Undefined
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

DAY = datetime(2024, 7, 26)
# What draws, holds a state of its own, or has an order by addresses of memory.
_LEFT_OUT: Final = {"filters": ("random", "pprint"), "globals": ("lipsum", "cycler", "joiner")}
_PLAIN = (str, int, float, bool, type(None), list, tuple, Mapping, Undefined, Namespace, LoopContext)


class _Callable:
    """A method or a function: a template can call it, and nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __str__(self) -> str:
        raise TemplateError("it writes a method or a function where it should call it: add ()")

    __repr__ = __str__
    __hash__ = None  # type: ignore[assignment]

    def __format__(self, spec: str) -> str:
        return str(self)


def _plain(value: Any) -> Any:
    """Return a value as a template may hold it."""
    if isinstance(value, _PLAIN) or not (callable(value) or isinstance(value, Iterable)):
        return value
    return list(value) if isinstance(value, Iterable) else _Callable(value)


def _filter(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # and what Jinja has noted about its arguments
    def filtered(*args: Any, **kwargs: Any) -> Any:
        return _plain(function(*args, **kwargs))

    return filtered


class _Environment(ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        for kind, names in _LEFT_OUT.items():
            for name in names:
                getattr(self, kind).pop(name)
        self.filters = {name: _filter(function) for name, function in (self.filters | {"tojson": _json}).items()}
        self.tests["sameas"] = _same
        self.globals |= {"strftime_now": DAY.strftime, "raise_exception": _raise}
        self.globals = {name: _plain(value) for name, value in self.globals.items()}

    def getattr(self, obj: Any, attribute: str) -> Any:
        return _plain(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return _plain(super().getitem(obj, argument))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _plain(super().call(context, obj.function if isinstance(obj, _Callable) else obj, *args, **kwargs))


def _json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **more: Any) -> str:
    """Return JSON as transformers has it: without escapes of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, **more)


def _same(value: Any, other: Any) -> bool:
    """Return whether both are the same constant: which texts are one object is a matter of chance."""
    return any(value is one and other is one for one in (None, True, False))


def _raise(message: str) -> None:
    raise TemplateError(str(message))


@cache
def _compiled(template: str) -> Any:
    return _Environment().from_string(template)


def rendered(template: str, messages: list, *, asks: bool, tokens: Mapping[str, str]) -> str:
    """Return what a template writes of a conversation.

    Args:
        template: In Jinja.
        messages: ``role`` and ``content`` each.
        asks: Whether the template asks for an answer at the end (``add_generation_prompt``).
        tokens: Special tokens by name, such as ``bos_token``.

    Raises:
        ValueError: The template refuses the conversation or is none, or writes what is no text and no number.
    """
    more = {"tools": None, "documents": None, "add_generation_prompt": asks}
    try:
        return _compiled(template).render(**{**tokens, **more, "messages": messages})
    except TemplateError as error:
        raise ValueError(str(error)) from None
