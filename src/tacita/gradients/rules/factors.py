r"""Norms of a matrix in which calls of different functions meet: a head and the embedding that it is tied to.

Each call's gradient is a sum of outer products :math:`\sum_t l_t r_t^\top` over its positions. For a linear layer,
:math:`l_t` is the gradient of the output and :math:`r_t` the input. For an embedding, :math:`l_t` has a one at the
index of position t and zeros elsewhere, and :math:`r_t` is the gradient of the output. So the gradient over all calls
is one such sum over all their positions, and the Gram form of its norm has the cross terms in it. What a one meets is
looked up, and nothing of the size of the matrix is held.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tacita.gradients.rules.outer import Gram, gram_is_cheaper, gram_of, squares_of_grams, with_margin
from tacita.gradients.rules.rule import Factors


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
