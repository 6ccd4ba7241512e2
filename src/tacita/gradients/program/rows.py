"""Confirm that a program keeps rows apart: a second lock beside the batching rules that made it.

PyTorch's batching rules promise that row i of each tensor is a function of record i. Here the operators are looked at
without trusting these rules. A tensor that a record enters has one axis that follows the number of rows, of size
``rows * inner``, and position p of it belongs to row ``p // inner``. An operator may meet such a tensor only if it is
in the table below (or by element, as PyTorch tags it), which names what it does to that axis; whatever is not in the
table is refused. What all have in common is checked first: the result has one such axis, of a size in proportion to the
rows. (A sum over records has none, a product of records with records has two, a padding is no multiple.)

Everything here is private. Proof, by kinds of operators: docs/derivations/program.md, section 4.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Node

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.check import users_line, written_by
from tacita.gradients.program.operators import Layout, memory

_JOINED = "joined over records"


class Rows(NamedTuple):
    """Where the rows of a tensor are.

    Attributes:
        axis: The axis, from 0.
        inner: How many positions each row has in it, side by side.
        numbers: The tensor holds each row's own number, and may only be an index.
    """

    axis: int
    inner: int
    numbers: bool = False


class _Call(NamedTuple):
    """An operator's call that rows meet.

    Attributes:
        name: The operator's, without the underscore of one that writes in place.
        alike: The call in each trace.
        args: Its arguments in the first trace, by name, defaults included.
        rows: The number of rows of each trace.
        before: Where the rows of its arguments are.
        shape: Of the result.
        place: Where the rows of the result are, as its sizes tell.
    """

    name: str
    alike: Sequence[Node]
    args: dict[str, Any]
    rows: Sequence[int]
    before: dict[Node, Rows]
    shape: torch.Size
    place: Rows

    def at(self, key: str) -> Rows | None:
        """Return where the rows of an argument are; ``None`` if it has none."""
        given = self.args.get(key)
        return self.before.get(given) if isinstance(given, Node) else None

    def from_the_end(self) -> set[tuple[int, int]]:
        """Return the places of the arguments' rows, their axes counted from the end."""
        return {(one.meta["val"].ndim - place.axis, place.inner) for one, place in self.before.items()}


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
    common: set[int] = set()  # memory that is the same for all records
    for alike in zip(*traces, strict=True):
        node, values = alike[0], [one.meta.get("val") for one in alike]
        if node.op == "output":
            continue
        first = values[0]
        given = {one: found[one] for one in node.all_input_nodes if found.get(one) is not None}
        follows = isinstance(first, Layout) and any(one.shape != first.shape for one in values)
        if not (given or follows):
            common.add(memory(first))
        elif str(node.target) == "<built-in function getitem>":
            found[node] = given[node.args[0]][node.args[1]]  # type: ignore[index]
        elif node.op == "placeholder" or node in copies or (follows and not first.numel):  # nothing is in it
            found[node] = _place(node, values, rows)
        elif _JOINED in given.values():
            raise _refusal(node, "reads what was joined over records")
        else:
            found[node] = _result(alike, values, rows, given)
            if any(memory(one.meta["val"]) in common for one in written_by(node)):
                raise _refusal(node, "writes records into what is the same for all")


def _place(node: Node, values: Sequence[Layout], rows: Sequence[int]) -> Rows:
    """Return where the rows of a tensor are, as its sizes tell."""
    sizes = [*zip(*(one.shape for one in values), strict=True)]
    following = [axis for axis, of_one in enumerate(sizes) if len({*of_one}) > 1]
    if len(following) > 1:
        raise _refusal(node, "gives a tensor with two axes that follow the rows: it may join records")
    inner = sizes[following[0]][0] // rows[0] if following else 0
    if not inner or [*sizes[following[0]]] != [inner * n for n in rows]:
        raise _refusal(node, "gives a tensor whose size is in no proportion to the rows: it may join records")
    return Rows(following[0], inner)


