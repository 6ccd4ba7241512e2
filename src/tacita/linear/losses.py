r"""Losses of linear models: what each row's loss says about its outputs, as a derivative and a bound on its curvature.

Everything here is private. A loss depends on a row through its outputs :math:`z = W x + b` alone, so that the gradient
is :math:`\ell'(z, y) \, x^\top`: see :mod:`tacita.linear.source`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacita import _validate
from tacita.hardened.row_arithmetic import exp_by_row, tree_sum


class OutputLoss(ABC):
    r"""A loss :math:`\ell(z, y)` of the outputs z of a linear model, convex in z.

    Attributes:
        curvature: A bound on the second derivative :math:`\ell''`, for every output and target; where the loss has
            none, a number that a solver may use for its steps.
        max_derivative: A bound on the norm of the derivative; ``inf`` if there is none.
        reads_outputs: Whether the derivative depends on the outputs, and a gradient on the point it is taken at.
    """

    curvature: float
    max_derivative: float
    reads_outputs: ClassVar[bool] = True

    def num_outputs(self) -> int:
        """Return the number of outputs of a model with this loss."""
        return 1

    @abstractmethod
    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the derivative in the outputs, (rows, outputs), from ``targets``, (rows,); may overwrite ``outputs``.

        A row depends on its own output and target alone, and a target that is NaN gives NaN; sources take infinite
        targets for NaN.
        """

    def exact_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the derivative by arithmetic on single numbers, whose bits for a row depend on that row alone.

        Kernels of exponentials do not have this property; the four operations of IEEE do.
        """
        raise ValueError(f"exact=True needs a loss that has an exact_derivative, which {self!r} has not.")

    def majorant(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""Return the curvature c of a quadratic above the loss that touches it at ``outputs``, (rows,).

        :math:`\ell(u, y) \le \ell(z, y) + \ell'(z, y)^\top (u - z) + \frac{c}{2} \lVert u - z \rVert^2` for every u,
        so that a step to the minimum of the quadratic never overshoots. By default c is ``curvature``. Where the loss
        is, but for a linear term, an even function :math:`f` of a residual r with :math:`f'(r) / r` falling in
        :math:`|r|`, c is :math:`f'(r) / r`, the least there is (de Leeuw and Lange, 2009, Theorem 4.5,
        https://doi.org/10.1016/j.csda.2009.01.002).

        A row depends on its own outputs and target alone, and a target that is NaN gives NaN.
        """
        return torch.full_like(targets, self.curvature) + 0.0 * targets


