r"""A binomial count against the same count shifted by a whole number: hockey-stick divergences, exact up to rounding.

Place: [accounting._shifted_binomial] -> events.shuffled, shuffle_calibration.
Proof: docs/derivations/shuffle.md, sections 1 and 2. The likelihood ratio of the two counts is monotone, so each
divergence is reached on a set of small counts (or of large ones, in the other direction), and is a difference of two
sums. Everything is rounded up.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacita.accounting.privacy_profiles import Profile
from tacita.accounting.profile_pairs import ProfilePair

DEVIATIONS = 14.0  # of the count, on each side of its mode, that are computed; below 1e-40 lies outside
ROUNDED_UP = 1 + 1e-9
ROUNDING = 1e-13  # of a difference of two sums


@dataclass(frozen=True)
class _Sums:
    """One direction. Over growing sets, the masses of the two worlds, the first of which is the likelier there.

    Attributes:
        upper, lower: Masses of the sets of the first k counts, in the two worlds.
        losses: The log ratio of the two masses at each count, not increasing.
        outside: Mass that is not computed.
    """

    upper: np.ndarray
    lower: np.ndarray
    losses: np.ndarray
    outside: float

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Return the divergence at each epsilon."""
        taken = np.searchsorted(-self.losses, -epsilons)  # counts with a loss above epsilon
        upper, lower = (np.append(0.0, sums)[taken] for sums in (self.upper, self.lower))
        found = upper - np.exp(np.minimum(epsilons, 700.0)) * lower
        return np.minimum(1.0, np.maximum(found, 0.0) * ROUNDED_UP + ROUNDING * upper + self.outside)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon at which every set keeps to ``delta``."""
        left = (delta - self.outside) / ROUNDED_UP - ROUNDING * self.upper
        over = self.upper - left
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(over > 0, np.log(over) - np.log(self.lower), -math.inf)
        return max(0.0, float(logs.max(initial=0.0)))


@lru_cache(maxsize=4)
def binomial_masses(trials: int, probability: float) -> tuple[np.ndarray, float]:
    """Return the masses of a binomial count around its mode, and a bound of the mass outside.

    Masses are products of exact ratios of neighbours, so that no large logarithms cancel.
    """
    mode = min(trials, math.floor((trials + 1) * probability))
    reach = math.ceil(DEVIATIONS * math.sqrt(trials * probability * (1 - probability))) + 20
    low, high = max(0, mode - reach), min(trials, mode + reach)
    odds = math.log(probability) - math.log1p(-probability)

    def log_rise(counts: np.ndarray) -> np.ndarray:  # of the mass, from count - 1 to count
        return np.log(trials - counts + 1) - np.log(counts) + odds

    below = -np.cumsum(log_rise(np.arange(mode, low, -1.0)))[::-1]
    above = np.cumsum(log_rise(np.arange(mode + 1.0, high + 1)))
    masses = np.exp(np.concatenate([below, [0.0], above]))
    outside = 0.0
    if low > 0:
        fall = math.exp(-float(log_rise(np.array([float(low)]))[0]))
        outside += float(masses[0]) * fall / (1 - fall)
    if high < trials:
        rise = math.exp(float(log_rise(np.array([high + 1.0]))[0]))
        outside += float(masses[-1]) * rise / (1 - rise)
    total = float(masses.sum())
    return masses / total, outside / total


def _directions(trials: int, probability: float, shift: int) -> tuple[_Sums, _Sums]:
    """Return both directions: the count against the shifted count on small counts, and the reverse on large ones."""
    masses, outside = binomial_masses(trials, probability)
    plain, shifted = np.append(masses, np.zeros(shift)), np.append(np.zeros(shift), masses)

    def sums(upper: np.ndarray, lower: np.ndarray) -> _Sums:
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = np.log(upper) - np.log(lower)
        losses = np.where(np.isnan(losses), -math.inf, losses)  # a gap between the two: nobody's mass
        losses = np.minimum.accumulate(losses)
        return _Sums(np.cumsum(upper), np.cumsum(lower), losses, outside)

    return sums(plain, shifted), sums(shifted[::-1], plain[::-1])


def shift_deltas(trials: int, probability: float, shift: int, epsilons: np.ndarray) -> np.ndarray:
    """Return delta at each epsilon >= 0 between a binomial count and the count plus ``shift``; the larger direction.

    Example:
        >>> [float(f"{x:.6g}") for x in shift_deltas(72 * 100, 0.5, 10, np.array([0.5, 1.0]))]
        [0.0018361, 9.27049e-07]
    """
    if shift == 0:
        return np.zeros(len(epsilons))
    return np.max([one.deltas(epsilons) for one in _directions(trials, probability, shift)], axis=0)


def shift_epsilon(trials: int, probability: float, shift: int, delta: float) -> float:
    """Return the least epsilon at which :func:`shift_deltas` is at most ``delta``; infinite if there is none.

    Example:
        >>> round(shift_epsilon(72 * 100, 0.5, 10, 1e-6), 6)
        0.996057
    """
    if shift == 0:
        return 0.0
    return max(one.epsilon(delta) for one in _directions(trials, probability, shift))


@dataclass(frozen=True)
class ShiftedBinomialPair(ProfilePair):
    """A binomial count, and the same count plus a whole number; by the larger delta of both directions.

    Attributes:
        trials: Number of bits, >= 1.
        probability: Of a one, in (0, 1).
        shift: >= 0.
    """

    trials: int
    probability: float
    shift: int

    def _profile(self) -> Profile:
        return lambda epsilons: shift_deltas(self.trials, self.probability, self.shift, epsilons)