def _result(alike: Sequence[Node], values: Sequence[Any], rows: Sequence[int], given: dict[Node, Any]) -> Any:
    """Return where the rows of a call's result are, or of each of its results."""
    node = alike[0]
    target = node.target
    name = target._opname.rstrip("_") if isinstance(target, OpOverload) else ""
    kind = _KINDS.get(name)
    if kind is None and isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags:
        kind = _by_element
    if kind is None or not (given or kind is _made or name in _REPEATING):
        raise _refusal(node, "is not among those of which it is known what they do with rows")
    args = _arguments(node)
    several = isinstance(values[0], list)
    places: list[Any] = []
    for parts in zip(*values, strict=True) if several else [values]:
        place = None
        if isinstance(parts[0], Layout):
            follows = any(one.shape != parts[0].shape for one in parts)
            if follows or (parts[0].numel and not several):
                place = _place(node, parts, rows)
                before = {one: at for one, at in given.items() if isinstance(at, Rows)}
                call = _Call(name, alike, args, rows, before, parts[0].shape, place)
                if wrong := kind(call) if given else None:
                    raise _refusal(node, wrong)
                place = place._replace(numbers=_numbers(call, kind))
            elif (
                parts[0].numel
                and args.get("reduction") != 0
                and (kind is not _attention or parts[0].dtype.is_floating_point)
            ):
                place = _JOINED  # the gradient of a weight, say
        places.append(place)
    return places if several else places[0]


def _numbers(call: _Call, kind: Callable[[_Call], str | None]) -> bool:
    """Return whether a result holds each row's own number; refuse another use of these numbers than as an index."""
    if call.name == "arange":
        return True
    if not any(place.numbers for place in call.before.values()) or kind is _indexed:
        return False
    if kind in (_moved, _reshaped) or call.name in ("expand", "clone", "_to_copy"):
        return True
    raise _refusal(call.alike[0], "takes the numbers of rows for more than an index")


def _made(call: _Call) -> str | None:
    """A new tensor, which reads at most the shape of another."""
    if call.name != "arange":
        return None
    counts = call.args.get("start", 0) == 0 and call.args.get("step", 1) == 1 and call.place.inner == 1
    return None if counts else "numbers something else than the rows"


def _by_element(call: _Call) -> str | None:
    """Each element of the result is a function of those at its place."""
    if call.args.get("reduction", 0) != 0:
        return "joins the losses of records"
    return "meets rows at different places" if len(call.from_the_end()) > 1 else None


def _moved(call: _Call) -> str | None:
    """Axes are put elsewhere, inserted or left out; no element changes its place along one."""


def _reshaped(call: _Call) -> str | None:
    """The order of elements stays, so the distance from a row to the next must."""
    ((given, before),) = call.before.items()
    step = before.inner * prod(given.meta["val"].shape[before.axis + 1 :])
    return None if step == call.place.inner * prod(call.shape[call.place.axis + 1 :]) else "groups the rows anew"


def _along(call: _Call) -> str | None:
    """Positions of some axes meet, and none of these is the axis of the rows."""
    ndims = {one.meta["val"].ndim + (one is call.args.get("pivots")) for one in call.before}
    if len(ndims) > 1 or len({*call.before.values()}) > 1:
        return "meets rows at different places"
    before = next(iter(call.before.values()))
    if call.name == "slice" and call.args["start"] in (None, 0) and call.args["end"] in (None, 2**63 - 1):
        return None
    ndim, axis = (len(call.shape), call.place.axis) if call.name in _ALONG_RESULT else (ndims.pop(), before.axis)
    dims = _dims(call)
    return "works along the axis of the records" if dims is None or axis in {one % ndim for one in dims} else None


