r"""Settings and error of the coordinate-wise clipped median of means, from bounds on the coordinates' moments.

``gamma_k`` bounds every coordinate's central moment :math:`E|\langle z - Ez, e_j\rangle|^k`, and L the mean's norm.
Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Appendix F,
Lemmas 57 to 59, with the corrections of docs/derivations/heavy-tailed-sco.md, section 8.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import checked

__all__ = ["MedianError", "coordinate_threshold", "median_error", "number_of_groups"]


@checked()
def number_of_groups(dim: int, *, failure_probability: float) -> int:
    r"""Return the number of groups with which every coordinate is within the error bound: :math:`20\ln(4d/\zeta)`.

    It is rounded up to the next odd number, whose median is a middle value.

    Args:
        dim: d.
        failure_probability: zeta, for all coordinates together.

    Example:
        >>> number_of_groups(10, failure_probability=0.01)
        167
    """
    groups = math.ceil(20 * math.log(4 * dim / failure_probability))
    return groups + 1 - groups % 2


@checked()
def coordinate_threshold(
    *,
    coordinate_moment: ArrayLike,
    order: ArrayLike,
    batch_size: ArrayLike,
    num_groups: int,
    dim: ArrayLike,
    rho: ArrayLike,
    risk_lipschitz: ArrayLike,
) -> Any:
    r"""Return the threshold tau at which the bias of clipping equals the noise, and at least 2L.

    :math:`\tau = \max\big(2L, (\gamma_k 2^{k-2} s\,\mu/(m\sqrt d))^{1/k}\big)`, :math:`\mu = \sqrt{2\rho}`. The paper
    gives no threshold.

    Args:
        coordinate_moment, order: :math:`\gamma_k` and k.
        batch_size, num_groups, dim: s, m and d.
        rho: The budget of the query.
        risk_lipschitz: L, a bound on the norm of the mean.

    Example:
        >>> round(coordinate_threshold(coordinate_moment=1.0, order=2, batch_size=1000, num_groups=5, dim=10, rho=0.5,
        ...                            risk_lipschitz=1.0), 5)
        7.95271
    """
    gamma, k = _arrays.positive("coordinate_moment", coordinate_moment), np.asarray(order, dtype=np.float64)
    mu, root = np.sqrt(2 * _arrays.positive("rho", rho)), np.sqrt(_arrays.positive("dim", dim))
    balanced = (gamma * 2 ** (k - 2) * np.asarray(batch_size) * mu / (num_groups * root)) ** (1 / k)
    return _arrays.plain(np.maximum(2 * np.asarray(risk_lipschitz), balanced))


@dataclass(frozen=True)
class MedianError:
    r"""The error of one noisy median of means.

    Attributes:
        mean_noise_std: Noise on a coordinate of the mean, :math:`2\tau m\sqrt d/(s\mu)`; half of it for an even m.
        deviation: With probability at least :math:`1 - 4d\,e^{-m/20}` the value without noise is so close to the mean.
        bias: A bound on the bias of clipping one coordinate.
    """

    mean_noise_std: Any
    deviation: Any
    bias: Any


@checked()
def median_error(
    *,
    max_coordinate: ArrayLike,
    coordinate_moment: ArrayLike,
    order: ArrayLike,
    batch_size: ArrayLike,
    num_groups: int,
    dim: ArrayLike,
    rho: ArrayLike,
) -> MedianError:
    r"""Return noise, deviation and bias, for a threshold of at least twice the norm of the mean.

    The deviation is :math:`10\sqrt d\,(\sqrt{m/s}\,\gamma_k^{1/k} + \gamma_k (2/\tau)^{k-1})` (Lemma 57), the bias
    :math:`b_k\gamma_k(2/\tau)^{k-1}` with :math:`b_k = (k-1)^{k-1}/k^k`; the paper has 10 for :math:`b_k`.

    Args:
        max_coordinate: tau.
        coordinate_moment, order: :math:`\gamma_k` and k.
        batch_size, num_groups, dim: s, m and d.
        rho: The budget of the query.

    Example:
        >>> error = median_error(max_coordinate=2.0, coordinate_moment=1.0, order=2, batch_size=100, num_groups=5,
        ...                      dim=10, rho=0.5)
        >>> round(error.mean_noise_std**2, 6), error.bias
        (0.4, 0.25)
    """
    tau, gamma = _arrays.positive("max_coordinate", max_coordinate), np.asarray(coordinate_moment, dtype=np.float64)
    k, s, root = np.asarray(order, dtype=np.float64), np.asarray(batch_size), np.sqrt(np.asarray(dim, dtype=np.float64))
    half = 0.5 if num_groups % 2 == 0 else 1.0
    noise = half * 2 * tau * num_groups * root / (s * np.sqrt(2 * _arrays.positive("rho", rho)))
    tail = gamma * (2 / tau) ** (k - 1)
    sharp = np.exp((k - 1) * np.log(k - 1) - k * np.log(k))
    deviation = 10 * root * (np.sqrt(num_groups / s) * gamma ** (1 / k) + tail)
    return MedianError(_arrays.plain(noise), _arrays.plain(deviation), _arrays.plain(sharp * tail))
