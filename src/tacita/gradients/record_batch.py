"""One record's tensors, and the batch behind them, where a model's code runs under ``vmap``.

The code sees one record. Behind each of its tensors stands a *physical* tensor with the batch axis first;
:class:`RecordBatch` goes from one to the other. Batching rules of a user's own would see the whole batch and may mix
records: they are refused. This file alone uses private names of PyTorch's ``functorch``.

Place: [gradients.record_batch] -> the engines that run a model's code under ``vmap``.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._C._functorch import TransformType
from torch._functorch.autograd_function import custom_function_call, has_overridden_vmap_rule
from torch._functorch.predispatch import lazy_load_decompositions
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.vmap import vmap_increment_nesting
from torch._ops import OpOverload, OpOverloadPacket

from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import IN_TURN, real_values

outside = temporarily_clear_interpreter_stack  # in it, kernels run on physical tensors, and autograd records them

_RECOMPUTE = "_checkpoint_without_reentrant_generator"  # the function by which torch.utils.checkpoint drops activations
_NO_HOOKS = (
    'saved_tensors_hooks see the tensors of the whole batch, and may mix records. Leave them out, or use method="loop".'
)

_VMAP_RULE = custom_function_call.functorch_table[TransformType.Vmap]  # as PyTorch has it
OPERATORS = (OpOverload, OpOverloadPacket)
_OF_TORCH = ("aten::", "prims::", "prim::")  # operators whose batching rules are PyTorch's
_has_batching_rule = torch._C._dispatch_has_kernel_for_dispatch_key  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class RecordBatch:
    """The records of one physical batch, while a model's code runs on one record that stands for all of them.

    Attributes:
        size: The number of records.
        level: The nesting level of this ``vmap``.
    """

    size: int
    level: int

    def one(self, physical: Tensor) -> Tensor:
        """Return the tensor that a record's code sees in place of a physical tensor (batch, ...)."""
        return _functorch._add_batch_dim(physical, 0, self.level)

    def all(self, tensor: Tensor) -> Tensor:
        """Return the physical tensor (batch, ...); one that is the same for all records is repeated without a copy."""
        if not _functorch.is_batchedtensor(tensor):
            return tensor.unsqueeze(0).expand(self.size, *tensor.shape)
        physical, axis = _functorch.get_unwrapped(tensor), _functorch.maybe_get_bdim(tensor)
        return physical if axis == 0 else physical.movedim(axis, 0)

    def spread(self, tensor: Tensor) -> None:
        """Let a tensor that is the same for all records hold one copy a record, so that a record can write its own.

        Where something else refers to its memory (a view), the tensor stays as it is, and PyTorch refuses the writing.
        """
        if self.differs(tensor) or tensor._is_view() or (tensor.is_leaf and tensor.requires_grad):
            return
        with outside():
            with real_values():
                source = tensor.clone()  # a pass without values would refer to the tensor itself
            copies = source.unsqueeze(0).repeat(self.size, *(1 for _ in tensor.shape))
        with contextlib.suppress(RuntimeError):
            torch.utils.swap_tensors(tensor, self.one(copies))

    def differs(self, tensor: Any) -> bool:
        """Return whether ``tensor`` differs from record to record."""
        return _functorch.is_batchedtensor(tensor) and _functorch.maybe_get_level(tensor) == self.level

    def understands(self, tensor: Any) -> bool:
        """Return whether :meth:`all` serves ``tensor``: it belongs to no transform of the user's own."""
        return self.differs(tensor) or not _functorch.is_functorch_wrapped_tensor(tensor)

    def innermost(self) -> bool:
        """Return whether the code runs in no transform of the user's own (``torch.func.grad`` in a loss, say)."""
        return _functorch.maybe_current_level() == self.level

    def result(self, tensor: Tensor) -> Tensor:
        """Return the physical tensor of a value that a record's code returned."""
        return _functorch._remove_batch_dim(tensor, self.level, self.size, 0)


@contextmanager
def records(size: int) -> Iterator[RecordBatch]:
    """Run code on one record that stands for ``size`` records; its random draws differ from record to record.

    Switches of PyTorch are set meanwhile:

    * A ``torch.autograd.Function`` with a ``vmap`` rule of its own is refused.
    * So are hooks on the tensors that autograd saves: they would get those of the whole batch.
    * ``torch.compiler.is_compiling()`` is true. Libraries ask it before they look at the values of a mask.
    * ``torch.utils.checkpoint`` keeps activations, which it would compute again outside of ``vmap``.

    They belong to the process, so threads take turns.
    """
    lazy_load_decompositions()
    checkpoint = torch.utils.checkpoint
    with rules_guarded(), torch.autograd.graph.disable_saved_tensors_hooks(_NO_HOOKS):
        compiling, recompute = torch.compiler._is_compiling_flag, getattr(checkpoint, _RECOMPUTE)
        try:
            torch.compiler._is_compiling_flag = True
            setattr(checkpoint, _RECOMPUTE, lambda *args, **kwargs: (None for _ in range(1)))
            with vmap_increment_nesting(size, "different") as level:
                yield RecordBatch(size, level)
        finally:
            torch.compiler._is_compiling_flag = compiling
            setattr(checkpoint, _RECOMPUTE, recompute)


@contextmanager
def rules_guarded() -> Iterator[None]:
    """Refuse an ``autograd.Function`` with a ``vmap`` rule of its own meanwhile, in a forward or a backward pass.

    The switch belongs to the process, so threads take turns.
    """
    kind, rules = TransformType.Vmap, custom_function_call.functorch_table
    with IN_TURN:
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
