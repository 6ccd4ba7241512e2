r"""The noise that a client's messages need in Clip21-SGDM.

The noise is that of one client's message. A change of the client's data may change its messages of all rounds, each by
2 C, so there is no average over clients and no amplification by sampling.
Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", whose noise has the right
shape and an unstated constant; the constants here are exact.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacita import _arrays
from tacita._domains import POSITIVE, checked
from tacita.accounting import gaussian_mu

__all__ = [
    "classic_noise_std",
    "clipped_samples_sensitivity",
    "layer_noise_stds",
    "message_mu",
    "message_noise_std",
    "random_walk_variance",
    "zcdp_noise_std",
]

Array = NDArray[np.float64]


@checked(noise_std=POSITIVE)
def message_mu(
    *, max_grad_norm: float, noise_std: float, messages: int, shares: int = 1, replaced: bool = True
) -> float:
    r"""Return the Gaussian-DP parameter of ``messages`` rounds, :math:`2 C \sqrt T / (\sqrt h\, \sigma_\omega)`.

    Args:
        max_grad_norm: Clipping threshold C of a message.
        noise_std: Standard deviation of the noise on one client's message.
        messages: Number of messages T, the first one included.
        shares: Number h of honest clients whose noises add up under secure aggregation; 1 if every message is seen.
        replaced: ``True``: the neighbor replaces a client's data, which covers any change of one record (2 C).
            ``False``: the neighbor's client contributes zero (C), which makes sense only for the sum of messages.

    Example:
        >>> [round(message_mu(max_grad_norm=1, noise_std=10, messages=1000, shares=h), 6) for h in (1, 10, 100)]
        [6.324555, 2.0, 0.632456]
    """
    return (2 if replaced else 1) * max_grad_norm * math.sqrt(messages) / (math.sqrt(shares) * noise_std)


@checked()
def message_noise_std(*, epsilon: float, delta: float, max_grad_norm: float, messages: int, blocks: int = 1) -> float:
    r"""Return the exact noise of a message for a client's (epsilon, delta): :math:`2C\sqrt{KT}/\mu(\epsilon, \delta)`.

    ``blocks`` is K, the number of layers of a message that is clipped layer by layer at the same C. Its sensitivity is
    :math:`2C\sqrt K`.

    Example:
        >>> round(message_noise_std(epsilon=2, delta=1e-5, max_grad_norm=1, messages=1000), 3)
        126.1
    """
    return 2 * max_grad_norm * math.sqrt(messages * blocks) / gaussian_mu(epsilon, delta)


@checked()
def zcdp_noise_std(*, epsilon: float, delta: float, max_grad_norm: float, messages: int) -> float:
    r"""Return the noise of a message as derived from zCDP, about a quarter above the exact one.

    :math:`C\sqrt{2T/\rho}` with :math:`\rho = (\sqrt{\ell+\epsilon}-\sqrt\ell)^2`, :math:`\ell = \ln(1/\delta)`.

    Example:
        >>> round(zcdp_noise_std(epsilon=2, delta=1e-5, max_grad_norm=1, messages=1000), 3)
        158.069
    """
    log = math.log(1 / delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    return max_grad_norm * math.sqrt(2 * messages / rho)


@checked()
def classic_noise_std(*, epsilon: float, delta: float, max_grad_norm: float, messages: int) -> float:
    r"""Return the classic formula :math:`2C\sqrt{2T\ln(1.25/\delta)}/\epsilon`, a theorem for epsilon <= 1 only.

    Example:
        >>> round(classic_noise_std(epsilon=1, delta=1e-5, max_grad_norm=1, messages=100), 4)
        96.8961
    """
    return 2 * max_grad_norm * math.sqrt(2 * messages * math.log(1.25 / delta)) / epsilon


@checked()
def layer_noise_stds(thresholds: Sequence[float], sizes: Sequence[int], *, messages: int, mu: float) -> Array:
    r"""Return each layer's noise such that the total noise power is least for the Gaussian-DP parameter ``mu``.

    :math:`\sigma_l^2 = \frac{C_l}{\sqrt{d_l}} \cdot \frac{4T}{\mu^2}\sum_k C_k\sqrt{d_k}`, which gives
    :math:`T\sum_l (2C_l/\sigma_l)^2 = \mu^2`.

    Example:
        >>> layer_noise_stds([1, 1], [100, 1], messages=100, mu=0.268051).round(4).tolist()
        [78.2544, 247.4622]
    """
    c, root = _arrays.positive("thresholds", thresholds), np.sqrt(_arrays.positive("sizes", sizes))
    return np.sqrt(c / root * 4 * messages * (c * root).sum() / mu**2)


@checked()
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
    r"""Return how far one record moves all messages of a client that clips every sample's gradient to :math:`C_s`.

    :math:`S_k = \min(2C\sqrt T,\; 2k\beta C_s/b)` for a record in k of the client's batches (twice the second term
    under replace-one). There is no factor T, because later messages take back what the momentum has added.

    Example:
        >>> float(clipped_samples_sensitivity(participations=3, momentum_weight=0.1, max_sample_norm=1, divisor=10,
        ...                                   max_grad_norm=1, messages=1000))
        0.06
    """
    k = _arrays.non_negative("participations", participations)
    once = (4 if replaced else 2) * momentum_weight * max_sample_norm / divisor
    return np.minimum(2 * max_grad_norm * math.sqrt(messages), k * once)


@checked()
def random_walk_variance(*, lr: float, noise_std: float, num_clients: int, steps: int) -> float:
    r"""Return the variance per coordinate of the model that the noise alone causes.

    :math:`\gamma^2\sigma_\omega^2/n \cdot (T-1)T(2T-1)/6`. It grows like :math:`T^3` because the noise is never fed
    back; plain clipped SGD has :math:`\gamma^2\sigma_\omega^2T/n`.

    Example:
        >>> round(random_walk_variance(lr=0.1, noise_std=2, num_clients=4, steps=100), 9)
        3283.5
    """
    return lr**2 * noise_std**2 / num_clients * (steps - 1) * steps * (2 * steps - 1) / 6
