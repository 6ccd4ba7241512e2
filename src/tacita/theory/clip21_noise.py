r"""Clip21-SGDM: how much noise a client's messages need.

Place: accounting -> [theory.clip21_noise] -> planners. The noise is that of one client's message, whose sensitivity is
2 C whatever the client holds, in every round at once: there is no mean, and no amplification by sampling.
Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", whose noise has the right
shape and an unstated constant; the constants here are exact.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacita.accounting import gaussian_delta, gaussian_mu
from tacita.theory import _arrays

Array = NDArray[np.float64]


def message_mu(
    *, max_grad_norm: float, noise_std: float, messages: int, shares: int = 1, replaced: bool = True
) -> float:
    r"""Gaussian-DP parameter of ``messages`` rounds: :math:`2 C \sqrt T / (\sqrt h\, \sigma_\omega)`.

    Args:
        max_grad_norm: Threshold C of a message.
        noise_std: Of one client's message.
        messages: T, the first one included.
        shares: h, honest clients whose noises add up under secure aggregation; 1 if every message is seen.
        replaced: A client's data are replaced (2 C, and any change of one record); False: the client contributes zero
            (C), which only the sum of messages can mean.

    Example:
        >>> [round(message_mu(max_grad_norm=1, noise_std=10, messages=1000, shares=h), 6) for h in (1, 10, 100)]
        [6.324555, 2.0, 0.632456]
    """
    _positive_all(max_grad_norm=max_grad_norm, noise_std=noise_std, messages=messages, shares=shares)
    return (2 if replaced else 1) * max_grad_norm * math.sqrt(messages) / (math.sqrt(shares) * noise_std)


def message_noise_std(*, epsilon: float, delta: float, max_grad_norm: float, messages: int, blocks: int = 1) -> float:
    r"""Noise of a message for a client's (epsilon, delta), exact: :math:`2C\sqrt{KT}/\mu(\epsilon, \delta)`.

    ``blocks`` is K for a message clipped layer by layer at the same C: the sensitivity is :math:`2C\sqrt K`.

    Example:
        >>> round(message_noise_std(epsilon=2, delta=1e-5, max_grad_norm=1, messages=1000), 3)
        126.1
    """
    _positive_all(max_grad_norm=max_grad_norm, messages=messages, blocks=blocks)
    return 2 * max_grad_norm * math.sqrt(messages * blocks) / gaussian_mu(epsilon, delta)


def zcdp_noise_std(*, epsilon: float, delta: float, max_grad_norm: float, messages: int) -> float:
    r"""The same by way of zCDP: a quarter more.

    :math:`C\sqrt{2T/\rho}` with :math:`\rho = (\sqrt{\ell+\epsilon}-\sqrt\ell)^2`, :math:`\ell = \ln(1/\delta)`.

    Example:
        >>> round(zcdp_noise_std(epsilon=2, delta=1e-5, max_grad_norm=1, messages=1000), 3)
        158.069
    """
    log = math.log(1 / delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    return max_grad_norm * math.sqrt(2 * messages / rho)


def classic_noise_std(*, epsilon: float, delta: float, max_grad_norm: float, messages: int) -> float:
    r"""The classic formula :math:`2C\sqrt{2T\ln(1.25/\delta)}/\epsilon`: a theorem for epsilon <= 1 only.

    Example:
        >>> round(classic_noise_std(epsilon=1, delta=1e-5, max_grad_norm=1, messages=100), 4)
        96.8961
    """
    return 2 * max_grad_norm * math.sqrt(2 * messages * math.log(1.25 / delta)) / epsilon


def layer_noise_stds(thresholds: Sequence[float], sizes: Sequence[int], *, messages: int, mu: float) -> Array:
    r"""Noise of each layer with the least total power at a given mu.

    :math:`\sigma_l^2 = \frac{C_l}{\sqrt{d_l}} \cdot \frac{4T}{\mu^2}\sum_k C_k\sqrt{d_k}`: then
    :math:`T\sum_l (2C_l/\sigma_l)^2 = \mu^2`.

    Example:
        >>> layer_noise_stds([1, 1], [100, 1], messages=100, mu=0.268051).round(4).tolist()
        [78.2544, 247.4622]
    """
    c, root = _arrays.positive("thresholds", thresholds), np.sqrt(_arrays.positive("sizes", sizes))
    return np.sqrt(c / root * 4 * messages * (c * root).sum() / mu**2)


def first_draw_delta(
    epsilon: float, *, sample_rate: float, max_grad_norm: float, noise_std: float, messages: int
) -> float:
    r"""The delta if records enter by Poisson sampling: nothing is spent before a record is drawn for the first time.

    :math:`\sum_{j=1}^T q(1-q)^{j-1}\, \delta_G(\epsilon;\, 2C\sqrt{T-j+1}/\sigma_\omega)`: the only saving from
    sampling that is proved, and a small one.
    """
    q = sample_rate
    total = 0.0
    for j in range(1, messages + 1):
        mu = message_mu(max_grad_norm=max_grad_norm, noise_std=noise_std, messages=messages - j + 1)
        total += q * (1 - q) ** (j - 1) * gaussian_delta(mu, epsilon)
    return total


def clipped_samples_sensitivity(
    *,
    participations: ArrayLike,
    momentum_weight: float,
    max_sample_norm: float,
    divisor: float,
    max_grad_norm: float,
    messages: int,
    replaced: bool = False,
) -> Array:
    r"""How far one record moves all of a client's messages, if the client clips every sample's gradient to :math:`C_s`.

    :math:`S_k = \min(2C\sqrt T,\; 2k\beta C_s/b)` for a record in k of its batches (twice the second under
    replace-one): without a factor T, since what the momentum adds later it takes back.

    Example:
        >>> float(clipped_samples_sensitivity(participations=3, momentum_weight=0.1, max_sample_norm=1, divisor=10,
        ...                                   max_grad_norm=1, messages=1000))
        0.06
    """
    k = _arrays.non_negative("participations", participations)
    once = (4 if replaced else 2) * momentum_weight * max_sample_norm / divisor
    return np.minimum(2 * max_grad_norm * math.sqrt(messages), k * once)


def random_walk_variance(*, lr: float, noise_std: float, num_clients: int, steps: int) -> float:
    r"""Variance a coordinate that the noise alone gives the model: it is never fed back, and piles up like :math:`T^3`.

    :math:`\gamma^2\sigma_\omega^2/n \cdot (T-1)T(2T-1)/6`; plain clipped SGD has :math:`\gamma^2\sigma_\omega^2T/n`.

    Example:
        >>> round(random_walk_variance(lr=0.1, noise_std=2, num_clients=4, steps=100), 9)
        3283.5
    """
    return lr**2 * noise_std**2 / num_clients * (steps - 1) * steps * (2 * steps - 1) / 6


def _positive_all(**values: float) -> None:
    for name, value in values.items():
        _arrays.positive(name, value)
