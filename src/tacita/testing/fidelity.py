r"""Checks that an oracle's queries release the values of its parts, with fresh Gaussian noise of the stated size.

Let v be the noiseless value of the batch that a query drew, r the release and s the stated noise_std. All :math:`z = (r
- v) / s` must be independent standard normals, so the sum of their squares is chi-square. If two of them, a and b, are
independent, the sum of :math:`(a \pm b)^2 / 2` is chi-square too; if the same noise was used for both, it is twice as
large, or zero.
"""

from typing import Any

import torch
from scipy import stats
from torch import Tensor

COARSE_BITS = 10  # trailing zeros of a float32's 23 bits; one value in 1024 has them by chance
COARSE = 0.5  # share of such values at which the check fails


def in_whole_steps(oracle: Any) -> bool:
    """Return whether the oracle's noise is integer-valued on a grid."""
    return oracle.mechanism.on_grid


def check_noise(noise: Tensor, false_alarm: float) -> None:
    """Check that ``noise`` consists of independent standard normals.

    Args:
        noise: (sessions, queries, coordinates).
        false_alarm: Largest probability to fail if it does.

    Raises:
        AssertionError: It does not.
    """
    noise = noise.double()
    pairs = list(_pairs(noise))
    share = false_alarm / (1 + 2 * len(pairs))
    _check_squares(noise, share, "noise has not the stated standard deviation, or values are not the estimator's")
    for words, a, b in pairs:
        for sign in (1, -1):
            _check_squares((a + sign * b) / 2**0.5, share, f"noise of {words} is not independent")


def check_every_query(noise: Tensor, false_alarm: float) -> None:
    """Check that ``noise`` consists of independent standard normals in every query and every pair of queries.

    A few sessions suffice to find a query without noise, or with another query's noise, however many queries there are.

    Args:
        noise: (sessions, queries, coordinates).
        false_alarm: Largest probability to fail if it does.

    Raises:
        AssertionError: It does not.
    """
    noise = noise.double()
    sessions, queries, coordinates = noise.shape
    share = false_alarm / queries**2  # queries^2 tests: one for each query, two for each pair
    low, high = stats.chi2.isf([1 - share / 2, share / 2], df=sessions * coordinates)
    products = torch.einsum("sqc,spc->qp", noise, noise)
    single = products.diagonal()
    for query, square in enumerate(single.tolist()):
        assert low < square < high, (
            f"noise has not the stated standard deviation in query {query + 1} of {queries}, or the values are not the "
            f"estimator's: found {(square / sessions / coordinates) ** 0.5:.4g} times the stated one."
        )
    for sign in (1, -1):
        sums = (single[:, None] + single[None, :] + 2 * sign * products) / 2
        wrong = (((sums <= low) | (sums >= high)) & ~torch.eye(queries, dtype=torch.bool)).nonzero().tolist()
        assert not wrong, f"noise of two queries is not independent: {wrong[0][0] + 1} and {wrong[0][1] + 1}."


def check_fresh(released: Tensor) -> None:
    """Check that no query releases the same values in all sessions (at least three), which would mean no noise.

    Args:
        released: (sessions, queries, coordinates), all of one data set.

    Raises:
        AssertionError: Names the query.
    """
    alike = (released[1:] == released[:1]).all(dim=-1).all(dim=0).nonzero().flatten().tolist()
    assert not alike, f"query {alike[0] + 1} releases the same in {len(released)} sessions: there is no noise in it."


def check_noise_or_dropped(residual: Tensor, shift: Tensor, false_alarm: float) -> None:
    """Check that releases are the reference's values with noise, with or without the canary's clipped contribution.

    For a canary whose gradient is finite but may overflow inside an engine, which may then clip it or drop it.

    Args:
        residual: Releases minus the reference's values, (sessions, queries, coordinates).
        shift: The canary's contribution if it is clipped.
        false_alarm: Largest probability to fail for a correct oracle.
    """
    squares = [x.double().square().sum(dim=-1) for x in (residual, residual - shift)]
    n, found = residual.numel(), float(torch.minimum(*squares).sum())
    assert found < stats.chi2.isf(false_alarm, df=n), (
        f"a huge gradient is neither clipped nor dropped: the rest is {(found / n) ** 0.5:.4g} times the noise."
    )


def check_precision(values: Tensor) -> None:
    """Check that noise, released on its own, has the full precision of float32.

    At full precision, one value in 1024 ends in ten zero bits. That half of them do by chance will never be seen.

    Args:
        values: Releases of zeros, divided by noise_std. The check has no power unless noise_std is a power of two.

    Raises:
        AssertionError: At least half of the values end in ten zeros of their 23 bits.
    """
    bits = values.float().contiguous().view(torch.int32)
    share = float(((bits & (2**COARSE_BITS - 1)) == 0).double().mean())
    assert share < COARSE, f"noise is of less than float32's precision: {share:.0%} of it lies on a coarse grid."


def _pairs(noise: Tensor):
    """Yield (what it is, one, other) for all pairs of parts of the noise that must be independent."""
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
    assert low < found < high, f"{words}: found {(found / n) ** 0.5:.4g} times the stated size over {n} values."
