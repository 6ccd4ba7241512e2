r"""Norms of sums of outer products: the gradients of a matrix that meets many positions of one sample.

The rules of linear and convolution layers use them.
Source of the Gram form: Li et al. (2022), https://arxiv.org/abs/2110.05679, Section 4. Derivation of the rounding
terms: docs/derivations/ghost_norms.md.

A sample with inputs :math:`a_t` and output gradients :math:`d_t` at positions :math:`t` has the gradient
:math:`G = \sum_t d_t a_t^\top`. For one position its norm has a closed form. For few positions the Gram form
:math:`\lVert G \rVert_F^2 = \sum_{t,s} (a_t \cdot a_s)(d_t \cdot d_s)` is cheap. For many the norm is taken directly
from :math:`G`. Tensors are (rows, positions, width) throughout.

Calls of different functions may meet in one matrix: a head and the embedding that it is tied to. The gradient over all
calls is one such sum over all their positions. For a linear layer the left factor is the gradient of the output and the
right one the input; for an embedding the left one has a one at the index of the position, and the right one is the
gradient of the output. What a one meets is looked up, and nothing of the size of the matrix is held.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita.gradients.rules.rounding import add_radius, gamma, squared_row_norms, unit
from tacita.gradients.rules.rule import Factors, squared_norm_of

HELD = 2**22  # elements of per-sample gradients in memory at once
LOOSE = 0.01  # if its rounding term is a larger share of its square, a Gram norm is computed again, directly
GRAM_TERM = 0.003  # the term's share of the square for a sample with incoherent positions; decides the blocks
TINY = 2.0**-100  # a smaller term matters to no threshold (at least 2^-40): gradients of exactly 0 have such a term
SMALLEST_BLOCK = 32  # narrower blocks would be all overhead

Lengths = tuple[Tensor, Tensor]  # of a and d at each position: (rows, positions), float64


def gram_is_cheaper(positions: int, in_width: int, out_width: int) -> bool:
    """Return whether the two Gram matrices take fewer multiplications than the gradient."""
    return positions * (in_width + out_width) < in_width * out_width


def weight_is_small(positions: int, in_width: int, out_width: int) -> bool:
    """Return whether a record's gradient takes no more memory than its factors."""
    return in_width * out_width <= positions * (in_width + out_width)


def outer_grads(a: Tensor, d: Tensor) -> Tensor:
    """Return the gradients, (rows, out, in)."""
    return d.mT @ a


def squared_norms(a: Tensor, d: Tensor, *, rounding_margin: bool = True) -> Tensor:
    """Return the squared norms of the gradients, (rows,), float64, in the cheapest form: closed, Gram or direct."""
    if a.shape[1] == 1:
        left, right = (squared_row_norms(m[:, 0], rounding_margin=rounding_margin) for m in (a, d))
        return left.mul_(right)
    gram = gram_is_cheaper(a.shape[1], a.shape[2], d.shape[2])
    if gram:
        squares, lengths = gram_squares(a, d, rounding_margin=rounding_margin)
    else:
        squares, lengths = direct_squares(a, d, rounding_margin=rounding_margin), (row_norms(a), row_norms(d))
    if not rounding_margin:
        return squares
    reach = (lengths[0] * lengths[1]).sum(dim=1)
    return with_margin(squares, reach, a.shape[1], a.dtype, roundings=1 if gram else 2)


def with_margin(squares: Tensor, reach: Tensor, positions: int, dtype: torch.dtype, *, roundings: int = 2) -> Tensor:
    r"""Make squares upper bounds, of the exact gradient's norm and of what a sum of products in ``dtype`` adds.

    A sum of T products per coordinate is off by at most :math:`\gamma_T \sum_t |d_t| |a_t|` in norm. A row whose
    partial sums may overflow counts as not finite.

    Args:
        squares: Shape (rows,), float64.
        reach: Upper bounds of the sum over t, (rows,).
        positions: T.
        dtype: Of the products.
        roundings: How many such sums lie between ``squares`` and what is added: 2 if the norm is that of one sum, and
            the rows are added by another; 1 if the norm is that of the exact gradient, or the same sum is added.
    """
    bounds = add_radius(squares, roundings * gamma(positions + 6 - roundings, dtype) * reach)
    return torch.where(reach < torch.finfo(dtype).max / 4, bounds, torch.inf)


