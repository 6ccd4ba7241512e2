r"""Synthetic heavy-tailed gradients with known moments, for experiments and tests of clipped and robust methods.

Every distribution has mean zero and a tail index a > 1. Moments of order below a are finite, and are computed here; for
a < 2 the variance is infinite. (The stable distribution with a = 2 is the Gaussian.) The caller passes a public
generator, because synthetic data hold no secret.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import beta, gamma

from tacita import _validate
from tacita.clipped_sgd import ConvexProblem

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class HeavyTail(ABC):
    """A distribution of gradient noise in any dimension, with mean zero.

    Attributes:
        tail: Tail index; moments of smaller order are finite.
        size: Factor by which every draw is multiplied.
    """

    tail: float
    size: float = 1.0

    def __post_init__(self) -> None:
        if not self.tail > 1:
            raise ValueError(f"tail must be > 1, or the mean does not exist, got {self.tail!r}.")
        _validate.positive("size", self.size)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...], dim: int = 1) -> Array:
        """Return independent draws, shape (*shape, dim)."""
        return self.size * self._draw(generator, shape, dim)

    def moment_scale(self, order: float, dim: int = 1) -> float:
        r"""Return :math:`(E \lVert \xi \rVert^\alpha)^{1/\alpha}` for alpha = ``order``.

        Raises:
            ValueError: ``order`` is not in (1, ``finite_below``), so the moment may be infinite.
        """
        if not 1 < order < self.finite_below:
            raise ValueError(f"order must be in (1, {self.finite_below:g}), where moments are finite, got {order!r}.")
        return float(self.size * self._moment(order, dim) ** (1 / order))

    @property
    def finite_below(self) -> float:
        """The order below which moments are finite."""
        return self.tail

    @abstractmethod
    def _draw(self, generator: np.random.Generator, shape: tuple[int, ...], dim: int) -> Array:
        """Return draws for ``size`` 1."""

    @abstractmethod
    def _moment(self, order: float, dim: int) -> float:
        r"""Return :math:`E \lVert \xi \rVert^\alpha` for ``size`` 1."""


@dataclass(frozen=True, kw_only=True)
class OneSidedPareto(HeavyTail):
    r"""A centred Pareto variable along the diagonal. It is skewed, so clipping has a bias even at the optimum.

    :math:`\xi = (P - a/(a-1))\, u` with :math:`P(P > t) = t^{-a}` for t >= 1 and :math:`u = (1, \dots, 1)/\sqrt d`.

    Example:
        >>> round(OneSidedPareto(tail=1.5).moment_scale(1.4), 5)
        6.36049
    """

    @property
    def mean_before_centring(self) -> float:
        """The mean a / (a - 1) of the Pareto variable P."""
        return self.tail / (self.tail - 1)

    def clipped_mean(self, threshold: float, shift: float = 0.0) -> float:
        r"""Return :math:`E\,\mathrm{clip}(\xi + y, C)` in one dimension, exactly, where only the right tail is cut.

        It is :math:`y - (C - y + \frac{a}{a-1})^{1-a}/(a-1)` for the shift y, if ``size`` is 1 and
        :math:`C \ge a/(a-1) - 1 - y`.

        Raises:
            ValueError: ``size`` is not 1, or C is smaller.

        Example:
            >>> OneSidedPareto(tail=1.5).clipped_mean(threshold=8.0)  # - 2 / sqrt(11)
            -0.6030226891555273
        """
        if self.size != 1 or threshold < self.mean_before_centring - 1 - shift:
            raise ValueError(
                f"threshold must be >= {self.mean_before_centring - 1 - shift:g}, so that only the right tail is cut, "
                f"and size must be 1, got threshold {threshold!r} and size {self.size!r}."
            )
        cut = threshold - shift + self.mean_before_centring
        return shift - cut ** (1 - self.tail) / (self.tail - 1)

    def _draw(self, generator: np.random.Generator, shape: tuple[int, ...], dim: int) -> Array:
        xi = (1 - generator.random(shape)) ** (-1 / self.tail) - self.mean_before_centring
        return xi[..., None] * np.full(dim, dim**-0.5)

    def _moment(self, order: float, dim: int) -> float:
        a, m = self.tail, self.mean_before_centring
        above = a * m ** (order - a) * beta(order + 1, a - order)
        below, _ = quad(lambda p: (m - p) ** order * a * p ** (-a - 1), 1, m)
        return above + below


@dataclass(frozen=True, kw_only=True)
class StudentT(HeavyTail):
    r"""The multivariate Student t distribution with ``tail`` degrees of freedom, symmetric in every direction.

    :math:`E\lVert\xi\rVert^\alpha = \nu^{\alpha/2} \frac{\Gamma((d+\alpha)/2)\Gamma((\nu-\alpha)/2)}{\Gamma(d/2)
    \Gamma(\nu/2)}`.

    Example:
        >>> round(StudentT(tail=3.0).moment_scale(2.0), 6)  # the root of 3: its standard deviation
        1.732051
    """

    def _draw(self, generator: np.random.Generator, shape: tuple[int, ...], dim: int) -> Array:
        chi = generator.chisquare(self.tail, shape)[..., None]
        return generator.standard_normal((*shape, dim)) * np.sqrt(self.tail / chi)

    def _moment(self, order: float, dim: int) -> float:
        nu = self.tail
        return float(
            nu ** (order / 2) * gamma((dim + order) / 2) * gamma((nu - order) / 2) / (gamma(dim / 2) * gamma(nu / 2))
        )


@dataclass(frozen=True, kw_only=True)
class AlphaStable(HeavyTail):
    r"""The isotropic stable distribution with characteristic function :math:`\exp(-\lVert t\rVert^a)`, a in (1, 2].

    :math:`E\lVert\xi\rVert^p = 2^p \frac{\Gamma((d+p)/2)\Gamma(1-p/a)}{\Gamma(d/2)\Gamma(1-p/2)}` for p < a. A draw
    is the root of a positive stable variable (Kanter) times a Gaussian; a = 2 is the Gaussian with variance 2 per
    coordinate.

    Example:
        >>> round(AlphaStable(tail=1.5).moment_scale(1.25), 4)
        2.3873
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tail > 2:
            raise ValueError(f"tail must be in (1, 2] for a stable distribution, got {self.tail!r}.")

    def _draw(self, generator: np.random.Generator, shape: tuple[int, ...], dim: int) -> Array:
        normals = generator.standard_normal((*shape, dim))
        b = self.tail / 2
        if b == 1:
            return math.sqrt(2) * normals
        u, e = generator.uniform(0, math.pi, shape), generator.standard_exponential(shape)
        positive = np.sin(b * u) / np.sin(u) ** (1 / b) * (np.sin((1 - b) * u) / e) ** ((1 - b) / b)
        return np.sqrt(2 * positive)[..., None] * normals

    def _moment(self, order: float, dim: int) -> float:
        if self.tail == 2:
            return float(2**order * gamma((dim + order) / 2) / gamma(dim / 2))
        numerator = gamma((dim + order) / 2) * gamma(1 - order / self.tail)
        return float(2**order * numerator / (gamma(dim / 2) * gamma(1 - order / 2)))

    @property
    def finite_below(self) -> float:
        """The tail index, or infinity for the Gaussian (a = 2)."""
        return math.inf if self.tail == 2 else self.tail


