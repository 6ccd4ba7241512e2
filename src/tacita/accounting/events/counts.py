r"""Noisy counts: histograms over public bins, and over bins that the data itself names.

Counts of the second kind are released only above a threshold, and their failure probability is added to delta. Source:
Korolova et al. (2009), https://doi.org/10.1145/1526709.1526733. Proofs: docs/derivations/accounting.md.
"""

import math
from dataclasses import dataclass, replace
from math import expm1, log, log1p

from scipy.special import log_ndtr, ndtri_exp

from tacita import _validate
from tacita.accounting.events.gaussian_sums import NoisySumEvent
from tacita.accounting.events.guarantee import Guarantee, gaussian
from tacita.accounting.relations import moved


@dataclass(frozen=True, kw_only=True)
class HistogramGaussianEvent(NoisySumEvent):
    r"""A sum of contributions *without negative entries* (counts), with Gaussian noise on every entry.

    Two such contributions have no negative inner product, so replacing one by the other moves the sum by at most
    :math:`\sqrt{2}\,C`, not 2C. One record in each of m histograms: :math:`C = \sqrt{m}`.
    """

    @property
    def sampler(self) -> str:
        return "Noisy counts over all records"

    @property
    def query_mu(self) -> float:
        return math.sqrt(moved(self.relation)) * self.ratio

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("no entry of a contribution is negative",)

    def _guarantee(self, queries: int) -> Guarantee:
        return gaussian(self.query_mu * math.sqrt(queries) if queries else 0.0)


@dataclass(frozen=True, kw_only=True)
class StableCountsEvent(HistogramGaussianEvent):
    """Noisy counts whose bins one record may create. Only bins above a threshold are released.

    Attributes:
        failure_probability: Chance p that a bin which one record alone created is released
            (:func:`stable_failure_probability`). It is added to delta, and 2 p under replace_one, where a bin may also
            vanish.
    """

    failure_probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.below_one, "failure_probability")

    @property
    def sampler(self) -> str:
        return "Stable counts over all records"

    def describe(self) -> str:
        return f"{super().describe()}, failure probability {self.failure_probability:.3g}"

    def _guarantee(self, queries: int) -> Guarantee:
        failing = moved(self.relation) * self.failure_probability * queries
        return replace(super()._guarantee(queries), additive_delta=failing)


def stable_threshold(noise_std: float, failure_probability: float, *, new_bins: int, rows_per_unit: int = 1) -> float:
    r"""Return the threshold h at which the counts fail with ``failure_probability`` p.

    :math:`h = k + s\,\Phi^{-1}\big((1 - p)^{1/(k m')}\big)` for m' bins a row and k rows a unit.

    Args:
        noise_std: Noise s on every count.
        failure_probability: p in (0, 1).
        new_bins: Number m' of bins that one row may create.
        rows_per_unit: Largest number k of rows of a unit.

    Example:
        >>> round(stable_threshold(2.0, 1e-6, new_bins=3), 3)
        10.942
    """
    _validate.positive("noise_std", noise_std)
    _validate.delta("failure_probability", failure_probability)
    bins = _validate.count("new_bins", new_bins) * _validate.count("rows_per_unit", rows_per_unit)

    tail = -expm1(log1p(-failure_probability) / bins)  # 1 - (1 - p)^(1 / bins)
    return rows_per_unit - noise_std * float(ndtri_exp(log(tail)))


def stable_failure_probability(noise_std: float, threshold: float, *, new_bins: int, rows_per_unit: int = 1) -> float:
    r"""Return the chance :math:`1 - \Phi((h - k)/s)^{k m'}` that a bin which one unit created exceeds ``threshold``."""
    _validate.positive("noise_std", noise_std)
    bins = _validate.count("new_bins", new_bins) * _validate.count("rows_per_unit", rows_per_unit)

    return -expm1(bins * float(log_ndtr((threshold - rows_per_unit) / noise_std)))
