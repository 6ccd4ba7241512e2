r"""Events whose dominating pair is a mixture of Gaussians against one Gaussian: several rows a unit.

Place: [accounting.mixture_events] -> accountant. Proof: docs/derivations/accounting.md, "Several rows a unit".
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from tacita import _validate
from tacita.accounting import _pld, _renyi
from tacita.accounting.events import DEFAULT_INTERVAL, Event, reals
from tacita.accounting.gaussian_events import UNAMPLIFIED_RATIO, GaussianSumEvent
from tacita.errors import UnsupportedEventError


@dataclass(frozen=True, kw_only=True)
class PoissonUnitEvent(GaussianSumEvent):
    r"""Poisson sampling of rows, where the unit of privacy (a person) has at most k rows; add_or_remove_one unit.

    Dominating pair of one query: :math:`\sum_j \mathrm{Binom}(k, q)(j)\, N(jC, s^2)` against :math:`N(0, s^2)`.

    Attributes:
        sampling_probability: Chance q of each row's coin.
        max_rows_per_unit: k; rows beyond it are dropped before the session by a coin of that unit alone.
    """

    sampling_probability: float
    max_rows_per_unit: int

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = _validate.probability("sampling_probability", self.sampling_probability)
        object.__setattr__(self, "sampling_probability", float(rate))
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

    def gaussian_mu(self, queries: int) -> float | None:
        largest = self.max_rows_per_unit * self.ratio
        if queries and (self.sampling_probability == 1 or largest > UNAMPLIFIED_RATIO):
            return largest * math.sqrt(queries)
        return 0.0 if queries == 0 or self.ratio == 0 else None

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL):
        mu = self.gaussian_mu(queries)
        if mu is not None:
            return _pld.gaussian_pld(mu, interval) if 0 < mu < math.inf else None
        return _pld.mixture_pld(*self._mixture(), queries, interval)

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        mu = self.gaussian_mu(queries)
        if mu is not None:
            return np.asarray(orders, dtype=float) * mu**2 / 2
        return queries * _mixture_rdp(*self._mixture(), tuple(map(float, orders)))

    def loss_range(self, queries: int) -> float:
        largest = self.max_rows_per_unit * self.ratio
        return largest * (largest / 2 + 10)

    def _mixture(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        rows = range(self.max_rows_per_unit + 1)
        chances = binom.pmf(rows, self.max_rows_per_unit, self.sampling_probability)
        return _kept(tuple(j * self.ratio for j in rows), tuple(map(float, chances)))


@dataclass(frozen=True, kw_only=True)
class MixtureOfGaussiansEvent(Event):
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
        object.__setattr__(self, "shifts", reals("shifts", self.shifts))
        object.__setattr__(self, "probabilities", reals("probabilities", self.probabilities))
        object.__setattr__(self, "noise_std", _validate.non_negative("noise_std", self.noise_std))
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
        return self.noise_std > 0 or self._largest() == 0

    def gaussian_mu(self, queries: int) -> float | None:
        if queries == 0 or self._largest() == 0:
            return 0.0
        largest = self._largest() / self.noise_std if self.noise_std else math.inf
        return largest * math.sqrt(queries) if largest > UNAMPLIFIED_RATIO else None

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL):
        mu = self.gaussian_mu(queries)
        if mu is not None:
            return _pld.gaussian_pld(mu, interval) if 0 < mu < math.inf else None
        return _pld.mixture_pld(*self._mixture(), queries, interval)

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        mu = self.gaussian_mu(queries)
        if mu is not None:
            return np.asarray(orders, dtype=float) * mu**2 / 2
        return queries * _mixture_rdp(*self._mixture(), tuple(map(float, orders)))

    def loss_range(self, queries: int) -> float:
        largest = self._largest() / self.noise_std
        return largest * (largest / 2 + 10)

    def _largest(self) -> float:
        return max(shift for shift, chance in zip(self.shifts, self.probabilities, strict=True) if chance > 0)

    def _mixture(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return _kept(tuple(shift / self.noise_std for shift in self.shifts), self.probabilities)


def _only_add_or_remove(event: Event) -> None:
    if event.relation != "add_or_remove_one":
        raise UnsupportedEventError(
            f"{type(event).__name__} has no guarantee under {event.relation}; it has one under add_or_remove_one."
        )


def _kept(shifts: tuple[float, ...], chances: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
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