@dataclass(frozen=True, kw_only=True)
class NoisyQuadratic:
    r"""The problem :math:`f(x) = \frac{L}{2}\lVert x\rVert^2` with gradients :math:`L x + \xi`, from :math:`x^0`.

    Attributes:
        noise: The distribution of xi.
        start: The first point; its length is the dimension.
        smoothness: The smoothness L.
    """

    noise: HeavyTail
    start: tuple[float, ...]
    smoothness: float = 1.0
    _radius: float = field(init=False, repr=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_radius", math.hypot(*self.start))

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return len(self.start)

    def gradients(self, points: Array, generator: np.random.Generator) -> Array:
        """Return one stochastic gradient at each point, shape (..., dim)."""
        return self.smoothness * points + self.noise.draw(generator, points.shape[:-1], self.dim)

    def gap(self, points: Array) -> Array:
        """Return f(x) - f* at each point, shape (...)."""
        return self.smoothness / 2 * np.square(points).sum(axis=-1)

    def records(self, count: int, generator: np.random.Generator) -> Array:
        r"""Return records :math:`\xi_i`, shape (count, dim).

        The loss of a record is :math:`L \lVert x\rVert^2 / 2 + \langle x, \xi_i\rangle`.
        """
        return self.noise.draw(generator, (count,), self.dim)

    def problem(self, moment_order: float) -> ConvexProblem:
        """Return the theory's description: L, the distance from start to optimum, and the moment of the given order.

        Example:
            >>> toy = NoisyQuadratic(noise=OneSidedPareto(tail=1.5), start=(5.0,))
            >>> toy.problem(1.4).trivial_value
            12.5
        """
        return ConvexProblem(
            smoothness=self.smoothness,
            radius=self._radius,
            moment_order=moment_order,
            moment_scale=self.noise.moment_scale(moment_order, self.dim),
            dim=self.dim,
        )
