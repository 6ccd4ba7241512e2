"""Products, look-ups and bags written as calls of the functions that have rules.

Each function here computes what a torch function computes, where one operand is a weight: by ``linear``, ``bmm`` or
``embedding``, with views of the operands. For a call that it does not serve, it returns ``NotImplemented``.
"""

from collections.abc import Callable, Sequence
from math import prod
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.record_batch import RecordBatch


def _is_weight(batch: RecordBatch, operand: Any) -> bool:
    """Return whether an operand is the same for all records and depends on parameters."""
    return isinstance(operand, Tensor) and operand.requires_grad and not batch.differs(operand)


def _matmul(batch: RecordBatch, input: Tensor, other: Tensor) -> Any:
    if _is_weight(batch, other) and batch.differs(input):
        return _right_product(input, other)
    if _is_weight(batch, input) and batch.differs(other):
        if other.ndim == 1:
            return _right_product(other, input.mT if input.ndim > 1 else input)
        if input.ndim == 1:
            return _right_product(other.mT, input)
        found = _right_product(other.mT, input.mT)
        return found if found is NotImplemented else found.mT
    return NotImplemented


def _right_product(x: Tensor, weight: Tensor) -> Any:
    """Return ``x @ weight``."""
    if weight.ndim == 1:
        return F.linear(x, weight.unsqueeze(0)).squeeze(-1)
    if weight.ndim == 2:
        return F.linear(x, weight.t())
    if weight.ndim != 3 or x.ndim < 2:
        return NotImplemented
    stack = x.unsqueeze(0) if x.ndim == 2 else x
    stack = stack.expand(*stack.shape[:-3], len(weight), *stack.shape[-2:]).movedim(-3, 0)  # (stack, ..., n, in)
    found = torch.bmm(stack.flatten(1, -2), weight)
    return found.view(*stack.shape[:-1], weight.shape[-1]).movedim(0, -3)


def _bmm(batch: RecordBatch, input: Tensor, mat2: Tensor) -> Any:
    if _is_weight(batch, input) and batch.differs(mat2):
        return torch.bmm(mat2.mT, input.mT).mT
    return NotImplemented


