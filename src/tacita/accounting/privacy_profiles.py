r"""Privacy profiles: an upper bound of delta at each epsilon >= 0, the larger one of both directions.

Place: pld_accountant -> [accounting.privacy_profiles] -> profile_pairs. :math:`\delta(\epsilon)` is the hockey-stick
divergence at :math:`g = e^\epsilon`. A composition is read at several tilts, each of which is accurate for deltas of
about one size; all are upper bounds, so the least of them counts. Proof: docs/derivations/selection.md, "By privacy
profiles".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tacita.accounting._loss_law import LARGEST_LOSS
from tacita.accounting._tilted import TiltedTotal
from tacita.accounting._window import Window
from tacita.accounting.aim import aim_at_delta
from tacita.accounting.dominating_pairs import Part
from tacita.accounting.gaussian import gaussian_deltas
from tacita.accounting.line_pairs import GaussianPair
from tacita.accounting.pld_accountant import directions, pooled

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


def _least(totals: list[TiltedTotal], epsilons: np.ndarray) -> np.ndarray:
    return np.min([np.ones(len(epsilons)), *(total.deltas(epsilons) for total in totals)], axis=0)


def _read(parts: tuple[Part, ...], swapped: bool) -> list[TiltedTotal]:
    aims = [aim_at_delta(parts, delta, swapped=swapped) for delta in READ_AT]
    return [Window(parts, aim, 0.0, swapped, ACCURACY).total()[0] for aim in aims if aim is not None]


def end_of(deltas: Profile, level: float) -> float:
    """Return about the least epsilon at which delta is at most ``level``."""
    low, high = 0.0, 1e-3
    while high < LARGEST_LOSS and float(deltas(np.array([high]))[0]) > level:
        low, high = high, min(LARGEST_LOSS, 2 * high)
    while high - low > 0.02 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if float(deltas(np.array([middle]))[0]) > level else (low, middle)
    return high
