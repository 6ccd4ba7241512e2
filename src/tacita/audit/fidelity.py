r"""Do an oracle's queries release what its parts say: their values, with fresh Gaussian noise of the stated size?

Place: sessions -> [audit.fidelity] -> contract. With v the noiseless value of the batch that a query drew, r what was
released and s the stated noise_std, all :math:`z = (r - v) / s` must be independent standard normals. So the sum of
their squares is chi-square; and if two of them, a and b, are independent, so is the sum of :math:`(a \pm b)^2 / 2`,
which is twice as large, or nothing, where the same noise was used for both.
"""

from typing import Any

import torch
from scipy import stats
from torch import Tensor

COARSE_BITS = 10  # zeros that end a float32's 23 bits: by chance in one value of 1024
COARSE = 0.5  # share of values


def in_whole_steps(oracle: Any) -> bool:
    """Whether the noise of a plain oracle is one of whole steps, whose precision is the grid's."""
    return oracle.mechanism.on_grid


def check_noise(noise: Tensor, false_alarm: float) -> None:
    """Fail unless ``noise`` is of independent standard normals.

    Args:
        noise: (sessions, queries, coordinates).
        false_alarm: Chance to fail if it is, at most.

    Raises:
        AssertionError: It is not.
    """
    noise = noise.double()
    pairs = list(_pairs(noise))
    share = false_alarm / (1 + 2 * len(pairs))
    _check_squares(noise, share, "noise has not the stated standard deviation, or values are not the estimator's")
    for words, a, b in pairs:
        for sign in (1, -1):
            _check_squares((a + sign * b) / 2**0.5, share, f"noise of {words} is not independent")


def check_every_query(noise: Tensor, false_alarm: float) -> None:
    """Fail unless ``noise`` is of independent standard normals in every single query, and in every pair of queries.

    Few sessions suffice to see a query without noise, or one with another's, however many queries there are.

    Args:
        noise: (sessions, queries, coordinates).
        false_alarm: Chance to fail if it is, at most.

    Raises:
        AssertionError: It is not.
    """
    noise = noise.double()
    sessions, queries, coordinates = noise.shape
    share = false_alarm / queries**2  # so many tests: each query, and each pair in two ways
    low, high = stats.chi2.isf([1 - share / 2, share / 2], df=sessions * coordinates)
    products = torch.einsum("sqc,spc->qp", noise, noise)
    single = products.diagonal()
    for query, square in enumerate(single.tolist()):
        assert low < square < high, (
            f"noise has not the stated standard deviation in query {query + 1} of {queries}, or its values are not the "
            f"estimator's: {(square / sessions / coordinates) ** 0.5:.4g} times it."
        )
    for sign in (1, -1):
        sums = (single[:, None] + single[None, :] + 2 * sign * products) / 2
        wrong = (((sums <= low) | (sums >= high)) & ~torch.eye(queries, dtype=torch.bool)).nonzero().tolist()
        assert not wrong, f"noise of two queries is not independent: {wrong[0][0] + 1} and {wrong[0][1] + 1}."


def check_fresh(released: Tensor) -> None:
    """Fail if a query releases the same in all of at least three sessions: it then has no noise of its own.

    Args:
        released: (sessions, queries, coordinates), of one data set.

    Raises:
        AssertionError: Names the query.
    """
    alike = (released[1:] == released[:1]).all(dim=-1).all(dim=0).nonzero().flatten().tolist()
    assert not alike, f"query {alike[0] + 1} releases the same in {len(released)} sessions: there is no noise in it."


def check_noise_or_dropped(residual: Tensor, shift: Tensor, false_alarm: float) -> None:
    """Fail unless releases are the reference's values with noise, with the canary's clipped contribution or without it.

    For a canary whose gradient is finite but may overflow inside an engine: each may clip it or drop it.

    Args:
        residual: Releases less the reference's values, (sessions, queries, coordinates).
        shift: What the canary moves if it is clipped.
        false_alarm: Chance to fail if they are, at most.
    """
    squares = [x.double().square().sum(dim=-1) for x in (residual, residual - shift)]
    n, found = residual.numel(), float(torch.minimum(*squares).sum())
    assert found < stats.chi2.isf(false_alarm, df=n), (
        f"a huge gradient is neither clipped nor dropped: what is left is {(found / n) ** 0.5:.4g} times the noise."
    )


def check_precision(values: Tensor) -> None:
    """Fail if noise, released on its own, is of less than float32's precision.

    In noise of full precision a value in 1024 ends in ten zeros; half of them do so by chance in none of all runs that
    anyone will make.

    Args:
        values: Releases of zeros over noise_std; the check sees nothing unless noise_std is a power of two.

    Raises:
        AssertionError: More than half of the values end in ten zeros of their 23 bits.
    """
    bits = values.float().contiguous().view(torch.int32)
    share = float(((bits & (2**COARSE_BITS - 1)) == 0).double().mean())
    assert share < COARSE, f"noise is of less than float32's precision: {share:.0%} of it lies on a coarse grid."


def _pairs(noise: Tensor):
    sessions, queries, coordinates = noise.shape
    half = sessions // 2
    yield "two sessions", noise[:half], noise[half : 2 * half]
    for first in range(queries):
        for second in range(first):
            yield "two queries", noise[:, first], noise[:, second]
    for first in range(coordinates):
        for second in range(first):
            yield "two coordinates", noise[..., first], noise[..., second]


def _check_squares(values: Tensor, false_alarm: float, words: str) -> None:
    n = values.numel()
    low, high = stats.chi2.isf([1 - false_alarm / 2, false_alarm / 2], df=n)
    found = float(values.square().sum())
    assert low < found < high, f"{words}: {(found / n) ** 0.5:.4g} times it over {n} values."
