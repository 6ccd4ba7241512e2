r"""Second-order stationary points: their definition, and a diagnostic for public functions.

:func:`public_stationarity` is for public records and synthetic functions only: its result is not private. For private
records there is :class:`~tacita.StationaryTest`.
Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need", Definitions 2.3 and 2.4.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.second_order.hessian import Function, Hessian
from tacita.second_order.lanczos import lanczos


def is_second_order_stationary(
    gradient_norm: float, eigenvalue: float, *, alpha: float, hessian_lipschitz: float
) -> bool:
    r"""Return whether a point is :math:`\alpha`-second-order stationary.

    It is if :math:`\lVert\nabla f\rVert < \alpha` and :math:`\lambda_{\min}(\nabla^2 f) > -\sqrt{\rho\alpha}`.

    Args:
        gradient_norm: The norm of the objective's gradient at the point.
        eigenvalue: The smallest eigenvalue of its Hessian.
        alpha: Accuracy, > 0, in the gradient's units.
        hessian_lipschitz: :math:`\rho`, > 0.

    Example:
        >>> is_second_order_stationary(0.0, -1.0, alpha=0.1, hessian_lipschitz=6.0)
        False
        >>> is_second_order_stationary(0.0, -1.0, alpha=0.2, hessian_lipschitz=6.0)
        True
    """
    limit = curvature_limit(alpha, hessian_lipschitz)
    return gradient_norm < alpha and eigenvalue > -limit


def curvature_limit(alpha: float, hessian_lipschitz: float) -> float:
    r"""Return :math:`\sqrt{\rho\alpha}`: a curvature below its negative makes a saddle."""
    return math.sqrt(_validate.positive("hessian_lipschitz", hessian_lipschitz) * _validate.positive("alpha", alpha))


@dataclass(frozen=True)
class PublicStationarity:
    """The stationarity of a point of a public function. Not private.

    Attributes:
        gradient_norm: The gradient's norm at the point.
        eigenvalue: An upper bound of the Hessian's smallest eigenvalue: the Rayleigh quotient of a vector.
        eigenvalue_error: How far below ``eigenvalue`` the smallest eigenvalue may lie, except with the chosen failure
            probability.
        is_first_order: Whether the gradient is shorter than alpha.
        is_second_order: Whether also ``eigenvalue`` is above the limit.
        certified: Whether no eigenvalue within the error would change ``is_second_order``.
    """

    gradient_norm: float
    eigenvalue: float
    eigenvalue_error: float
    is_first_order: bool
    is_second_order: bool
    certified: bool


def public_stationarity(
    function: Function,
    point: Mapping[str, Tensor],
    *,
    alpha: float,
    hessian_lipschitz: float,
    steps: int = 50,
    failure_probability: float = 1e-9,
    generator: torch.Generator | None = None,
) -> PublicStationarity:
    """Return gradient and smallest curvature of a *public* function at a point: a diagnostic, not for private records.

    Args:
        function: Parameters by name -> a number. Its values must not depend on private records.
        point: The point, by parameter name; float64 is best.
        alpha, hessian_lipschitz: As in :func:`is_second_order_stationary`.
        steps: Number of products with the Hessian; with as many as coordinates the eigenvalue is exact.
        failure_probability: The probability that ``eigenvalue_error`` may be too small.
        generator: The generator of the solver's start; torch's own by default.

    Example:
        >>> origin = {"x": torch.zeros(2, dtype=torch.float64)}
        >>> found = public_stationarity(
        ...     lambda p: ((p["x"][0] ** 2 - 1) ** 2) / 4 + p["x"][1] ** 2 / 2, origin,
        ...     alpha=0.1, hessian_lipschitz=6.0)
        >>> found.gradient_norm, round(found.eigenvalue, 6), found.is_first_order, found.is_second_order
        (0.0, -1.0, True, False)
    """
    hessian = Hessian(function, point)
    start = torch.randn(hessian.dim, dtype=torch.float64, generator=generator)
    found = lanczos(hessian, start.to(hessian.gradient().device), steps)
    norm, limit = float(hessian.gradient().norm()), curvature_limit(alpha, hessian_lipschitz)
    error = found.error(failure_probability)
    second = is_second_order_stationary(norm, found.smallest, alpha=alpha, hessian_lipschitz=hessian_lipschitz)
    return PublicStationarity(
        gradient_norm=norm,
        eigenvalue=found.smallest,
        eigenvalue_error=error,
        is_first_order=norm < alpha,
        is_second_order=second,
        certified=not second or found.smallest - error > -limit,
    )
