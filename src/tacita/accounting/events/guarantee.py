"""Guarantees: what a session with a fixed number of queries spends, in every form that is known.

Each form bounds every pair of neighbours in both directions. An accountant takes the forms that all sessions have.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacita.accounting.dominating_pairs import Part
from tacita.accounting.gaussian import delta_above
from tacita.accounting.line_pairs import GaussianPair
from tacita.errors import UnsupportedEventError


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One guarantee in all its known forms. A form that is not known is ``None``; at least one is known.

    Attributes:
        mu: ``mu`` of one Gaussian query that dominates (or equals) the session; infinite without noise.
        pairs: Returns dominating pairs, each with the number of times it is composed with itself; none if nothing is
            spent.
        rdp: Returns the session's Rényi divergences at an array of orders, each > 1.
        delta: Returns delta at an epsilon in closed form, without ``additive_delta``.
        pure_epsilon: The epsilon at which delta is 0, without ``additive_delta``.
        unsampled_mu: ``mu`` of a Gaussian query that dominates the session even if its records were in every query.
        additive_delta: Probability of a failure, which is added to delta whatever else is composed.
        coupling_gap: Total variation distance, on every data set, to the session that all other forms bound. It is
            added to delta (1 + e^epsilon) times, with the epsilon of everything that is composed.
        rdp_may_be_less: Whether the Rényi curve may give a smaller epsilon than the pairs, because both are bounds.
        assumptions: What the guarantee assumes, and the library sees to.
        condition: What the guarantee assumes, and nobody enforces; ``None`` for an unconditional guarantee.
    """

    mu: float | None = None
    pairs: Callable[[], tuple[Part, ...]] | None = None
    rdp: Callable[[np.ndarray], np.ndarray] | None = None
    delta: Callable[[float], float] | None = None
    pure_epsilon: float | None = None
    unsampled_mu: float | None = None
    additive_delta: float = 0.0
    coupling_gap: float = 0.0
    rdp_may_be_less: bool = False
    assumptions: tuple[str, ...] = ()
    condition: str | None = None

    def __post_init__(self) -> None:
        forms = (self.mu, self.pairs, self.rdp, self.delta, self.pure_epsilon)
        if all(form is None for form in forms):
            raise UnsupportedEventError("A guarantee needs a form: mu, pairs, rdp, delta or pure_epsilon.")

    @property
    def private(self) -> bool:
        """Whether some finite epsilon is claimed; ``False`` without noise."""
        return self.mu != math.inf


def gaussian(mu: float, **other_forms: Any) -> Guarantee:
    """Return the guarantee of one Gaussian query of ``mu`` in every form; ``other_forms`` replace some of them."""
    forms: dict[str, Any] = {
        "mu": mu,
        "unsampled_mu": mu,
        "pairs": (lambda: gaussian_pairs(mu)) if mu < math.inf else None,
        "rdp": lambda orders: np.asarray(orders, dtype=float) * mu**2 / 2,
        "delta": lambda epsilon: delta_above(mu, epsilon),
    }
    return Guarantee(**{**forms, **other_forms})


gaussian_guarantee = gaussian  # its name among all of accounting


def curve_of(pairs: Callable[[], tuple[Part, ...]]) -> Callable[[np.ndarray], np.ndarray]:
    """Return the Rényi divergences of dominating pairs, as a form of a guarantee."""

    def divergences(orders: np.ndarray) -> np.ndarray:
        from tacita.accounting.renyi_curve import composed_divergences  # loaded where a curve is asked for

        return composed_divergences(pairs(), orders)

    return divergences


def of_pairs(pairs: Callable[[], tuple[Part, ...]], *, unsampled_mu: float | None, **other_forms: Any) -> Guarantee:
    """Return the guarantee of dominating pairs, whose Rényi divergences follow from them."""
    return Guarantee(pairs=pairs, rdp=curve_of(pairs), unsampled_mu=unsampled_mu, **other_forms)


def gaussian_pairs(mu: float) -> tuple[Part, ...]:
    """Return the pair of one Gaussian query of finite ``mu``; no pair if it costs nothing."""
    return ((GaussianPair(mu), 1),) if mu > 0 else ()


def no_guarantee() -> Guarantee:
    """Return the guarantee of a session without noise: no epsilon is claimed, whatever it is composed with."""
    return gaussian(math.inf)


def known_mu(query_mu: float, queries: int, *, amplified: bool) -> float | None:
    """Return ``mu`` of Gaussian queries of ``query_mu`` each; ``None`` if they cost something and are amplified."""
    if queries == 0 or query_mu == 0:
        return 0.0
    return None if amplified else query_mu * math.sqrt(queries)
