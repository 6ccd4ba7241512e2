r"""Events of bounded sums of whole numbers with discrete Gaussian noise.

Proof: docs/derivations/hardened-noise.md, "Discrete Gaussian".
Source: Canonne, Kamath and Steinke (2020), Proposition 5 and Theorem 14, https://arxiv.org/abs/2004.00010: for vectors
:math:`x, x'` of whole numbers the divergence of order a is at most :math:`a \lVert x - x' \rVert_2^2 / 2 \sigma^2`,
that of the Gaussian. Only Rényi divergences have this bound, so there is no privacy loss distribution and no mu.

Under Poisson sampling the moment of a whole order a is at most
:math:`\sum_l \binom{a}{l} (1-q)^{a-l} q^l e^{l (l-1) \Delta^2 / 2 \sigma^2}`, in both directions: Zhu and Wang (2019),
http://proceedings.mlr.press/v97/zhu19c.html, expand the moment so for any mechanism; that the other direction is no
larger is proved in the derivation from the symmetry of the pair, as Mironov, Talwar and Zhang (2019), Theorem 5, do for
densities. Between whole orders the logarithm of the moment is convex.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from tacita.accounting.events.counts import HistogramGaussianEvent
from tacita.accounting.events.event import Event
from tacita.accounting.events.gaussian_sums import GaussianSumEvent
from tacita.accounting.events.guarantee import Guarantee, gaussian, no_guarantee
from tacita.accounting.events.wrapped import OuterEvent
from tacita.accounting.sampling_laws import DisjointLaw, FullBatchLaw, PoissonLaw, ShuffledEpochsLaw
from tacita.errors import UnsupportedEventError

ROUNDED_UP = 1 + 1e-9


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianEvent(OuterEvent):
    """The session of ``inner`` with discrete Gaussian noise on whole numbers in place of the Gaussian.

    Attributes:
        inner: The same session with Gaussian noise: full batches, disjoint batches, shuffled epochs or noisy counts
            under every relation; Poisson sampling under add_or_remove_one and zero_out_one.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        law = self.inner.sampling if isinstance(self.inner, GaussianSumEvent) else None
        if isinstance(law, PoissonLaw):
            if self.relation == "replace_one" and law.sample_rate < 1:
                raise UnsupportedEventError(
                    "Poisson sampling with discrete Gaussian noise: no guarantee is proved under replace_one; there is "
                    "one under add_or_remove_one and zero_out_one. RoundedGaussian has one under all three."
                )
        elif not isinstance(law, FullBatchLaw | DisjointLaw | ShuffledEpochsLaw) and not _counts(self.inner):
            raise UnsupportedEventError(
                f"{self.inner.sampler}: no guarantee is proved with discrete Gaussian noise. Use RoundedGaussian."
            )

    def describe(self) -> str:
        return f"{self.inner.describe()}, discrete Gaussian"

    def _guarantee(self, queries: int) -> Guarantee:
        inner = self.inner.guarantee(queries)
        if inner.mu == 0:
            return gaussian(0.0)
        poisson = isinstance(self.inner, GaussianSumEvent) and isinstance(self.inner.sampling, PoissonLaw)
        mu = inner.mu if poisson else inner.unsampled_mu  # that a batch is secret gains nothing proved for this noise
        if mu is not None:  # queries, each with the Gaussian's divergence
            return Guarantee(rdp=gaussian(mu).rdp) if mu < math.inf else no_guarantee()
        assert isinstance(self.inner, GaussianSumEvent)
        assert isinstance(self.inner.sampling, PoissonLaw)
        rate, ratio = self.inner.sampling.sample_rate, self.inner.ratio
        return Guarantee(rdp=lambda orders: queries * _poisson_rdp(rate, ratio, tuple(map(float, orders))))


def _counts(event: Event) -> bool:
    """Return whether these are noisy counts, all of which are released."""
    return type(event) is HistogramGaussianEvent


@lru_cache(maxsize=64)
def _poisson_rdp(sampling_probability: float, ratio: float, orders: tuple[float, ...]) -> np.ndarray:
    """Return divergences of one query at ``orders``, from the log-moments at the whole orders around them."""
    whole = sorted({order for a in orders for order in (math.floor(a), math.ceil(a)) if order > 1})
    moments = [log_moment(sampling_probability, ratio, order) for order in whole]
    return np.interp(orders, [1.0, *whole], [0.0, *moments]) / (np.array(orders) - 1)


def log_moment(sampling_probability: float, ratio: float, order: int) -> float:
    r"""Return the log-moment of one sampled query at a whole order, rounded up.

    It is :math:`\log(1 + \sum_{l=2}^a \binom{a}{l} (1-q)^{a-l} q^l (e^{l(l-1) \rho^2/2} - 1))`. The binomial weights
    add up to 1, so that small excesses stay accurate.

    Example:
        >>> round(log_moment(1.0, 2.0, 3), 6)  # not sampled: a (a - 1) ratio^2 / 2
        12.0
    """
    many = np.arange(2.0, order + 1)
    exponents = many * (many - 1) * ratio**2 / 2
    weights = gammaln(order + 1) - gammaln(many + 1) - gammaln(order - many + 1) + many * math.log(sampling_probability)
    rest = order - many
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = weights + np.where(rest > 0, rest * np.log1p(-sampling_probability), 0.0)
    excess = np.asarray(logsumexp(weights + exponents + np.log(-np.expm1(-exponents))))
    return float(np.logaddexp(0.0, excess)) * ROUNDED_UP


def discrete(event: Event) -> Event:
    """Return the event of the same session with discrete Gaussian noise.

    Raises:
        UnsupportedEventError: Nothing is proved; the message says what is proved.
    """
    return DiscreteGaussianEvent(relation=event.relation, inner=event)
