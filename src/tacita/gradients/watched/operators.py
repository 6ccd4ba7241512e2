"""Which operators may meet a record: PyTorch's own, and those that somebody vouches for; and where they may draw from.

An operator of ``torch.library`` is code that nobody here has seen: written in Python it may keep what one record gave
it until the next one comes. A generator that somebody else owns goes on where the last record, or the last query, left
it; and it is not secret. Both are refused where the operator runs, below autograd and compiled functions. A program
runs PyTorch's own operators alone (``program/check.py``).
"""

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.check import is_of_pytorch
from tacita.gradients.seeds import is_global

_DECLARED = {"transformers::grouped_mm_fallback"}  # a product of matrices, expert by expert
_DRAWS = torch.Tag.nondeterministic_seeded
_aten = torch.ops.aten
_UNINITIALISED = {
    getattr(packet, name)
    for packet in (
        _aten.empty,
        _aten.empty_like,
        _aten.empty_permuted,
        _aten.empty_strided,
        _aten.new_empty,
        _aten.new_empty_strided,
    )
    for name in packet.overloads()
    if "out" not in name
}
WAY_OUT = (
    "draw it once, in __init__, and keep it as a buffer; or draw by record from the global generator "
    "(torch.rand_like(x) of a tensor of the batch, dropout)"
)


def declare_operator(name: str) -> None:
    """Vouch for an operator of ``torch.library``: with ``method="loop"``, models that call it are served from here on.

    A program (any other method) runs PyTorch's own operators alone: no batching rule is known of others.

    You state that the operator is a function of its arguments alone: it keeps nothing from one call to the next, draws
    nothing at random, and writes no argument that its schema does not name. The guarantee rests on that.

    Args:
        name: As in ``torch.ops``, with its namespace: ``"torchvision::nms"``.

    Raises:
        ValueError: ``name`` has no namespace.

    Example:
        >>> declare_operator("torchvision::nms")
    """
    if name.count("::") != 1:
        raise ValueError(f'name must have the form "namespace::operator", got {name!r}.')
    _DECLARED.add(name)


class OperatorCheck(TorchDispatchMode):
    """Refuse, while the loop runs code on a record, operators of unknown origin and generators that somebody else owns.

    Memory that nobody has written, which may hold another record's values, is zeros.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload):
            check_origin(func)
            if _DRAWS in func.tags:
                _check_draw(args, kwargs)
        result = func(*args, **kwargs)
        return result.zero_() if func in _UNINITIALISED else result


def _check_draw(args: tuple, kwargs: dict[str, Any]) -> None:
    if any(isinstance(one, torch.Generator) and not is_global(one) for one in (*args, *kwargs.values())):
        raise UnsupportedModuleError(
            f"the model or the loss draws from a generator of its own, which goes on from one record to the next: "
            f"{WAY_OUT}"
        )


def check_origin(func: OpOverload) -> None:
    """Raise ``UnsupportedModuleError`` if an operator is neither PyTorch's own nor declared."""
    if not is_of_pytorch(func) and func._schema.name not in _DECLARED:
        raise UnsupportedModuleError(
            f"the operator {func._schema.name} is not PyTorch's own, and may keep what it computes from a record. If "
            "it is a function of its arguments alone, say so before the oracle is built: "
            f'tacita.gradients.declare_operator("{func._schema.name}")'
        )
