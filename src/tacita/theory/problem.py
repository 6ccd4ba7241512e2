r"""What is assumed of an objective: smooth, and gradients whose noise has a bounded moment of order alpha.

Place: settings of every bound for clipped SGD. All of it is declared by the user from public knowledge: none of these
numbers can be learned from private data for free.
Source: "Differentially Private Clipped-SGD", Assumptions 2.1 to 2.4.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from tacita.theory import _arrays
from tacita.theory._arrays import Numbers


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    r"""Base of :class:`ConvexProblem` and :class:`NonConvexProblem`. Every number may be an array; they broadcast.

    Attributes:
        smoothness: L > 0: gradients are L-Lipschitz; objective over parameter squared.
        moment_scale: sigma >= 0: :math:`E\lVert \nabla f_\xi - \nabla f\rVert^\alpha \le \sigma^\alpha`; of a gradient.
        moment_order: alpha in (1, 2].
        dim: Number of parameters d.
        metric: What is bounded, in words.
    """

    smoothness: ArrayLike
    moment_scale: ArrayLike
    moment_order: ArrayLike = 2.0
    dim: ArrayLike = 1

    metric: ClassVar[str]

    def __post_init__(self) -> None:
        _arrays.positive("smoothness", self.smoothness)
        _arrays.non_negative("moment_scale", self.moment_scale)
        _arrays.moment_order(self.moment_order)
        _arrays.positive("dim", self.dim)

    @property
    @abstractmethod
    def gradient_scale(self) -> Numbers:
        """L R, or the root of L Delta: half of the largest gradient norm the path can meet (``grad_cap``)."""

    @property
    def grad_cap(self) -> Numbers:
        """Largest norm of the gradient on the set where the theorem works: twice ``gradient_scale``."""
        return 2 * self.gradient_scale

    @property
    @abstractmethod
    def length(self) -> Numbers:
        """R, or the root of Delta / L: how far the path may go; parameter units."""

    @property
    @abstractmethod
    def error_scale(self) -> Numbers:
        """What multiplies a gradient error in the metric: R (objective), or the root of L Delta (gradient squared)."""

    @property
    @abstractmethod
    def trivial_value(self) -> Any:
        """What holds at the start, before any step: a bound above it says nothing."""

    @property
    def order(self) -> Numbers:
        """The moment order alpha as an array."""
        return np.asarray(self.moment_order, dtype=np.float64)

    @property
    def scale(self) -> Numbers:
        """The moment scale sigma as an array."""
        return np.asarray(self.moment_scale, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class ConvexProblem(Problem):
    r"""A convex, L-smooth objective whose minimiser is at most ``radius`` from the start.

    The metric is :math:`f(x) - f^*`; trivial is :math:`L R^2 / 2`.

    Attributes:
        radius: R > 0, at least the distance from the start to a minimiser; parameter units.

    Example:
        >>> ConvexProblem(smoothness=2.0, radius=3.0, moment_scale=0.2).trivial_value
        9.0
    """

    radius: ArrayLike
    metric: ClassVar[str] = "f(x) - f*"

    def __post_init__(self) -> None:
        super().__post_init__()
        _arrays.positive("radius", self.radius)

    @property
    def gradient_scale(self) -> Numbers:
        """L R."""
        return np.multiply(self.smoothness, self.length)

    @property
    def length(self) -> Numbers:
        """R."""
        return np.asarray(self.radius, dtype=np.float64)

    @property
    def error_scale(self) -> Numbers:
        """R."""
        return self.length

    @property
    def trivial_value(self) -> Any:
        r""":math:`L R^2 / 2`, at least :math:`f(x^0) - f^*`."""
        return _arrays.plain(self.gradient_scale * self.length / 2)


@dataclass(frozen=True, kw_only=True)
class NonConvexProblem(Problem):
    r"""An L-smooth objective that is at most ``initial_gap`` above its infimum at the start.

    The metric is :math:`\lVert \nabla f(x) \rVert^2`; trivial is :math:`2 L \Delta`.

    Attributes:
        initial_gap: Delta > 0, at least :math:`f(x^0) - f^*`; objective units.

    Example:
        >>> NonConvexProblem(smoothness=2.0, initial_gap=0.5, moment_scale=0.2).trivial_value
        2.0
    """

    initial_gap: ArrayLike
    metric: ClassVar[str] = "|grad f(x)|^2"

    def __post_init__(self) -> None:
        super().__post_init__()
        _arrays.positive("initial_gap", self.initial_gap)

    @property
    def gradient_scale(self) -> Numbers:
        """The root of L Delta."""
        return np.sqrt(np.multiply(self.smoothness, self.initial_gap))

    @property
    def length(self) -> Numbers:
        """The root of Delta / L."""
        return np.sqrt(np.divide(self.initial_gap, self.smoothness))

    @property
    def error_scale(self) -> Numbers:
        """The root of L Delta."""
        return self.gradient_scale

    @property
    def trivial_value(self) -> Any:
        r""":math:`2 L \Delta`, at least :math:`\lVert \nabla f(x^0) \rVert^2`."""
        return _arrays.plain(2 * np.multiply(self.smoothness, self.initial_gap))