def _baddbmm(
    batch: RecordBatch, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if not (_is_weight(batch, batch1) or _is_weight(batch, batch2)):
        return NotImplemented
    return beta * input + alpha * torch.bmm(batch1, batch2)


def _addmm(batch: RecordBatch, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if not (_is_weight(batch, mat1) or _is_weight(batch, mat2)):
        return NotImplemented
    return beta * input + alpha * torch.matmul(mat1, mat2)


def _bilinear(batch: RecordBatch, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not _is_weight(batch, weight):
        return NotImplemented
    half = F.linear(input1, weight.transpose(1, 2).flatten(0, 1)).unflatten(-1, (len(weight), -1))
    found = (half @ input2.unsqueeze(-1)).squeeze(-1)
    return found if bias is None else found + bias


def _tensordot(batch: RecordBatch, a: Tensor, b: Tensor, dims: Any = 2, out: None = None) -> Any:
    if out is not None or isinstance(dims, Tensor) or not (_is_weight(batch, a) or _is_weight(batch, b)):
        return NotImplemented
    of_a, of_b = (range(a.ndim - dims, a.ndim), range(dims)) if isinstance(dims, int) else dims
    left, right = list(ascii_letters[: a.ndim]), list(ascii_letters[a.ndim : a.ndim + b.ndim])
    for i, j in zip(of_a, of_b, strict=True):
        right[j] = left[i]
    kept = "".join(c for c in left + right if (c in left) != (c in right))
    return torch.einsum(f"{''.join(left)},{''.join(right)}->{kept}", a, b)


def _einsum(batch: RecordBatch, equation: Any, *operands: Any) -> Any:
    terms = _terms(equation, operands)
    if terms is None or not any(_is_weight(batch, one) for one in operands):
        return NotImplemented
    (*inputs, output) = terms
    if len(operands) > 2:  # from left to right, as PyTorch does
        rest = set("".join(inputs[2:])) | set(output)
        kept = "".join(c for c in dict.fromkeys(inputs[0] + inputs[1]) if c in rest)
        first = torch.einsum(f"{inputs[0]},{inputs[1]}->{kept}", *operands[:2])
        return torch.einsum(f"{','.join([kept, *inputs[2:]])}->{output}", first, *operands[2:])
    if len(operands) < 2 or _is_weight(batch, operands[0]) == _is_weight(batch, operands[1]):
        return NotImplemented
    pairs = list(zip(inputs, operands, strict=True))
    (letters, x), (of_weight, weight) = pairs if _is_weight(batch, operands[1]) else reversed(pairs)
    return _weigh(x, letters, weight, of_weight, output)


def _terms(equation: Any, operands: Sequence[Any]) -> list[str] | None:
    """Return the letters of each operand and of the result; ``None`` if one has an ellipsis or a diagonal."""
    if not isinstance(equation, str) or not all(isinstance(one, Tensor) for one in operands):
        return None
    left, arrow, output = equation.replace(" ", "").partition("->")
    inputs, lead = left.split(","), ""
    if "..." in left:
        spare = [c for c in ascii_letters if c not in equation]
        counts = [one.ndim - len(term) + 3 for term, one in zip(inputs, operands, strict=True) if "..." in term]
        if len(counts) > 1:
            return None
        lead = "".join(spare[: counts[0]])
        inputs, output = [term.replace("...", lead) for term in inputs], output.replace("...", lead)
    if not arrow:  # the axes of the ellipsis come first, then the letters that stand once, in order
        letters = "".join(inputs)
        output = lead + "".join(sorted(c for c in {*letters} - {*lead} if letters.count(c) == 1))
    plain = all(len(set(term)) == len(term) and term.isalpha() for term in inputs) and len(inputs) == len(operands)
    return [*inputs, output] if plain and "." not in output else None


def _weigh(x: Tensor, of_x: str, weight: Tensor, of_weight: str, output: str) -> Any:
    """Return the product of ``x`` and a weight by their letters: ``linear``, or ``bmm`` for letters that all have."""
    size = dict(zip(of_x + of_weight, (*x.shape, *weight.shape), strict=False))
    alone = [c for c in of_x if c not in of_weight and c not in output]
    if alone:
        x, of_x = x.sum(dim=[of_x.index(c) for c in alone]), "".join(c for c in of_x if c not in alone)
    stack = [c for c in of_weight if c in of_x and c in output]
    summed = [c for c in of_weight if c in of_x and c not in output]
    made = [c for c in of_weight if c not in of_x]
    places = [c for c in of_x if c not in of_weight]
    broadcast = any(x.shape[of_x.index(c)] != weight.shape[of_weight.index(c)] for c in stack + summed)
    if broadcast or not set(made) <= set(output) or (stack and not summed and not made):
        return NotImplemented  # a product by elements, which autograd serves as well

    def arranged(tensor: Tensor, letters: str, *axes: list[str]) -> Tensor:
        found = tensor.permute([letters.index(c) for axis in axes for c in axis])
        return found.reshape([prod(size[c] for c in axis) for axis in axes])

    if stack:
        found = torch.bmm(arranged(x, of_x, stack, places, summed), arranged(weight, of_weight, stack, summed, made))
    else:
        found = F.linear(arranged(x, of_x, places, summed), arranged(weight, of_weight, made, summed))
    order = [*stack, *places, *made]
    return found.reshape([size[c] for c in order]).permute([order.index(c) for c in output])


def _row(batch: RecordBatch, table: Tensor, index: Any) -> Any:
    """Return ``table[index]`` as an embedding: rows of a weight, by one tensor of integers."""
    one = isinstance(index, Tensor) and not index.is_floating_point() and index.dtype not in (torch.bool, torch.uint8)
    if not (one and _is_weight(batch, table) and batch.differs(index) and table.ndim):
        return NotImplemented
    places = torch.where(index < 0, index + len(table), index).long()
    rows = F.embedding(places, table if table.ndim == 2 else table.reshape(len(table), -1))
    return rows.view(*index.shape, *table.shape[1:])


def _index_select(batch: RecordBatch, input: Tensor, dim: int, index: Tensor) -> Any:
    return _row(batch, input, index) if dim == 0 else NotImplemented


def _embedding_bag(  # noqa: PLR0917 - the arguments of the torch function
    batch: RecordBatch,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    if mode not in ("sum", "mean", "max") or not _is_weight(batch, weight) or (mode == "max" and offsets is not None):
        return NotImplemented
    rows = F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    if mode == "max":
        return _largest(rows, None if padding_idx is None else input.eq(padding_idx % len(weight)))
    counted = torch.ones_like(input, dtype=rows.dtype)
    if padding_idx is not None:
        counted = input.ne(padding_idx % len(weight)).to(rows.dtype)
        rows = rows * counted.unsqueeze(-1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if offsets is None:
        total, count = rows.sum(dim=1), counted.sum(dim=1)
    else:
        positions = torch.arange(len(input), device=input.device)
        bags = len(offsets) - include_last_offset
        bag = (positions.unsqueeze(1) >= offsets).sum(dim=1) - 1  # the last bag that begins at or before a position
        bag = bag.clamp(max=bags)
        both = torch.cat([rows, counted.unsqueeze(-1)], dim=1)
        zeros = both.new_zeros(bags + 1, both.shape[1])
        in_order = both.is_cpu  # where index_add has no fixed order, index_put has
        added = zeros.index_add(0, bag, both) if in_order else zeros.index_put((bag,), both, accumulate=True)
        total, count = added[:bags, :-1], added[:bags, -1]
    return total if mode == "sum" else total / count.clamp(min=1).unsqueeze(-1)


def _largest(rows: Tensor, left_out: Tensor | None) -> Tensor:
    """Return the largest value of each bag, (bags, positions, width) -> (bags, width); zeros for an empty bag."""
    if left_out is None:
        return rows.max(dim=1).values
    found = rows.masked_fill(left_out.unsqueeze(-1), -torch.inf).max(dim=1).values
    return found.masked_fill(left_out.all(dim=1, keepdim=True), 0.0)


PRODUCTS: dict[Any, Callable[..., Any]] = {
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.__rmatmul__: lambda batch, self, other: _matmul(batch, other, self),
    torch.mm: _matmul,
    torch.Tensor.mm: _matmul,
    torch.mv: _matmul,
    torch.Tensor.mv: _matmul,
    torch.bmm: _bmm,
    torch.Tensor.bmm: _bmm,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.baddbmm: _baddbmm,
    torch.Tensor.baddbmm: _baddbmm,
    torch.tensordot: _tensordot,
    torch.einsum: _einsum,
    F.bilinear: _bilinear,
    torch.Tensor.__getitem__: _row,
    torch.index_select: _index_select,
    torch.Tensor.index_select: _index_select,
    F.embedding_bag: _embedding_bag,
}
