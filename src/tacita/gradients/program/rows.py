"""Confirm that a program keeps rows apart: a second lock beside the batching rules that made it.

PyTorch's batching rules promise that row i of each tensor is a function of record i. Here the operators are looked at
without trusting these rules. A tensor that a record enters has one axis that follows the number of rows, of size
``outer * rows * inner``: the number of the row is ``(position // inner) % rows``. Every operator must keep that:

* its result has one such axis, of a size in proportion to the rows (a sum or a maximum over records has none, a product
  of records with records has two, a padding is no multiple);
* an operator with ``dim`` arguments (sort, cumulative sum, softmax, gather, concatenation) does not name that axis;
* a reshape keeps the row's place in the order of the elements;
* tensors that meet element by element have their rows at the same place;
* an index of that axis is the row's own number (``arange(rows)``).

Everything here is private. Proof: docs/derivations/program.md, section 4.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.check import users_line

_aten = torch.ops.aten
_RESHAPES = {_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default}
_LOSSES = {_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default}
_JOINED = "joined over records"
_MOVES = {"unsqueeze", "squeeze", "transpose", "permute", "movedim", "t", "swapaxes"}  # put axes elsewhere
_OF_NUMBERS = {*_MOVES, "view", "_unsafe_view", "reshape", "expand", "clone", "add", "mul", "_to_copy"}
_INDEXED = {"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_"}
_FLAT = {"masked_scatter", "masked_select", "take", "put", "renorm", "channel_shuffle", "native_channel_shuffle"}
_FLAT |= {"embedding_bag", "embedding_bag_forward_only"}  # of rows that are looked up by others
_OF_MATRICES = ("linalg", "geqrf", "qr", "cholesky", "tril", "triu", "scaled_dot_product", "diag")
_NAMES = ("dim", "dims", "dim0", "dim1", "dim2", "dimension")
_OF_SPACE = ("convolution", "pool", "upsample", "pad", "im2col", "col2im", "grid_sampler")  # axes of space come last


class Rows(NamedTuple):
    """Where the rows of a tensor are.

    Attributes:
        axis: The axis, from 0.
        outer: How many times all rows stand one after another in it.
        inner: How many positions each row has in it, side by side.
    """

    axis: int
    outer: int
    inner: int


def check_rows(traces: Sequence[Sequence[Node]], rows: Sequence[int], batch: set[Node], copies: set[Node]) -> None:
    """Refuse a program in which a row of some tensor may depend on several records.

    Args:
        traces: The nodes of the traces, in order; operators are the same.
        rows: The number of rows of each.
        batch: The inputs of the first trace that hold records.
        copies: Nodes that stand for gradients, a row each.

    Raises:
        UnsupportedModuleError: It has such a tensor; the message names the user's line.
    """
    found: dict[Node, Any] = {}
    for alike in zip(*traces, strict=True):
        node, values = alike[0], [one.meta.get("val") for one in alike]
        given = [found[one] for one in node.all_input_nodes if found.get(one) is not None]
        if node.op == "output":
            continue
        if (
            isinstance(values[0], Tensor)
            and sum(a != b for a, b in zip(values[0].shape, values[1].shape, strict=True)) > 1
        ):
            raise _refusal(node, "gives a tensor with two axes that follow the rows: it may join records")
        constant = not (given or node in batch or node in copies)
        if constant and (not isinstance(values[0], Tensor) or values[0].shape == values[1].shape):
            continue  # else its size follows the rows, so that its rows are looked at as if they were records'
        if getattr(node.target, "_opname", "") == "arange" and not _numbers_rows(node):
            raise _refusal(node, "numbers the records, for more than an index")
        if _JOINED in given:
            raise _refusal(node, "reads what was joined over records")
        if isinstance(values[0], (list, tuple)):
            found[node] = [_part_of(node, parts, rows, found) for parts in zip(*values, strict=True)]
        elif str(node.target) == "<built-in function getitem>":
            found[node] = found[node.args[0]][node.args[1]]
        else:
            found[node] = _rows_of(node, values, rows, found)


def _part_of(node: Node, values: Sequence[Any], rows: Sequence[int], found: dict[Node, Any]) -> Any:
    """Return where the rows are in one of several results; one that joins records must not be read."""
    if isinstance(values[0], Tensor) and values[0].shape == values[1].shape:
        if not values[0].numel():
            return None  # nothing is in it
        if node.target in _LOSSES and node.args[3] == 0:
            return None  # without a reduction, the sum of the weights is not computed
        if "norm" in str(node.target):
            raise _refusal(node, "takes statistics over records")
        return _JOINED
    return _rows_of(node, values, rows, found)


def _rows_of(node: Node, values: Sequence[Any], rows: Sequence[int], found: dict[Node, Any]) -> Rows | None:
    """Return where the rows of a result are."""
    if not isinstance(values[0], Tensor) or values[0].numel() == 0:
        return None
    following = [k for k in range(values[0].ndim) if values[0].shape[k] != values[1].shape[k]]
    if len(following) != 1 or any(one.shape[following[0]] % n for one, n in zip(values, rows, strict=True)):
        raise _refusal(node, "gives a tensor whose size is in no proportion to the rows: it may join records")
    (axis,), shape = following, values[0].shape
    times = shape[axis] // rows[0]
    if node.op == "placeholder":
        return Rows(axis, 1, times)
    before = {one: found[one] for one in node.all_input_nodes if isinstance(found.get(one), Rows)}
    if not before:
        return Rows(axis, 1, times)
    _check_dims(node, before, shape)
    if node.target in _RESHAPES:
        return _reshaped(node, before, shape, axis, rows[0])
    _check_meeting(node, before, len(shape))
    places = [*before.values()]
    if all(one.outer == 1 for one in places):
        return Rows(axis, 1, times)
    apart = next(one for one in places if one.outer > 1)
    if times != apart.outer * apart.inner or any((one.outer, one.inner) != apart[1:] for one in places):
        raise _refusal(node, "meets rows in different orders")
    return Rows(axis, apart.outer, apart.inner)


def _reshaped(node: Node, before: dict[Node, Rows], shape: torch.Size, axis: int, rows: int) -> Rows:
    """Return where the rows are after a reshape, which keeps the order of the elements."""
    ((given, place),) = before.items()
    step = place.inner * prod(given.meta["val"].shape[place.axis + 1 :])  # elements from one row to the next
    inner, rest = divmod(step, prod(shape[axis + 1 :]))
    outer, more = divmod(shape[axis], rows * max(1, inner))
    if rest or more or not inner:
        raise _refusal(node, "groups the rows anew")
    return Rows(axis, outer, inner)


def _check_dims(node: Node, before: dict[Node, Rows], shape: torch.Size) -> None:
    """Refuse an operator that works along the axis of the rows."""
    target = node.target
    if not isinstance(target, OpOverload):
        return
    name = target._opname
    if name in _INDEXED:
        _check_index(node, before)
        return
    if name in _MOVES:
        return
    if name.startswith("as_strided"):
        raise _refusal(node, "reads memory by strides")
    if name.strip("_") in _FLAT or (name == "roll" and len(node.args) < 3 and not node.kwargs.get("dims")):
        raise _refusal(node, "takes elements in the order of memory, or across axes")
    matrices = any(word in name for word in _OF_MATRICES)
    if matrices and any(place.axis >= given.meta["val"].ndim - 2 for given, place in before.items()):
        raise _refusal(node, "takes the axis of the records for one of a matrix")
    arguments = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    arguments |= {a.name: one for a, one in zip(target._schema.arguments, node.args, strict=False)} | node.kwargs
    dims = [one for key in _NAMES for one in _ints(arguments.get(key))]
    for given, place in before.items():
        ndim = max(
            1, given.meta["val"].ndim + (name == "stack") + ("backward" in name and len(shape) > given.meta["val"].ndim)
        )
        axis = place.axis
        unchanged = name == "slice" and given.meta["val"].shape == shape
        _check_space(node, name, given, axis)
        if name == "stack" or (name in ("select_backward", "unbind")):
            continue
        if not unchanged and any(one % ndim == axis for one in dims):
            raise _refusal(node, "works along the axis of the records")


def _check_space(node: Node, name: str, given: Node, axis: int) -> None:
    """Refuse rows that lie along an axis of space, over which windows move; and rows that are repeated or looked up."""
    ndim = given.meta["val"].ndim
    if any(word in name for word in _OF_SPACE):
        if name == "constant_pad_nd":
            padded: Any = node.args[1]
            spoilt = axis >= ndim - len(padded) // 2 and any(padded[2 * (ndim - 1 - axis) :][:2])
        else:
            spoilt = axis > 1
        if spoilt:
            raise _refusal(node, "moves windows over the axis of the records")
    if name == "repeat":
        times: Any = node.args[1]
        if times[axis - ndim] != 1:
            raise _refusal(node, "repeats the rows")
    if name == "embedding" and given is node.args[0] and not _plus_positions(node.args[1]):
        raise _refusal(node, "looks up rows by an index that is not their own number")


def _plus_positions(node: Any) -> bool:
    """Return whether an index is one within a record plus where the record begins."""
    while isinstance(node, Node) and getattr(node.target, "_opname", "") in _OF_NUMBERS - {"add"}:
        node = node.args[0]
    added = isinstance(node, Node) and getattr(node.target, "_opname", "") == "add"
    return added and any(_is_positions(one) for one in node.all_input_nodes)


def _check_index(node: Node, before: dict[Node, Rows]) -> None:
    given, indices = node.args[0], node.args[1]
    if given not in before:
        return
    axis = before[given].axis  # type: ignore[index]
    own = indices[axis] if axis < len(indices) else None  # type: ignore[arg-type,index]
    if own is not None and not _is_positions(own):
        raise _refusal(node, "takes rows by an index that is not their own number")


def _numbers_rows(node: Node) -> bool:
    """Return whether nothing but an index is made of a tensor of numbers."""
    for user in node.users:
        name = getattr(user.target, "_opname", "")
        if name in _INDEXED or name.startswith("embedding"):
            continue
        if name not in _OF_NUMBERS or not _numbers_rows(user):
            return False
    return True


def _is_positions(node: Any) -> bool:
    """Return whether a tensor is ``arange(...)``, maybe in another shape."""
    while isinstance(node, Node) and node.op == "call_function":
        name = node.target._opname if isinstance(node.target, OpOverload) else ""
        if name == "arange":
            return True
        if name not in _OF_NUMBERS:
            return False
        node = node.args[0]
    return False


def _check_meeting(node: Node, before: dict[Node, Rows], ndim: int) -> None:
    """Refuse tensors that meet element by element with their rows at different places."""
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return
    if len({(one.meta["val"].ndim - place.axis, place.outer, place.inner) for one, place in before.items()}) > 1:
        raise _refusal(node, "meets rows at different places")


def _ints(given: Any) -> list[int]:
    parts = given if isinstance(given, (list, tuple)) else [given]
    return [one for one in parts if isinstance(one, int) and not isinstance(one, bool)]


def _refusal(node: Node, what: str) -> UnsupportedModuleError:
    name = str(node.target).removeprefix("aten.")
    return UnsupportedModuleError(
        f"{users_line(node)}the operator {name} {what}, so that it cannot be confirmed that records are kept apart"
    )
