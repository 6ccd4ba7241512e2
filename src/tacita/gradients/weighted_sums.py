r"""Norms and weighted sums of per-sample gradients that are held as tensors.

Input and output are private.

Norms are accumulated in float64, whatever the dtype (a float32 sum of three million squares is 6e-5 too small), and
rounded up. The sum of n non-negative squares in float64 has a relative error of at most :math:`(n + 1) u / (1 -
(n + 1) u)` with :math:`u = 2^{-53}`. The root halves the error; the root itself and the sum over tensors add a few u. A
factor :math:`1 + (n + 8) u` therefore gives an upper bound for every :math:`n < 2^{50}`. At a thousand million
parameters it exceeds 1 by 1e-7. (float64 entries below 1e-150 may underflow when squared; float32 and narrower entries
cannot.)

A row is weighted in its own dtype. A weight that leaves room for the roundings of float64 leaves none for those of
float32: each product may be larger by a factor :math:`1 + u'`, where :math:`u'` is the unit roundoff of the rows. A
weight is therefore made smaller by :math:`8 u'` unless it is 1, whose products are exact. Products are never taken in
less than the rows' own precision, whatever autocast or TF32 say.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from tacita.gradients.engine import Groups, Rule

UNIT = 2.0**-53  # unit roundoff of float64
BLOCK = 2**18  # elements widened to float64 at once
_SWITCHING = Lock()  # of what PyTorch has once in a process, by the type of device:
_WITHIN = Counter[str]()  # ... how often full_precision has begun and not ended
_BEFORE: dict[str, list[tuple[Any, str, Any]]] = {}  # ... and what the switches were before


@cache
def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which tensors of ``dtype`` are summed: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


@cache
def exact_device(device: torch.device) -> torch.device:
    """Return where gradients that come from ``device`` are bounded: there, or on the CPU if it has no float64."""
    try:
        return torch.zeros(1, dtype=torch.float64, device=device).device
    except (TypeError, RuntimeError):  # Apple's devices, Intel's
        return torch.device("cpu")


def to_exact(tensor: Tensor) -> Tensor:
    """Return a tensor where it is bounded, and, unless it holds integers, in the dtype in which it is summed."""
    return tensor.to(exact_device(tensor.device), wide(tensor.dtype) if tensor.is_floating_point() else tensor.dtype)


def zeros_for(parameter: Tensor, *lead: int) -> Tensor:
    """Return zeros in place of a parameter's gradient, (*lead, *parameter), float32 or better."""
    return torch.zeros((*lead, *parameter.shape), dtype=wide(parameter.dtype), device=exact_device(parameter.device))


def group_norms(grads: Mapping[str, Tensor], groups: Groups, lead: int = 1) -> Tensor:
    """Return upper bounds of the L2 norm of each row over each group, shape (*rows, groups), float64.

    ``lead`` is the number of leading axes of ``grads`` that count rows: 1 for (batch, *param).
    """
    return torch.stack([norm_over([grads[name] for name in names], lead) for names in groups.values()], dim=-1)


def norm_over(tensors: Iterable[Tensor], lead: int = 1) -> Tensor:
    """Return upper bounds of the L2 norm of each row over several tensors, float64, of their first ``lead`` axes."""
    flat = [g.reshape(*g.shape[:lead], g.shape[lead:].numel()) for g in tensors]
    squares = torch.stack([_squared_norms(g) for g in flat], dim=-1).sum(dim=-1)
    return round_up(squares.sqrt(), sum(g.shape[-1] for g in flat))


