r"""What a server learns from secure sums of whole messages, each with its client's discrete Gaussian noise.

Secure aggregation adds up whole numbers and shows their sum alone. A sum of discrete Gaussians is no discrete Gaussian,
but so close to one that the difference is paid for explicitly. Proof: docs/derivations/secure-sums.md.
Source: Kairouz, Liu and Steinke (2021), "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation", https://arxiv.org/abs/2102.06387, Theorem 1, whose tau has the exponents of :func:`discrete_sum_gap`. The
bound here is proved on its own, holds for epsilon and delta, and takes the worst case of rounding to the grid.
"""

import math

from tacita import _validate
from tacita._domains import checked
from tacita.accounting import FullBatchLaw, NeighboringRelation, Spend, epsilon, gaussian_sum_event
from tacita.errors import UnsupportedEventError
from tacita.hardened import discrete

__all__ = ["discrete_sum_gap", "secure_sum_contribution", "secure_sum_epsilon"]

SMALLEST_SCALE = 0.5  # steps of noise of a message; below it the sum is far from a discrete Gaussian
ROUNDED_UP = 1 + 1e-9


@checked()
def discrete_sum_gap(noise_scale: float, messages: int) -> float:
    r"""Return a bound on how far a sum of discrete Gaussians is from one: the logarithm of the ratio of their masses.

    For m independent discrete Gaussians of scale :math:`\sigma` on the whole numbers, at every point

    .. math:: \Bigl| \ln \frac{P(Z_1 + \dots + Z_m = x)}{N_{\mathbb Z}(0, m \sigma^2)(x)} \Bigr| \le
        2 (m - 1) \operatorname{artanh} \rho, \qquad
        \rho = \frac{2 e^{-\pi^2 \sigma^2}}{1 - e^{-3 \pi^2 \sigma^2}}

    Args:
        noise_scale: The scale sigma of one message's noise, in steps of the grid, >= 0.5.
        messages: Number m of messages.

    Example:
        >>> f"{discrete_sum_gap(1.0, 10):.2g}", f"{discrete_sum_gap(4.0, 1000):.2g}", discrete_sum_gap(1.0, 1)
        ('0.0019', '1e-65', 0.0)
    """
    if not _validate.positive("noise_scale", noise_scale) >= SMALLEST_SCALE:
        raise ValueError(
            f"noise_scale must be >= {SMALLEST_SCALE}, got {noise_scale!r}: below it the sum of the noises is far from "
            "a discrete Gaussian. Choose a smaller step of the grid."
        )
    exponent = math.pi**2 * noise_scale**2
    rho = 2 * math.exp(-exponent) / (1 - math.exp(-3 * exponent))
    return 2 * (_validate.count("messages", messages) - 1) * math.atanh(rho) * ROUNDED_UP


@checked()
def secure_sum_contribution(max_grad_norm: float, step: float, size: int) -> float:
    r"""Return the most that a clipped message has as norm once it is rounded to the grid, :math:`C + g \sqrt d / 2`.

    Args:
        max_grad_norm: Clipping threshold C.
        step: The step g of the grid; every coordinate is rounded to the nearest whole multiple of it.
        size: Number d of coordinates.

    Example:
        >>> round(secure_sum_contribution(1.0, 2**-10, 10_000), 6)
        1.048828
    """
    norm = _validate.positive("max_grad_norm", max_grad_norm)
    step, size = _validate.positive("step", step), _validate.count("size", size)
    return (norm + step * math.sqrt(size) / 2) * ROUNDED_UP


@checked()
def secure_sum_epsilon(
    *,
    max_grad_norm: float,
    step: float,
    noise_std: float,
    size: int,
    honest_messages: int,
    rounds: int,
    delta: float,
    neighboring_relation: NeighboringRelation,
) -> float:
    r"""Return an epsilon for whoever sees the secure sums of ``rounds`` rounds, and all later models.

    A message is :math:`g\,(\lfloor u / g \rceil + Z)` with :math:`\lVert u \rVert \le C` and Z discrete Gaussian of
    scale s / g on each coordinate. Of the sum of m honest messages one client moves at most b :math:`(C + g \sqrt d /
    2)`, with b = 2 if its data are replaced and 1 if its message becomes noise alone; the noise is that of a discrete
    Gaussian of standard deviation :math:`s \sqrt m`, up to the gap L of :func:`discrete_sum_gap` for each coordinate
    and round. With :math:`\Lambda = T d L` and :math:`\epsilon_0` that of the ideal noise,

    .. math:: \epsilon(\delta) = \epsilon_0(\delta e^{-\Lambda}) + 2 \Lambda

    Assumes, and nobody here enforces: the server sees the sum alone (secure aggregation does what it promises); each
    honest message has fresh noise, does not depend on the noise of earlier messages of its client but through the sums,
    and is sent whole; at least ``honest_messages`` of every sum are of clients that follow the protocol and whose noise
    the server does not know. A sum modulo a power of two is covered.

    Args:
        max_grad_norm: Clipping threshold C of a message.
        step: The step g of the grid.
        noise_std: Standard deviation s of the noise of one message, in the units of C; s / g >= 0.5.
        size: Number d of coordinates of a message.
        honest_messages: The least number m of honest messages in a sum. Clients that drop out do not count.
        rounds: Number T of sums.
        delta: In (0, 1).
        neighboring_relation: "replace_one" or "zero_out_one", of all data of one client.

    Raises:
        UnsupportedEventError: Under add_or_remove_one the number of messages would be a secret, and the noise tells it.

    Example:
        >>> given = dict(max_grad_norm=1.0, step=2**-12, noise_std=1.0, size=10_000, rounds=100, delta=1e-5)
        >>> for m in (1, 100):
        ...     print(round(secure_sum_epsilon(**given, honest_messages=m, neighboring_relation="replace_one"), 2))
        300.76
        10.89
    """
    if neighboring_relation == "add_or_remove_one":
        raise UnsupportedEventError(
            "neighboring_relation must be replace_one or zero_out_one for secure sums, got add_or_remove_one: there a "
            "client that is missing takes its noise along. Use zero_out_one, where it sends noise alone."
        )
    contribution = secure_sum_contribution(max_grad_norm, step, size)
    noise_std = _validate.positive("noise_std", noise_std)  # as a float64: NumPy's float32 would round the root below
    scale = noise_std / _validate.positive("step", step)
    gap = discrete_sum_gap(scale, honest_messages) * size * _validate.count("rounds", rounds)
    whole = noise_std * math.sqrt(honest_messages) / ROUNDED_UP
    event = discrete(gaussian_sum_event(FullBatchLaw(), (contribution,), (whole,), neighboring_relation))
    left = _validate.delta("delta", delta) * math.exp(-gap) / ROUNDED_UP
    if not left > 0:
        return math.inf
    return epsilon([Spend(event, rounds)], left).epsilon + 2 * gap
