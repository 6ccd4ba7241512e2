r"""Proximal operators: :math:`\mathrm{prox}_{t f}(z) = \arg\min_y\, t f(y) + \tfrac12 \lVert y - z\rVert^2`.

A penalty (L1, elastic net, group lasso, nuclear norm) shrinks the point; a domain (ball, box, simplex) projects it,
because the indicator of a set has the projection as its operator. ``L1(weight=0.1) + Ball(radius=3.0)`` is both. Here
are the interface and the sum of two; :mod:`tacita.convex.penalties` and :mod:`tacita.convex.domains` have the rest.
Source: Parikh and Boyd (2014), "Proximal Algorithms"; for a penalty inside a ball, Yu (2013), "On Decomposing the
Proximal Map". All of it is post-processing of releases.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita.convex.projections import alternating

Point = Mapping[str, Tensor]  # parameters by name


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

    @property
    def goes_last(self) -> bool:
        """Whether :meth:`together` is exact for every other operator."""
        return False

    def may_follow(self, first: "ProximalOperator") -> bool:
        """Return whether ``first`` and then this one is the operator of the sum of both."""
        mine, its = self.names, first.names
        return mine is not None and its is not None and not set(mine) & set(its)

    def together(self, first: "ProximalOperator", vector: Tensor, step: float) -> Tensor:
        """Return the proximal point of the sum of ``first`` and this one, of the same parameters."""
        return alternating(lambda z: first.on_vector(z, step), lambda z: self.on_vector(z, step), vector)

    def __add__(self, other: "ProximalOperator") -> "ProximalSum":
        return ProximalSum(first=self, second=other)

    def _chosen(self, point: Point) -> tuple[str, ...]:
        missing = [name for name in self.names or () if name not in point]
        if missing:
            raise ValueError(f"names must be parameters, got {', '.join(missing)}; there are {', '.join(point)}.")
        return tuple(point) if self.names is None else self.names


@dataclass(frozen=True, kw_only=True)
class ProximalSum(ProximalOperator):
    r"""The sum of two functions: a penalty and a domain, or two domains, whose sum is their intersection.

    One operator after the other is exact in three cases: the functions are of different parameters; the second one is a
    box and the first one a sum over coordinates; the second one is a ball around the origin and the first one is
    positively homogeneous (or of the same parameters and also depends on their norm alone). Two balls have a closed
    form; any other function in a ball is a search for one multiplier. All other pairs take an alternating scheme, which
    can be slow (:func:`~tacita.convex.projections.alternating`).

    Raises:
        ValueError: The two are of different parameters that overlap, and there is no closed form.

    Example:
        >>> from tacita.convex import Ball
        >>> both = Ball(radius=1.0) + Ball(radius=0.5, center={"w": torch.tensor([1.0, 0.0])})
        >>> both({"w": torch.tensor([2.0, 2.0])}, 1.0)["w"]
        tensor([0.8750, 0.4841])
    """

    first: ProximalOperator
    second: ProximalOperator

    def __post_init__(self) -> None:
        first, second = self.first, self.second
        if not second.may_follow(first) and (first.may_follow(second) or first.goes_last):
            object.__setattr__(self, "first", second)  # a sum may be taken in any order
            object.__setattr__(self, "second", first)
        a, b = self.first.names, self.second.names
        if a != b and not self._in_turn:
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
        both = self.first.radial and self.second.radial and self._in_turn
        return self.homogeneous or (same and both)

    def __call__(self, point: Point, step: float) -> dict[str, Tensor]:
        if self._in_turn:
            return self.second(self.first(point, step), step)
        return super().__call__(point, step)

    def value(self, point: Point) -> float:
        return self.first.value(point) + self.second.value(point)

    def on_vector(self, vector: Tensor, step: float) -> Tensor:
        if self._in_turn:
            return self.second.on_vector(self.first.on_vector(vector, step), step)
        return self.second.together(self.first, vector, step)

    def of_vector(self, vector: Tensor) -> float:
        return self.first.of_vector(vector) + self.second.of_vector(vector)

    @property
    def _in_turn(self) -> bool:
        """Whether the first operator and then the second one is the operator of the sum."""
        return self.second.may_follow(self.first)
