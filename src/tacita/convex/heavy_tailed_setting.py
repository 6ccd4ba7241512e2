r"""The public constants of a convex problem with heavy-tailed gradients, and what one clipped mean costs in accuracy.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Assumptions 1
to 3 and Lemma 6, with the corrections and the sharper constants of docs/derivations/heavy-tailed-sco.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays, _validate
from tacita._domains import checked
from tacita.accounting import gaussian_mu

Constants = Literal["sharp", "paper"]


@dataclass(frozen=True, kw_only=True)
class HeavyTailedSetting:
    r"""The inputs of a plan. All of them are public and chosen before any data are read.

    The guarantee is that of neighbours that replace one record; the number of records is public. Wrong constants cost
    accuracy, never privacy.

    Attributes:
        num_records: n.
        dim: d, the number of parameters.
        rho: The budget in zero-concentrated privacy. :func:`rho_of_budget` finds it for an (epsilon, delta).
        diameter: D, the L2 diameter of the domain W; twice the radius of a ball.
        moment_bounds: By order k >= 2, a bound :math:`r_k` on :math:`\sup_w (E\lVert\nabla f(w, x)\rVert^k)^{1/k}`.
        smoothness: beta, of the risk F; 0 for an affine one.
        strong_convexity: mu, of the risk F; 0 if it is only convex. For a proximal method, the constant of the
            proximal-PL inequality.
        initial_gap: A bound on :math:`F(w_0) - F^*`; ``None`` where no bound uses it.
        uniform_moment_bounds: By order k, a bound on :math:`(E \sup_w \lVert\nabla f(w, x)\rVert^k)^{1/k}`; for the
            localized method.
        risk_lipschitz: L, a bound on the norm of the risk's gradient; ``None`` for the moment bound.
    """

    num_records: int
    dim: int
    rho: float
    diameter: float
    moment_bounds: Mapping[float, float]
    smoothness: float = 0.0
    strong_convexity: float = 0.0
    initial_gap: float | None = None
    uniform_moment_bounds: Mapping[float, float] = field(default_factory=dict)
    risk_lipschitz: float | None = None

    def __post_init__(self) -> None:
        _validate.count("num_records", self.num_records)
        _validate.count("dim", self.dim)
        _validate.positive("rho", self.rho, hint="Find it for an epsilon and a delta with rho_of_budget.")
        _validate.positive("diameter", self.diameter)
        _validate.non_negative("smoothness", self.smoothness)
        _validate.non_negative("strong_convexity", self.strong_convexity)
        for name in ("initial_gap", "risk_lipschitz"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        for name in ("moment_bounds", "uniform_moment_bounds"):
            object.__setattr__(self, name, _by_order(name, getattr(self, name)))
        if not self.moment_bounds and not self.uniform_moment_bounds:
            raise ValueError("moment_bounds must hold at least one order and its bound, such as {2: 3.0}.")
        if self.smoothness and self.strong_convexity > self.smoothness:
            raise ValueError(
                f"strong_convexity must be at most smoothness = {self.smoothness:g}, got {self.strong_convexity:g}."
            )

    @property
    def mu(self) -> float:
        r""":math:`\sqrt{2\rho}`: the run is as private as one Gaussian query of this ratio (the paper's epsilon)."""
        return math.sqrt(2 * self.rho)

    @property
    def orders(self) -> tuple[float, ...]:
        """The orders whose moments are bounded, ascending."""
        return tuple(sorted(self.moment_bounds))

    @property
    def condition_number(self) -> float:
        """kappa = smoothness / strong_convexity; ``inf`` if the risk is only convex."""
        return self.smoothness / self.strong_convexity if self.strong_convexity else math.inf

    def moment(self, order: float) -> float:
        """Return the bound of one order.

        Raises:
            ValueError: There is none.
        """
        if order not in self.moment_bounds:
            raise ValueError(f"order must be one of moment_bounds, {', '.join(map(str, self.orders))}, got {order!r}.")
        return self.moment_bounds[order]

    def second_moment(self, order: float) -> float:
        """Return the bound of order 2, or that of ``order``, which is never below it."""
        return self.moment_bounds.get(2.0, self.moment(order))


def _by_order(name: str, bounds: Any) -> dict[float, float]:
    """Return the bounds by order, checked: orders >= 2, and no bound below one of a smaller order."""
    if not isinstance(bounds, Mapping):
        raise ValueError(f"{name} must be a mapping of orders to bounds, such as {{2: 3.0}}, got {bounds!r}.")
    found: dict[float, float] = {}
    for order in sorted(bounds):
        if not 2 <= order < math.inf:
            raise ValueError(f"{name} must have orders >= 2, got {order!r}.")
        found[float(order)] = _validate.positive(name, bounds[order])
    values = list(found.values())
    if any(later < earlier for earlier, later in pairwise(values)):
        raise ValueError(f"{name} must not fall with the order: a moment of higher order is never smaller.")
    return found


@checked()
def rho_of_budget(*, epsilon: float, delta: float) -> float:
    r"""Return the largest rho whose one-pass Gaussian run is (epsilon, delta)-private.

    It is :math:`\mu(\epsilon,\delta)^2/2`. Every method here is built from Gaussian releases, so the exact Gaussian
    conversion holds, not only that of zero-concentrated privacy.

    Example:
        >>> round(rho_of_budget(epsilon=1.0, delta=1e-6), 7)
        0.0280145
    """
    return gaussian_mu(epsilon, delta) ** 2 / 2


@checked()
def bias_constant(order: ArrayLike, constants: Constants = "sharp") -> Any:
    r"""Return b_k in :math:`\lVert E\,\mathrm{clip}(z) - E z\rVert \le b_k r_k^k / C^{k-1}`.

    ``"paper"`` is :math:`1/(k-1)`. ``"sharp"`` is :math:`(k-1)^{k-1}/k^k`, with equality for a point mass at
    :math:`kC/(k-1)`; it is four times smaller at k = 2.

    Example:
        >>> bias_constant(2.0), bias_constant(2.0, "paper")
        (0.25, 1.0)
    """
    k = np.asarray(order, dtype=np.float64)
    if check_constants(constants) == "paper":
        return _arrays.plain(1 / (k - 1))
    return _arrays.plain(np.exp((k - 1) * np.log(k - 1) - k * np.log(k)))


@dataclass(frozen=True)
class MeanError:
    r"""The error of one clipped, noisy mean of s independent records.

    Attributes:
        mean_noise_std: Noise on a coordinate of the mean, :math:`2C/(s\mu)`.
        bias: B, a bound on the norm of the expected error.
        variance: :math:`\Sigma^2 = d\,\sigma^2 + r_2^2/s`, a bound on the expected squared distance from the mean.
    """

    mean_noise_std: Any
    bias: Any
    variance: Any


@checked()
def clipped_mean_error(
    setting: HeavyTailedSetting,
    *,
    batch_size: ArrayLike,
    max_grad_norm: ArrayLike,
    order: float,
    constants: Constants = "sharp",
) -> MeanError:
    r"""Return the error of the mean of clipped gradients with noise for ``setting.rho`` in one query (Lemma 6).

    Args:
        setting: The public constants.
        batch_size: s, the records of the query, and the divisor.
        max_grad_norm: C.
        order: k, one of the setting's moments.
        constants: ``"sharp"`` or ``"paper"``; see :func:`bias_constant`.

    Example:
        >>> setting = HeavyTailedSetting(num_records=65536, dim=20, rho=0.5, diameter=2, moment_bounds={2: 3.0})
        >>> error = clipped_mean_error(setting, batch_size=8192, max_grad_norm=215.939, order=2)
        >>> round(error.bias, 5), round(error.variance, 5)
        (0.01042, 0.05669)
    """
    s, c = _arrays.positive("batch_size", batch_size), _arrays.positive("max_grad_norm", max_grad_norm)
    noise = 2 * c / (s * setting.mu)
    r = setting.moment(order)
    return MeanError(
        mean_noise_std=_arrays.plain(noise),
        bias=_arrays.plain(bias_constant(order, constants) * r * (r / c) ** (order - 1)),
        variance=_arrays.plain(setting.dim * noise**2 + setting.second_moment(order) ** 2 / s),
    )


@checked()
def moment_of_coordinates(
    *, coordinate_moment: ArrayLike, order: ArrayLike, dim: ArrayLike, risk_lipschitz: ArrayLike
) -> Any:
    r"""Return :math:`r_k = L + \sqrt d\,\gamma_k^{1/k}` from a bound on the coordinates' central moments.

    The paper's Lemma 21 says :math:`4\sqrt d\,\gamma_k^{1/k}`; by Minkowski this is at most half of it, because the
    paper assumes :math:`L \le \sqrt d\,\gamma_k^{1/k}`.

    Args:
        coordinate_moment: :math:`\gamma_k`, a bound on :math:`E|\langle\nabla f - \nabla F, e_j\rangle|^k`.
        order: k.
        dim: d.
        risk_lipschitz: L, a bound on the norm of the mean gradient.

    Example:
        >>> moment_of_coordinates(coordinate_moment=1.0, order=2.0, dim=100, risk_lipschitz=3.0)
        13.0
    """
    gamma, k = _arrays.positive("coordinate_moment", coordinate_moment), np.asarray(order, dtype=np.float64)
    return _arrays.plain(np.asarray(risk_lipschitz) + np.sqrt(np.asarray(dim, dtype=np.float64)) * gamma ** (1 / k))


def check_constants(constants: str) -> Constants:
    """Return ``constants`` if it is ``"sharp"`` or ``"paper"``."""
    for known in get_args(Constants):
        if constants == known:
            return known
    raise ValueError(f"constants must be one of {', '.join(get_args(Constants))}, got {constants!r}.")
