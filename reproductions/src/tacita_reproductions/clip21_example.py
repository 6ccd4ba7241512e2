r"""The two-dimensional example on which Clip21-SGD with stochastic gradients does not converge.

Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", Theorem 1.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacita._domains import NON_NEGATIVE, checked

__all__ = [
    "geometric_median",
    "ideal_mean",
    "toy_noise",
]

Array = NDArray[np.float64]


@checked(steps=NON_NEGATIVE)
def ideal_mean(start: Sequence[float], *, smoothness: float, lr: float, max_grad_norm: float, steps: int) -> Array:
    r"""Return the mean iterate of Clip21-SGD with every noise clipped, on Theorem 1's two-dimensional example.

    :math:`E x^T = r x^0 - \frac{C}{15L}(1-r)(2, 1)` with :math:`r = (1-L\gamma)^T`. It ends at a bias of
    :math:`\lVert\nabla f\rVert^2 = C^2/45`, for any number of clients.

    Example:
        >>> ideal_mean((0.0, -0.07), smoothness=2, lr=0.01, max_grad_norm=1, steps=100).round(7).tolist()
        [-0.0578254, -0.0381961]
    """
    left = (1 - smoothness * lr) ** steps
    return left * np.asarray(start) - max_grad_norm / (15 * smoothness) * (1 - left) * np.array([2.0, 1.0])


@checked()
def toy_noise(gradient_noise: float) -> Array:
    """Return the three equally likely noise vectors of Theorem 1's example, shape (3, 2): mean zero, skewed.

    Example:
        >>> np.linalg.norm(toy_noise(5.0), axis=1).round(5).tolist()
        [2.59808, 3.4641, 4.33013]
    """
    return gradient_noise * math.sqrt(3) / 10 * np.array([[3.0, 0.0], [0.0, 4.0], [-3.0, -4.0]])


@checked()
def geometric_median(points: Array, *, rounds: int = 10_000) -> Array:
    """Return the point with the least sum of distances to ``points`` (Weiszfeld's algorithm).

    For the noises of :func:`toy_noise` it is the limit of the bias of Clip21-SGD as C goes to 0.

    Example:
        >>> geometric_median(toy_noise(5.0)).round(6).tolist()
        [0.956317, 0.373236]
    """
    if np.ndim(points) != 2 or not len(points):
        raise ValueError(f"points must have shape (number of points >= 1, dim), got {np.shape(points)}.")
    points = np.asarray(points, dtype=np.float64)
    at = points.mean(axis=0)
    for _ in range(rounds):
        weights = 1 / np.maximum(np.linalg.norm(points - at, axis=1), 1e-300)
        moved = weights @ points / weights.sum()
        if np.allclose(moved, at, rtol=0, atol=1e-15):
            break
        at = moved
    return at
