r"""Norms and weighted sums of per-sample gradients that are held as tensors.

Place: inside the engines. Input and output are private.

Norms are accumulated in float64 whatever the dtype (a float32 sum of three million squares is 6e-5 too small) and
rounded up: the sum of n non-negative squares in float64 has a relative error of at most :math:`(n + 1) u / (1 -
(n + 1) u)`, :math:`u = 2^{-53}`, the root halves it, and root and sum over tensors add a few u. A factor
:math:`1 + (n + 8) u` therefore gives an upper bound for every :math:`n < 2^{50}`; it is 1e-7 at a thousand million
parameters. (float64 entries below 1e-150 may underflow when squared; float32 and narrower ones cannot.)
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tacita.gradients.engine import Groups, Rule

UNIT = 2.0**-53  # unit roundoff of float64


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums of ``dtype``: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def group_norms(grads: Mapping[str, Tensor], groups: Groups, lead: int = 1) -> Tensor:
    """Upper bounds of the L2 norm of each row over each group, shape (*rows, groups), float64.

    ``lead`` is the number of leading axes of ``grads`` that count rows: 1 for (batch, *param).
    """
    return torch.stack([norm_over([grads[name] for name in names], lead) for names in groups.values()], dim=-1)


def norm_over(tensors: Iterable[Tensor], lead: int = 1) -> Tensor:
    """Upper bounds of the L2 norm of each row over several tensors, float64, shape: the first ``lead`` axes."""
    flat = [g.reshape(*g.shape[:lead], -1) for g in tensors]
    parts = [torch.linalg.vector_norm(g, dim=-1, dtype=torch.float64) for g in flat]
    total = torch.linalg.vector_norm(torch.stack(parts, dim=-1), dim=-1)
    return round_up(total, sum(g.shape[-1] for g in flat))


def round_up(norms: Tensor, terms: int) -> Tensor:
    """Upper bounds from float64 norms that were accumulated over ``terms`` squares."""
    return norms * (1 + (terms + 8) * UNIT)


def round_down(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """``weights`` in ``dtype``, never larger than they were (they are >= 0), so that no clip factor is rounded up."""
    narrow = weights.to(dtype)
    return torch.where(narrow > weights, torch.nextafter(narrow, torch.zeros_like(narrow)), narrow)


def weight_arrays(rule: Rule, norms: Tensor) -> tuple[Tensor, ...]:
    """The weight arrays that ``rule`` gives for ``norms``, each of their shape."""
    weights = rule(norms)
    weights = weights if isinstance(weights, tuple) else (weights,)
    for array in weights:
        if array.shape != norms.shape:
            raise ValueError(f"rule must return weights of shape {tuple(norms.shape)}, got {tuple(array.shape)}.")
    return weights


def weighted_sum(grads: Mapping[str, Tensor], weights: Tensor, groups: Groups) -> dict[str, Tensor]:
    """For each parameter the sum over the batch of ``weights[..., g]`` times its rows; weight 0 means absent.

    Args:
        grads: (..., batch, *param) by name; the leading axes are those of ``weights``.
        weights: (..., batch, groups), >= 0.
        groups: Their columns.

    Returns:
        Parameter name -> (..., *param), float32 or better, in the order of ``grads``.
    """
    column = {name: k for k, names in enumerate(groups.values()) for name in names}
    return {name: _sum_rows(g, weights[..., column[name]]) for name, g in grads.items() if name in column}


def _sum_rows(grad: Tensor, weights: Tensor) -> Tensor:
    lead = weights.ndim
    rows = grad.reshape(*weights.shape, -1).to(wide(grad.dtype))
    rows = torch.where((weights != 0).unsqueeze(-1), rows, 0.0)  # where(), not the factor 0: 0 * nan is nan
    total = (round_down(weights, rows.dtype).unsqueeze(-2) @ rows).squeeze(-2)
    return total.reshape(*weights.shape[:-1], *grad.shape[lead:])
