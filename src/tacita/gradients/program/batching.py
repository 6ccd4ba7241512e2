"""Batching rules that PyTorch's ``vmap`` lacks, where other operators give them.

Without a rule ``vmap`` calls an operator once a record, and no one program serves all numbers of rows. An operator that
PyTorch itself composes of others is composed of them; one that writes in place becomes the one that does not, and a
copy. The rules are PyTorch's own for those, and what comes of them is checked as any other operator.

Everything here is private.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._ops import OpOverload

NO_RULE = re.compile(r"aten::(\w+)(?:\.(\w+))? hit the vmap fallback")
_LIBRARY = torch.library.Library("aten", "IMPL", "FuncTorchBatched")
_given: set[str] = set()


@contextmanager
def every_operator_needs_a_rule() -> Iterator[None]:
    """Let ``vmap`` raise where it has no rule, rather than call an operator once a record."""
    before = _functorch._is_vmap_fallback_enabled()
    _functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        _functorch._set_vmap_fallback_enabled(before)


def give_rule(error: RuntimeError) -> bool:
    """Give ``vmap`` a rule for the operator for which it has just raised; return whether there is one to give."""
    found = NO_RULE.search(str(error))
    if found is None:
        return False
    op = getattr(getattr(torch.ops.aten, found[1]), found[2] or "default")
    rule = _rule(op)
    if rule is None or op.name() in _given:
        return False
    _given.add(op.name())
    _LIBRARY.impl(op.name().removeprefix("aten::"), rule)
    return True


def _rule(op: OpOverload) -> Callable[..., Any] | None:
    if has_kernel(op.name(), "CompositeImplicitAutograd"):
        return op.decompose
    fresh = getattr(torch.ops.aten, op._opname.removesuffix("_"), None)
    if fresh is None or not op._opname.endswith("_") or op._overloadname not in fresh.overloads():
        return None
    give = getattr(fresh, op._overloadname)
    return lambda tensor, *args, **kwargs: tensor.copy_(give(tensor, *args, **kwargs))
