r"""Norms of sums of outer products: the gradient of a matrix that meets many positions of one sample.

Place: the ground of the rules of linear and convolution layers.
Source of the Gram form: Li et al. (2022), https://arxiv.org/abs/2110.05679, Section 4. Derivation of the rounding
terms: docs/derivations/ghost_norms.md.

For one sample with inputs :math:`a_t` and output gradients :math:`d_t` at positions :math:`t` the gradient is
:math:`G = \sum_t d_t a_t^\top`. Its norm has a closed form for one position, is cheap from
:math:`\lVert G \rVert_F^2 = \sum_{t,s} (a_t \cdot a_s)(d_t \cdot d_s)` for few, and is taken from :math:`G` itself for
many. Tensors are (rows, positions, width) throughout.
"""

import torch
from torch import Tensor

from tacita.gradients.ghost.rounding import add_radius, gamma, squared_row_norms, unit
from tacita.gradients.ghost.rule import squared_norm_of

HELD = 2**22  # elements of per-sample gradients that are held at once
LOOSE = 0.01  # a Gram norm whose rounding term is a larger share of its square is computed again, directly
GRAM_TERM = 0.004  # share of the square that the term has for a sample with incoherent positions: fixes the blocks
SMALLEST_BLOCK = 32  # narrower ones would be all overhead


def gram_is_cheaper(positions: int, in_width: int, out_width: int) -> bool:
    """Multiplications of the two Gram matrices against those of the gradient."""
    return positions * (in_width + out_width) < in_width * out_width


def outer_grads(a: Tensor, d: Tensor) -> Tensor:
    """The gradients themselves, (rows, out, in)."""
    return d.mT @ a


def squared_norms(a: Tensor, d: Tensor, *, rounding_margin: bool = True) -> Tensor:
    """Squared norms of the gradients, (rows,), float64: closed form, Gram or direct, whichever is cheapest."""
    if a.shape[1] == 1:
        left, right = (squared_row_norms(m[:, 0], rounding_margin=rounding_margin) for m in (a, d))
        return left.mul_(right)
    reach = sum_of_products(a, d)
    if gram_is_cheaper(a.shape[1], a.shape[2], d.shape[2]):
        squares = gram_squares(a, d, reach, rounding_margin=rounding_margin)
    else:
        squares = direct_squares(a, d, rounding_margin=rounding_margin)
    return with_margin(squares, reach, a.shape[1], a.dtype) if rounding_margin else squares


def with_margin(squares: Tensor, reach: Tensor, positions: int, dtype: torch.dtype) -> Tensor:
    r"""Make squares upper bounds, of the exact gradient's norm and of what a sum of products in ``dtype`` adds.

    A sum of T products per coordinate is off by at most :math:`\gamma_T \sum_t |d_t| |a_t|` in norm; it is computed
    twice, for the norm and for the sum. A row whose partial sums may overflow counts as not finite.
    """
    bounds = add_radius(squares, 2 * gamma(positions + 4, dtype) * reach)
    return torch.where(reach < torch.finfo(dtype).max / 4, bounds, torch.inf)


def sum_of_products(a: Tensor, d: Tensor) -> Tensor:
    r"""Upper bounds of :math:`S = \sum_t |a_t| |d_t|`, (rows,), float64."""
    left, right = (squared_row_norms(m).sqrt_() for m in (a, d))
    return left.mul_(right).sum(dim=1)


def direct_squares(a: Tensor, d: Tensor, *, rounding_margin: bool = True) -> Tensor:
    """Squared norms from gradients that are held a few rows at a time."""
    height = max(1, HELD // max(1, a.shape[2] * d.shape[2]))
    blocks = zip(a.split(height), d.split(height), strict=True)
    return torch.cat([squared_norm_of(outer_grads(x, y), rounding_margin=rounding_margin) for x, y in blocks])


def gram_squares(a: Tensor, d: Tensor, reach: Tensor, *, rounding_margin: bool = True) -> Tensor:
    r"""Squared norms from Gram matrices, with the term :math:`c u S^2` that their cancellation can hide.

    Rows whose term exceeds ``LOOSE`` of the square, canaries among them, are computed again from their gradients in
    float64.
    """
    left, left_terms = _gram(a)
    right, right_terms = _gram(d)
    squares = left.mul_(right).sum(dim=(1, 2), dtype=torch.float64).clamp_(min=0.0)
    term = gamma(left_terms + right_terms + 4, a.dtype) * reach.square()
    bounds = squares + term if rounding_margin else squares
    loose = term > LOOSE * squares
    if loose.any():
        bounds[loose] = direct_squares(a[loose].double(), d[loose].double(), rounding_margin=rounding_margin)
    return bounds


def _gram(rows: Tensor) -> tuple[Tensor, int]:
    """Inner products of all pairs of positions, (rows, T, T), and in how many roundings each has been taken.

    The width is cut into blocks that are summed one after another: a product over a block of n has n roundings in
    any order that a kernel may choose, and k blocks add k.
    """
    positions, width = rows.shape[1:]
    budget = GRAM_TERM / (2 * unit(rows.dtype) * positions)
    block = int(min(width, max(SMALLEST_BLOCK, budget)))
    parts = rows.split(block, dim=2)
    total = parts[0] @ parts[0].mT
    for part in parts[1:]:
        total += part @ part.mT
    return total, block + len(parts)
