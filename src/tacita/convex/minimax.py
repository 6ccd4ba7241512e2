r"""Lower bounds on the excess risk of every private algorithm, and rates of other methods, with constants dropped.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Theorems 26
and 28 and Appendix C. They hold up to an absolute constant that is not known: never read a ratio as a certificate.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import checked


@checked()
def convex_lower_bound(
    *,
    radius: ArrayLike,
    second_moment_bound: ArrayLike,
    moment_bound: ArrayLike,
    order: ArrayLike,
    num_records: ArrayLike,
    dim: ArrayLike,
    rho: ArrayLike,
) -> Any:
    r"""Return the lower bound for convex risks (Theorem 26).

    :math:`R(\frac{r_2}{\sqrt n} + r_k\min\{1, x^{(k-1)/k}\})` with :math:`x = \sqrt d/(\sqrt\rho\,n)`. Valid for d >=
    40, rho <= d and many records (the paper says n > 7202; its proof has an error, the rate stands). With coordinate
    moments put :math:`r_k = \gamma_k^{1/k}\sqrt d`.

    Args:
        radius: R, the radius of the domain: half of the diameter.
        second_moment_bound, moment_bound, order: :math:`r_2`, :math:`r_k` and k.
        num_records, dim, rho: n, d and the budget.

    Example:
        >>> round(convex_lower_bound(radius=1, second_moment_bound=3, moment_bound=3, order=2, num_records=65536,
        ...                          dim=40, rho=0.5), 6)
        0.046766
    """
    k = np.asarray(order, dtype=np.float64)
    of_noise = np.minimum(1, _noise(num_records, dim, rho) ** ((k - 1) / k))
    sampling = np.asarray(second_moment_bound) / np.sqrt(_arrays.positive("num_records", num_records))
    return _arrays.plain(np.asarray(radius) * (sampling + np.asarray(moment_bound) * of_noise))


@checked()
def strongly_convex_lower_bound(
    *,
    strong_convexity: ArrayLike,
    second_moment_bound: ArrayLike,
    moment_bound: ArrayLike,
    order: ArrayLike,
    num_records: ArrayLike,
    dim: ArrayLike,
    rho: ArrayLike,
) -> Any:
    r"""Return the lower bound for strongly convex risks (Theorem 28).

    :math:`\frac1\mu(\frac{r_2^2}{n} + r_k^2\min\{1, x^{(2k-2)/k}\})`, for a risk whose smoothness is also mu and
    d >= 40.

    Example:
        >>> round(strongly_convex_lower_bound(strong_convexity=0.5, second_moment_bound=3, moment_bound=3, order=2,
        ...                                   num_records=65536, dim=40, rho=0.5), 8)
        0.00273128
    """
    k = np.asarray(order, dtype=np.float64)
    of_noise = np.minimum(1, _noise(num_records, dim, rho) ** ((2 * k - 2) / k))
    sampling = np.asarray(second_moment_bound) ** 2 / _arrays.positive("num_records", num_records)
    return _arrays.plain((sampling + np.asarray(moment_bound) ** 2 * of_noise) / np.asarray(strong_convexity))


@checked()
def uniformly_lipschitz_rate(
    *, lipschitz: ArrayLike, diameter: ArrayLike, num_records: ArrayLike, dim: ArrayLike, rho: ArrayLike
) -> Any:
    r"""Return the optimal rate where every record's gradient is bounded by L_f.

    :math:`L_f D(1/\sqrt n + \sqrt d/(\epsilon n))`. This is what a method pays that sets its threshold to
    the worst case.
    """
    n = _arrays.positive("num_records", num_records)
    private = np.sqrt(np.asarray(dim, dtype=np.float64)) / (np.sqrt(2 * np.asarray(rho, dtype=np.float64)) * n)
    return _arrays.plain(np.asarray(lipschitz) * np.asarray(diameter) * (1 / np.sqrt(n) + private))


def _noise(num_records: ArrayLike, dim: ArrayLike, rho: ArrayLike) -> Any:
    n, d = _arrays.positive("num_records", num_records), np.asarray(dim, dtype=np.float64)
    return np.sqrt(d) / (np.sqrt(_arrays.positive("rho", rho)) * n)
