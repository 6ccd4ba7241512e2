r"""The smallest eigenvalue of a symmetric operator from products with vectors, with a bound on the error.

Private wherever the operator is private.
Source: Lanczos with full reorthogonalisation, random start; Kuczyński and Woźniakowski (1992), Theorem 4.2,
https://doi.org/10.1137/0613066. The bound used here is proved in docs/derivations/noisy-sgd.md.

A random start spans the whole space with probability 1, so that after as many steps as dimensions the value is exact.
Before that it is too large, by at most a share :math:`\eta` of the operator's spread
:math:`\lambda_{\max} - \lambda_{\min}`, except with a small probability: :func:`lanczos_error` relates the two. ARPACK
and LOBPCG need fewer products, but stop on a residual, which only shows that *some* eigenvalue is near.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from tacita import _validate

ROUNDING = 1e-13  # a next direction that is a smaller share of the operator is rounding: the space is complete


class Operator(Protocol):
    """A symmetric operator, known by its products."""

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        ...

    def product(self, vector: Tensor) -> Tensor:
        """Return the operator times ``vector``, float64."""
        ...


@dataclass(frozen=True)
class Ritz:
    """Extreme eigenvalues of an operator on a Krylov space: bounds from inside, up to rounding.

    Attributes:
        smallest: At least the operator's smallest eigenvalue; ``-inf`` if a product was not finite.
        largest: At most the operator's largest eigenvalue; ``inf`` if a product was not finite.
        vector: Unit vector with the Rayleigh quotient ``smallest``, (dim,).
        residual: Norm of (operator - smallest) vector: some eigenvalue is that near to ``smallest``.
        steps: Number of products made.
    """

    smallest: float
    largest: float
    vector: Tensor
    residual: float
    steps: int

    def error(self, failure_probability: float) -> float:
        r"""Bound how far below ``smallest`` the smallest eigenvalue lies, except with ``failure_probability``.

        The bound is :math:`\eta (\theta_{\max} - \theta_{\min}) / (1 - 2\eta)`, with :math:`\eta` for half the
        probability: both ends are off by at most :math:`\eta` times the true spread. It is ``inf`` for
        :math:`\eta \ge 1/2`, after too few steps.
        """
        dim = len(self.vector)
        share = 0.0 if self.steps >= dim else lanczos_error(dim, self.steps, failure_probability / 2)
        return share * (self.largest - self.smallest) / (1 - 2 * share) if share < 0.5 else math.inf


def lanczos(operator: Operator, start: Tensor, steps: int) -> Ritz:
    """Return extreme eigenvalues on the Krylov space of ``start``, by ``steps`` products (at most ``operator.dim``).

    Args:
        operator: A symmetric operator.
        start: The start, (dim,), on the operator's device. Its direction must be uniform: draw independent normals.
        steps: Number of products. As many vectors in float64 are held in memory.
    """
    steps = min(_validate.count("steps", steps), operator.dim)
    direction = start.double() / start.double().norm()
    basis = direction.new_zeros((steps, operator.dim))
    diagonal, below = [], []
    for step in range(steps):
        basis[step] = direction
        image = operator.product(direction)
        diagonal.append(float(direction @ image))
        known = basis[: step + 1]
        for _ in range(2):  # twice is enough
            image = image - known.T @ (known @ image)
        below.append(float(image.norm()))
        if not math.isfinite(diagonal[-1] + below[-1]):
            return Ritz(-math.inf, math.inf, direction, math.inf, step + 1)
        if below[-1] <= ROUNDING * max(map(abs, [*diagonal, *below])):
            break
        direction = image / below[-1]
    return _ritz(np.array(diagonal), np.array(below), basis)


def _ritz(diagonal: np.ndarray, below: np.ndarray, basis: Tensor) -> Ritz:
    values, vectors = eigh_tridiagonal(diagonal, below[:-1])
    weights = torch.from_numpy(vectors[:, 0].copy()).to(basis.device)
    complete = len(diagonal) < len(basis) or len(basis) == basis.shape[1]
    return Ritz(
        smallest=float(values[0]),
        largest=float(values[-1]),
        vector=weights @ basis[: len(diagonal)],
        residual=0.0 if complete else float(below[-1] * abs(vectors[-1, 0])),
        steps=basis.shape[1] if complete else len(diagonal),
    )


def lanczos_error(dim: int, steps: int, failure_probability: float) -> float:
    r"""Return the share :math:`\eta` of the spread by which the smallest Ritz value is too large at most.

    This holds except with probability p = ``failure_probability``, for k steps in d dimensions from a uniform start:

    .. math:: \sqrt\eta = \tanh\Bigl(\frac{\operatorname{arcosh}(\sqrt{2 d / \pi} / p)}{2 k - 1}\Bigr)

    Example:
        >>> [round(lanczos_error(10**6, steps, 1e-9), 4) for steps in (50, 200, 800)]
        [0.0764, 0.0049, 0.0003]
    """
    _validate.count("dim", dim)
    _validate.count("steps", steps)
    p = _validate.delta("failure_probability", failure_probability)
    return math.tanh(_length(dim, p) / (2 * steps - 1)) ** 2


def lanczos_steps(dim: int, error: float, failure_probability: float) -> int:
    """Return the least number of steps for which :func:`lanczos_error` is at most ``error``; ``dim`` if that is less.

    Example:
        >>> lanczos_steps(10**6, 0.005, 1e-9), lanczos_steps(100, 0.005, 1e-9)
        (199, 100)
    """
    _validate.count("dim", dim)
    p = _validate.delta("failure_probability", failure_probability)
    if not 0 < error < 1:
        raise ValueError(f"error must be a share in (0, 1) of the spread, got {error!r}.")
    return min(dim, math.ceil((_length(dim, p) / math.atanh(math.sqrt(error)) + 1) / 2))


def _length(dim: int, failure_probability: float) -> float:
    return math.acosh(max(1.0, math.sqrt(2 * dim / math.pi) / failure_probability))
