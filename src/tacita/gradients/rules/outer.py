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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor

from tacita.gradients.rules.rounding import (
    RowNorms,
    SquaredNorms,
    columns,
    gamma,
    measure,
    of_norms,
    of_products,
    squared_row_norms,
    totals,
    unit,
)
from tacita.gradients.rules.rule import Factors
from tacita.gradients.weighted_sums import UNIT

HELD = 2**22  # elements of per-sample gradients in memory at once
PAIRS = 2**18  # entries of Gram matrices that are widened to float64 at once: on a CPU they stay in a cache
LOOSE = 0.01  # if its rounding term is a larger share of its square, a Gram norm is computed again, directly
GRAM_TERM = 0.003  # the term's share of the square for a sample with incoherent positions; decides the blocks
TINY = 2.0**-100  # a smaller term matters to no threshold (at least 2^-40): gradients of exactly 0 have such a term
SMALLEST_BLOCK = 32  # narrower blocks would be all overhead


def gram_is_cheaper(positions: int, in_width: int, out_width: int) -> bool:
    """Return whether the two Gram matrices take fewer multiplications than the gradient."""
    return positions * (in_width + out_width) < in_width * out_width


def weight_is_small(positions: int, in_width: int, out_width: int) -> bool:
    """Return whether a record's gradient takes no more memory than its factors."""
    return in_width * out_width <= positions * (in_width + out_width)


def outer_grads(a: Tensor, d: Tensor) -> Tensor:
    """Return the gradients, (rows, out, in)."""
    return d.mT @ a


def squares_of(a: Tensor, d: Tensor) -> SquaredNorms:
    """Return the squared norms of the gradients in the cheapest form: closed, Gram or direct."""
    if a.shape[1] == 1:
        return of_products(measure(a), measure(d))
    if gram_is_cheaper(a.shape[1], a.shape[2], d.shape[2]):
        return gram_squares(a, d)
    return direct_squares(direct_norms(a, d), measure(a), measure(d), radius(a.shape[1], a.dtype), a.dtype)


def radius(positions: int, dtype: torch.dtype, *, roundings: int = 2) -> float:
    r"""Return by how much of its reach a norm may be off from what a sum of products adds.

    Args:
        positions: T, the products that a coordinate is a sum of.
        dtype: Of the products.
        roundings: How many such sums lie between the norm and what is added: 2 if the norm is that of one sum, and the
            rows are added by another; 1 if the norm is that of the exact gradient, or the same sum is added.
    """
    return roundings * gamma(positions + 6 - roundings, dtype)


def direct_squares(gradient: RowNorms, a: RowNorms, d: RowNorms, radius: float, dtype: torch.dtype) -> SquaredNorms:
    r"""Return the squares of a sum of products that was computed once, and is added by another computation.

    Args:
        gradient: Of the sum.
        a: Over all positions: :math:`\sum_t |a_t| |d_t| \le |a| |d|`.
        d: The same.
        radius: See :func:`radius`.
        dtype: Of the products.
    """
    return SquaredNorms((gradient, a, d), _direct, (radius, _largest_reach(dtype)))


def _direct(calls: Sequence[SquaredNorms], norms: Sequence[Tensor], rounding_margin: bool) -> Tensor:
    gradient, a, d = norms
    if not rounding_margin:
        return gradient
    radii, largest = columns([one.constants for one in calls], gradient.device)
    return _with_radius(gradient, (a * d).sqrt_(), radii, largest)


def _with_radius(squares: Tensor, reach: Tensor, radii: Tensor, largest: Tensor) -> Tensor:
    r"""Make squares upper bounds, of the exact gradient's norm and of what a sum of products adds.

    A sum of T products a coordinate is off by at most :math:`\gamma_T \sum_t |d_t| |a_t|` in norm. A row whose partial
    sums may overflow counts as not finite.

    Args:
        squares: Shape (calls, rows), float64.
        reach: Upper bounds of the sum over t, (calls, rows).
        radii: :func:`radius` of each call, (calls, 1).
        largest: The reach that counts as infinite, (calls, 1).
    """
    return squares.sqrt().addcmul_(reach, radii).square_().masked_fill_(reach >= largest, torch.inf)


