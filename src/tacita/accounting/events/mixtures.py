"""Queries whose dominating pair is a mixture of Gaussians against one Gaussian, with chances of the caller's.

Proof: docs/derivations/accounting.md, "Several rows a unit".
"""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.events.event import Event, NoiseSettings, over_noise, reals
from tacita.accounting.events.gaussian_sums import UNAMPLIFIED_RATIO, Mixture, mixture_guarantee
from tacita.accounting.events.guarantee import Guarantee
from tacita.errors import UnsupportedEventError


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
