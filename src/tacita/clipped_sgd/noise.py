r"""The noise that a privacy budget requires, and the conversion between noise on the mean and noise on the sum.

Papers put the noise on the mean of a batch; oracle, mechanism and ledger use the sum. This module is the only place
that converts between the two.
Source: Balle and Wang (2018) for the exact Gaussian noise. The order-of-magnitude formulas are those of the papers and
guarantee nothing.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._arrays import Numbers
from tacita._domains import checked
from tacita.accounting import NeighboringRelation, gaussian_mu, moved

_MU = np.vectorize(gaussian_mu, otypes=[np.float64])


@checked()
def sum_noise_std(mean_noise_std: ArrayLike, *, divisor: ArrayLike) -> Numbers:
    """Return the noise of the sum, given the noise of the mean, which is the sum over the public ``divisor``.

    Example:
        >>> sum_noise_std(0.01, divisor=500)
        5.0
    """
    mean = _arrays.non_negative("mean_noise_std", mean_noise_std)
    return _arrays.plain(mean * _arrays.positive("divisor", divisor))


@checked()
def mean_noise_std(noise_std: ArrayLike, *, divisor: ArrayLike) -> Numbers:
    """Return the noise of the mean, given the noise of the sum, which is divided by the public ``divisor``.

    Example:
        >>> mean_noise_std(5.0, divisor=500)
        0.01
    """
    of_sum = _arrays.non_negative("noise_std", noise_std)
    return _arrays.plain(of_sum / _arrays.positive("divisor", divisor))


@checked()
def noise_multiplier_of(
    mean_noise_std: ArrayLike, *, divisor: ArrayLike, max_grad_norm: ArrayLike, relation: NeighboringRelation
) -> Numbers:
    """Return the noise multiplier (noise of the sum over its sensitivity) that gives a noise of the mean.

    The sensitivity of a clipped sum is ``max_grad_norm``, or twice that under ``replace_one``.

    Example:
        >>> noise_multiplier_of(0.01, divisor=500, max_grad_norm=2.5, relation="replace_one")
        1.0
    """
    of_sum = sum_noise_std(mean_noise_std, divisor=divisor)
    return _arrays.plain(np.asarray(of_sum) / (moved(relation) * _arrays.positive("max_grad_norm", max_grad_norm)))


@checked()
def full_participation_noise(
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    max_grad_norm: ArrayLike,
    queries: ArrayLike,
    relation: NeighboringRelation,
) -> Numbers:
    r"""Return the exact noise of the sum when a record may be in every batch.

    :math:`s\, C \sqrt{m} / \mu(\epsilon, \delta)`, where s is 1, or 2 under ``replace_one``, and m is the number of
    queries. It is exact because the composition of Gaussian queries is again Gaussian.

    Example:
        >>> noise = full_participation_noise(
        ...     epsilon=1, delta=1e-5, max_grad_norm=1, queries=1000, relation="add_or_remove_one")
        >>> round(noise, 3)
        117.973
    """
    once = one_pass_noise(epsilon=epsilon, delta=delta, max_grad_norm=max_grad_norm, relation=relation)
    return _arrays.plain(np.asarray(once) * np.sqrt(_arrays.positive("queries", queries)))


@checked()
def one_pass_noise(
    *, epsilon: ArrayLike, delta: ArrayLike, max_grad_norm: ArrayLike, relation: NeighboringRelation
) -> Numbers:
    r"""Return the exact noise of the sum when a record is in at most one batch of the run.

    :math:`s\, C / \mu(\epsilon, \delta)`, where s is 1, or 2 under ``replace_one``. There is no factor for the number
    of steps, because the whole run is one Gaussian query of each record. :class:`tacita.DisjointSampler` draws such
    batches; by secret coin (:class:`tacita.AllocatedSampler`) a run needs less.

    Example:
        >>> round(one_pass_noise(epsilon=8, delta=1e-5, max_grad_norm=1, relation="add_or_remove_one"), 6)
        0.600229
    """
    c = _arrays.positive("max_grad_norm", max_grad_norm)
    return _arrays.plain(moved(relation) * c / _MU(epsilon, delta))


@checked()
def theta_noise(
    *, epsilon: ArrayLike, delta: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike, constant: float = 1.0
) -> Numbers:
    r"""Return the paper's order of magnitude for the noise of the sum. **Not a guarantee.**

    :math:`\Theta\big(\frac{C}{\epsilon}\sqrt{K \ln(K/\delta)\ln(1/\delta)}\big)` with ``constant`` as the hidden
    constant. At 1 it is larger than needed for a small epsilon and too small for a large one, because it falls like
    1 / epsilon and the noise that is needed falls only like 1 / sqrt(epsilon).

    Example:
        >>> round(theta_noise(epsilon=1, delta=1e-5, max_grad_norm=1, steps=999), 3)
        460.274
    """
    k, d = _arrays.positive("steps", steps), _arrays.positive("delta", delta)
    shape = np.sqrt(k * np.log(k / d) * np.log(1 / d))
    return _arrays.plain(constant * np.asarray(max_grad_norm) / _arrays.positive("epsilon", epsilon) * shape)


@checked()
def advanced_composition_noise(*, epsilon: float, delta: float, max_grad_norm: float, queries: int) -> float:
    r"""Return the noise of the sum that the paper's accounting requires, for queries of sensitivity C.

    The paper applies advanced composition to classical Gaussian queries. With :math:`\delta' = \delta/2` and
    :math:`\delta_0 = \delta/(2m)` a query gets the largest :math:`\epsilon_0` with
    :math:`\epsilon_0\sqrt{2m\ln(1/\delta')} + m\epsilon_0(e^{\epsilon_0} - 1) \le \epsilon`, and noise
    :math:`C\sqrt{2\ln(1.25/\delta_0)}/\epsilon_0`. This is for comparison; the exact noise is several times smaller.

    Example:
        >>> round(advanced_composition_noise(epsilon=1, delta=1e-5, max_grad_norm=1, queries=1000), 2)
        1010.06
    """
    per_query = _advanced_epsilon(epsilon, delta / 2, queries)
    return max_grad_norm * math.sqrt(2 * math.log(1.25 * 2 * queries / delta)) / per_query


def _advanced_epsilon(epsilon: float, delta: float, queries: int) -> float:
    from scipy.optimize import brentq

    root = math.sqrt(2 * queries * math.log(1 / delta))
    return float(brentq(lambda e: e * root + queries * e * math.expm1(e) - epsilon, 0.0, epsilon / root))  # type: ignore[arg-type]