def _largest_reach(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max / 4


def sum_of_products(a: Tensor, d: Tensor) -> Tensor:
    r"""Return upper bounds of :math:`S = \sum_t |a_t| |d_t|`, (rows,), float64."""
    return row_norms(a).mul_(row_norms(d)).sum(dim=1)


def row_norms(rows: Tensor) -> Tensor:
    """Return upper bounds of the norms over the last axis, float64."""
    return squared_row_norms(rows).sqrt_()


def direct_norms(a: Tensor, d: Tensor) -> RowNorms:
    """Measure the gradients, a few rows at a time."""
    return measured_in_parts(outer_grads(x, y) for x, y in zip(*_in_parts(a, d), strict=True))


def measured_in_parts(parts: Iterable[Tensor]) -> RowNorms:
    """Measure rows that are formed a few at a time."""
    found = [measure(part) for part in parts]
    return found[0]._replace(values=torch.cat([one.values for one in found])) if len(found) > 1 else found[0]


def _in_parts(a: Tensor, d: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    height = max(1, HELD // max(1, a.shape[2] * d.shape[2]))
    return a.split(height), d.split(height)


def gram_squares(a: Tensor, d: Tensor) -> SquaredNorms:
    """Return squared norms from Gram matrices; see :func:`squares_of_grams`."""

    def again(loose: Tensor) -> RowNorms:
        return direct_norms(a[loose].double(), d[loose].double())

    return squares_of_grams(gram_of(a), gram_of(d), again, roundings=1)


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
    of_a: Gram, of_d: Gram, again: Callable[[Tensor], RowNorms], *, roundings: int, scale: Tensor | None = None
) -> SquaredNorms:
    r"""Return squared norms from the Gram matrices L of inputs and R of output gradients.

    What their cancellation can hide is added. Entry (t, s) of L is off by at most :math:`\gamma |a_t| |a_s|` and is
    multiplied by R's entry as computed: the term is :math:`\gamma |a|^2 \lVert R \rVert_F`, and the same with a and d
    exchanged. Rows whose term exceeds ``LOOSE`` of the square, canaries among them, are computed again.

    Args:
        of_a: Of inputs.
        of_d: Of output gradients at the same positions.
        again: Mask of loose rows, (rows,) -> the norms of their gradients, in float64 and without cancellation.
        roundings: As in :func:`radius`.
        scale: The power of two by which each row's gradient is too large in the Gram matrices, (rows,).
    """
    left, right = of_a.products, of_d.products
    positions, dtype = left.shape[1], left.dtype
    height = max(1, (PAIRS if left.device.type == "cpu" else HELD) // max(1, positions**2))
    parts = [_inner_products(*pair) for pair in zip(left.split(height), right.split(height), strict=True)]
    given = parts[0] if len(parts) == 1 else [torch.cat([part[k] for part in parts]) for k in (0, 1)]
    if scale is not None:
        factor = scale.double().reciprocal().unsqueeze(1)
        given = given[0] * factor.square(), given[1] * factor
    constants = _term_constants(of_a, of_d, positions, dtype)
    bounds = radius(positions, dtype, roundings=roundings), _largest_reach(dtype)
    return SquaredNorms((), _from_grams, (*constants, *bounds), (*given, again))


def _from_grams(calls: Sequence[SquaredNorms], norms: Sequence[Tensor], rounding_margin: bool) -> Tensor:
    products, traces = (torch.stack([one.given[k] for one in calls]) for k in (0, 1))
    constants = columns([one.constants for one in calls], products.device)
    of_a, of_d, both, vanished, hidden, share, radii, largest = *(constants[:3], constants[3:6]), *constants[6:]
    a, d = (torch.addcmul(o[1], trace, o[0]) for o, trace in zip((of_a, of_d), traces.unbind(2), strict=True))
    left, right = products[:, :, ::3].sqrt().unbind(2)  # Frobenius norms
    reach = a * d
    term = torch.addcmul(vanished, reach, both)
    term.addcmul_(torch.addcmul(hidden, right, of_a[2]), a).addcmul_(torch.addcmul(hidden, left, of_d[2]), d)
    squares = products[:, :, 1].clamp(min=0.0)
    loose = term > (squares * share).clamp_(min=TINY)
    bounds = squares + term if rounding_margin else squares
    if bool(loose.any()):
        for one, mask, row in zip(calls, loose, bounds, strict=True):
            if mask.any():
                row[mask] = totals([[of_norms(one.given[2](mask))]], rounding_margin=rounding_margin)[0]
    return _with_radius(bounds, reach.sqrt_(), radii, largest) if rounding_margin else bounds


def _inner_products(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    pair = torch.stack([left, right], dim=1).double()
    flat = pair.flatten(2)
    return (flat @ flat.mT).flatten(1), pair.diagonal(dim1=2, dim2=3).sum(dim=2)


def _term_constants(of_a: Gram, of_d: Gram, positions: int, dtype: torch.dtype) -> tuple[float, ...]:
    """Return the constants of a rounding term, in the order of the derivation's list.

    For a, and then for d: the factor of the trace, and what is added to it; gamma of the products. Then the factor of
    both errors; products of two entries that vanish; entries whose squares do; the share of the square that is loose.
    """
    tiny, pairs = torch.finfo(dtype).tiny, positions**2
    wide = 1 + (pairs + 8) * UNIT  # sums of so many products in float64, and their root
    added = 3 + 2 * pairs * UNIT / unit(dtype)  # roundings of products of two entries, and of their sum

    def of_one(gram: Gram, more: float) -> tuple[float, float, float]:
        factor = wide * (1 + 2 * gamma(gram.terms, dtype))
        return factor, positions * gram.width * tiny, wide * gamma(gram.terms + more, dtype)

    both = wide * gamma(of_a.terms, dtype) * gamma(of_d.terms, dtype)
    loose = min(LOOSE, 2**28 * unit(dtype))
    return *of_one(of_a, added), *of_one(of_d, 4), both, pairs * tiny, positions * 2.0**-511, loose


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


def squares_of_factors(parts: Sequence[Factors], again: Callable[[Tensor], RowNorms]) -> SquaredNorms:
    """Return the squared norms of the gradients that the parts add up to.

    Args:
        parts: Of one matrix.
        again: Mask of rows, (rows,) -> the norms of their gradients, computed in float64.
    """
    vectors = [part for part in parts if part.left.ndim == 3]
    ones = [part for part in parts if part.left.ndim == 2]
    scale = _scale(vectors) if vectors and ones else None
    if scale is not None:
        by = scale[:, None, None]
        vectors = [Factors(part.left * by, part.right) for part in vectors]
        ones = [Factors(part.left, part.right * by) for part in ones]
    right = torch.cat([part.right for part in vectors + ones], dim=1)
    left = _gram_of_left(vectors, ones, right.dtype)
    return squares_of_grams(gram_of(right), left, again, roundings=2, scale=scale)


def _scale(vectors: Sequence[Factors]) -> Tensor:
    """Return the power of two that lifts each row's output gradients to about 1, (rows,): that of the ones they meet.

    Else the inputs, which may be large, would meet the ones in the rounding term, and every row would be loose. It
    only lifts, so that no number underflows, and by at most 2^25 in float32, so that products stay finite.
    """
    largest = torch.stack([part.left.abs().amax(dim=(1, 2)) for part in vectors]).amax(dim=0)
    most = int(log2(torch.finfo(largest.dtype).max)) // 5
    exponent = torch.frexp(largest).exponent.neg().clamp(0, most)
    return torch.ldexp(torch.ones_like(largest), exponent)


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
