"""The processes that share the rows of a batch. The core knows one; several are in ``tacita.distributed``.

Place: [gradients.processes] -> gradients, oracles. A process group, or a model sharded by FSDP2, brings in the rest.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError

T = TypeVar("T")


class Processes:
    """This process alone: it reads every row, and has nobody to wait for. ``tacita.distributed`` has the others.

    Attributes:
        size: The number of processes.
        leads: Whether this process draws and pays.
        build: Makes the programs of a model whose parameters are shards; ``None`` where each process has them whole.
    """

    size: int = 1
    leads: bool = True
    build: Callable[..., Any] | None = None

    def fail_together(self) -> AbstractContextManager[Any]:
        """Make an exception of one process, anywhere in the block, an error of all at their next exchange."""
        return nullcontext()

    def check_equal(self, what: str, own: bytes) -> None:
        """Raise :class:`~tacita.errors.RankError` on every process unless all have the same ``own``."""

    def broadcast(
        self, step: str, message: Mapping[str, Any] | None, data: bytes = b"", *, what: str = "", own: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Return ``message`` and ``data`` of the process that leads, once all are at ``step`` with equal ``own``."""
        return dict(message or {}), data

    def share(self, rows: np.ndarray) -> np.ndarray:
        """Return this process's rows of a batch."""
        return rows

    def number(self, chunk: int) -> int:
        """Return the number of this process's ``chunk`` among those of all, which seeds what the model draws."""
        return chunk

    def add_up(self, values: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return the sums over all processes of tensors by name."""
        return [dict(one) for one in values]

    def idle_chunks(self, rows: int, chunk_rows: int | None) -> int:
        """Return how many chunks of a batch of ``rows`` another process has more than this one, and waits in."""
        return 0

    def reduced(self, params: Mapping[str, Tensor], name: str, total: Tensor) -> Tensor:
        """Return what this process keeps of a chunk's sum for the parameter ``name``, as soon as that sum is there."""
        return total

    def shard(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """Return this process's shard of a tensor, placed as ``parameter`` is."""
        return tensor

    def stages(self, lead: Callable[[], T], plan: Any, mechanism: Any) -> T:
        """Return the stages of an oracle: where this process leads, those that ``lead`` builds."""
        return lead()


ALONE = Processes()


def processes_of(group: Any, model: nn.Module) -> Processes:
    """Return the processes of a process group of ``torch.distributed``, or ``group`` itself if it is that already."""
    if isinstance(group, Processes):
        return group
    if group is None and not is_sharded(model):
        return ALONE
    return import_module("tacita.distributed.serving").ranks_of(group, model)


def is_dtensor(tensor: Any) -> bool:
    """Return whether a tensor is a ``DTensor``; does not import what the caller has not imported."""
    return isinstance(tensor, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this process has: all of it, unless it is a ``DTensor``."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def fsdp_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of ``model`` for which ``fully_shard`` was called."""
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)  # loaded, if there is any
    return [] if fsdp is None else [module for module in model.modules() if isinstance(module, fsdp)]


def is_sharded(model: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called on the model or one of its modules."""
    return bool(fsdp_modules(model))


def refuse_sharded(model: nn.Module, what: str) -> None:
    """Raise ``UnsupportedModuleError`` if the model is sharded, which ``what`` does not support."""
    if is_sharded(model):
        raise UnsupportedModuleError(
            f"{what} does not take a model that fully_shard has sharded: build an oracle on it with process_group=, "
            "step an optimizer in a loop of your own (docs/process-group.md), or leave the model unsharded."
        )
