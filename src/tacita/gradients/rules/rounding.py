"""Bounds on rounding errors, which make a computed norm an upper bound. Proof: docs/derivations/ghost_norms.md."""

from functools import cache

import torch
from torch import Tensor

LONGEST_ROW = 2**14  # a row of at most so many squares is summed in its own dtype, a longer float32 row in float64

LARGEST_SQUARE = 2.0**126  # a longer float32 row counts as infinite: it would make much of a factor that underflows


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff u of ``dtype``: an operation rounded to nearest has a relative error of at most u."""
    return torch.finfo(dtype).eps / 2


def gamma(terms: float, dtype: torch.dtype) -> float:
    r"""Return Higham's :math:`\gamma_n = n u / (1 - n u)` for n = ``terms``; ``inf`` if there is no bound.

    It bounds the relative rounding error of a sum of n products in any order.
    """
    product = terms * torch.finfo(dtype).eps / 2
    return product / (1 - product) if product < 1 else float("inf")


def squared_row_norms(rows: Tensor, *, rounding_margin: bool = True) -> Tensor:
    r"""Return squared L2 norms over the last axis, float64; upper bounds unless ``rounding_margin`` is off.

    The sum of n squares and the root in ``rows.dtype`` have a relative error of at most :math:`\gamma_{n + 4}` on the
    square. A square that underflows loses at most the smallest normal number, which the second term adds. Six more
    units cover the roundings of a contribution (weight times output gradient times activation) in the weighted sum.
    A weighted factor that is subnormal is off by up to :math:`2^{-150}` whatever its size, and the other factor
    multiplies that: so a float32 row of norm :math:`2^{63}` or more counts as infinite.
    """
    length = rows.shape[-1]
    if length > LONGEST_ROW:
        squares = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64).square()
    else:
        squares = torch.linalg.vector_norm(rows, dim=-1).double().square_()
    if not rounding_margin:
        return squares
    factor, underflow = _margin(length, rows.dtype)
    squares = squares.mul_(factor).add_(underflow)
    return squares if rows.dtype == torch.float64 else torch.where(squares < LARGEST_SQUARE, squares, torch.inf)


@cache
def _margin(length: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return the factor and the term that make the squared norm of a row of ``length`` an upper bound."""
    terms = 10 + (length if length <= LONGEST_ROW or dtype == torch.float64 else 0)
    return 1 + gamma(terms, dtype), length * torch.finfo(dtype).tiny


def add_radius(squares: Tensor, radius: Tensor) -> Tensor:
    """Return ``(sqrt(squares) + radius) ** 2``: an upper bound of the square of a norm known up to ``radius``."""
    return squares.sqrt().add_(radius).square_()
