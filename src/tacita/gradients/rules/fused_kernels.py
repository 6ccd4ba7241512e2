"""Replacements of torch functions that run much faster on the whole batch than record by record.

``vmap`` has no rule for some fused kernels: it calls them once a record, or takes them apart. The functions here fold
the batch axis into an axis that such a kernel has already. Each keeps rows apart: row 0 alone equals row 0 among
hostile companions (tests/gradients/rules/test_fused_kernels.py). For a call that it does not serve, a function returns
``NotImplemented``, and ``vmap`` runs it.
"""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.record_batch import RecordBatch, outside
from tacita.gradients.rules.products import PRODUCTS
from tacita.gradients.rules.recurrent import RECURRENT


def _cross_entropy(  # noqa: PLR0917 - the arguments of the torch function
    batch: RecordBatch,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    simple = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    if not (simple and input.ndim >= 2 and target.ndim == input.ndim - 1 and _one_differs(batch, input, target)):
        return NotImplemented
    scores, classes = batch.all(input), batch.all(target)
    with outside():
        if scores.stride(2) == 1 and scores.ndim > 3:  # classes lie side by side: far faster with their axis last
            flat, labels = scores.movedim(2, -1).flatten(0, -2), classes.flatten()
        else:
            flat, labels = scores.flatten(0, 1), classes.flatten(0, 1)
        found = F.cross_entropy(flat, labels, ignore_index=ignore_index, reduction="none").view(classes.shape)
        if reduction == "sum":
            found = found.flatten(1).sum(dim=1)
        elif reduction == "mean":
            found = found.flatten(1).sum(dim=1) / classes.ne(ignore_index).flatten(1).sum(dim=1)
    return batch.one(found)


def _attention(  # noqa: PLR0917 - the arguments of the torch function
    batch: RecordBatch,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    inputs = (query, key, value)
    alike = all(t.ndim == query.ndim >= 3 and t.shape[:-3] == query.shape[:-3] for t in inputs)
    if not (alike and _one_differs(batch, *inputs)):
        return NotImplemented
    physical, mask, lead = [batch.all(t) for t in inputs], attn_mask, query.ndim - 3  # axes before the heads
    if attn_mask is not None and batch.differs(attn_mask):
        mask = batch.all(attn_mask)
        mask = mask.reshape(len(mask), *(1,) * (query.ndim - attn_mask.ndim), *attn_mask.shape)
        mask = mask.expand(-1, *query.shape[:lead], -1, -1, -1).flatten(0, lead)
    with outside():
        found = F.scaled_dot_product_attention(
            *(t.flatten(0, lead) for t in physical),
            attn_mask=mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        ).unflatten(0, physical[0].shape[: lead + 1])
    return batch.one(found)


def _instance_norm(  # noqa: PLR0917 - the arguments of the torch function
    batch: RecordBatch,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not use_input_stats or running_mean is not None or weight is None or input.ndim < 3:
        return NotImplemented
    return F.group_norm(input, input.shape[1], weight, bias, eps)


def _weight_norm(batch: RecordBatch, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Write a weight normalisation out: the gradient of PyTorch's kernel has no rule for ``vmap``."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def _select_scatter(batch: RecordBatch, input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Join what lies before and after: PyTorch's rule writes each value several times, and so counts its gradient."""
    at, dim = index % input.shape[dim], dim % input.ndim
    before, _, after = torch.tensor_split(input, (at, at + 1), dim)
    return torch.cat([before, src.unsqueeze(dim).to(input.dtype), after], dim)


def _one_differs(batch: RecordBatch, *tensors: Tensor) -> bool:
    """Return whether one tensor has the batch axis."""
    return any(map(batch.differs, tensors))


def _composed(function: Any) -> Callable[..., Any]:
    """Return ``function``, which PyTorch wrote in Python, such that each torch function that it calls is seen."""
    seen = {**function.__globals__, "has_torch_function": lambda *_: False}
    body = types.FunctionType(function.__code__, seen, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__

    def run(batch: RecordBatch, *args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    return run


def _requires_grad(batch: RecordBatch, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Leave a record's tensor as it is: no gradient is taken in it, and checkpoints, which ask for that, are off."""
    return tensor if batch.differs(tensor) else NotImplemented


def _zeros(function: Any) -> Callable[..., Any]:
    """Return ``function`` in place of one whose memory is not initialised and may still hold a companion's values."""
    return lambda batch, *args, **kwargs: function(*args, **kwargs)


def _distances(batch: RecordBatch, x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Any:
    """Run ``torch.cdist`` by differences: for its form by products PyTorch's rule repeats the records in a trace."""
    plain = "donot_use_mm_for_euclid_dist"
    return NotImplemented if compute_mode == plain else torch.cdist(x1, x2, p, plain)


KERNELS = {F.cross_entropy, F.scaled_dot_product_attention}  # whose replacements call nothing that has a rule
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    F.cross_entropy: _cross_entropy,
    F.scaled_dot_product_attention: _attention,
    F.instance_norm: _instance_norm,
    torch.cdist: _distances,
    torch.select_scatter: _select_scatter,
    torch.Tensor.select_scatter: _select_scatter,
    F.multi_head_attention_forward: _composed(F.multi_head_attention_forward),
    torch._weight_norm: _weight_norm,  # pyright: ignore[reportPrivateImportUsage]
    torch.Tensor.requires_grad_: _requires_grad,
    torch.empty: _zeros(torch.zeros),
    torch.empty_like: _zeros(torch.zeros_like),
    torch.Tensor.new_empty: _zeros(torch.Tensor.new_zeros),
    **RECURRENT,
    **PRODUCTS,
}
