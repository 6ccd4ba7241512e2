"""Regimes of the threshold: which part of the bias is largest.

They serve plots and explanations and guarantee nothing, because the tables drop every constant.
Source: "Differentially Private Clipped-SGD", Tables 1 and 2 (docs/derivations/dp-clipped-sgd.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import checked
from tacita.clipped_sgd.problem import Problem

ROWS = {
    "1": "threshold above every gradient (C > 4 g): the bias falls with C, and vanishes only if C grows with the steps",
    "2": "4 g / 3 < C <= 4 g, noise above the threshold: most of the bias is due to the tail",
    "3a": "4 g / 3 < C <= 4 g, noise between excess and threshold: most of the bias is due to the tail",
    "3b": "4 g / 3 < C <= 4 g, noise between excess and threshold: most of the bias is due to cut large gradients",
    "4": "4 g / 3 < C <= 4 g, noise below the excess: most of the bias is due to cut large gradients",
    "5": "C <= 4 g / 3, noise above the excess: the bound is vacuous for all constants",
    "6": "C <= 4 g / 3, noise between threshold and excess: the bound is vacuous for all constants",
    "7": "C <= 4 g / 3, noise below the threshold: the bound is vacuous for all constants",
}


@dataclass(frozen=True)
class Regime:
    """The regime that a threshold is in.

    Attributes:
        row: Row of the tables, a key of ``ROWS``.
        leading_bias: E, the largest part of the bias of a clipped gradient, without constants, in gradient units.
        neighbourhood: :math:`P E + S E^2 / C^2`, the error after infinitely many steps, without constants.
    """

    row: Any
    leading_bias: Any
    neighbourhood: Any

    @property
    def words(self) -> Any:
        """The row's description."""
        return _arrays.plain(np.vectorize(ROWS.get, otypes=[object])(self.row))


@checked()
def regime(problem: Problem, *, max_grad_norm: ArrayLike) -> Regime:
    r"""Return the row of Table 1 (convex) or Table 2 (non-convex) that a threshold is in.

    g is L R or the root of L Delta, and the excess is :math:`\zeta = \max(0, 2g - C/2)`, which is C at C = 4 g / 3 and
    0 at C = 4 g.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5)
        >>> regime(p, max_grad_norm=[0.05, 1.0, 2.0, 3.9, 5.0]).row.tolist()
        ['6', '7', '4', '3b', '1']
    """
    c, g, alpha = _arrays.positive("max_grad_norm", max_grad_norm), problem.gradient_scale, problem.order
    sigma, excess = problem.scale, np.maximum(0.0, 2 * g - c / 2)
    tail = sigma**alpha / c ** (alpha - 1)
    cut = excess ** (alpha + 1) / c**alpha
    mixed = sigma**alpha * excess / c**alpha
    cases = [  # the first that holds
        (c > 4 * g, "1", tail),
        ((c > 4 * g / 3) & (sigma > c), "2", tail),
        ((c > 4 * g / 3) & (sigma >= excess) & (tail >= excess), "3a", tail),
        ((c > 4 * g / 3) & (sigma >= excess), "3b", excess),
        (c > 4 * g / 3, "4", excess),
        (sigma > excess, "5", mixed),
        (sigma > c, "6", cut),
        (np.full(np.shape(c), True), "7", cut),
    ]
    where = np.broadcast_arrays(*(case for case, _, _ in cases))
    row = np.select(where, [np.full(where[0].shape, name) for _, name, _ in cases], default="")
    shape = where[0].shape
    bias = np.select(where, [np.broadcast_to(value, shape) for _, _, value in cases])
    square = problem.error_scale * problem.gradient_scale  # L R^2, or L Delta
    left = problem.error_scale * bias + square * (bias / c) ** 2
    return Regime(_arrays.plain(row), _arrays.plain(bias), _arrays.plain(left))
