"""What a loss refers to: a function's closure, defaults and globals, an object's attributes. No code of it is run."""

import functools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def references(loss_fn: Callable[..., Any]) -> list[Any]:
    """Return the objects that ``loss_fn``, or the object that it is a method of, refers to directly."""
    if isinstance(loss_fn, functools.partial):
        return [*loss_fn.args, *loss_fn.keywords.values(), loss_fn.func, *references(loss_fn.func)]
    if isinstance(loss_fn, types.MethodType):
        return [loss_fn.__self__, *_of_object(loss_fn.__self__), *references(loss_fn.__func__)]
    return [*(_of_function(loss_fn) if isinstance(loss_fn, types.FunctionType) else _of_object(loss_fn))]


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    names = _names(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield value
        elif not _is_library(value.__name__):
            yield from (vars(value)[inner] for inner in sorted(names & vars(value).keys()))
    yield from (function.__defaults__, function.__kwdefaults__, *vars(function).values())


def _names(code: types.CodeType) -> set[str]:
    """Return the global names in the code of a function and of the functions inside it."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


def _of_object(thing: Any) -> Iterator[Any]:
    attributes = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        attributes |= {name: getattr(thing, name) for name in names if hasattr(thing, name)}
        if not _is_library(kind.__module__):  # its methods, and the attributes that all instances share
            attributes |= {f"{kind.__name__}.{name}": one for name, one in vars(kind).items() if _is_state(one)}
    yield from attributes.values()


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
