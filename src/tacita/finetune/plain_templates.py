"""Chat templates that write texts and numbers alone: nothing that is other in another process, or beside other records.

A method that is not called, a generator or a function would be written as an address of memory, a set of the keys of a
mapping in an order of its own. Here a template holds none: what is looked up, called or filtered comes back as a text,
a number, or a list or mapping of these (keys, too, are a list), and a method or a function can be called and nothing
else. Draws and clocks are left out; the date is a fixed one. How deep macros go has a bound of its own, so that it does
not matter how much of Python's stack the caller has left.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, Undefined
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# The date by the directives of strftime, whose own answers depend on time zone, language and system.
DAY: Final = {
    "Y": "2024", "y": "24", "m": "07", "B": "July", "b": "Jul", "d": "26", "e": "26", "j": "208", "A": "Friday",
    "a": "Fri", "F": "2024-07-26", "H": "00", "M": "00", "S": "00", "T": "00:00:00", "I": "12", "p": "AM", "%": "%",
    "-d": "26", "-m": "7",
}  # fmt: skip
DEPTH = 32  # calls inside of each other, each of which takes about six of the 1,000 that Python allows
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


class _Mark(str):
    """A place in what a template writes, without letters: a piece of its own, which no operation on texts makes."""

    def __str__(self) -> str:
        return self


MARK: Final = _Mark()


def _joined(pieces: Iterable[str]) -> str:
    """Join what a macro or a block has written. A text has no place for a mark, and losing it would move targets."""
    found = list(pieces)
    if any(piece is MARK for piece in found):
        raise TemplateError("a generation mark stands in a macro, a block or a set, where its place is not known")
    return "".join(found)


class _Environment(ImmutableSandboxedEnvironment):
    concat = staticmethod(_joined)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        for kind, names in _LEFT_OUT.items():
            for name in names:
                getattr(self, kind).pop(name)
        self.filters = {name: _filter(function) for name, function in (self.filters | {"tojson": _json}).items()}
        self.tests["sameas"] = _same
        self.globals |= {"strftime_now": _date, "raise_exception": _raise}
        self.globals = {name: _plain(value) for name, value in self.globals.items()}

    def getattr(self, obj: Any, attribute: str) -> Any:
        return _plain(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return _plain(super().getitem(obj, argument))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        context.depth = getattr(context, "depth", 0) + 1  # of this rendering
        if context.depth > DEPTH:
            raise TemplateError(f"it calls macros more than {DEPTH} deep")
        found = super().call(context, obj.function if isinstance(obj, _Callable) else obj, *args, **kwargs)
        context.depth -= 1
        return _plain(found)


def _json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as transformers has it: without escapes of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _date(form: str) -> str:
    why = "strftime_now does not serve %{}, which may depend on the machine"
    return re.sub("%(-?.)", lambda found: DAY.get(found[1]) or _raise(why.format(found[1])), form)


def _same(value: Any, other: Any) -> bool:
    """Return whether both are the same constant: which texts are one object is a matter of chance."""
    return any(value is one and other is one for one in (None, True, False))


def _raise(message: str) -> NoReturn:
    raise TemplateError(str(message))


@cache
def _compiled(template: str) -> Any:
    return _Environment().from_string(template)


def rendered(template: str, messages: list, *, asks: bool, tokens: Mapping[str, str], most: float) -> list[str]:
    """Return what a template writes of a conversation, in pieces.

    Args:
        template: In Jinja; what it writes with ``{{ generation_mark }}`` is the piece ``MARK``.
        messages: ``role`` and ``content`` each.
        asks: Whether the template asks for an answer at the end (``add_generation_prompt``).
        tokens: Special tokens by name, such as ``bos_token``.
        most: Number of letters after which it is stopped.

    Raises:
        ValueError: The template refuses the conversation or is none, writes what is no text and no number, or more than
            ``most`` letters.
    """
    more = {"tools": None, "documents": None, "add_generation_prompt": asks, "generation_mark": MARK}
    pieces: list[str] = []
    letters = 0
    try:
        for piece in _compiled(template).generate(**{**tokens, **more, "messages": messages}):
            pieces.append(piece)
            letters += len(piece)
            if letters > most:
                raise TemplateError(f"it writes more than {most:,} letters of a conversation as long as this")
    except TemplateError as error:
        raise ValueError(str(error)) from None
    return pieces
