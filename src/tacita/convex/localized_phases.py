r"""The phases of the localized subgradient method (Algorithm 4) and of its strongly convex reduction (Appendix G.3).

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Theorems 41
and 43. The printed number of steps is circular and half of what the proof needs; here it is solved by the Lambert
function. ``schedule="economy"`` keeps thresholds, radii and regularisers, and takes hundreds of times fewer steps.
Derivations: docs/derivations/heavy-tailed-sco.md.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import checked
from tacita.convex.heavy_tailed_setting import Constants, HeavyTailedSetting, check_constants

PhaseSchedule = Literal["economy", "theory"]
ECONOMY_STEPS = 8.0  # the inner step is at most 1 / (8 reg_strength)


@dataclass(frozen=True)
class LocalizedPhase:
    r"""The settings of one phase, for :class:`tacita.convex.LocalizedSubgradient` and its oracle.

    Attributes:
        num_records: :math:`n_i`, the records of the phase's part.
        steps: :math:`T_i`, one query each.
        lr: Step size of the subgradient method.
        reg_strength: :math:`\lambda_i`.
        radius: :math:`D_i`; the phase stays so close to its starting point.
        max_grad_norm: :math:`C_i`.
        noise_multiplier: Of full-batch queries under replace_one: :math:`\sqrt{T_i}/\mu`.
        mean_noise_std: The resulting noise of the mean, :math:`2C_i\sqrt{T_i}/(n_i\mu)`.
        batch_size: Records of one query: :math:`n_i`, or :math:`\lceil\sqrt{n_i}\rceil` in the minibatch variant. Its
            noise is not ``mean_noise_std``: calibrate it with :class:`tacita.CalibratedGaussian`.
    """

    num_records: int
    steps: int
    lr: float
    reg_strength: float
    radius: float
    max_grad_norm: float
    noise_multiplier: float
    mean_noise_std: float
    batch_size: int

    @property
    def with_minibatches(self) -> "LocalizedPhase":
        """The phase with random batches of about the square root of its records (Remark 13)."""
        return replace(self, batch_size=max(1, math.ceil(math.sqrt(self.num_records))))

    @property
    def gradient_evaluations(self) -> int:
        """Per-sample gradients that the phase computes."""
        return self.steps * self.batch_size


@dataclass(frozen=True)
class LocalizedConstants:
    """The constants that all phases share.

    Attributes:
        num_records: The power of two that is used of n.
        lr: eta, the base of the phases' step sizes.
        psi: The rate's factor, of records and budget alone.
        rate: The excess risk up to a constant: uniform moment x diameter x psi.
        exponent: p = 1 + 1/k.
    """

    num_records: int
    lr: float
    psi: float
    rate: float
    exponent: float


@checked()
def localized_constants(setting: HeavyTailedSetting, *, order: float) -> LocalizedConstants:
    r"""Return Theorem 41's constants; needs uniform moments of the orders k and 2k.

    Example:
        >>> setting = HeavyTailedSetting(num_records=4096, dim=10, rho=0.5, diameter=2, moment_bounds={2: 1.0},
        ...                              uniform_moment_bounds={2: 1.0, 4: 1.0})
        >>> found = localized_constants(setting, order=2)
        >>> round(found.psi, 7), round(found.lr, 9), round(found.rate, 6)
        (0.0628119, 0.000161684, 0.125624)
    """
    k, eps, d, diameter = order, setting.mu, setting.dim, setting.diameter
    r_k, r_2k = uniform_moment(setting, k), uniform_moment(setting, 2 * k)
    r_2 = setting.moment_bounds.get(2.0, r_k)
    slope = setting.risk_lipschitz or r_k
    n = 2 ** int(math.log2(setting.num_records)) if setting.num_records > 1 else 1
    p, log = 1 + 1 / k, max(math.log(n), math.log(2))
    noisy = (math.sqrt(d * log) / (eps * n)) ** ((k - 1) / k)
    psi = 1 / math.sqrt(n) + noisy
    by_risk = min(1 / (r_k * n ** (3 / (2 * k))), (eps / math.sqrt(d)) ** ((k - 1) / k) / r_2k)
    first = r_2k * diameter * n**2 / slope * by_risk * psi
    second = min(1 / (r_2 * n ** ((p - 1) / 2)), 1 / (r_k * n ** (1 / (2 * k))), 1 / (r_2k * n ** (p / 2) * noisy))
    lr = min(first, diameter / n ** (p / 2) * second)
    return LocalizedConstants(n, lr, psi, r_2k * diameter * psi, p)


@checked()
def localized_phases(
    setting: HeavyTailedSetting,
    *,
    order: float,
    schedule: PhaseSchedule = "economy",
    constants: Constants = "sharp",
) -> tuple[LocalizedPhase, ...]:
    r"""Return the :math:`\log_2 n` phases of Algorithm 4, on parts of n/2, n/4, ..., 1 records.

    n is the largest power of two that the records allow: up to half of them are not used.

    Args:
        setting: The public constants, with uniform moments of the orders k and 2k.
        order: k.
        schedule: ``"theory"`` for the theorem's steps, or ``"economy"``.
        constants: ``"sharp"`` for enough steps, or ``"paper"`` for the printed, too few.

    Example:
        >>> setting = HeavyTailedSetting(num_records=4096, dim=10, rho=0.5, diameter=2, moment_bounds={2: 1.0},
        ...                              uniform_moment_bounds={2: 1.0, 4: 1.0})
        >>> [phases[0].steps for phases in (localized_phases(setting, order=2, schedule="theory"),
        ...                                 localized_phases(setting, order=2))]
        [569928, 467]
    """
    if schedule not in get_args(PhaseSchedule):
        raise ValueError(f"schedule must be one of {', '.join(get_args(PhaseSchedule))}, got {schedule!r}.")
    check_constants(constants)
    shared = localized_constants(setting, order=order)
    count = round(math.log2(shared.num_records))
    if not count:
        raise ValueError(f"num_records must be at least 2 for a localized method, got {setting.num_records}.")
    return tuple(_phase(setting, i, order=order, schedule=schedule, constants=constants) for i in range(1, count + 1))


@checked()
def reduction_sizes(num_records: int) -> tuple[float, ...]:
    r"""Return the block sizes of the strongly convex reduction, :math:`N_j = 2^{j-2} n/\log_2 n`, before rounding down.

    Raises:
        ValueError: There are fewer than 16 records.

    Example:
        >>> reduction_sizes(65536)
        (2048.0, 4096.0, 8192.0, 16384.0)
    """
    if num_records < 16:
        raise ValueError(f"num_records must be at least 16 for the reduction, got {num_records}. Use localized_phases.")
    log = math.log2(num_records)
    return tuple(2.0 ** (j - 2) * num_records / log for j in range(1, math.ceil(math.log2(log)) + 1))


@checked()
def strongly_convex_phases(
    setting: HeavyTailedSetting,
    *,
    order: float,
    schedule: PhaseSchedule = "economy",
    sc_constant: float = 4.0,
) -> tuple[LocalizedPhase, ...]:
    r"""Return the phases of the strongly convex reduction: Algorithm 4 on growing blocks, each for a smaller distance.

    Block j assumes that it starts within :math:`D^{(j)}` of the minimum: :math:`D^{(1)} = \min(D, 2L/\mu)` and
    :math:`D^{(j+1)} = \min(D^{(j)}, \sqrt{2\Delta_j/\mu})` with :math:`\Delta_j = a R D^{(j)}\Psi(N_j)`. These
    distances set step sizes only; a wrong one costs accuracy.

    Args:
        setting: The public constants; ``strong_convexity`` must be > 0 (that of each record's loss).
        order: k.
        schedule: As in :func:`localized_phases`.
        sc_constant: a.
    """
    mu = setting.strong_convexity
    if not mu:
        raise ValueError("strong_convexity must be > 0 for the reduction. Use localized_phases for a convex risk.")
    slope = setting.risk_lipschitz or uniform_moment(setting, order)
    distance, found = min(setting.diameter, 2 * slope / mu), []
    for size in reduction_sizes(setting.num_records):
        block = replace(setting, num_records=max(2, int(size)), diameter=distance)
        found += localized_phases(block, order=order, schedule=schedule)
        gap = sc_constant * localized_constants(block, order=order).rate
        distance = min(distance, math.sqrt(2 * gap / mu))
    return tuple(found)


@checked()
def uniform_moment(setting: HeavyTailedSetting, order: float) -> float:
    """Return the uniform moment bound of an order, or that of the next higher one, which is never smaller."""
    higher = [bound for k, bound in sorted(setting.uniform_moment_bounds.items()) if k >= order]
    if not higher:
        raise ValueError(
            f"uniform_moment_bounds must hold order {order:g} or a higher one for a localized method, got "
            f"{dict(setting.uniform_moment_bounds)}."
        )
    return higher[0]


@checked()
def regularized_distance(
    *,
    steps: ArrayLike,
    lr: ArrayLike,
    reg_strength: ArrayLike,
    distance: ArrayLike,
    second_moment_bound: ArrayLike,
    bias: ArrayLike,
    variance: ArrayLike,
) -> Any:
    r"""Return a bound on :math:`E\lVert w_T - \hat w\rVert^2` of the regularised subgradient method (Lemma 14).

    For :math:`\eta \le 1/(8\lambda)`: :math:`e^{-\lambda\eta T}\lVert w_0 - \hat w\rVert^2 +
    \frac\eta\lambda(36 \hat r_2^2 + d\sigma^2) + \frac94 \frac{B^2}{\lambda^2}`. Unlike the paper's bound it does not
    grow with the diameter.

    Args:
        steps, lr, reg_strength: T, :math:`\eta` and :math:`\lambda`.
        distance: :math:`\lVert w_0 - \hat w\rVert`, or a bound on it such as :math:`2\hat r_2/\lambda`.
        second_moment_bound: :math:`\hat r_2`, on the records at hand.
        bias, variance: B and :math:`d\sigma^2` of the gradient oracle.

    Raises:
        ValueError: ``lr`` is larger than 1 / (8 reg_strength).

    Example:
        >>> regularized_distance(steps=10**6, lr=0.125, reg_strength=1.0, distance=3.0, second_moment_bound=1.0,
        ...                      bias=2.0, variance=4.0)
        14.0
    """
    eta, reg = _arrays.positive("lr", lr), _arrays.positive("reg_strength", reg_strength)
    if np.any(eta * reg > (1 + 1e-9) / 8):
        raise ValueError(f"lr must be at most 1 / (8 reg_strength), got {lr!r}.")
    left = np.exp(-reg * eta * np.asarray(steps)) * np.asarray(distance) ** 2
    noise = eta / reg * (36 * np.asarray(second_moment_bound) ** 2 + np.asarray(variance))
    return _arrays.plain(left + noise + 9 / 4 * np.asarray(bias) ** 2 / reg**2)


def _phase(
    setting: HeavyTailedSetting, i: int, *, order: float, schedule: PhaseSchedule, constants: Constants
) -> LocalizedPhase:
    shared = localized_constants(setting, order=order)
    n, d, eps, p = shared.num_records, setting.dim, setting.mu, shared.exponent
    r_k, r_2k = uniform_moment(setting, order), uniform_moment(setting, 2 * order)
    size = n // 2**i
    lr = shared.lr / 4**i
    reg = 1 / (lr * size**p)
    radius = 4 * r_k * (math.sqrt(n) * 2**i) ** (1 / order) / reg
    threshold = r_2k * (eps * size / math.sqrt(d * math.log(n))) ** (1 / order)
    clear = eps**2 * size**2 / (4 * d * threshold**2)  # 1 / (d sigma^2) for one step
    a = (min(setting.diameter, radius) * reg) ** 2 * clear
    steps = max(1, math.ceil(2 * size**p * lambert(a / 2)))
    if constants == "paper":
        steps = max(1, math.ceil(size**p * lambert(a)))
    if schedule == "economy":
        r_2 = setting.moment_bounds.get(2.0, r_k)
        x = lambert(min(setting.diameter * reg, 2 * uniform_moment(setting, 2)) ** 2 * clear)
        few = max(ECONOMY_STEPS * x, r_2**2 * clear)
        steps = max(1, math.ceil(min(few, max(ECONOMY_STEPS * x, steps))))
        lr = x / (reg * steps)
    multiplier = math.sqrt(steps) / eps
    noise = 2 * threshold * multiplier / size
    return LocalizedPhase(size, steps, lr, reg, radius, threshold, multiplier, noise, size)


@checked()
def lambert(a: float) -> float:
    """Return x > 0 with x exp(x) = a, also where a itself would overflow in the exponential.

    Example:
        >>> round(lambert(133.084), 4)
        3.6079
    """
    from scipy.special import lambertw

    return float(lambertw(a).real)
