r"""The assumptions on an objective: it is smooth, and the noise of its gradients has a bounded moment of order alpha.

The bounds for clipped SGD depend on these numbers. The user declares them from public knowledge; learning them from
private data would cost privacy.
Source: "Differentially Private Clipped-SGD", Assumptions 2.1 to 2.4.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._arrays import Numbers


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    r"""The base of :class:`ConvexProblem` and :class:`NonConvexProblem`. Numbers may be arrays, which broadcast.

    Attributes:
        smoothness: L > 0; gradients are L-Lipschitz. Unit: objective over parameter squared.
        moment_scale: sigma >= 0 with :math:`E\lVert \nabla f_\xi - \nabla f\rVert^\alpha \le \sigma^\alpha`. Unit: that
            of a gradient.
        moment_order: alpha in (1, 2].
        dim: Number of parameters d.
        metric: The quantity that the theorem bounds, in words.
        union_factor: The theorem's printed bound may fail with this multiple of the failure probability passed to it.
    """

    smoothness: ArrayLike
    moment_scale: ArrayLike
    moment_order: ArrayLike = 2.0
    dim: ArrayLike = 1

    metric: ClassVar[str]
    union_factor: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _arrays.positive("smoothness", self.smoothness)
        _arrays.non_negative("moment_scale", self.moment_scale)
        _arrays.moment_order(self.moment_order)
        _arrays.positive("dim", self.dim)

    def check_single(self) -> None:
        """Raise ``ValueError`` if a number is an array; a search or a plan takes one problem."""
        numbers = (self.length, self.smoothness, self.moment_scale, self.moment_order, self.dim)
        if any(np.ndim(number) for number in numbers):
            raise ValueError("problem must have single numbers here, got an array. Call this once for each problem.")

    @property
    @abstractmethod
    def gradient_scale(self) -> Numbers:
        """L R, or the root of L Delta. It is half of the largest gradient norm on the path (``grad_cap``)."""

    @property
    def grad_cap(self) -> Numbers:
        """The largest gradient norm on the set that the theorem's proof stays in: twice ``gradient_scale``."""
        return 2 * self.gradient_scale

    @property
    @abstractmethod
    def length(self) -> Numbers:
        """R, or the root of Delta / L: the length scale of the path, in parameter units."""

    @property
    @abstractmethod
    def error_scale(self) -> Numbers:
        """The factor from a gradient error to the metric: R (objective), or the root of L Delta (gradient squared)."""

    @property
    @abstractmethod
    def trivial_value(self) -> Any:
        """The bound that holds before any step; a larger bound says nothing."""

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

    The metric is :math:`f(x) - f^*`, and its trivial value is :math:`L R^2 / 2`.

    Attributes:
        radius: R > 0, at least the distance from the start to a minimiser, in parameter units.

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

    The metric is :math:`\lVert \nabla f(x) \rVert^2`, and its trivial value is :math:`2 L \Delta`.

    Attributes:
        initial_gap: Delta > 0, at least :math:`f(x^0) - f^*`, in the objective's units.

    Example:
        >>> NonConvexProblem(smoothness=2.0, initial_gap=0.5, moment_scale=0.2).trivial_value
        2.0
    """

    initial_gap: ArrayLike
    metric: ClassVar[str] = "|grad f(x)|^2"
    union_factor: ClassVar[int] = 2  # the proof leaves out the probability that a single step's noise is large

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
