r"""Queries whose dominating pair is a mixture of Gaussians against one Gaussian, such as several rows a unit.

Proof: docs/derivations/accounting.md, "Several rows a unit".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.stats import binom

from tacita import _validate
from tacita.accounting._line_pairs import MixturePair
from tacita.accounting.events.event import Event, NoiseSettings, over_noise, reals
from tacita.accounting.events.guarantee import Guarantee, gaussian, known_mu, no_guarantee, of_pairs
from tacita.errors import UnsupportedEventError

# Above it, a sampled session is accounted without amplification: one query alone costs epsilon > 5000.
UNAMPLIFIED_RATIO = 100.0
Mixture = tuple[tuple[float, ...], tuple[float, ...]]  # shifts in units of the noise, and their chances


@dataclass(frozen=True, kw_only=True)
class MixtureOfGaussiansEvent(Event):
    """A Gaussian with a random mean, one of ``shifts``, against the Gaussian around 0; for add_or_remove_one.

    Attributes:
        shifts: Norms of what one unit may add, each >= 0.
        probabilities: The chances of the shifts; they sum to 1.
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
        if self.relation != "add_or_remove_one":
            raise UnsupportedEventError(
                f"MixtureOfGaussiansEvent has no guarantee under {self.relation}; it has one under add_or_remove_one."
            )

    @property
    def sampler(self) -> str:
        return "A random number of contributions a unit"

    @property
    def noise_settings(self) -> NoiseSettings:
        return NoiseSettings((self.noise_std,))

    def describe(self) -> str:
        shifts = f"shifts up to {max(self.shifts):.6g}"
        return f"Mixture of {len(self.shifts)} Gaussians, {shifts}, noise_std {self.noise_std:.6g}"

    @property
    def largest_mu(self) -> float:
        """``mu`` of a query that is certain to make the largest shift."""
        largest = max(shift for shift, chance in zip(self.shifts, self.probabilities, strict=True) if chance > 0)
        return over_noise(largest, self.noise_std)

    def _guarantee(self, queries: int) -> Guarantee:
        def mixture() -> Mixture:
            return tuple(shift / self.noise_std for shift in self.shifts), self.probabilities

        return mixture_guarantee(mixture, self.largest_mu, queries, amplified=self.largest_mu <= UNAMPLIFIED_RATIO)


def mixture_guarantee(mixture: Callable[[], Mixture], largest_mu: float, queries: int, *, amplified: bool) -> Guarantee:
    """Return the guarantee of queries that are each dominated by a mixture of Gaussians against the one around 0.

    Args:
        mixture: Returns the pair of one query; called only if there is noise and the query costs something.
        largest_mu: ``mu`` of a query that is certain to make the largest shift.
        queries: Number of queries.
        amplified: Whether the chances are accounted for.
    """
    if math.isinf(largest_mu):
        return no_guarantee()
    mu = known_mu(largest_mu, queries, amplified=amplified)
    if mu is not None:
        return gaussian(mu)
    return of_pairs(
        lambda: ((MixturePair(*_kept(*mixture())), queries),),
        unsampled_mu=known_mu(largest_mu, queries, amplified=False),
    )


def row_chances(rows: int, chance: float) -> tuple[float, ...]:
    """Return the chances that a query draws 0, 1, ..., ``rows`` of ``rows`` rows, each with ``chance``."""
    return tuple(map(float, binom.pmf(range(rows + 1), rows, chance)))


def _kept(shifts: tuple[float, ...], chances: tuple[float, ...]) -> Mixture:
    """Leave out shifts of chance 0, and scale the chances to a sum of 1, which rounding may have changed."""
    total = math.fsum(chances)
    pairs = [(shift, chance / total) for shift, chance in zip(shifts, chances, strict=True) if chance > 0]
    return tuple(shift for shift, _ in pairs), tuple(chance for _, chance in pairs)
