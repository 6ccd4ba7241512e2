r"""The secret number of runs of a selection, and its law, on which the accounting rests.

Source: Papernot and Steinke (2022), Definition 1 and Section 3.4, https://arxiv.org/abs/2110.03620. Derivation, with
the distance of the draws from the law: docs/derivations/selection.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext

from tacita import _validate
from tacita.random import Stream

MOST_RUNS = 10_000  # a larger mean is probably a mistake, and would take days
MARGIN = 1e-9  # the law of the draws has a mean smaller by this fraction, so it costs less than the accounted one
DIGITS = 60  # decimal digits of the computed law
BITS = 128  # uniform bits of a draw


@dataclass(frozen=True, kw_only=True)
class NumberOfRuns:
    r"""The law of the number of runs K: truncated negative binomial (K >= 1), or Poisson (K >= 0).

    With shape :math:`\eta` in [0, inf) and :math:`\gamma` such that the mean is ``mean_runs``,

    .. math:: P(K = k) = \frac{(1-\gamma)^k}{\gamma^{-\eta} - 1} \prod_{l=0}^{k-1} \frac{l + \eta}{l + 1}, \quad k \ge 1

    (geometric at :math:`\eta = 1`, logarithmic at 0); with shape ``inf``, Poisson.

    Attributes:
        mean_runs: Mean number of runs, in [1, 10,000].
        shape: :math:`\eta` >= 0; ``inf`` for Poisson, whose draw may be 0. Then no run is made and nothing is released.

    Example:
        >>> law = NumberOfRuns(mean_runs=4, shape=1)
        >>> [round(chance, 4) for chance in law.chances(4)], round(law.chance_above(10), 3)
        ([0.0, 0.25, 0.1875, 0.1406], 0.056)
    """

    mean_runs: float
    shape: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean_runs", _validate.positive("mean_runs", self.mean_runs))
        if not 1 <= self.mean_runs <= MOST_RUNS:
            raise ValueError(f"mean_runs must be in [1, {MOST_RUNS}], got {self.mean_runs!r}.")
        if isinstance(self.shape, bool | str) or not self.shape >= 0:
            raise ValueError(f"shape must be >= 0, or inf for a Poisson number of runs, got {self.shape!r}.")
        object.__setattr__(self, "shape", float(self.shape))

    def __str__(self) -> str:
        names = {0.0: "logarithmic", 1.0: "geometric", math.inf: "Poisson"}
        name = names.get(self.shape, f"truncated negative binomial of shape {self.shape:g}")
        return f"{name}, {self.mean_runs:g} on average"

    @property
    def may_be_none(self) -> bool:
        """Whether the number of runs may be 0."""
        return self.shape == math.inf

    @property
    def gamma(self) -> float:
        r""":math:`\gamma` of the law of the draws, in (0, 1]; never below that of the accounted law."""
        return _gamma(self.mean_runs * (1 - MARGIN), self.shape)

    def draw(self, stream: Stream) -> int:
        """Draw the number of runs: the quantile at 128 uniform bits of the law, computed with 60 digits."""
        high, low = (int(word) for word in stream.words(BITS // 64))
        with localcontext() as context:
            context.prec = DIGITS
            uniform = Decimal(high << 64 | low) / Decimal(1 << BITS)
            below = Decimal(0)
            for number, chance in enumerate(self._law()):
                below += chance
                if uniform < below:
                    return number
        raise AssertionError("the probabilities of a law add up to 1")

    def chances(self, count: int) -> list[float]:
        """Return the probabilities of 0, 1, ..., ``count`` - 1 runs."""
        with localcontext() as context:
            context.prec = DIGITS
            return [float(chance) for chance, _ in zip(self._law(), range(count), strict=False)]

    def chance_above(self, number: int) -> float:
        """Return the probability of more than ``number`` runs."""
        with localcontext() as context:
            context.prec = DIGITS
            return float(max(Decimal(0), 1 - sum((c for c, _ in zip(self._law(), range(number + 1), strict=False)))))

    def _law(self) -> Iterator[Decimal]:
        """Yield P(K = 0), P(K = 1), ... without end."""
        return _poisson(self.mean_runs) if self.may_be_none else _negative_binomial(self.gamma, self.shape)


def _gamma(mean: float, shape: float) -> float:
    r"""Return the :math:`\gamma` at which the mean is ``mean``; 1 (always one run) if ``mean`` is at most 1.

    With :math:`\gamma = e^{-x}` the mean is :math:`\eta (e^x - 1) / (1 - e^{-\eta x})`, which increases with x.
    """

    def mean_at(x: float) -> float:
        return math.expm1(x) / (-math.expm1(-shape * x) / shape if shape else x)

    if mean <= 1:
        return 1.0
    low, high = 0.0, math.log(4 * (shape + 1) * mean)  # a first guess, doubled until the mean there is large enough
    while mean_at(high) < mean:
        high *= 2
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if mean_at(middle) < mean else (low, middle)
    return math.exp(-low)


def _poisson(mean: float) -> Iterator[Decimal]:
    chance, number = (-Decimal(mean)).exp(), 0
    while True:
        yield chance
        number += 1
        chance *= Decimal(mean) / number


def _negative_binomial(gamma: float, shape: float) -> Iterator[Decimal]:
    yield Decimal(0)
    exact, eta = Decimal(gamma), Decimal(shape)
    if gamma == 1:
        yield Decimal(1)
        while True:
            yield Decimal(0)
    chance = (1 - exact) / (-exact.ln()) if shape == 0 else (1 - exact) * eta / (exact**-eta - 1)
    number = 1
    while True:
        yield chance
        chance *= (1 - exact) * (number + eta) / (number + 1)
        number += 1
