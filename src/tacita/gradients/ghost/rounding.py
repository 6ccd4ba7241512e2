"""What rounding can hide, as numbers: the terms that make a computed norm an upper bound.

Place: the ground of the ghost engine. Derivations: docs/derivations/ghost_norms.md.
"""

import torch
from torch import Tensor

LONGEST_ROW = 2**14  # squares that are summed in the tensor's own dtype; a longer float32 row is summed in float64
LONGEST_WORST_CASE = 1024  # positions up to which held gradients carry the worst case of their own summation


def unit(dtype: torch.dtype) -> float:
    """Unit roundoff u of ``dtype``: one operation, rounded to nearest, has a relative error of at most u."""
    return torch.finfo(dtype).eps / 2


def gamma(terms: float, dtype: torch.dtype) -> float:
    r"""Higham's :math:`\gamma_n = n u / (1 - n u)`: bounds a sum of ``terms`` products in any order (inf: no bound)."""
    product = terms * unit(dtype)
    return product / (1 - product) if product < 1 else float("inf")


def squared_row_norms(rows: Tensor, *, rounding_margin: bool = True) -> Tensor:
    r"""Squared L2 norms over the last axis, float64; upper bounds unless ``rounding_margin`` is off.

    The sum of n squares and the root in ``rows.dtype`` have a relative error of at most :math:`\gamma_{n + 4}` on the
    square. A square that underflows loses at most the smallest normal number, hence the second term. Six further units
    pay for the roundings of a contribution (weight times output gradient times activation) in the weighted sum.
    """
    length = rows.shape[-1]
    if length > LONGEST_ROW:
        squares = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64).square()
    else:
        squares = torch.linalg.vector_norm(rows, dim=-1).double().square_()
    if not rounding_margin:
        return squares
    terms = 10 + (length if length <= LONGEST_ROW or rows.dtype == torch.float64 else 0)
    return squares.mul_(1 + gamma(terms, rows.dtype)).add_(length * torch.finfo(rows.dtype).tiny)


def add_radius(squares: Tensor, radius: Tensor) -> Tensor:
    """``(sqrt(squares) + radius) ** 2``: the square of a norm that is known up to ``radius``."""
    return squares.sqrt().add_(radius).square_()
