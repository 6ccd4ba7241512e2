"""Contract tests of tacita's families, for its own members and for third parties'.

Place: above the stages, imported by tests only. Each check raises ``AssertionError`` with what went wrong.
"""

from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from tacita.clipping.clipper import Clipper


def check_clipper(clipper: Clipper, shapes: Mapping[str, torch.Size], *, extra_norms: Tensor | None = None) -> None:
    r"""Hold a weight rule to its contract: groups that partition the parameters, and weights that bound every norm.

    Guarantee checked: ``weight * norm <= max_contribution`` exactly (in rationals), and once more after the product is
    rounded, for norms that are 0, subnormal, tiny, around the threshold, huge, infinite or NaN; in float32 and float64.

    Args:
        clipper: The member to check.
        shapes: Shapes of parameters that it can group.
        extra_norms: Further norms to try, any shape; those that are not finite included.

    Example:
        >>> from tacita.clipping import FlatClipper
        >>> check_clipper(FlatClipper(max_grad_norm=0.1), {"weight": torch.Size([3, 2])})
    """
    groups = clipper.groups(shapes)
    grouped = [name for names in groups.values() for name in names]
    assert sorted(grouped) == sorted(shapes), f"groups must hold each parameter once, got {groups}"
    bounds = clipper.max_contribution(shapes)
    assert list(bounds) == list(groups), f"max_contribution must name the groups in order, got {list(bounds)}"
    thresholds = list(bounds.values())
    for dtype in (torch.float32, torch.float64):
        values = _hostile_norms(thresholds, dtype)
        if extra_norms is not None:
            values = torch.cat([values, extra_norms.flatten().to(dtype)])
        norms = torch.stack([values.roll(k) for k in range(len(groups))], dim=-1)
        _check_weights(clipper, norms, thresholds)


def _hostile_norms(thresholds: list[float], dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    smallest = limits.tiny * limits.eps
    fixed = [0.0, smallest, limits.tiny, 1e-30, 1e-3, 1.0, 3.0, 1e10, 1e30, limits.max, torch.inf, torch.nan]
    near = torch.tensor(thresholds, dtype=dtype)
    steps = torch.cat([near * (1 + k * limits.eps) for k in (-2, -1, 0, 1, 2)])
    clipped = torch.cat([near * factor for factor in (1.1, 1.7, 3.0, 7.0, 1e3 / 3, 1e7 / 3)])  # quotients that round
    return torch.cat([torch.tensor(fixed, dtype=dtype), steps, clipped])


def _check_weights(clipper: Clipper, norms: Tensor, thresholds: list[float]) -> None:
    given = norms.clone()
    weights = clipper.weights(norms)
    assert torch.equal(norms.nan_to_num(-1.0), given.nan_to_num(-1.0)), "weights must not modify the norms"
    assert weights.shape == norms.shape, f"weights have shape {weights.shape}, norms {norms.shape}"
    assert weights.isfinite().all(), "weights must be finite"
    assert (weights >= 0).all(), "weights must be >= 0"
    assert (weights[~norms.isfinite()] == 0).all(), "a norm that is not finite must get weight 0"
    for row_norms, row_weights in zip(norms.tolist(), weights.tolist(), strict=True):
        for n, w, c in zip(row_norms, row_weights, thresholds, strict=True):
            assert w == 0 or Fraction(w) * Fraction(n) <= Fraction(c), f"weight({n}) * {n} exceeds {c}"
    rounded = torch.where(norms.isfinite(), weights * norms, 0.0).double()
    assert (rounded <= torch.tensor(thresholds, dtype=torch.float64)).all(), "the rounded product exceeds the bound"
    assert clipper.weights(norms[:0]).shape == norms[:0].shape, "an empty batch must give empty weights"
    by_row = torch.cat([clipper.weights(row) for row in norms.split(1)])
    assert torch.equal(by_row, weights), "weights must act row by row"
    runs = clipper.weights(norms.expand(3, *norms.shape))
    assert torch.equal(runs, weights.expand(3, *weights.shape)), "weights must take leading axes"
