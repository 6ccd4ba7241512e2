r"""Bounds on the bias and variance of one clipped random vector with a heavy tail (Lemma B.1).

``X`` has mean x and :math:`E\lVert X - x\rVert^\alpha \le \sigma^\alpha`, with alpha in (1, 2]. The clipped vector
:math:`\hat X = \mathrm{clip}(X, C)` is compared with :math:`\mathrm{clip}(x, C/2)`; note the half.
Source: "Differentially Private Clipped-SGD: High-Probability Convergence with Arbitrary Clipping Level", Lemma B.1.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._arrays import Numbers
from tacita._domains import checked


@checked()
def clip_bias_bound(
    mean_norm: ArrayLike,
    *,
    max_grad_norm: ArrayLike,
    moment_scale: ArrayLike,
    moment_order: ArrayLike,
    sharper: bool = False,
) -> Any:
    r"""Return a bound on the bias :math:`\lVert E \hat X - \mathrm{clip}(x, C/2) \rVert`.

    With :math:`m = \max(0, \lVert x\rVert - C/2)`, :math:`S = \sigma^\alpha + m^\alpha`, :math:`p = 2^{2\alpha-1}`:

    .. math:: p\, \sigma\, S^{(\alpha-1)/\alpha} / C^{\alpha-1} + \max(\lVert x\rVert, C/2)\, p\, S / C^\alpha + m

    The last term appears because the mean that X is compared with is shrunk where it is longer than C/2. The lemma is
    loose, by a factor of 50 to 60 for the one-sided Pareto noise of the experiments.

    Args:
        mean_norm: Norm of x, or a bound on it.
        max_grad_norm: Clipping threshold C, > 0, in the gradient's units.
        moment_scale: sigma, >= 0, in the gradient's units.
        moment_order: alpha in (1, 2].
        sharper: Use the proof's constant :math:`2^{(2\alpha-1)(\alpha-1)/\alpha}` in the first term (2.83 instead of 8
            at alpha = 2). The paper's theorems use the rounded one.

    Example:
        >>> round(clip_bias_bound(0.0, max_grad_norm=10.0, moment_scale=1.0, moment_order=2.0), 6)
        1.2
    """
    x, c, sigma, alpha, m, s = _terms(mean_norm, max_grad_norm, moment_scale, moment_order)
    p = 2 ** (2 * alpha - 1)
    first = p ** ((alpha - 1) / alpha) if sharper else p
    tail = first * sigma * s ** ((alpha - 1) / alpha) / c ** (alpha - 1)
    return _arrays.plain(tail + np.maximum(x, c / 2) * p * s / c**alpha + m)


@checked()
def clip_variance_bound(
    mean_norm: ArrayLike,
    *,
    max_grad_norm: ArrayLike,
    moment_scale: ArrayLike,
    moment_order: ArrayLike,
    capped: bool = False,
) -> Any:
    r"""Return a bound on :math:`E\lVert \hat X - E\hat X\rVert^2`: :math:`\frac{9}{4}(p + 1)\, C^{2-\alpha} S`.

    p and S are those of :func:`clip_bias_bound`.

    Args:
        mean_norm, max_grad_norm, moment_scale, moment_order: As in :func:`clip_bias_bound`.
        capped: Also use the trivial :math:`C^2`, which is smaller unless C is several sigma (4.5 at alpha = 2).

    Example:
        >>> clip_variance_bound(0.0, max_grad_norm=10.0, moment_scale=1.0, moment_order=2.0)
        20.25
    """
    _, c, _, alpha, _, s = _terms(mean_norm, max_grad_norm, moment_scale, moment_order)
    bound = 9 / 4 * (2 ** (2 * alpha - 1) + 1) * c ** (2 - alpha) * s
    return _arrays.plain(np.minimum(bound, c**2) if capped else bound)


def _terms(
    mean_norm: ArrayLike, max_grad_norm: ArrayLike, moment_scale: ArrayLike, moment_order: ArrayLike
) -> tuple[Numbers, ...]:
    x = _arrays.non_negative("mean_norm", mean_norm)
    c = _arrays.positive("max_grad_norm", max_grad_norm)
    sigma = _arrays.non_negative("moment_scale", moment_scale)
    alpha = _arrays.moment_order(moment_order)
    m = np.maximum(0.0, x - c / 2)
    return x, c, sigma, alpha, m, sigma**alpha + m**alpha
