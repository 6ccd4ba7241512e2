"""Switches of the process while the user's code is written down; on leaving they are as they were.

Everything here is private.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch.distributions import Distribution
from torch.overrides import _get_current_function_mode_stack
from torch.overrides import _pop_mode as _pop_function_mode
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import IN_TURN

_RECOMPUTE = "_checkpoint_without_reentrant_generator"  # the function by which torch.utils.checkpoint drops activations
_NO_HOOKS = 'saved_tensors_hooks would not be called by a query. Leave them out, or use method="loop".'
SEED_SET = (
    "the model or the loss sets a seed, or draws numbers that do not come from a tensor of the batch "
    "(torch.manual_seed(0), torch.rand(1), np.random.rand(), random.random()): draw them once, in __init__, and keep "
    "them in a buffer (register_buffer), or draw by torch.rand_like(x) of a record's tensor x"
)


def mode_stacks() -> tuple[list[Any], list[Any]]:
    """Return the function modes and the dispatch modes that are on, the innermost last."""
    return _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()


@contextmanager
def modes_kept(*, without: bool = False) -> Iterator[None]:
    """Put the modes of whoever calls back as they were, whatever the code inside does to them.

    Args:
        without: The code inside runs without function modes.
    """
    functions, dispatching = mode_stacks()
    try:
        if without:
            while _get_current_function_mode_stack():
                _pop_function_mode()
        yield
    finally:
        while _get_current_function_mode_stack():
            _pop_function_mode()
        for mode in functions:
            _push_function_mode(mode)
        while len(_get_current_dispatch_mode_stack()) > len(dispatching):
            _pop_mode()


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Refuse code that moves Python's, NumPy's or PyTorch's generator; put them back.

    Raises:
        UnsupportedModuleError: It does.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
        now = random.getstate(), np.random.get_state(), torch.get_rng_state()
        if before[0] != now[0] or repr(before[1]) != repr(now[1]) or not torch.equal(before[2], now[2]):
            raise UnsupportedModuleError(SEED_SET)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@contextmanager
def plain_autograd() -> Iterator[None]:
    """Take gradients as PyTorch does by default: in no inference mode, without a search for anomalies."""
    threads = torch._C._is_multithreading_enabled()
    with (
        torch.inference_mode(mode=False),
        torch.autograd.set_multithreading_enabled(mode=threads),  # as it was: leaving inference mode sets it
        torch.autograd.set_detect_anomaly(mode=False),
    ):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch from logging a failure that the exception tells already."""
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch.fx.experimental")]
    before = [one.disabled for one in loggers]
    try:
        for one in loggers:
            one.disabled = True
        yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was


def _refuse_script(*_args: Any, **_kwargs: Any) -> None:
    raise UnsupportedModuleError(
        "the model or the loss runs TorchScript, whose operators are not written down: call the Python function (take "
        "torch.jit.script off, or set PYTORCH_JIT=0)"
    )


@contextmanager
def compiling() -> Iterator[None]:
    """Set switches of PyTorch for code that is written down.

    * Hooks on the tensors that autograd saves are refused: they would be called now, and not by a query.
    * ``torch.compiler.iscompiling()`` is true. Libraries ask it before they look at the values of a mask.
    * TorchScript is refused: in its optimised graphs operators are hidden from autograd, and from a tape.
    * ``torch.utils.checkpoint`` keeps activations: what it would compute again is not written down.
    * ``torch.distributions`` does not look at the values of its arguments.

    They belong to the process, so threads take turns.
    """
    checkpoint = torch.utils.checkpoint
    with IN_TURN, torch.autograd.graph.disable_saved_tensors_hooks(_NO_HOOKS):
        flag, recompute = torch.compiler._is_compiling_flag, getattr(checkpoint, _RECOMPUTE)
        looks = Distribution._validate_args
        scripted = {kind: kind.__call__ for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)}
        try:
            torch.compiler._is_compiling_flag = True
            setattr(checkpoint, _RECOMPUTE, lambda *args, **kwargs: (None for _ in range(1)))
            Distribution.set_default_validate_args(False)
            for kind in scripted:
                setattr(kind, "__call__", _refuse_script)  # noqa: B010 - a type of C's
            yield
        finally:
            torch.compiler._is_compiling_flag = flag
            setattr(checkpoint, _RECOMPUTE, recompute)
            Distribution.set_default_validate_args(looks)
            for kind, call in scripted.items():
                setattr(kind, "__call__", call)  # noqa: B010