def _squared_norms(rows: Tensor) -> Tensor:
    """Sum the squares over the last axis in float64, in blocks that stay in the cache once they are widened."""
    flat = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1])
    total = flat.new_zeros(flat.shape[0], dtype=torch.float64)
    for columns in flat.split(BLOCK, dim=1):
        height = max(1, BLOCK // max(1, columns.shape[1]))
        for top in range(0, flat.shape[0], height):
            block = columns[top : top + height].double()
            total[top : top + height] += torch.linalg.vector_norm(block, dim=-1).square_()
    return total.reshape(rows.shape[:-1])


def round_up(norms: Tensor, terms: int) -> Tensor:
    """Return upper bounds, from float64 norms that were accumulated over ``terms`` squares."""
    return norms * (1 + (terms + 8) * UNIT)


def round_down(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert weights >= 0 to float32 or float64, rounded towards 0, so that no clip factor is rounded up.

    A subnormal weight, whose rounding no relative error bounds, becomes 0.
    """
    limits = torch.finfo(dtype)
    normal = torch.threshold(weights, limits.tiny * (1 - UNIT), 0.0)
    if torch.finfo(weights.dtype).bits > limits.bits:
        bits = normal.clamp_(max=limits.max).view(torch.int64)
        normal = bits.bitwise_and_(-(2**29)).view(torch.float64)  # 24 of 53 bits: a number of float32
    return normal.to(dtype)


def with_room(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Make ``weights`` smaller by what a product with a number of ``dtype`` may round up; a weight of 1 stays."""
    return torch.where(weights == 1, 1.0, weights * (1 - 4 * torch.finfo(dtype).eps))


def weight_arrays(rule: Rule, norms: Tensor) -> tuple[Tensor, ...]:
    """Return the weight arrays of ``rule`` for ``norms``: each (..., batch, groups), maybe with more leading axes."""
    weights = rule(norms)
    weights = weights if isinstance(weights, tuple) else (weights,)
    for array in weights:
        if array.shape[-norms.ndim :] != norms.shape:
            raise ValueError(f"rule must return weights of shape {tuple(norms.shape)}, got {tuple(array.shape)}.")
    return weights


def weighted_sum(grads: Mapping[str, Tensor], weights: Tensor, groups: Groups, lead: int = 1) -> dict[str, Tensor]:
    """Sum the rows of each parameter, each times its weight in the parameter's group; weight 0 means absent.

    A row adds at most its weight times itself, rounding included.

    Args:
        grads: (..., batch, *param) by name, with ``lead`` axes before those of the parameter.
        weights: (..., batch, groups), >= 0; leading axes broadcast against those of ``grads``.
        groups: The groups, in the order of the columns of ``weights``.
        lead: Number of axes of ``grads`` up to and including ``batch``.

    Returns:
        Parameter name -> (..., *param), float32 or better, in the order of ``grads``.
    """
    column = {name: k for k, names in enumerate(groups.values()) for name in names}
    with full_precision(weights.device):
        return {name: _sum_rows(g, weights[..., column[name]], lead) for name, g in grads.items() if name in column}


def _sum_rows(grad: Tensor, weights: Tensor, lead: int) -> Tensor:
    shape = grad.shape[lead:]
    rows = grad.reshape(*grad.shape[:lead], shape.numel()).to(wide(grad.dtype))
    factors = round_down(with_room(weights, rows.dtype), rows.dtype).unsqueeze(-2)
    total = factors @ rows
    if not total.isfinite().all():  # some row is not finite, and 0 * nan is nan: mask rows before the product
        total = factors @ _without_absent(rows, weights)
    return total.squeeze(-2).reshape((*total.shape[:-2], *shape))


def sums_by_index(index: Tensor, rows: Tensor, size: int) -> Tensor:
    """Return the sums of the rows that have the same index, (size, width), in an order that does not vary.

    On a GPU ``index_add_`` adds up in another order each time, so that no query could be redone bit for bit. There the
    sum is taken as the backward pass of an embedding, which CUDA makes in a fixed order (``Embedding.cu`` in PyTorch).

    Args:
        index: Which sum a row belongs to, (rows,), int64.
        rows: Shape (rows, width).
        size: Number of sums; one that no row belongs to is zeros.

    Example:
        >>> sums_by_index(torch.tensor([2, 0, 2]), torch.tensor([[1.0], [2.0], [3.0]]), 3).flatten()
        tensor([2., 0., 4.])
    """
    if rows.device.type == "cpu":
        return rows.new_zeros(size, rows.shape[1]).index_add_(0, index, rows)
    return torch.ops.aten.embedding_dense_backward(rows, index, size, -1, False)


def _without_absent(rows: Tensor, weights: Tensor) -> Tensor:
    """Replace by zeros each row that has weight 0 and is not finite."""
    bad = ~rows.isfinite().all(dim=-1)
    if (bad & (weights != 0)).any():  # absent in one leading index, present in another: a copy for each
        return torch.where((bad & (weights == 0)).unsqueeze(-1), 0.0, rows)
    return torch.where(bad.unsqueeze(-1), 0.0, rows)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Take matrix products and convolutions as the derivations assume: without TF32, bfloat16 and autocast."""
    if torch.is_autocast_enabled(device.type):
        with torch.autocast(device.type, enabled=False), full_precision(device):
            yield
        return
    kind, switches = device.type, _switches(device.type)
    with _SWITCHING:  # a process has one of each switch: it stays until the last thread is through
        if not _WITHIN[kind]:
            _BEFORE[kind] = [(owner, name, getattr(owner, name)) for owner, name, _ in switches]
        _WITHIN[kind] += 1
        _turn(switches)
    try:
        yield
    finally:
        with _SWITCHING:
            _WITHIN[kind] -= 1
            if not _WITHIN[kind]:
                _turn(_BEFORE[kind])


def _turn(switches: Iterable[tuple[Any, str, Any]]) -> None:
    for owner, name, value in switches:
        if getattr(owner, name) != value:
            setattr(owner, name, value)


@cache
def _switches(device_type: str) -> list[tuple[Any, str, Any]]:
    """Return where PyTorch keeps the precision of its float32 products: object, attribute, and the full precision."""
    backends: Any = torch.backends
    if hasattr(backends.mkldnn, "matmul"):  # torch >= 2.9
        owners = (backends.cuda.matmul, backends.cudnn.conv) if device_type == "cuda" else ()
        owners = owners or (backends.mkldnn.matmul, backends.mkldnn.conv)
        return [(owner, "fp32_precision", "ieee") for owner in owners]
    if device_type == "cuda":
        return [(backends.cuda.matmul, "allow_tf32", False), (backends.cudnn, "allow_tf32", False)]
    return []
