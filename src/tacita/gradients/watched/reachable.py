"""Find what a loss function can reach: modules and tensors in closures, defaults, globals, attributes and containers.

No code of the loss is run. References are followed from function to closure to object, so that state outside of the
model is seen before any data is used.
"""

import functools
import inspect
import itertools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita.gradients.references import parts_of

MOST = 100_000  # objects that are followed at most
_OF_TORCH = {"_parameters", "_buffers", "training"}  # attributes of modules that are checked elsewhere
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)
_OF_THE_PROCESS = (torch.default_generator, getattr(random, "_inst", None), np.random.mtrand._rand)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range, slice)


def reachable(loss_fn: Callable[..., Any], model: nn.Module) -> dict[str, Tensor | nn.Module]:
    """Return each module and tensor outside of ``model`` that ``loss_fn`` refers to, by the path of attributes to it.

    Example:
        >>> found = reachable(functools.partial(print, nn.Dropout()), nn.Linear(3, 2))
        >>> [name for name, one in found.items() if isinstance(one, nn.Module)]
        ['loss_fn.args.0']
    """
    own = {id(one) for one in (*model.modules(), *model.parameters(), *model.buffers())}
    found = {}
    for where, thing in _walk([("loss_fn", loss_fn)], own):
        if isinstance(thing, Tensor | nn.Module):
            found[where] = thing
    return found


def held(loss_fn: Callable[..., Any], model: nn.Module, *, inside: bool = True) -> dict[str, Any]:
    """Return the numbers, texts, arrays and tensors that ``loss_fn`` and ``model`` hold, by the path of attributes.

    A text (``repr``) stands for a number or text; NumPy arrays are copied. Parameters and buffers of the model are left
    out, and so is a module's mode.

    Args:
        loss_fn: The loss.
        model: The network.
        inside: With tensors in plain attributes of the model's modules.

    Example:
        >>> loss_fn = functools.partial(print, {"mean": 0.5})
        >>> held(loss_fn, nn.Linear(3, 2))["loss_fn.args.0.'mean'"]
        '0.5'
    """
    found: dict[str, Any] = {}
    own = {id(one) for one in (*model.parameters(), *model.buffers())}
    for where, thing in _walk([("loss_fn", loss_fn), ("model", model)], own, plain=True):
        if isinstance(thing, np.ndarray):
            found[where] = thing.copy()
        elif isinstance(thing, _PLAIN):
            found[where] = repr(thing)
        elif isinstance(thing, Tensor) and inside:
            found[where] = thing
    outside = {} if inside else reachable(loss_fn, model)
    return found | {where: one for where, one in outside.items() if isinstance(one, Tensor)}


def owned_generators(loss_fn: Callable[..., Any], model: nn.Module) -> list[str]:
    """Return the random generators that ``loss_fn`` and ``model`` hold, by the path of attributes.

    Example:
        >>> owned_generators(functools.partial(print, np.random.default_rng(0)), nn.Linear(3, 2))
        ['loss_fn.args.0']
    """
    walk = _walk([("loss_fn", loss_fn), ("model", model)], set())
    found = [(where, one) for where, one in walk if isinstance(one, _GENERATORS)]
    return [where for where, one in found if not any(one is known for known in _OF_THE_PROCESS)]


def _walk(roots: list[tuple[str, Any]], seen: set[int], *, plain: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield each object that the roots refer to, once, by the path of attributes to it; a plain value only if asked.

    Args:
        roots: Where to begin.
        seen: The ``id`` of each object to leave out.
        plain: Yield numbers and texts, too. What PyTorch keeps in a module is then left out.
    """
    queue, many = deque(roots), 0
    while queue and many < MOST:
        where, thing = queue.popleft()
        many += 1
        if isinstance(thing, _PLAIN):
            yield where, thing
            continue
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield where, thing
        if isinstance(thing, Tensor):
            continue
        parts = itertools.islice(parts_of(thing, installed=thing is roots[0][1]), MOST)
        queue.extend(
            (f"{where}.{name}", one)
            for name, one in parts
            if (not isinstance(one, _PLAIN) if not plain else name not in _OF_TORCH)
        )


def is_seen_through(loss_fn: Callable[..., Any]) -> bool:
    """Return whether the references of ``loss_fn`` can be followed; those of compiled code cannot."""
    if isinstance(loss_fn, functools.partial):
        return is_seen_through(loss_fn.func)
    if isinstance(loss_fn, types.MethodType):
        return is_seen_through(loss_fn.__func__)
    if isinstance(loss_fn, types.FunctionType):
        return True
    return isinstance(inspect.getattr_static(type(loss_fn), "__call__", None), types.FunctionType)
