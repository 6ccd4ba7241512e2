r"""Proximal operators: :math:`\mathrm{prox}_{t f}(z) = \arg\min_y\, t f(y) + \tfrac12 \lVert y - z\rVert^2`.

A penalty (L1, elastic net, group lasso, nuclear norm) shrinks the point; a domain (ball, box, simplex) projects it,
because the indicator of a set has the projection as its operator. ``L1(weight=0.1) + Ball(radius=3.0)`` is both.
Source: Parikh and Boyd (2014), "Proximal Algorithms"; for a penalty inside a ball, Yu (2013), "On Decomposing the
Proximal Map". All of it is post-processing of releases.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.methods.projections import alternating, norm, on_ball, on_l1_ball, on_simplex, on_two_balls

Point = Mapping[str, Tensor]  # parameters by name
OUTSIDE = 1e-6  # relative: how far from a set a point may be and still count as inside, for value()


@dataclass(frozen=True, kw_only=True)
class ProximalOperator(ABC):
    """A convex function of the parameters, through its proximal operator.

    Call it with a point and a step: ``operator(point, step)`` returns the proximal point. ``+`` adds two functions.

    Attributes:
        names: The parameters that the function is of, together one vector; ``None`` for all. Others are not changed.
    """

    names: tuple[str, ...] | None = None

    @property
    def separable(self) -> bool:
        """Whether the function is a sum over coordinates, so that a box may follow its operator."""
        return False

    @property
    def homogeneous(self) -> bool:
        """Whether f(a y) = a f(y) for a > 0, so that a ball around the origin may follow its operator."""
        return False

    @property
    def radial(self) -> bool:
        """Whether the function is a homogeneous one and one of the norm alone, so that a ball may follow too."""
        return self.homogeneous

    @abstractmethod
    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        """Return the proximal point of the parameters as one vector."""

    @abstractmethod
    def of_vector(self, vector: Tensor) -> float:
        """Return the function's value at the parameters as one vector; ``inf`` outside of a domain."""

    def __call__(self, point: Point, step: float) -> dict[str, Tensor]:
        """Return the proximal point, as new tensors; ``step`` >= 0 multiplies the function."""
        chosen = self._chosen(point)
        moved = self.on_vector(torch.cat([point[name].reshape(-1) for name in chosen]), step)
        pieces = moved.split([point[name].numel() for name in chosen])
        found = {name: piece.view_as(point[name]) for name, piece in zip(chosen, pieces, strict=True)}
        return {name: found.get(name, tensor) for name, tensor in point.items()}

    def value(self, point: Point) -> float:
        """Return the function's value; 0 or ``inf`` for a domain, up to rounding."""
        return self.of_vector(torch.cat([point[name].reshape(-1) for name in self._chosen(point)]))

    def __add__(self, other: "ProximalOperator") -> "ProximalSum":
        return ProximalSum(first=self, second=other)

    def _chosen(self, point: Point) -> tuple[str, ...]:
        missing = [name for name in self.names or () if name not in point]
        if missing:
            raise ValueError(f"names must be parameters, got {', '.join(missing)}; there are {', '.join(point)}.")
        return tuple(point) if self.names is None else self.names


@dataclass(frozen=True, kw_only=True)
class ElasticNet(ProximalOperator):
    r""":math:`\lambda_1 \lVert y\rVert_1 + \tfrac{\lambda_2}{2}\lVert y\rVert_2^2`, ``l1`` and ``l2`` >= 0.

    Example:
        >>> ElasticNet(l1=0.5, l2=0.5)({"w": torch.tensor([1.5, -0.3, 0.2, -2.0])}, 1.0)["w"]
        tensor([ 0.6667, -0.0000,  0.0000, -1.0000])
    """

    l1: float
    l2: float

    def __post_init__(self) -> None:
        _validate.non_negative("l1", self.l1)
        _validate.non_negative("l2", self.l2)

    @property
    def separable(self) -> bool:
        return True

    @property
    def homogeneous(self) -> bool:
        return self.l2 == 0

    @property
    def radial(self) -> bool:
        return True

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        return torch.nn.functional.softshrink(vector, step * self.l1) / (1 + step * self.l2)

    def of_vector(self, vector: Tensor) -> float:
        wide = vector.double()
        return float(self.l1 * wide.abs().sum() + self.l2 / 2 * wide.square().sum())


def L1(*, weight: float, names: tuple[str, ...] | None = None) -> ElasticNet:  # noqa: N802 - the function's name
    r"""Return the operator of :math:`\text{weight}\,\lVert y\rVert_1`, which keeps exact zeros.

    Example:
        >>> (L1(weight=0.5) + Ball(radius=1.0))({"w": torch.tensor([1.5, -0.3, 0.2, -2.0])}, 1.0)["w"]
        tensor([ 0.5547, -0.0000,  0.0000, -0.8321])
    """
    return ElasticNet(l1=weight, l2=0.0, names=names)


