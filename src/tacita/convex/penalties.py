"""Penalties through their proximal operators: L1, elastic net, group lasso, nuclear norm. They shrink the point.

Source: Parikh and Boyd (2014), "Proximal Algorithms", section 6.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.convex.projections import norm
from tacita.convex.proximal_operators import ProximalOperator


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


def L1(*, weight: float, names: tuple[str, ...] | None = None) -> ElasticNet:
    r"""Return the operator of :math:`\text{weight}\,\lVert y\rVert_1`, which keeps exact zeros.

    Example:
        >>> from tacita.convex import Ball
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
