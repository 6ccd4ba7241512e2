"""Trace equal networks once: for tests of what is built on a program, not of programs.

Tracing a small network takes longer than most of what a test asks of it, and a contract builds an oracle dozens of
times. A program holds nothing of the network that it was traced from: networks of the same classes, shapes, modes and
attributes, with the same loss, have the same one. Two networks are the same here if a query would take the second for
the first, unchanged (``Programs``). All tests have it but those of ``tests/gradients`` (``tests/conftest.py``).
"""

from types import FunctionType
from typing import Any

from tacita.gradients.batches import map_tensors
from tacita.gradients.functional import ModuleTree
from tacita.gradients.program import engine
from tacita.gradients.program.run import Program, build
from tacita.gradients.program.trace import fixed_tensors
from tacita.gradients.rules.registry import RULES

_KNOWN: dict[Any, tuple[Program, list[Any]]] = {}  # with what ids in the key are of, alive
MOST = 50  # programs that are kept


def build_once(model: Any, loss_fn: Any, params: Any, like: Any) -> Program:
    """Return the program of a network, from the last one that was the same."""
    tree = ModuleTree(model)
    if type(loss_fn) is not FunctionType or engine._hooks(tree):
        return build(model, loss_fn, params, like)
    programs, own, rows = engine.Programs(model, loss_fn, like), {id(one) for one in tree.tensors}, []
    map_tensors(lambda one: rows.append((one.shape, one.dtype, one.stride(), one.device.type)) or one, like)
    held = engine._attributes(tree) | programs._around()
    compared = tuple((name, engine._as_compared(value, own)) for name, value in held.items())
    network = programs._key(tree, {**params, **fixed_tensors(tree, params)})
    key = loss_fn.__code__, loss_fn.__defaults__, network, compared, tuple(rows), str(type(like)), tuple(RULES.items())
    if key not in _KNOWN:
        if len(_KNOWN) >= MOST:
            _KNOWN.pop(next(iter(_KNOWN)))
        _KNOWN[key] = build(model, loss_fn, params, like), [*held.values()]
    return _KNOWN[key][0]
