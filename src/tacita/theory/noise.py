r"""How much noise privacy asks for: exact Gaussian numbers, and the change between the mean and the sum.

Place: accounting -> [theory.noise] -> planners. Papers put their noise on the mean of a batch; oracle, mechanism and
ledger speak of the sum. This module is the one place where the two are converted.
Source: Balle and Wang (2018) for the Gaussian; the order-of-magnitude formulas are those of the papers, and no
guarantees.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from tacita.accounting import NeighboringRelation, gaussian_mu, moved
from tacita.theory import _arrays
from tacita.theory._arrays import Numbers

_MU = np.vectorize(gaussian_mu, otypes=[np.float64])


def sum_noise_std(mean_noise_std: ArrayLike, *, divisor: ArrayLike) -> Numbers:
    """Noise of the sum whose mean, the sum over the public ``divisor``, has noise ``mean_noise_std``.

    Example:
        >>> sum_noise_std(0.01, divisor=500)
        5.0
    """
    mean = _arrays.non_negative("mean_noise_std", mean_noise_std)
    return _arrays.plain(mean * _arrays.positive("divisor", divisor))


def mean_noise_std(noise_std: ArrayLike, *, divisor: ArrayLike) -> Numbers:
    """Noise of the mean, if the sum has ``noise_std`` and is divided by the public ``divisor``.

    Example:
        >>> mean_noise_std(5.0, divisor=500)
        0.01
    """
    of_sum = _arrays.non_negative("noise_std", noise_std)
    return _arrays.plain(of_sum / _arrays.positive("divisor", divisor))


def noise_multiplier_of(
    mean_noise_std: ArrayLike, *, divisor: ArrayLike, max_grad_norm: ArrayLike, relation: NeighboringRelation
) -> Numbers:
    """The multiplier that a mechanism needs for that noise on the mean: noise of the sum over its sensitivity.

    The sensitivity of a clipped sum is ``max_grad_norm``, under ``replace_one`` twice that.

    Example:
        >>> noise_multiplier_of(0.01, divisor=500, max_grad_norm=2.5, relation="replace_one")
        1.0
    """
    of_sum = sum_noise_std(mean_noise_std, divisor=divisor)
    return _arrays.plain(np.asarray(of_sum) / (moved(relation) * _arrays.positive("max_grad_norm", max_grad_norm)))


def full_participation_noise(
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    max_grad_norm: ArrayLike,
    queries: ArrayLike,
    relation: NeighboringRelation,
) -> Numbers:
    r"""Noise of the sum when a record may be in every batch: :math:`s\, C \sqrt{m} / \mu(\epsilon, \delta)`, exact.

    s is 1, under replace_one 2; m is the number of queries. Composition of Gaussian queries is Gaussian, so nothing
    is lost.

    Example:
        >>> noise = full_participation_noise(
        ...     epsilon=1, delta=1e-5, max_grad_norm=1, queries=1000, relation="add_or_remove_one")
        >>> round(noise, 3)
        117.973
    """
    once = one_pass_noise(epsilon=epsilon, delta=delta, max_grad_norm=max_grad_norm, relation=relation)
    return _arrays.plain(np.asarray(once) * np.sqrt(_arrays.positive("queries", queries)))


def one_pass_noise(
    *, epsilon: ArrayLike, delta: ArrayLike, max_grad_norm: ArrayLike, relation: NeighboringRelation
) -> Numbers:
    r"""Noise of the sum when a record is in one batch of the run at most: :math:`s\, C / \mu(\epsilon, \delta)`.

    There is no factor for the number of steps: the whole run is one Gaussian query of each record
    (:class:`tacita.DisjointSampler` sees to it).

    Example:
        >>> round(one_pass_noise(epsilon=8, delta=1e-5, max_grad_norm=1, relation="add_or_remove_one"), 6)
        0.600229
    """
    c = _arrays.positive("max_grad_norm", max_grad_norm)
    return _arrays.plain(moved(relation) * c / _MU(epsilon, delta))


def theta_noise(
    *, epsilon: ArrayLike, delta: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike, constant: float = 1.0
) -> Numbers:
    r"""The paper's :math:`\Theta\big(\frac{C}{\epsilon}\sqrt{K \ln(K/\delta)\ln(1/\delta)}\big)`: **not a guarantee**.

    An order of magnitude, with the hidden constant as an argument. With 1 it is larger than needed for a small
    epsilon and too small for a large one: it falls like 1 / epsilon, what is needed only like its root.

    Example:
        >>> round(theta_noise(epsilon=1, delta=1e-5, max_grad_norm=1, steps=999), 3)
        460.274
    """
    k, d = _arrays.positive("steps", steps), _arrays.positive("delta", delta)
    shape = np.sqrt(k * np.log(k / d) * np.log(1 / d))
    return _arrays.plain(constant * np.asarray(max_grad_norm) / _arrays.positive("epsilon", epsilon) * shape)


def theta_noise_of_finite_sum(
    *, epsilon: ArrayLike, delta: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike, sample_rate: ArrayLike
) -> Numbers:
    r"""The paper's :math:`\Theta\big(\frac{q C}{\epsilon}\sqrt{K \ln(1/\delta)}\big)`, of the sum: **not a guarantee**.

    Quoted from Abadi et al. (2016) for Poisson sampling at rate q; meant only where epsilon is of order
    :math:`q^2 K`, which for one epoch of batches of one is 1 / n.
    """
    k, d = _arrays.positive("steps", steps), _arrays.positive("delta", delta)
    q = _arrays.probability("sample_rate", sample_rate)
    return _arrays.plain(q * np.asarray(max_grad_norm) / np.asarray(epsilon) * np.sqrt(k * np.log(1 / d)))


def advanced_composition_noise(*, epsilon: float, delta: float, max_grad_norm: float, queries: int) -> float:
    r"""What the paper's way of accounting costs: advanced composition of classical Gaussian queries (sensitivity C).

    With :math:`\delta' = \delta/2` and :math:`\delta_0 = \delta/(2m)` a query gets the largest :math:`\epsilon_0` with
    :math:`\epsilon_0\sqrt{2m\ln(1/\delta')} + m\epsilon_0(e^{\epsilon_0} - 1) \le \epsilon`, and noise
    :math:`C\sqrt{2\ln(1.25/\delta_0)}/\epsilon_0`. For comparison: the exact noise is several times smaller.

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
