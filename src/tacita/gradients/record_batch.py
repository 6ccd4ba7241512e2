"""One record's tensors, and the batch behind them, where a tape is played under ``vmap``.

Behind each tensor of the one record stands a *physical* tensor with the batch axis first; :class:`RecordBatch` goes
from one to the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.predispatch import lazy_load_decompositions
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.vmap import vmap_increment_nesting

outside = temporarily_clear_interpreter_stack  # in it, kernels run on physical tensors, and autograd records them


@dataclass(frozen=True)
class RecordBatch:
    """The records of one physical batch, while a tape is played on one record that stands for all of them.

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
    with vmap_increment_nesting(size, "different") as level:
        yield RecordBatch(size, level)