def _dims(call: _Call) -> list[int] | None:
    """Return the axes along which a call works; ``None`` if it is all of them."""
    args = call.args
    if call.name in _ALONG_LAST:
        return [-1 - k for k in range(_ALONG_LAST[call.name])]
    if "normalized_shape" in args:
        return [-1 - k for k in range(len(args["normalized_shape"]))]
    if call.name == "repeat":
        return [-1 - k for k, times in enumerate(reversed(args["repeats"])) if times != 1]
    if call.name == "constant_pad_nd":
        return [-1 - k // 2 for k, padded in enumerate(args["pad"]) if padded]
    named = [args[key] for key in ("dim", "dims", "dimension", "dim1", "dim2") if args.get(key) is not None]
    return [k for one in named for k in (one if isinstance(one, (list, tuple)) else [one])] or None


def _first_axis(call: _Call) -> str | None:
    """Each position of the first axis is worked on by itself, with weights that are the same for all."""
    if call.args.get("reduction", 0) != 0:
        return "joins the losses of records"
    apart = all(place.axis == 0 for place in call.before.values()) and len({*call.before.values()}) == 1
    return None if apart else "takes the axis of the records for another than that of a batch"


def _attention(call: _Call) -> str | None:
    """As by the first axis; PyTorch's kernels do not compare the sizes of queries, keys and values themselves."""
    query, key, value = (call.args[one].meta["val"].shape for one in ("query", "key", "value"))
    if key[:-1] != value[:-1] or query[:-2] != key[:-2]:
        return "meets keys and values of different lengths, and would read other records' values"
    return _first_axis(call)


def _channels(call: _Call) -> str | None:
    """As by the first axis; or each record has channels (or groups of them) and weights of its own."""
    data = {call.args[key] for key in _OF_CHANNELS if call.at(key) is not None}
    args = [_arguments(one) for one in call.alike]
    if any([one["N"], one["C"]] != [*one["input"].meta["val"].shape[:2]] for one in args if "N" in one):
        return "is given other sizes than those of its input"
    if data == {*call.before} and "batch_norm" not in call.name and _first_axis(call) is None:
        return None
    groups = [one.get("groups", one.get("group", 0)) for one in args]
    tensors = [one for one in call.alike[0].all_input_nodes if one.meta["val"].numel]
    apart = all(one in call.before and call.before[one].axis == int(one in data) for one in tensors)
    if "batch_norm" in call.name:
        apart = apart and len({place.inner for place in call.before.values()}) == 1
    if apart and not any(of_all % n for of_all, n in zip(groups, call.rows, strict=True)):
        return None
    return "takes the axis of the records for another than that of a batch or of channels"


def _product(call: _Call) -> str | None:
    """Rows of the first factor, columns of the second, or matrices by number are records."""
    bias, first, second = _FACTORS[call.name]
    ndim = len(call.shape)
    axes = tuple(None if place is None else place.axis for place in (call.at(first), call.at(second)))
    if axes not in [(ndim - 2, None), (None, ndim - 1), *([(0, 0)] if ndim == 3 else [])]:
        return "sums over the axis of the records"
    added = call.at(bias) if bias else None
    same = added is None or call.args[bias].meta["val"].ndim - added.axis == ndim - call.place.axis
    return None if same else "meets rows at different places"


def _looked_up(call: _Call) -> str | None:
    """Rows are indices into a table that is the same for all, or are sorted into it."""
    own = any(call.at(key) is not None for key in ("weight", "sorted_sequence", "boundaries"))
    return "looks up rows by an index that is not their own number" if own else None


def _indexed(call: _Call) -> str | None:
    """The axis of the rows is indexed by each row's own number, or not at all."""
    given, values, indices = call.at("self"), call.at("values"), call.args["indices"]
    numbers = [place for one in indices if isinstance(one, Node) and (place := call.before.get(one)) is not None]
    ends = {(one.meta["val"].ndim - call.before[one].axis) for one in indices if one in call.before}
    if given is None and "put" in call.name:
        return "writes rows by an index into what is the same for all"
    if given is not None:
        own = indices[given.axis] if given.axis < len(indices) else None
        if own is None and numbers:
            return "indexes all rows by what differs between records"
        if own is not None and not (given.inner == 1 and own in call.before and call.before[own].numbers):
            return "takes rows by an index that is not their own number"
    if len(ends) > 1 or len({place.inner for place in numbers}) > 1:
        return "meets rows at different places"
    if values is not None and call.args["values"].meta["val"].ndim - values.axis != _indexed_axis(call):
        return "meets rows at different places"
    return None


def _indexed_axis(call: _Call) -> int:
    """Return the axis of the rows, from the end, in what an index takes out of a tensor."""
    shapes = []
    for node in call.alike[:2]:
        own = [node.args[0], *node.args[1]]  # type: ignore[misc]
        meta = [one and torch.empty(one.meta["val"].shape, dtype=one.meta["val"].dtype, device="meta") for one in own]
        shapes.append(torch.ops.aten.index.Tensor(meta[0], meta[1:]).shape)
    (axis,) = (k for k, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b)
    return len(shapes[0]) - axis


def _arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of an operator's call by name, defaults included."""
    arguments = node.target._schema.arguments  # pyright: ignore[reportFunctionMemberAccess,reportAttributeAccessIssue]
    defaults = {one.name: one.default_value for one in arguments if one.has_default_value()}
    return defaults | dict(zip([one.name for one in arguments], node.args, strict=False)) | node.kwargs


def _refusal(node: Node, what: str) -> UnsupportedModuleError:
    name = str(node.target).removeprefix("aten.")
    return UnsupportedModuleError(
        f"{users_line(node)}the operator {name} {what}, so that it cannot be confirmed that records are kept apart"
    )


_OF_CHANNELS = ("input", "grad_output", "grad_out", "mean", "rstd")  # (batch, channels, ...); others are (channels,)
_FACTORS = {
    "mm": ("", "self", "mat2"),
    "bmm": ("", "self", "mat2"),
    "addmm": ("self", "mat1", "mat2"),
    "baddbmm": ("self", "batch1", "batch2"),
}
_REPEATING = {"expand", "repeat"}  # give every row the same
_ALONG_RESULT = {"stack", "select_backward", "slice_backward", "diag_embed", "diagonal_backward", "unfold_backward"}
_MATRICES = """
    _cdist_backward _cdist_forward _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd
    cholesky_inverse linalg_cholesky_ex linalg_householder_product linalg_inv_ex linalg_lu_factor_ex linalg_lu_solve
    linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular tril triu"""
_ALONG_LAST = dict.fromkeys(_MATRICES.split(), 2) | {"pixel_shuffle": 3, "pixel_unshuffle": 3}  # how many axes
_TABLE: dict[Callable[[_Call], str | None], str] = {
    _made: """
        arange empty empty_like empty_strided full full_like new_empty new_empty_strided new_full new_ones new_zeros
        ones ones_like rand rand_like randint randint_like randn randn_like zeros zeros_like""",
    _by_element: """
        _conj _prelu_kernel _prelu_kernel_backward _to_copy alias bernoulli binary_cross_entropy
        binary_cross_entropy_backward binary_cross_entropy_with_logits cauchy copy detach elu_backward expand
        exponential fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask fill geometric
        hardshrink_backward hardsigmoid_backward hardswish hardswish_backward hardtanh_backward huber_loss
        huber_loss_backward leaky_relu_backward lift_fresh_copy log_normal log_sigmoid_backward log_sigmoid_forward
        masked_fill mish_backward mse_loss mse_loss_backward native_dropout normal normal_functional poisson random
        rrelu_with_noise rrelu_with_noise_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
        soft_margin_loss_backward softplus_backward softshrink_backward uniform zero""",
    _moved: "permute squeeze t transpose unsqueeze view_as_complex view_as_real",
    _reshaped: "_unsafe_view reshape view",
    _along: _MATRICES
    + """
        _fft_c2c _fft_c2r _fft_r2c _log_softmax _log_softmax_backward_data _safe_softmax _softmax _softmax_backward_data
        all amax amin aminmax any argmax argmin cat constant_pad_nd cummax cummin cumprod cumsum diag_embed diagonal
        diagonal_backward flip gather glu glu_backward index_add index_copy index_fill index_select kthvalue
        linalg_cross linalg_vector_norm logcumsumexp logsumexp max mean median min mode nansum native_layer_norm
        native_layer_norm_backward norm pixel_shuffle pixel_unshuffle prod repeat roll rot90 scatter scatter_add
        scatter_reduce select select_backward slice slice_backward sort split split_with_sizes stack std std_mean sum
        topk unbind unfold unfold_backward unsafe_split value_selecting_reduction_backward var var_mean""",
    _first_axis: """
        _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
        _upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
        _upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
        _linalg_check_errors adaptive_max_pool2d adaptive_max_pool2d_backward avg_pool2d avg_pool2d_backward avg_pool3d
        avg_pool3d_backward col2im grid_sampler_2d grid_sampler_2d_backward im2col max_pool2d_with_indices
        max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward multinomial
        nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward reflection_pad1d
        reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward replication_pad1d
        replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
        replication_pad3d_backward upsample_bicubic2d
        upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d
        upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d
        upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d
        upsample_trilinear3d_backward""",
    _attention: """
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward""",
    _channels: """
        convolution convolution_backward native_batch_norm native_batch_norm_backward native_group_norm
        native_group_norm_backward""",
    _product: "addmm baddbmm bmm mm",
    _looked_up: "bucketize embedding searchsorted",
    _indexed: "_index_put_impl _unsafe_index _unsafe_index_put index index_put",
}
_KINDS = {name: kind for kind, names in _TABLE.items() for name in names.split()}
