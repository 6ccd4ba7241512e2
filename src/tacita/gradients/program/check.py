"""Look at a program before any query: which operators may stand in it, and what they may read and write.

* PyTorch's own operators only (``aten``, ``prims``): what those of others do is not known.
* None writes an input of the program, a parameter, a buffer or a constant, so nothing outlives a run.
* Every draw is one a record, from the query's stream: no generator of its own, and a shape that follows the rows.
* Memory that nobody has written is zeros.

Everything here is private. Proof: docs/derivations/program.md.
"""

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.operators import memory

_aten = torch.ops.aten
_OF_PYTORCH = {"aten", "prims", "prim", "quantized", "_quantized", "mkldnn", "mkl", "onednn", "sparse", "profiler"}
_OF_TORCH = {"aten", "prims"}  # namespaces whose schemas tell what an operator writes
_UNDECLARED = {"running_mean", "running_var"}  # but for what batch_norm and its kin write without saying so
_SHARING = {
    _aten._unsafe_view.default,
    _aten.lift.default,
    _aten.unsafe_split.Tensor,
    _aten.unsafe_split_with_sizes.default,
}  # share memory with what they are given, unannounced


WRITES_GIVEN = (
    "{}writes in place a tensor that it was given (the batch, a parameter, a buffer) or a constant: copy it first (x = "
    "x.clone())"
)


def _zeros_strided(size: Any, stride: Any, **options: Any) -> Tensor:
    return torch.empty_strided(size, stride, **options).zero_()


def _new_zeros_strided(tensor: Tensor, size: Any, stride: Any, **options: Any) -> Tensor:
    return tensor.new_empty_strided(size, stride, **options).zero_()


def _zeros_permuted(size: Any, order: Any, **options: Any) -> Tensor:
    return torch.empty_permuted(size, order, **options).zero_()


def _zeros(size: Any, *, memory_format: Any = None, **options: Any) -> Tensor:
    return torch.empty(size, memory_format=memory_format or torch.contiguous_format, **options).zero_()


def _grid_sampled(x: Tensor, grid: Tensor, *settings: Any) -> Tensor:
    return _aten.grid_sampler_2d.default(x, grid.nan_to_num(), *settings)


def _grid_sampled_backward(grad: Tensor, x: Tensor, grid: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    return _aten.grid_sampler_2d_backward.default(grad, x, grid.nan_to_num(), *settings)


REPLACED: dict[Any, Callable[..., Any]] = {  # what runs in an operator's place that may touch other memory, or fail
    _aten.grid_sampler_2d.default: _grid_sampled,  # whose kernels take NaN and inf for an index
    _aten.grid_sampler_2d_backward.default: _grid_sampled_backward,
    _aten.empty.memory_format: _zeros,
    _aten.empty_like.default: _aten.zeros_like.default,
    _aten.new_empty.default: _aten.new_zeros.default,
    _aten.empty_strided.default: _zeros_strided,
    _aten.new_empty_strided.default: _new_zeros_strided,
    _aten.empty_permuted.default: _zeros_permuted,
    _aten.view.default: _aten.reshape.default,  # tensors without values may be laid out in another way than real ones
}


def is_of_pytorch(func: OpOverload) -> bool:
    """Return whether an operator is of PyTorch's own build."""
    return func.namespace in _OF_PYTORCH


def users_line(node: Node) -> str:
    """Return ``file:line: `` of the user's code that a call came from; empty if it is not known."""
    line = str(node.meta.get("stack_trace") or "")
    return f"{line}: " if line else ""


def check(nodes: list[Node], follows_rows: set[Node]) -> None:
    """Refuse a program with an operator that may not stand in it.

    Args:
        nodes: The nodes of a trace, in order.
        follows_rows: Those whose results have a size that follows the number of rows.

    Raises:
        UnsupportedModuleError: There is one; the message names the user's line.
    """
    given = {memory(node.meta["val"]): node for node in nodes if node.op == "placeholder"}
    owner: dict[Node, Node] = {}  # of a view: the tensor that it may share memory with
    for node in nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            owner[node] = owner.get(node.args[0], node.args[0])  # type: ignore[arg-type]
            continue
        _check_operator(node)
        _check_draw(node, follows_rows)
        for one in written_by(node):
            written_to = given.get(memory(one.meta.get("val")), owner.get(one, one))
            if written_to.op in ("placeholder", "get_attr"):
                raise UnsupportedModuleError(WRITES_GIVEN.format(users_line(node)))
        if (shared := _shares(node)) is not None:
            owner[node] = owner.get(shared, shared)


def _check_operator(node: Node) -> None:
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace not in _OF_TORCH:
        raise UnsupportedModuleError(
            f"{users_line(node)}{target} is not one of PyTorch's own operators (aten, prims), and what it does with a "
            "record is not known: write it in those"
        )
    name = target._opname
    unwritten = "empty" in name and target not in REPLACED
    if unwritten or "resize" in name or name.startswith("set_"):
        raise UnsupportedModuleError(
            f"{users_line(node)}{target} gives memory that nobody has written, or another tensor's: use torch.zeros"
        )


def _check_draw(node: Node, follows_rows: set[Node]) -> None:
    names = [one.name for one in node.target._schema.arguments] if isinstance(node.target, OpOverload) else []
    arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
    if arguments.get("generator") is not None:
        raise UnsupportedModuleError(
            f"{users_line(node)}draws from a generator of its own: leave generator= out, so that the query's stream is "
            "drawn from, or draw once, in __init__, and keep it in a buffer"
        )
    drawing = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    if drawing and node not in follows_rows:
        raise UnsupportedModuleError(
            f"{users_line(node)}draws numbers that are the same for all records: draw them once, in __init__, and keep "
            "them in a buffer, or draw by torch.rand_like(x) of a record's tensor x"
        )


def written_by(node: Node) -> list[Node]:
    """Return the tensors that a call writes in place."""
    if not isinstance(node.target, OpOverload):
        return []
    given = [node.args[k] if k < len(node.args) else node.kwargs.get(name) for k, name in written(node.target)]
    parts = (part if isinstance(part, (list, tuple)) else [part] for part in given)
    return [one for part in parts for one in part if isinstance(one, Node)]


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


def _shares(node: Node) -> Node | None:
    """Return the tensor whose memory the result of a call may share."""
    target: Any = node.target
    arguments = [*node.args, *(node.kwargs.get(a.name) for a in target._schema.arguments[len(node.args) :])]
    shared = [a for a, spec in zip(arguments, target._schema.arguments, strict=True) if spec.alias_info]
    shared = [*node.args[:1]] if target in _SHARING else shared
    return shared[0] if shared and isinstance(shared[0], Node) else None