@dataclass(frozen=True, kw_only=True)
class GroupLasso(ProximalOperator):
    r""":math:`\text{weight} \sum_g \lVert y_g\rVert_2`: whole groups of coordinates become zero together.

    Attributes:
        weight: >= 0.
        groups: Positions in the vector of the named parameters, each in one group at most; others are not penalised.

    Example:
        >>> GroupLasso(weight=1.0, groups=((0, 1), (2,)))({"w": torch.tensor([3.0, 4.0, 0.5])}, 1.0)["w"]
        tensor([2.4000, 3.2000, 0.0000])
    """

    weight: float
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        _validate.non_negative("weight", self.weight)
        object.__setattr__(self, "groups", tuple(tuple(int(i) for i in group) for group in self.groups))
        places = [i for group in self.groups for i in group]
        if len(set(places)) != len(places) or min(places, default=0) < 0:
            raise ValueError("groups must hold each position once, and no negative one.")

    @property
    def homogeneous(self) -> bool:
        return True

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        found = vector.clone()
        for places in self._places(vector):
            length = norm(vector[places])
            found[places] *= max(0.0, 1 - step * self.weight / length) if length else 0.0
        return found

    def of_vector(self, vector: Tensor) -> float:
        return self.weight * sum(norm(vector[places]) for places in self._places(vector))

    def _places(self, vector: Tensor) -> list[Tensor]:
        if max((i for group in self.groups for i in group), default=-1) >= len(vector):
            raise ValueError(f"groups must hold positions below the number of coordinates, {len(vector)}.")
        return [torch.tensor(group, dtype=torch.int64, device=vector.device) for group in self.groups]


@dataclass(frozen=True, kw_only=True)
class NuclearNorm(ProximalOperator):
    """``weight`` times the sum of the singular values of one matrix; needs a whole SVD, so small matrices only.

    Attributes:
        weight: >= 0.
        shape: The matrix's (rows, columns); the named parameters together must have as many coordinates.

    Example:
        >>> NuclearNorm(weight=1.0, shape=(2, 2))({"w": torch.tensor([[3.0, 0.0], [0.0, 0.5]])}, 1.0)["w"].round()
        tensor([[2., 0.],
                [0., 0.]])
    """

    weight: float
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        _validate.non_negative("weight", self.weight)

    @property
    def homogeneous(self) -> bool:
        return True

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        u, singular, vh = torch.linalg.svd(vector.view(self.shape), full_matrices=False)
        return ((u * (singular - step * self.weight).clamp(min=0)) @ vh).reshape(-1)

    def of_vector(self, vector: Tensor) -> float:
        return self.weight * float(torch.linalg.svdvals(vector.double().view(self.shape)).sum())


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


@dataclass(frozen=True, kw_only=True)
class ProximalSum(ProximalOperator):
    r"""The sum of two functions: a penalty and a domain, or two domains, whose sum is their intersection.

    One operator after the other is exact in three cases: the functions are of different parameters; the second one is a
    box and the first one a sum over coordinates; the second one is a ball around the origin and the first one is
    positively homogeneous (or of the same parameters and also depends on their norm alone). Two balls have a closed
    form. All other pairs take an alternating scheme (:func:`~tacita.methods.projections.alternating`).

    Raises:
        ValueError: The two are of different parameters that overlap, and there is no closed form.

    Example:
        >>> both = Ball(radius=1.0) + Ball(radius=0.5, center={"w": torch.tensor([1.0, 0.0])})
        >>> both({"w": torch.tensor([2.0, 2.0])}, 1.0)["w"]
        tensor([0.8750, 0.4841])
    """

    first: ProximalOperator
    second: ProximalOperator

    def __post_init__(self) -> None:
        a, b = self.first.names, self.second.names
        if a != b and not self._one_after_the_other:
            raise ValueError(
                f"names must be the same in both, or have none in common, for such a sum, got {a} and {b}: its "
                "operator has no closed form."
            )
        object.__setattr__(self, "names", a if a == b else None)

    @property
    def separable(self) -> bool:
        return self.first.separable and self.second.separable

    @property
    def homogeneous(self) -> bool:
        return self.first.homogeneous and self.second.homogeneous

    @property
    def radial(self) -> bool:
        same = self.first.names == self.second.names
        both = self.first.radial and self.second.radial and self._one_after_the_other
        return self.homogeneous or (same and both)

    def __call__(self, point: Point, step: float) -> dict[str, Tensor]:
        if self._one_after_the_other:
            return self.second(self.first(point, step), step)
        return super().__call__(point, step)

    def value(self, point: Point) -> float:
        return self.first.value(point) + self.second.value(point)

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        if self._one_after_the_other:
            return self.second.on_vector(self.first.on_vector(vector, step), step)
        if isinstance(self.first, Ball) and isinstance(self.second, Ball):
            first, second = ((ball.center_of(vector), ball.radius) for ball in (self.first, self.second))
            return on_two_balls(vector, first, second)
        return alternating(
            lambda z: self.first.on_vector(z, step), lambda z: self.second.on_vector(z, step), vector
        )

    def of_vector(self, vector: Tensor) -> float:
        return self.first.of_vector(vector) + self.second.of_vector(vector)

    @property
    def _one_after_the_other(self) -> bool:
        """Whether the first operator and then the second one is the operator of the sum."""
        a, b = self.first.names, self.second.names
        if a is not None and b is not None and not set(a) & set(b):
            return True
        if isinstance(self.second, Box):
            return self.first.separable
        if not isinstance(self.second, Ball) or self.second.center is not None:
            return False
        if a == b:
            return self.first.radial
        covered = b is None or (a is not None and set(a) <= set(b))
        return self.first.homogeneous and (covered or self.first.separable)
