"""Batching rules of a user's own, which see the whole batch under ``vmap`` and may mix records: they are refused.

Place: [gradients.batching_rules] -> the engines that run a model's code under ``vmap``.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch._functorch.autograd_function import custom_function_call, has_overridden_vmap_rule
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from tacita.errors import UnsupportedModuleError

_VMAP_RULE = custom_function_call.functorch_table[TransformType.Vmap]  # as PyTorch has it
_ONE_AT_A_TIME = threading.RLock()  # the switch belongs to the process
OPERATORS = (OpOverload, OpOverloadPacket)
_OF_TORCH = ("aten::", "prims::", "prim::")  # operators whose batching rules are PyTorch's
_has_batching_rule = torch._C._dispatch_has_kernel_for_dispatch_key  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def rules_guarded() -> Iterator[None]:
    """Refuse an ``autograd.Function`` with a ``vmap`` rule of its own meanwhile, in a forward or a backward pass.

    The switch belongs to the process, so threads take turns.
    """
    kind, rules = TransformType.Vmap, custom_function_call.functorch_table
    with _ONE_AT_A_TIME:
        before = rules[kind]
        try:
            rules[kind] = _guarded
            yield
        finally:
            rules[kind] = before


def check_operator(function: Any) -> None:
    """Refuse an operator of ``torch.library`` with a batching rule of its own, which sees the batch.

    Raises:
        UnsupportedModuleError: It has one.
    """
    if not isinstance(function, OPERATORS):
        return
    names = [function.name()] if isinstance(function, OpOverload) else _overloads(function)
    if any(not name.startswith(_OF_TORCH) and _has_batching_rule(name, "FuncTorchBatched") for name in names):
        raise UnsupportedModuleError(
            f"the operator {names[0]} has a vmap rule of its own, which sees the whole batch and may mix records. "
            'Leave out register_vmap, or use method="loop".'
        )


class WritesUnseen(TorchFunctionMode):
    """Watch whether the code inside may write a tensor without a change of its version.

    PyTorch counts no writes in inference mode, nor those of an operator of a user's own that does not declare them.

    Attributes:
        possible: It could.
    """

    possible = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        names = [func.name()] if isinstance(func, OpOverload) else []
        names = _overloads(func) if isinstance(func, OpOverloadPacket) else names
        of_users = any(not name.startswith(_OF_TORCH) for name in names)
        self.possible = self.possible or of_users or torch.is_inference_mode_enabled()
        return func(*args, **(kwargs or {}))


def _overloads(packet: OpOverloadPacket) -> list[str]:
    return [getattr(packet, name).name() for name in packet.overloads()]


def _guarded(interpreter: Any, function: Any, *operands: Any, **kwargs: Any) -> Any:
    """Run an ``autograd.Function``; refuse one with a ``vmap`` of its own, which sees the batch and may mix records."""
    if has_overridden_vmap_rule(function):
        raise UnsupportedModuleError(
            f"{function.__name__} has a vmap rule of its own, which sees the whole batch and may mix records. Set "
            'generate_vmap_rule=True in its place, or use method="loop".'
        )
    return _VMAP_RULE(interpreter, function, *operands, **kwargs)
