r"""Euclidean projections of a vector, and the alternating scheme for two sets that have no closed form together.

Every function takes and returns one tensor; all of it is post-processing of releases.
Sources: simplex and l1 ball: Held, Wolfe and Crowder (1974); Duchi, Shalev-Shwartz, Singer and Chandra (2008). The
alternating scheme: Bauschke and Combettes (2008), "A Dykstra-like algorithm for two monotone operators", Theorem 3.3.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

TOLERANCE = 1e-10  # relative, of the alternating scheme
MOST_ROUNDS = 100_000


def norm(vector: Tensor) -> float:
    """Return the L2 norm, computed in float64."""
    return float(torch.linalg.vector_norm(vector.double()))


def on_ball(vector: Tensor, radius: float, center: Tensor | None = None) -> Tensor:
    """Project on the L2 ball of ``radius`` around ``center`` (the origin by default).

    Example:
        >>> on_ball(torch.tensor([3.0, 4.0]), 1.0)
        tensor([0.6000, 0.8000])
    """
    from_center = vector if center is None else vector - center
    length = norm(from_center)
    if not length > radius:
        return vector
    scaled = from_center * (radius / length)
    return scaled if center is None else center + scaled


def on_two_balls(vector: Tensor, first: tuple[Tensor, float], second: tuple[Tensor, float]) -> Tensor:
    r"""Project on the intersection of two L2 balls, each a (center, radius).

    The projection is that on one ball if it lies in the other one too. Otherwise it lies on the sphere where both
    surfaces meet: its center is :math:`c = a + h u`, with :math:`u` the direction from center a to center b at distance
    t, :math:`h = (t^2 + R_a^2 - R_b^2)/(2t)`, and its radius :math:`\sqrt{R_a^2 - h^2}`. The two projections one after
    the other would give another point.

    Raises:
        ValueError: The balls do not meet.

    Example:
        >>> balls = (torch.tensor([0.0, 0.0]), 1.0), (torch.tensor([1.0, 0.0]), 0.5)
        >>> on_two_balls(torch.tensor([2.0, 2.0]), *balls)
        tensor([0.8750, 0.4841])
    """
    (a, radius_a), (b, radius_b) = first, second
    apart = norm(b - a)
    if apart > (radius_a + radius_b) * (1 + 1e-6):
        raise ValueError(f"the balls must meet: their radii are {radius_a:g} and {radius_b:g}, {apart:g} apart.")
    for (center, radius), (other, limit) in ((first, second), (second, first)):
        candidate = on_ball(vector, radius, center)
        if norm(candidate - other) <= limit * (1 + 1e-9):
            return candidate
    u = (b - a) / apart
    h = (apart**2 + radius_a**2 - radius_b**2) / (2 * apart)
    center = a + h * u
    from_center = vector - center
    across = from_center - (from_center * u).sum() * u
    return center + across * (max(radius_a**2 - h**2, 0.0) ** 0.5 / norm(across))


def on_simplex(vector: Tensor, total: float = 1.0) -> Tensor:
    r"""Project on :math:`\{y \ge 0, \sum y = \text{total}\}`.

    Example:
        >>> on_simplex(torch.tensor([0.5, 1.2, -0.3]))
        tensor([0.1500, 0.8500, 0.0000])
    """
    ordered = vector.sort(descending=True).values
    excess = (ordered.cumsum(0) - total) / torch.arange(1, len(ordered) + 1, dtype=vector.dtype, device=vector.device)
    kept = int((ordered > excess).sum())
    return (vector - excess[max(kept, 1) - 1]).clamp(min=0)


def on_l1_ball(vector: Tensor, radius: float) -> Tensor:
    """Project on the L1 ball of ``radius`` around the origin.

    Example:
        >>> on_l1_ball(torch.tensor([1.5, -0.3, 0.2, -2.0]), 2.0)
        tensor([ 0.7500, -0.0000,  0.0000, -1.2500])
    """
    if float(vector.double().abs().sum()) <= radius:
        return vector
    return on_simplex(vector.abs(), radius) * vector.sign()


def in_ball(
    operator: Callable[[Tensor, float], Tensor], vector: Tensor, step: float, center: Tensor, radius: float
) -> Tensor:
    r"""Return the proximal point of a function plus the indicator of a ball around ``center``.

    With a multiplier :math:`\lambda \ge 0` for the ball it is
    :math:`\mathrm{prox}_{t f/(1+\lambda)}\big(\frac{z + \lambda c}{1 + \lambda}\big)`, whose distance from the center
    falls with :math:`\lambda`: :math:`\lambda` is 0, or the point is on the sphere, found by bisection.

    Args:
        operator: The function's proximal operator, (z, step) -> point.
        vector: z.
        step: t.
        center, radius: The ball.

    Raises:
        ValueError: The function is infinite on the whole ball (two sets without a point in common).
    """
    wide, around = vector.double(), center.double()

    def point(log_kept: float) -> Tensor:  # the logarithm of 1 / (1 + lambda)
        kept = math.exp(log_kept)
        return operator(around + kept * (wide - around), step * kept)

    if norm(point(0.0) - around) <= radius:
        return point(0.0).to(vector)
    low, high = -700.0, 0.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if norm(point(middle) - around) > radius else (middle, high)
    found = point(low)
    if norm(found - around) > radius * (1 + 1e-6):
        raise ValueError(f"the sets must have a point in common: a ball has radius {radius:g} and does not reach.")
    return on_ball(found, radius, around).to(vector)


def alternating(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], vector: Tensor) -> Tensor:
    """Return the proximal point of a sum of two functions, from the proximal operators of each.

    For two indicators this is Dykstra's algorithm: the projection on the intersection. It works in float64 and stops
    when neither operator moves the point by more than a relative 1e-10.

    Raises:
        RuntimeError: No agreement after 100 000 rounds, as when two sets have no point in common.
    """
    current = vector.double()
    kept_first, kept_second = torch.zeros_like(current), torch.zeros_like(current)
    for _ in range(MOST_ROUNDS):
        middle = first(current + kept_first)
        kept_first = current + kept_first - middle
        following = second(middle + kept_second)
        kept_second = middle + kept_second - following
        moved = max(norm(following - current), norm(following - middle))
        current = following
        if moved <= TOLERANCE * (1 + norm(current)):
            return current.to(vector)
    raise RuntimeError(f"two operators did not agree after {MOST_ROUNDS} rounds: do their sets have a point in common?")
