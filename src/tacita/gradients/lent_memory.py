"""Memory of the data set that is lent to a model: an operator that would write it is refused before it runs.

A trial without values shows whether a model writes its batch (``engine_choice.py``), but a later call may do what the
trial did not: a counter, a switch, a draw of Python's. Below autograd and ``vmap`` each operator of PyTorch says in its
schema what it writes. There every call is looked at while a model's code has memory that is not its own.

A copy-on-write clone (``torch._lazy_clone``) would need no watch, but it moves the tensor of whoever owns the data:
once something asks for its memory, a name of NumPy's for it points to memory that is freed.

Place: [gradients.lent_memory] -> the ghost engine, network_source.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import memory_address

LENT_FROM = 2**22  # bytes of a batch that is lent: to copy fewer takes less time than to look at every call
_OF_TORCH = {"aten", "prims", "prim"}  # namespaces whose schemas tell what an operator writes
WRITTEN_AFTER_ALL = "the batch is written in place in some calls only: copy it before (x.clone())."
_UNDECLARED = {"running_mean", "running_var"}  # but for what batch_norm and its kin write without saying so


@contextmanager
def nothing_lent_is_written(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Raise where the code inside would write the memory of ``tensors``, forward or backward; it stays as it is.

    Raises:
        UnsupportedModuleError: An operator of PyTorch would write it, or one of a user's own is called with it.
    """
    memory = {address for tensor in tensors if (address := memory_address(tensor))}
    if not memory:
        yield
        return
    with _Watch(memory):
        yield


class _Watch(TorchDispatchMode):
    def __init__(self, memory: set[int]) -> None:
        super().__init__()
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        for place, name in written(func):
            given = args[place] if place < len(args) else kwargs.get(name)
            if any(memory_address(one) in self._memory for one in _tensors(given)):
                raise UnsupportedModuleError(WRITTEN_AFTER_ALL)
        return func(*args, **kwargs)


@cache
def written(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Return place and name of each argument that an operator may write."""
    trusted = func.namespace in _OF_TORCH
    arguments = enumerate(func._schema.arguments)
    return tuple(
        (k, a.name)
        for k, a in arguments
        if not trusted or a.name in _UNDECLARED or (a.alias_info and a.alias_info.is_write)
    )


def _tensors(given: Any) -> list[Tensor]:
    parts = given if isinstance(given, (tuple, list)) else (given,)
    return [part for part in parts if isinstance(part, Tensor)]
