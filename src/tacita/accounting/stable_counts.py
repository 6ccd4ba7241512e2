r"""Stable counts: noisy histograms over bins that the data itself names, released above a threshold only.

Place: [accounting.stable_counts] -> accountant. Proof of both directions: docs/derivations/accounting.md.
Source: Korolova et al. (2009), https://doi.org/10.1145/1526709.1526733; the failure probability is added to delta.
"""

from dataclasses import dataclass
from math import expm1, log, log1p

from scipy.special import log_ndtr, ndtri_exp

from tacita import _validate
from tacita.accounting.gaussian_events import HistogramGaussianEvent
from tacita.accounting.relations import moved


@dataclass(frozen=True, kw_only=True)
class StableCountsEvent(HistogramGaussianEvent):
    """Noisy counts whose bins one record may create; only bins above a threshold are released.

    Attributes:
        failure_probability: Chance p that a bin which one record alone created is released, see
            :func:`stable_failure_probability`; p is added to delta (2 p under replace_one, where a bin may vanish too).
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

    def additive_delta(self, queries: int) -> float:
        return moved(self.relation) * self.failure_probability * queries


def stable_threshold(noise_std: float, failure_probability: float, *, new_bins: int, rows_per_unit: int = 1) -> float:
    r"""The threshold h at which the counts fail with ``failure_probability`` p.

    :math:`h = k + s\,\Phi^{-1}\big((1 - p)^{1/(k m')}\big)`, m' bins a row, k rows a unit.

    Args:
        noise_std: Noise s on every count.
        failure_probability: p in (0, 1).
        new_bins: m', how many bins one row may create.
        rows_per_unit: k.

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
    r"""The chance that some bin one unit created passes ``threshold``: :math:`1 - \Phi((h - k)/s)^{k m'}`."""
    _validate.positive("noise_std", noise_std)
    bins = _validate.count("new_bins", new_bins) * _validate.count("rows_per_unit", rows_per_unit)

    return -expm1(bins * float(log_ndtr((threshold - rows_per_unit) / noise_std)))
