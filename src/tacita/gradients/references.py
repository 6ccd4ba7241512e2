"""What an object refers to: a function's closure, defaults and globals, an object's attributes, a container's entries.

No code of the object is run.
"""

import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn


def references(loss_fn: Callable[..., Any]) -> list[Any]:
    """Return the objects that ``loss_fn``, or the object that it is a method of, refers to directly."""
    found = [one for _, one in parts_of(loss_fn, installed=True)]
    if isinstance(loss_fn, functools.partial):
        return [*found, *loss_fn.args, *loss_fn.keywords.values(), *references(loss_fn.func)]
    if isinstance(loss_fn, types.MethodType):
        return [*found, *(one for _, one in parts_of(loss_fn.__self__, installed=True)), *references(loss_fn.__func__)]
    return found


def parts_of(thing: Any, *, installed: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the objects that ``thing`` refers to directly, with their names; of what was installed only if told."""
    if isinstance(thing, Mapping):
        yield from ((repr(key)[:40], value) for key, value in [*thing.items()])
    elif isinstance(thing, types.SimpleNamespace):
        yield from [*vars(thing).items()]
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        yield from ((str(index), value) for index, value in enumerate([*thing]))
    elif isinstance(thing, functools.partial):
        yield from [("func", thing.func), ("args", thing.args), ("keywords", thing.keywords)]
    elif isinstance(thing, types.MethodType):
        yield from [("__self__", thing.__self__), ("__func__", thing.__func__)]
    elif isinstance(thing, types.FunctionType):
        yield from _of_function(thing) if installed or not _is_library(thing.__module__) else ()
    elif isinstance(thing, type):
        own = not _is_library(thing.__module__)
        yield from [(name, one) for name, one in vars(thing).items() if _is_state(one)] if own else ()
    elif not isinstance(thing, types.ModuleType | types.BuiltinFunctionType):
        own = installed or isinstance(thing, nn.Module) or not _is_library(type(thing).__module__)
        yield from _of_object(thing) if own else ()


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield from _closure(function)
    names = _names(function.__code__)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif not _is_library(value.__name__):
            yield from ((f"{name}.{inner}", vars(value)[inner]) for inner in names & vars(value).keys())
    yield from [("__defaults__", function.__defaults__), ("__kwdefaults__", function.__kwdefaults__)]
    yield from vars(function).items()


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _names(code: types.CodeType) -> set[str]:
    """Return the global names in the code of a function and of the functions inside it."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


def _of_object(thing: Any) -> Iterator[tuple[str, Any]]:
    attributes = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        attributes |= {name: getattr(thing, name) for name in names if hasattr(thing, name)}
        if not _is_library(kind.__module__):  # its methods, and the attributes that all instances share
            attributes |= {f"{kind.__name__}.{name}": one for name, one in vars(kind).items() if _is_state(one)}
    yield from attributes.items()


def _is_state(member: Any) -> bool:
    return not isinstance(member, types.GetSetDescriptorType | types.MemberDescriptorType | property)


@functools.cache
def _is_library(module: str | None) -> bool:
    """Return whether a module is Python's own or was installed, so that its globals are not the user's state."""
    root = (module or "").split(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in {"tacita", *sys.stdlib_module_names} or bool(
        {"site-packages", "dist-packages"} & {*Path(file).parts}
    )