def sum_of_products(a: Tensor, d: Tensor) -> Tensor:
    r"""Return upper bounds of :math:`S = \sum_t |a_t| |d_t|`, (rows,), float64."""
    return row_norms(a).mul_(row_norms(d)).sum(dim=1)


def row_norms(rows: Tensor) -> Tensor:
    """Return upper bounds of the norms over the last axis, float64."""
    return squared_row_norms(rows).sqrt_()


def direct_squares(a: Tensor, d: Tensor, *, rounding_margin: bool = True) -> Tensor:
    """Return the squared norms, from the gradients of a few rows at a time."""
    height = max(1, HELD // max(1, a.shape[2] * d.shape[2]))
    blocks = zip(a.split(height), d.split(height), strict=True)
    return torch.cat([squared_norm_of(outer_grads(x, y), rounding_margin=rounding_margin) for x, y in blocks])


def gram_squares(a: Tensor, d: Tensor, *, rounding_margin: bool = True) -> tuple[Tensor, Lengths]:
    r"""Return squared norms from Gram matrices, with the term that their cancellation can hide; and lengths of a and d.

    Rows whose term exceeds ``LOOSE`` of the square, canaries among them, are computed again from their gradients in
    float64.
    """

    def again(loose: Tensor) -> Tensor:
        return direct_squares(a[loose].double(), d[loose].double(), rounding_margin=rounding_margin)

    return squares_of_grams(gram_of(a), gram_of(d), again, rounding_margin=rounding_margin)


@dataclass(frozen=True)
class Gram:
    """Inner products of all pairs of positions.

    Attributes:
        products: Shape (rows, positions, positions).
        width: Number of products that each is a sum of.
        terms: Number of roundings that each of these passes, at most.
    """

    products: Tensor
    width: int
    terms: int


def squares_of_grams(
    of_a: Gram, of_d: Gram, again: Callable[[Tensor], Tensor], *, rounding_margin: bool = True
) -> tuple[Tensor, Lengths]:
    r"""Return squared norms from the Gram matrices of inputs and output gradients, and the lengths of both.

    Entry (t, s) of one matrix is off by at most :math:`\gamma |a_t| |a_s|` and is multiplied by the other matrix's
    entry as computed. The term is :math:`\gamma \sum_{ts} |a_t| |a_s| |d_t \cdot d_s|`, and the same with a and d
    exchanged.

    Args:
        of_a: Overwritten.
        of_d: Of the same positions.
        again: Mask of loose rows, (rows,) -> their squares, in float64 and without cancellation.
        rounding_margin: Whether the term is added.
    """
    left, right = of_a.products, of_d.products
    dtype, positions = left.dtype, left.shape[1]
    lengths = _lengths(of_a), _lengths(of_d)
    added = 3 + 2 * positions * unit(torch.float64) / unit(dtype)  # of products, which are added up in float64
    of_left = _form(right, lengths[0]).mul_(gamma(of_a.terms + added, dtype))
    of_right = _form(left, lengths[1]).mul_(gamma(of_d.terms + 4, dtype))
    of_both = (lengths[0] * lengths[1]).sum(dim=1).mul_(gamma(of_a.terms + of_d.terms, dtype)).square_()
    underflow = positions**2 * torch.finfo(dtype).tiny  # of products of two entries, which may vanish
    term = (of_left + of_right + of_both).add_(underflow)
    squares = left.mul_(right).sum(dim=2, dtype=torch.float64).sum(dim=1).clamp_(min=0.0)
    bounds = squares + term if rounding_margin else squares
    loose = (term > min(LOOSE, 2**28 * unit(dtype)) * squares) & (term > TINY)
    if bool(loose.any()):
        bounds[loose] = again(loose)
    return bounds, lengths


def _lengths(gram: Gram) -> Tensor:
    """Return upper bounds of the norms whose squares are the diagonal of a Gram matrix, (rows, T), float64."""
    dtype = gram.products.dtype
    squares = gram.products.diagonal(dim1=1, dim2=2).double() * (1 + 2 * gamma(gram.terms, dtype))
    return squares.add_(gram.width * torch.finfo(dtype).tiny).sqrt_()


def _form(gram: Tensor, lengths: Tensor) -> Tensor:
    r"""Return upper bounds of :math:`\sum_{ts} l_t |K_{ts}| l_s` for a Gram matrix K, (rows,), float64."""
    positions = gram.shape[1]
    once = (gram.abs() @ lengths.to(gram.dtype).unsqueeze(-1)).squeeze(-1).double()
    once.add_(positions * torch.finfo(gram.dtype).tiny)  # products that underflow
    return (once * lengths).sum(dim=1).mul_(1 + gamma(positions + 8, gram.dtype))


def gram_of(rows: Tensor) -> Gram:
    """Return the inner products of all pairs of positions of ``rows``, (rows, T, width).

    The width is cut into blocks that are summed one after another. A product over a block of n has n roundings in any
    order that a kernel may choose, and adding k blocks has k more.
    """
    positions, width = rows.shape[1:]
    budget = GRAM_TERM / (2 * unit(rows.dtype) * max(1, positions))
    block = int(min(width, max(SMALLEST_BLOCK, budget)))
    parts = rows.split(block, dim=2)
    total = parts[0] @ parts[0].mT
    for part in parts[1:]:
        total += part @ part.mT
    return Gram(total, width, block + len(parts))


def gram_serves(parts: Sequence[Factors | None], shape: torch.Size) -> bool:
    """Return whether all gradients are factored, and the Gram form of their sum is cheaper than the gradients."""
    factored = [part for part in parts if part is not None]
    return len(factored) == len(parts) and gram_is_cheaper(sum(part.right.shape[1] for part in factored), *shape)


def squares_of_factors(
    parts: Sequence[Factors], again: Callable[[Tensor], Tensor], *, rounding_margin: bool = True
) -> Tensor:
    """Return the squared norms of the gradients that the parts add up to, (rows,), float64.

    Args:
        parts: Of one matrix.
        again: Mask of rows, (rows,) -> their squared norms from the gradients themselves, in float64.
        rounding_margin: Whether the squares are upper bounds.
    """
    vectors = [part for part in parts if part.left.ndim == 3]
    ones = [part for part in parts if part.left.ndim == 2]
    right = torch.cat([part.right for part in vectors + ones], dim=1)
    squares, lengths = squares_of_grams(
        gram_of(right), _gram_of_left(vectors, ones, right.dtype), again, rounding_margin=rounding_margin
    )
    if not rounding_margin:
        return squares
    return with_margin(squares, (lengths[0] * lengths[1]).sum(dim=1), right.shape[1], right.dtype)


def _gram_of_left(vectors: Sequence[Factors], ones: Sequence[Factors], dtype: torch.dtype) -> Gram:
    """Return the Gram matrix of the left factors: vectors first, then ones. What a one meets is exact."""
    index = torch.cat([part.left for part in ones], dim=1) if ones else None
    alike = None if index is None else (index.unsqueeze(2) == index.unsqueeze(1)).to(dtype)
    if not vectors:
        assert alike is not None
        return Gram(alike, 1, 0)
    left = torch.cat([part.left for part in vectors], dim=1)
    gram = gram_of(left)
    if index is None or alike is None:
        return gram
    met = left.gather(2, index.unsqueeze(1).expand(-1, left.shape[1], -1))
    upper, lower = torch.cat([gram.products, met], dim=2), torch.cat([met.mT, alike], dim=2)
    return Gram(torch.cat([upper, lower], dim=1), gram.width, gram.terms)
