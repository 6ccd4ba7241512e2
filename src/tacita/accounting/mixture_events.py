r"""Events whose dominating pair is a mixture of Gaussians against one Gaussian: several rows a unit.

Place: [accounting.mixture_events] -> accountant. Proof: docs/derivations/accounting.md, "Several rows a unit".
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from tacita import _validate
from tacita.accounting import _pld, _renyi
from tacita.accounting.events import Event, over_noise, reals
from tacita.accounting.gaussian_events import UNAMPLIFIED_RATIO, GaussianSumEvent, PoissonSampledEvent, known_mu
from tacita.errors import UnsupportedEventError

Mixture = tuple[tuple[float, ...], tuple[float, ...]]  # shifts in units of the noise, and their chances


@dataclass(frozen=True, kw_only=True)
class MixtureEvent(Event):
    """Queries each dominated by a mixture of Gaussians against the one around 0; subclasses say which mixture."""

    @property
    @abstractmethod
    def largest_mu(self) -> float:
        """``mu`` of a query that is certain to make the largest shift."""

    @abstractmethod
    def _mixture(self) -> Mixture:
        """The pair of one query; asked for only where there is noise, and something to hide."""

    def _own_pld(self, queries: int, interval: float) -> _pld.PrivacyLossDistribution:
        return _pld.mixture_pld(*_kept(*self._mixture()), queries, interval)

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        return queries * _mixture_rdp(*_kept(*self._mixture()), tuple(map(float, orders)))

    def loss_range(self, queries: int) -> float:
        return self.largest_mu * (self.largest_mu / 2 + 10)


@dataclass(frozen=True, kw_only=True)
class PoissonUnitEvent(PoissonSampledEvent, MixtureEvent, GaussianSumEvent):
    r"""Poisson sampling of rows, where the unit of privacy (a person) has at most k rows; add_or_remove_one unit.

    Dominating pair of one query: :math:`\sum_j \mathrm{Binom}(k, q)(j)\, N(jC, s^2)` against :math:`N(0, s^2)`.

    Attributes:
        max_rows_per_unit: k; rows beyond it are dropped before the session by a coin of that unit alone.
    """

    max_rows_per_unit: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)
        _only_add_or_remove(self)

    @property
    def sampler(self) -> str:
        return (
            f"Poisson sampling of rows, sample rate {self.sampling_probability:.6g}, "
            f"at most {self.max_rows_per_unit} rows a unit"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "each row enters each query by an independent secret coin",
            "rows of a unit beyond the cap are dropped by a coin of that unit alone",
            "the divisor is public",
        )

    @property
    def largest_mu(self) -> float:
        return self.max_rows_per_unit * self.ratio

    def gaussian_mu(self, queries: int) -> float | None:
        return known_mu(self.largest_mu, queries, amplified=self._amplifies(self.largest_mu))

    def _mixture(self) -> Mixture:
        shifts = tuple(j * self.ratio for j in range(self.max_rows_per_unit + 1))
        return shifts, row_chances(self.max_rows_per_unit, self.sampling_probability)


@dataclass(frozen=True, kw_only=True)
class MixtureOfGaussiansEvent(MixtureEvent):
    """A Gaussian whose mean is one of ``shifts`` by chance, against the Gaussian around 0; add_or_remove_one.

    Attributes:
        shifts: Norms of what one unit may add, each >= 0.
        probabilities: Their chances; they sum to 1.
        noise_std: Standard deviation of the noise; 0 is allowed and not private.
    """

    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]
    noise_std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(reals, "shifts", "probabilities")
        self._check(_validate.non_negative, "noise_std")
        if len(self.shifts) != len(self.probabilities) or abs(math.fsum(self.probabilities) - 1) > 1e-9:
            raise ValueError("probabilities must have one entry a shift, and sum to 1.")
        _only_add_or_remove(self)

    @property
    def sampler(self) -> str:
        return "A random number of contributions a unit"

    def describe(self) -> str:
        shifts = f"shifts up to {max(self.shifts):.6g}"
        return f"Mixture of {len(self.shifts)} Gaussians, {shifts}, noise_std {self.noise_std:.6g}"

    def is_private(self) -> bool:
        return self.noise_std > 0 or self.largest_mu == 0

    @property
    def largest_mu(self) -> float:
        largest = max(shift for shift, chance in zip(self.shifts, self.probabilities, strict=True) if chance > 0)
        return over_noise(largest, self.noise_std)

    def gaussian_mu(self, queries: int) -> float | None:
        return known_mu(self.largest_mu, queries, amplified=self.largest_mu <= UNAMPLIFIED_RATIO)

    def _mixture(self) -> Mixture:
        return tuple(shift / self.noise_std for shift in self.shifts), self.probabilities


def _only_add_or_remove(event: Event) -> None:
    if event.relation != "add_or_remove_one":
        raise UnsupportedEventError(
            f"{type(event).__name__} has no guarantee under {event.relation}; it has one under add_or_remove_one."
        )


def row_chances(rows: int, chance: float) -> tuple[float, ...]:
    """That a query draws 0, 1, ..., ``rows`` of so many rows, each with ``chance``."""
    return tuple(map(float, binom.pmf(range(rows + 1), rows, chance)))


def _kept(shifts: tuple[float, ...], chances: tuple[float, ...]) -> Mixture:
    """Without the shifts of no chance; the chances add up to 1, which they may miss by rounding."""
    total = math.fsum(chances)
    pairs = [(shift, chance / total) for shift, chance in zip(shifts, chances, strict=True) if chance > 0]
    return tuple(shift for shift, _ in pairs), tuple(chance for _, chance in pairs)


@lru_cache(maxsize=64)
def _mixture_rdp(shifts: tuple[float, ...], chances: tuple[float, ...], orders: tuple[float, ...]) -> np.ndarray:
    """Rényi divergences of the pair, the larger of both directions order by order."""
    mixture, centre = _renyi.Mixture(shifts, chances), _renyi.Mixture((0.0,), (1.0,))
    return np.maximum(
        _renyi.renyi_divergences(mixture, centre, orders), _renyi.renyi_divergences(centre, mixture, orders)
    )
