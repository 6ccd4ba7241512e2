r"""Convex learning problems with heavy-tailed records, whose excess risk is known or can be estimated closely.

Each problem draws records and returns the excess risk :math:`F(w) - F^*` of a point. Data are public: the caller hands
in a NumPy generator. Student-t features are scaled to variance 1.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tacita.linear.losses import LogisticLoss, OutputLoss, SquaredLoss
from tacita.linear.source import LinearSource

Array = np.ndarray
FRESH = 200_000  # records that a risk is estimated on where it has no closed form


def student(generator: np.random.Generator, shape: tuple[int, ...], *, degrees: float = 5.0) -> Array:
    """Return Student-t draws of variance 1; ``degrees`` must be above 2."""
    return generator.standard_t(degrees, shape) * math.sqrt((degrees - 2) / degrees)


class AbsoluteLoss(OutputLoss):
    r""":math:`|z - y|`; its derivative at 0 is 0."""

    curvature = math.inf
    max_derivative = 1.0

    def derivative(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sub_(targets.unsqueeze(1)).sign_()


@dataclass(frozen=True)
class LinearProblem(ABC):
    """A linear model without bias, its population of records, and the ball that it is learned in.

    Attributes:
        dim: Number of coefficients d.
        radius: Radius of the ball around 0; the diameter of the domain is twice that.
    """

    dim: int
    radius: float

    @property
    @abstractmethod
    def loss(self) -> OutputLoss:
        """The loss of a record, of the model's output."""

    @abstractmethod
    def draw(self, records: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """Return features, (records, dim), and targets, (records,)."""

    @abstractmethod
    def excess(self, point: Array) -> float:
        """Return the excess risk of a point, (dim,)."""

    def source(self, records: int, generator: np.random.Generator) -> LinearSource:
        """Draw records and return a source of their gradients."""
        features, targets = self.draw(records, generator)
        return LinearSource(features, targets, self.loss, intercept=None)


@dataclass(frozen=True)
class LeastSquares(LinearProblem):
    r"""Squared loss over 2, Student-t features with given variances, and Student-t noise of standard deviation 1/2.

    Attributes:
        optimum: :math:`w^*`, as a tuple.
        variances: Variances of the features, the eigenvalues of the Hessian; ``None`` for 1 each.
        truncated: Features and noise are clamped to this before they are scaled, so that the largest gradient is known.
    """

    optimum: tuple[float, ...]
    variances: tuple[float, ...] | None = None
    truncated: float = math.inf

    @property
    def loss(self) -> OutputLoss:
        return SquaredLoss()

    @property
    def curvatures(self) -> Array:
        return np.ones(self.dim) if self.variances is None else np.array(self.variances)

    def draw(self, records: int, generator: np.random.Generator) -> tuple[Array, Array]:
        x = np.clip(student(generator, (records, self.dim)), -self.truncated, self.truncated)
        x *= np.sqrt(self.curvatures)
        noise = np.clip(student(generator, (records,)) / 2, -self.truncated, self.truncated)
        return x, x @ np.array(self.optimum) + noise

    def excess(self, point: Array) -> float:
        return float((self.curvatures * np.square(point - np.array(self.optimum))).sum() / 2)


@dataclass(frozen=True)
class SparseLeastSquares(LeastSquares):
    """Least squares with an L1 penalty, whose minimiser is the optimum soft-thresholded (all variances are 1)."""

    penalty: float = 0.1

    @cached_property
    def solution(self) -> Array:
        optimum = np.array(self.optimum)
        return np.sign(optimum) * np.maximum(np.abs(optimum) - self.penalty, 0.0)

    def excess(self, point: Array) -> float:
        return self._risk(point) - self._risk(self.solution)

    def _risk(self, point: Array) -> float:
        return super().excess(point) + self.penalty * float(np.abs(point).sum())


@dataclass(frozen=True)
class _EstimatedRisk(LinearProblem):
    """A problem whose risk is estimated on fresh records, the same ones for every point."""

    optimum: tuple[float, ...]
    _fresh: dict[str, tuple[Array, Array]] = field(default_factory=dict, repr=False, compare=False)

    def excess(self, point: Array) -> float:
        if not self._fresh:
            self._fresh["records"] = self.draw(FRESH, np.random.default_rng(20))
        x, y = self._fresh["records"]
        return float((self.losses(x @ point, y) - self.losses(x @ np.array(self.optimum), y)).mean())

    @abstractmethod
    def losses(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each record."""


@dataclass(frozen=True)
class LogNormalLogistic(_EstimatedRisk):
    """Logistic regression; features are log-normal with a random sign, labels follow the model at the optimum."""

    @property
    def loss(self) -> OutputLoss:
        return LogisticLoss()

    def draw(self, records: int, generator: np.random.Generator) -> tuple[Array, Array]:
        x = np.exp(generator.standard_normal((records, self.dim))) * generator.choice([-1.0, 1.0], (records, self.dim))
        chance = 1 / (1 + np.exp(-np.clip(x @ np.array(self.optimum), -500, 500)))
        return x, (generator.random(records) < chance).astype(np.float64)

    def losses(self, outputs: Array, targets: Array) -> Array:
        return np.logaddexp(0.0, outputs) - targets * outputs


@dataclass(frozen=True)
class AbsoluteRegression(_EstimatedRisk):
    """Absolute loss; Student-t features, and noise of 0.3 times a Student t with 2.5 degrees of freedom."""

    @property
    def loss(self) -> OutputLoss:
        return AbsoluteLoss()

    def draw(self, records: int, generator: np.random.Generator) -> tuple[Array, Array]:
        x = student(generator, (records, self.dim))
        return x, x @ np.array(self.optimum) + 0.3 * generator.standard_t(2.5, records)

    def losses(self, outputs: Array, targets: Array) -> Array:
        return np.abs(outputs - targets)


def as_point(params: dict[str, Tensor]) -> Array:
    """Return a model's coefficients, (dim,)."""
    return params["weight"].detach().double().numpy().reshape(-1)


def start(problem: LinearProblem) -> dict[str, Tensor]:
    """Return the starting point of all runs, zero."""
    return {"weight": torch.zeros(1, problem.dim, dtype=torch.float64)}
