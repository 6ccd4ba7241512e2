r"""Events of bounded sums of whole numbers with discrete Gaussian noise.

Place: [accounting.discrete_events] -> accountant. Proof: docs/derivations/hardened-noise.md, "Discrete Gaussian".
Source: Canonne, Kamath and Steinke (2020), Proposition 5 and Theorem 14, https://arxiv.org/abs/2004.00010: for whole
vectors :math:`x, x'` the divergence of order a is at most :math:`a \lVert x - x' \rVert_2^2 / 2 \sigma^2`, that of the
Gaussian. Only Rényi divergences are bounded so: there is no privacy loss distribution, and no mu.

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

from tacita.accounting.events import Event
from tacita.accounting.gaussian_events import PlainGaussianEvent, PoissonGaussianEvent
from tacita.accounting.stable_counts import StableCountsEvent
from tacita.accounting.wrapped_events import OuterEvent
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
        if isinstance(self.inner, PoissonGaussianEvent):
            if self.relation == "replace_one" and self.inner.sampling_probability < 1:
                raise UnsupportedEventError(
                    "Poisson sampling with discrete Gaussian noise: no guarantee is proved under replace_one; there is "
                    "one under add_or_remove_one and zero_out_one. RoundedGaussian has one under all three."
                )
        elif not isinstance(self.inner, PlainGaussianEvent) or isinstance(self.inner, StableCountsEvent):
            raise UnsupportedEventError(
                f"{type(self.inner).__name__}: no guarantee is proved with discrete Gaussian noise. "
                "Use RoundedGaussian."
            )

    def describe(self) -> str:
        return f"{self.inner.describe()}, discrete Gaussian"

    def gaussian_mu(self, queries: int) -> float | None:
        return 0.0 if self.inner.gaussian_mu(queries) == 0 else None

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray | None:
        if self.inner.gaussian_mu(queries) is not None:  # not amplified: queries, each with the Gaussian's divergence
            return self.inner.rdp(queries, orders)
        assert isinstance(self.inner, PoissonGaussianEvent)
        return queries * _poisson_rdp(self.inner.sampling_probability, self.inner.ratio, tuple(map(float, orders)))

    def loss_range(self, queries: int) -> float:
        return self.inner.loss_range(queries)


@lru_cache(maxsize=64)
def _poisson_rdp(sampling_probability: float, ratio: float, orders: tuple[float, ...]) -> np.ndarray:
    """Divergences at ``orders`` of one query, from the log-moments at the whole orders around them."""
    whole = sorted({order for a in orders for order in (math.floor(a), math.ceil(a)) if order > 1})
    moments = [log_moment(sampling_probability, ratio, order) for order in whole]
    return np.interp(orders, [1.0, *whole], [0.0, *moments]) / (np.array(orders) - 1)


def log_moment(sampling_probability: float, ratio: float, order: int) -> float:
    r"""Logarithm of :math:`1 + \sum_{l=2}^a \binom{a}{l} (1-q)^{a-l} q^l (e^{l(l-1) \rho^2/2} - 1)`, rounded up.

    The binomial weights add up to 1, so what is small stays accurate.

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
    """The event of the same session with discrete Gaussian noise.

    Raises:
        UnsupportedEventError: Nothing is proved; the message says what is.
    """
    return DiscreteGaussianEvent(relation=event.relation, inner=event)
