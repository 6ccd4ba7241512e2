r"""Closed forms of the Gaussian mechanism: delta, epsilon and mu, each from the other two.

``mu`` is sensitivity over noise standard deviation. k queries of ``mu`` together are one query of
:math:`\mu\sqrt{k}`, and different queries one of :math:`\sqrt{\sum \mu_i^2}`.
Source: Balle and Wang (2018), Theorem 8, https://arxiv.org/abs/1805.06530.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

SMALL_MU = 1e-3
ROOM = 1e-9  # relative, of delta: for the rounding of the closed form
SQRT2 = math.sqrt(2)


def gaussian_delta(mu: float, epsilon: float) -> float:
    r"""Return the smallest delta of a Gaussian query at ``epsilon``, exact up to rounding.

    :math:`\delta(\epsilon) = \Phi(-\epsilon/\mu + \mu/2) - e^{\epsilon} \Phi(-\epsilon/\mu - \mu/2)`.

    Args:
        mu: Sensitivity over noise standard deviation, >= 0; ``inf`` is no noise.
        epsilon: Any real number, also a negative one.

    Example:
        >>> round(gaussian_delta(1.0, 1.0), 6)
        0.126937
    """
    if epsilon < 0:  # the other direction: H_g(P|Q) = 1 - g + g H_{1/g}(Q|P)
        return -math.expm1(epsilon) + math.exp(epsilon) * gaussian_delta(mu, -epsilon)
    return float(gaussian_deltas(np.array(epsilon), np.array(mu)))


def gaussian_deltas(epsilons: np.ndarray, mus: np.ndarray) -> np.ndarray:
    """Return the same at many epsilons >= 0, or for many ``mus``."""
    epsilons, mus = np.broadcast_arrays(np.asarray(epsilons, dtype=float), np.asarray(mus, dtype=float))
    found = np.where(np.isinf(mus), 1.0, 0.0)
    large, small = (mus >= SMALL_MU) & np.isfinite(mus), (mus > 0) & (mus < SMALL_MU)
    m, e = mus[large], epsilons[large]
    upper, lower = log_ndtr(m / 2 - e / m), e + log_ndtr(-m / 2 - e / m)
    found[large] = -np.exp(upper) * np.expm1(np.minimum(0.0, lower - upper))
    found[small] = _small_mu_deltas(epsilons[small], mus[small])
    return np.where(np.isinf(epsilons), 0.0, found)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 of a Gaussian query at ``delta`` in (0, 1), rounded up.

    Example:
        >>> round(gaussian_epsilon(10**0.5, 1e-5), 4)  # ten queries of mu = 1
        17.8566
    """
    if mu == math.inf:
        return math.inf
    if delta_above(mu, 0.0) <= delta:
        return 0.0
    tail = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # the tail bound of the privacy loss
    found = _root(lambda e: delta_above(mu, e) - delta, 0.0, tail)
    return _first_within(found, lambda e: delta_above(mu, e) <= delta)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose Gaussian query is (``epsilon``, ``delta``)-private, rounded down.

    Example:
        >>> round(gaussian_mu(1.0, 1e-5), 5)
        0.26805
    """
    if not (0 <= epsilon < math.inf) or not (0 < delta < 1):
        raise ValueError(f"epsilon must be >= 0 and finite, delta in (0, 1), got {epsilon!r} and {delta!r}.")
    high = 1.0
    while delta_above(high, epsilon) <= delta:
        high *= 2
    low = high
    while delta_above(low, epsilon) > delta:
        low /= 2
    found = _root(lambda mu: delta_above(mu, epsilon) - delta, low, high)
    return 1 / _first_within(1 / found, lambda inverse: delta_above(1 / inverse, epsilon) <= delta)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-13, maxiter=2000))  # type: ignore[arg-type]


def delta_above(mu: float, epsilon: float) -> float:
    """Return a number above delta: the closed form has a relative error up to 2e-10, where its terms cancel."""
    return min(1.0, gaussian_delta(mu, epsilon) * (1 + ROOM))


def sampled_delta_above(sample_rate: float, mu: float, epsilon: float) -> float:
    r"""Return a number above delta of one Gaussian query that a record enters with chance q, at ``epsilon`` >= 0.

    It is :math:`q\, \delta_\mu(\ln(1 + (e^\epsilon - 1)/q))`, exactly (Balle, Barthe and Gaboardi 2018, Theorem 2,
    https://arxiv.org/abs/1807.01647), for a record that is added, removed or zeroed out.
    """
    log_rate = math.log(sample_rate)
    amplified = epsilon + math.log(-math.expm1(math.log1p(-sample_rate) - epsilon)) - log_rate
    rounding = 1e-14 * (1 + epsilon - log_rate)  # delta falls: a smaller epsilon is a bound
    return sample_rate * delta_above(mu, max(0.0, amplified - rounding))


def _small_mu_deltas(epsilons: np.ndarray, mus: np.ndarray) -> np.ndarray:
    r"""Return deltas for small mu, where the two terms of the formula cancel.

    With the Mills ratio :math:`R = (1 - \Phi)/\varphi` and :math:`t = \epsilon/\mu` it is
    :math:`\varphi(t - \mu/2) \int (1 - z R(z)) dz` over :math:`t \mp \mu/2`: Simpson's rule, error of relative mu^4.
    """
    t = np.minimum(epsilons / mus, 45.0)
    low, middle, high = (1 - z * np.sqrt(np.pi / 2) * erfcx(z / SQRT2) for z in (t - mus / 2, t, t + mus / 2))
    density = np.exp(-((t - mus / 2) ** 2) / 2) / np.sqrt(2 * np.pi)
    return np.where(t > 40, 0.0, density * mus / 6 * (low + 4 * middle + high))  # beyond, below the smallest float


def _first_within(value: float, holds: Callable[[float], bool]) -> float:
    """Raise ``value`` by growing steps until ``holds``, because the root finder may stop on the wrong side."""
    step = 1e-13
    while not holds(value):
        value += value * step
        step *= 2
    return value
