"""Domains through their projections: ball, box, simplex, L1 ball. They are proximal operators of indicators.

Sources: see :mod:`tacita.convex.projections`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.convex.projections import in_ball, norm, on_ball, on_l1_ball, on_simplex, on_two_balls
from tacita.convex.proximal_operators import Point, ProximalOperator

OUTSIDE = 1e-6  # relative: how far from a set a point may be and still count as inside, for value()


@dataclass(frozen=True, kw_only=True, eq=False)  # tensors do not compare
class Ball(ProximalOperator):
    """The L2 ball: all points at a distance of at most ``radius`` from ``center``. Its diameter is twice the radius.

    Attributes:
        radius: > 0; ``inf`` is the whole space.
        center: Parameters by name; ``None`` for the origin.

    Example:
        >>> Ball(radius=1.0)({"w": torch.tensor([3.0, 4.0])}, 1.0)["w"]
        tensor([0.6000, 0.8000])
    """

    radius: float
    center: Point | None = None

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise ValueError(f"radius must be > 0, got {self.radius!r}.")

    def __call__(self, point: Point, step: float) -> dict[str, Tensor]:
        return super().__call__(point, step) if math.isfinite(self.radius) else dict(point)

    @property
    def radial(self) -> bool:
        return self.center is None

    @property
    def goes_last(self) -> bool:
        return True

    def may_follow(self, first: ProximalOperator) -> bool:
        mine, its = self.names, first.names
        if self.center is not None:
            return super().may_follow(first)
        if mine == its:
            return first.radial
        covered = mine is None or (its is not None and set(its) <= set(mine))
        return super().may_follow(first) or (first.homogeneous and (covered or first.separable))

    def together(self, first: ProximalOperator, vector: Tensor, step: float) -> Tensor:
        if not isinstance(first, Ball):
            return in_ball(first.on_vector, vector, step, self.center_of(vector), self.radius)
        balls = [(ball.center_of(vector), ball.radius) for ball in (first, self)]
        return on_two_balls(vector, *balls)

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        return on_ball(vector, self.radius, None if self.center is None else self.center_of(vector))

    def of_vector(self, vector: Tensor) -> float:
        return 0.0 if norm(vector - self.center_of(vector)) <= self.radius * (1 + OUTSIDE) else math.inf

    def center_of(self, vector: Tensor) -> Tensor:
        """Return the center as a vector like ``vector``."""
        if self.center is None:
            return torch.zeros_like(vector)
        names = tuple(self.center) if self.names is None else self.names
        return torch.cat([self.center[name].detach().reshape(-1) for name in names]).to(vector)


@dataclass(frozen=True, kw_only=True)
class Box(ProximalOperator):
    """All points with every coordinate in [``low``, ``high``]; ``Box(low=0.0, high=math.inf)`` is the orthant.

    Example:
        >>> from tacita.convex import L1
        >>> (L1(weight=0.5) + Box(low=0.0, high=1.0))({"w": torch.tensor([2.0, 0.7, -1.0])}, 1.0)["w"]
        tensor([1.0000, 0.2000, 0.0000])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"low must be at most high, got {self.low!r} and {self.high!r}.")

    @property
    def separable(self) -> bool:
        return True

    @property
    def homogeneous(self) -> bool:
        return {abs(self.low), abs(self.high)} <= {0.0, math.inf}

    def may_follow(self, first: ProximalOperator) -> bool:
        return first.separable or super().may_follow(first)

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        return vector.clamp(self.low, self.high)

    def of_vector(self, vector: Tensor) -> float:
        slack = OUTSIDE * (1 + norm(vector))
        return 0.0 if bool(((vector >= self.low - slack) & (vector <= self.high + slack)).all()) else math.inf


@dataclass(frozen=True, kw_only=True)
class Simplex(ProximalOperator):
    """All points without a negative coordinate whose coordinates sum to ``total``."""

    total: float = 1.0

    def __post_init__(self) -> None:
        _validate.positive("total", self.total)

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        return on_simplex(vector, self.total)

    def of_vector(self, vector: Tensor) -> float:
        near = abs(float(vector.double().sum()) - self.total) <= OUTSIDE * self.total * len(vector)
        return 0.0 if near and float(vector.min()) >= -OUTSIDE * self.total else math.inf


@dataclass(frozen=True, kw_only=True)
class L1Ball(ProximalOperator):
    """All points with an L1 norm of at most ``radius``."""

    radius: float

    def __post_init__(self) -> None:
        _validate.positive("radius", self.radius)

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        return on_l1_ball(vector, self.radius)

    def of_vector(self, vector: Tensor) -> float:
        return 0.0 if float(vector.double().abs().sum()) <= self.radius * (1 + OUTSIDE) else math.inf