@dataclass(frozen=True)
class LogisticLoss(OutputLoss):
    r""":math:`\log(1 + e^z) - y z`, for targets 0 and 1."""

    curvature: ClassVar[float] = 0.25
    max_derivative: ClassVar[float] = 1.0

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sigmoid_().sub_(targets.unsqueeze(1))

    def exact_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        small = exp_by_row(-outputs.abs())
        return torch.where(outputs < 0, small, 1.0) / (1.0 + small) - targets.unsqueeze(1)

    def majorant(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""Return :math:`\tanh(z / 2) / (2 z)`: the loss is :math:`\log(2 \cosh(z / 2))` and a linear term."""
        z = outputs.squeeze(1)
        near = z.abs() < 1e-3  # where the quotient would lose digits: its series, to 1e-15
        quotient = torch.tanh(z / 2) / torch.where(near, 1.0, 2 * z)
        return torch.where(near, 0.25 - z.square() / 48, quotient) + 0.0 * targets


@dataclass(frozen=True)
class MultinomialLoss(OutputLoss):
    r""":math:`\log \sum_k e^{z_k} - z_y`, for targets 0, 1, ..., ``classes`` - 1.

    Attributes:
        classes: Number of classes, >= 2.
    """

    classes: int

    curvature: ClassVar[float] = 0.5
    max_derivative: ClassVar[float] = math.sqrt(2)

    def __post_init__(self) -> None:
        _validate.count("classes", self.classes, at_least=2)

    def num_outputs(self) -> int:
        return self.classes

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._less_own(torch.softmax(outputs, dim=1), targets)

    def exact_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        shares = exp_by_row(outputs - outputs.amax(dim=1, keepdim=True))
        return self._less_own(shares / tree_sum(shares.clone()).unsqueeze(1), targets)

    def _less_own(self, shares: Tensor, targets: Tensor) -> Tensor:
        own = targets.nan_to_num(0.0).clamp(0, self.classes - 1).long().unsqueeze(1)
        shares.scatter_add_(1, own, torch.full_like(own, -1, dtype=shares.dtype))
        return torch.where(targets.isfinite().unsqueeze(1), shares, torch.nan)


@dataclass(frozen=True)
class SquaredLoss(OutputLoss):
    r""":math:`(z - y)^2 / 2`."""

    curvature: ClassVar[float] = 1.0
    max_derivative: ClassVar[float] = math.inf

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sub_(targets.unsqueeze(1))

    exact_derivative = derivative


@dataclass(frozen=True)
class HuberLoss(OutputLoss):
    r""":math:`r^2 / 2` where :math:`|r| \le \delta`, else :math:`\delta |r| - \delta^2 / 2`, for :math:`r = z - y`.

    Attributes:
        threshold: delta > 0, in the units of the targets.
    """

    threshold: float

    curvature: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _validate.positive("threshold", self.threshold)

    @property
    def max_derivative(self) -> float:  # type: ignore[override]
        return self.threshold

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sub_(targets.unsqueeze(1)).clamp_(-self.threshold, self.threshold)

    exact_derivative = derivative

    def majorant(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""Return :math:`\delta / \max(\delta, |r|)`."""
        return self.threshold / (outputs.squeeze(1) - targets).abs().clamp(min=self.threshold)


@dataclass(frozen=True)
class QuantileLoss(OutputLoss):
    r""":math:`\max(q r, (q - 1) r)` for :math:`r = y - z`, smoothed: its derivative goes linearly from one side to the
    other while :math:`|r| \le h`.

    Attributes:
        quantile: q in (0, 1).
        width: h > 0, in the units of the targets.
    """

    quantile: float
    width: float

    def __post_init__(self) -> None:
        _validate.inside("quantile", self.quantile)
        _validate.positive("width", self.width)

    @property
    def curvature(self) -> float:  # type: ignore[override]
        return 1 / (2 * self.width)

    @property
    def max_derivative(self) -> float:  # type: ignore[override]
        return max(self.quantile, 1 - self.quantile)

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        residual = outputs.sub_(targets.unsqueeze(1)).mul_(1 / (2 * self.width))
        return residual.add_(0.5).clamp_(0.0, 1.0).sub_(self.quantile)

    exact_derivative = derivative

    def majorant(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""Return :math:`1 / (2 \max(h, |r|))`: the derivative is odd in r, but for the constant 1/2 - q."""
        return 0.5 / (outputs.squeeze(1) - targets).abs().clamp(min=self.width)


@dataclass(frozen=True)
class SquaredHingeLoss(OutputLoss):
    r""":math:`\max(0, 1 - s z)^2 / 2` with the sign :math:`s = 2 y - 1`, for targets 0 and 1.

    With more than two classes there is one such loss for each class, against all others, and their sum is taken.

    Attributes:
        classes: Number of classes, >= 2; targets are 0, 1, ..., ``classes`` - 1.
    """

    classes: int = 2

    curvature: ClassVar[float] = 1.0
    max_derivative: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        _validate.count("classes", self.classes, at_least=2)

    def num_outputs(self) -> int:
        return 1 if self.classes == 2 else self.classes

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.classes == 2:
            signs = (2 * targets - 1).unsqueeze(1)
        else:
            numbers = torch.arange(self.classes, dtype=targets.dtype)
            signs = 2.0 * (targets.unsqueeze(1) == numbers).to(outputs.dtype) - 1.0
            signs += (targets - targets).unsqueeze(1)  # 0, or NaN where the target is not finite
        return outputs.mul_(signs).sub_(1.0).clamp_(max=0.0).mul_(signs)

    exact_derivative = derivative


@dataclass(frozen=True)
class MultipliedLoss(OutputLoss):
    r""":math:`a\,\ell(z, y)`: another loss in other units, with the same minimum.

    Attributes:
        loss: The other loss.
        factor: a > 0.
    """

    loss: OutputLoss
    factor: float

    def __post_init__(self) -> None:
        _validate.positive("factor", self.factor)

    @property
    def curvature(self) -> float:  # type: ignore[override]
        return self.factor * self.loss.curvature

    @property
    def max_derivative(self) -> float:  # type: ignore[override]
        return self.factor * self.loss.max_derivative

    def num_outputs(self) -> int:
        return self.loss.num_outputs()

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss.derivative(outputs, targets).mul_(self.factor)

    def exact_derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss.exact_derivative(outputs, targets).mul_(self.factor)

    def majorant(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.factor * self.loss.majorant(outputs, targets)


@dataclass(frozen=True)
class RowLoss(OutputLoss):
    """z itself: its gradient is the row, at every point."""

    curvature: ClassVar[float] = 0.0
    max_derivative: ClassVar[float] = 1.0
    reads_outputs: ClassVar[bool] = False

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.ones_like(outputs)


@dataclass(frozen=True)
class HessianRowLoss(OutputLoss):
    r""":math:`\sqrt{c / \kappa}\, z`, with ``majorant`` c of another loss at the point, and its ``curvature`` kappa.

    The outer products of its gradients, added up and times kappa, are a matrix above the Hessian of that loss.

    Attributes:
        loss: The other loss.
    """

    loss: OutputLoss

    curvature: ClassVar[float] = 0.0
    max_derivative: ClassVar[float] = 1.0

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (self.loss.majorant(outputs, targets) / self.loss.curvature).sqrt_().unsqueeze(1)
