r"""Privacy profiles: an upper bound of delta at each epsilon >= 0, the larger one of both directions.

Place: _pld_accountant -> [accounting._profiles] -> _profile_pairs. :math:`\delta(\epsilon)` is the hockey-stick
divergence at :math:`g = e^\epsilon`. A composition is read at several tilts, each of which is accurate for deltas of
about one size; all are upper bounds, so the least of them counts. Proof: docs/derivations/selection.md, "By privacy
profiles".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.signal import lfilter

from tacita.accounting._aim import aim_at_delta
from tacita.accounting._line_pairs import GaussianPair
from tacita.accounting._loss_law import LARGEST_LOSS
from tacita.accounting._pairs import Part
from tacita.accounting._pld_accountant import directions, pooled
from tacita.accounting._tilted import TiltedTotal
from tacita.accounting._window import Window
from tacita.accounting.gaussian import gaussian_deltas

READ_AT = (0.02, 1e-5, 1e-11, 1e-18)  # deltas; a tilt serves for some orders of magnitude
ACCURACY = 1e-3  # of epsilon: what the grid may add
ROUNDED_UP = 1e-9

Profile = Callable[[np.ndarray], np.ndarray]


@lru_cache(maxsize=8)
def profile(parts: tuple[Part, ...]) -> Profile:
    """Return delta of the composition of ``parts`` at epsilons >= 0; 1 where nothing better is known."""
    parts = pooled(parts)
    if not parts:
        return lambda epsilons: np.zeros(len(epsilons))
    if len(parts) == 1 and isinstance(parts[0][0], GaussianPair):
        mu = np.array(parts[0][0].mu)
        return lambda epsilons: gaussian_deltas(epsilons, mu) * (1 + ROUNDED_UP)
    if len(parts) == 1 and isinstance(parts[0][0], ProfiledPair) and parts[0][1] == 1:
        return parts[0][0].deltas
    ways = [_read(parts, swapped) for swapped in directions(parts)]
    return lambda epsilons: np.max([_least(way, epsilons) for way in ways], axis=0)


class ProfiledPair(ABC):
    """A pair that knows its profile without a composition."""

    @abstractmethod
    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Return deltas at epsilons >= 0, rounded up."""


@dataclass(frozen=True)
class TotalDeltas:
    """Delta of a total loss at the points of its window, between which it is linear in exp(epsilon)."""

    epsilons: np.ndarray
    deltas: np.ndarray

    def at(self, epsilons: np.ndarray) -> np.ndarray:
        """Return deltas: 1 below the window, and above it the value at its end."""
        x = np.clip(epsilons, self.epsilons[0], self.epsilons[-1])
        after = np.clip(np.searchsorted(self.epsilons, x), 1, len(self.epsilons) - 1)
        left, right = self.epsilons[after - 1], self.epsilons[after]
        gaps = (np.expm1(np.minimum(gap, LARGEST_LOSS)) for gap in (x - left, right - left))
        share = np.clip(next(gaps) / next(gaps), 0.0, 1.0)
        share = np.where(right - left > LARGEST_LOSS, 0.0, share)  # delta falls: the left end is a bound
        found = self.deltas[after - 1] * (1 - share) + self.deltas[after] * share
        return np.where(epsilons < self.epsilons[0], 1.0, np.minimum(1.0, found * (1 + ROUNDED_UP)))


def _least(totals: list[TotalDeltas], epsilons: np.ndarray) -> np.ndarray:
    return np.min([np.ones(len(epsilons)), *(total.at(epsilons) for total in totals)], axis=0)


def _read(parts: tuple[Part, ...], swapped: bool) -> list[TotalDeltas]:
    aims = [aim_at_delta(parts, delta, swapped=swapped) for delta in READ_AT]
    return [_deltas(Window(parts, aim, 0.0, swapped, ACCURACY).total()[0]) for aim in aims if aim is not None]


def _deltas(total: TiltedTotal) -> TotalDeltas:
    r"""Return, at points :math:`l_j`, :math:`\sum_{k > 0} (1 - e^{-kd})\, e^{-\theta k d} p_\theta(l_{j+k})`, rescaled.

    By the recursion from above of this sum and of the one without the first factor. No term is negative, so nothing
    cancels, and rounding is at most a few units a point.
    """
    d, masses = total.interval, total.masses[::-1]
    fading, less = np.exp(-total.theta * d), np.exp(-d)
    above = np.append(0.0, lfilter([fading], [1.0, -fading], masses)[:-1])
    sums = lfilter([-np.expm1(-d)], [1.0, -fading * less], above)[::-1]
    with np.errstate(divide="ignore"):
        logs = np.log(sums) + total.log_scale - total.theta * total.losses
    deltas = np.exp(np.minimum(logs, 0.0)) * (1 + ROUNDED_UP + 1e-15 * len(masses)) + total.infinity
    return TotalDeltas(total.losses + total.loss_error, np.minimum(1.0, deltas))


def end_of(deltas: Profile, level: float) -> float:
    """Return about the least epsilon at which delta is at most ``level``."""
    low, high = 0.0, 1e-3
    while high < LARGEST_LOSS and float(deltas(np.array([high]))[0]) > level:
        low, high = high, min(LARGEST_LOSS, 2 * high)
    while high - low > 0.02 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if float(deltas(np.array([middle]))[0]) > level else (low, middle)
    return high
