"""One record's tensors, and the batch behind them, where a model's code runs under ``vmap``.

The code sees one record. Behind each of its tensors stands a *physical* tensor with the batch axis first;
:class:`RecordBatch` goes from one to the other. Batching rules of a user's own would see the whole batch and may mix
records: they are refused. This file alone uses private names of PyTorch's ``functorch``.

Place: [gradients.record_batch] -> the engines that run a model's code under ``vmap``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.predispatch import lazy_load_decompositions
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.vmap import vmap_increment_nesting

from tacita.gradients.functional import IN_TURN

outside = temporarily_clear_interpreter_stack  # in it, kernels run on physical tensors, and autograd records them

_RECOMPUTE = "_checkpoint_without_reentrant_generator"  # the function by which torch.utils.checkpoint drops activations
_NO_HOOKS = (
    'saved_tensors_hooks see the tensors of the whole batch, and may mix records. Leave them out, or use method="loop".'
)


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

    def each_its_own(self, tensor: Tensor) -> Tensor:
        """Return a tensor of which each record has its own copy; the given one may be the same for all."""
        with outside(), torch._C.DisableTorchFunction():
            return self.one(self.all(tensor).clone())

    def differs(self, tensor: Any) -> bool:
        """Return whether ``tensor`` differs from record to record."""
        return _functorch.is_batchedtensor(tensor) and _functorch.maybe_get_level(tensor) == self.level

    def result(self, tensor: Tensor) -> Tensor:
        """Return the physical tensor of a value that a record's code returned."""
        return _functorch._remove_batch_dim(tensor, self.level, self.size, 0)


@contextmanager
def records(size: int) -> Iterator[RecordBatch]:
    """Run code on one record that stands for ``size`` records; its random draws differ from record to record."""
    lazy_load_decompositions()
    with compiling(), vmap_increment_nesting(size, "different") as level:
        yield RecordBatch(size, level)


@contextmanager
def compiling() -> Iterator[None]:
    """Set switches of PyTorch for code that is written down.

    * Hooks on the tensors that autograd saves are refused.
    * ``torch.compiler.is_compiling()`` is true. Libraries ask it before they look at the values of a mask.
    * ``torch.utils.checkpoint`` keeps activations: what it would compute again is not written down.

    They belong to the process, so threads take turns.
    """
    checkpoint = torch.utils.checkpoint
    with IN_TURN, torch.autograd.graph.disable_saved_tensors_hooks(_NO_HOOKS):
        flag, recompute = torch.compiler._is_compiling_flag, getattr(checkpoint, _RECOMPUTE)
        try:
            torch.compiler._is_compiling_flag = True
            setattr(checkpoint, _RECOMPUTE, lambda *args, **kwargs: (None for _ in range(1)))
            yield
        finally:
            torch.compiler._is_compiling_flag = flag
            setattr(checkpoint, _RECOMPUTE, recompute)
