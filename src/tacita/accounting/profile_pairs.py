r"""Symmetric pairs of a known privacy profile: a selection among runs, and the worst of several sessions.

Place: privacy_profiles -> [accounting.profile_pairs] -> tables.selection_events. The divergence of a symmetric pair
below g = 1 follows from that above, so an upper bound at points of a grid, joined by chords in g, is a pair that
dominates. Proofs: docs/derivations/selection.md, "By privacy profiles".
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from tacita.accounting._loss_law import LARGEST_LOSS, UNIT, LossLaw
from tacita.accounting.dominating_pairs import LEAST_TAIL, SAMPLE, DominatingPair, Ends, Part, Sample, points_of
from tacita.accounting.privacy_profiles import Profile, ProfiledPair, end_of, profile

ROUNDS = 40  # of leaving out points of a profile that are not convex
LEAST_MASS = 1e-300  # so that no law is empty
SHIFT_POINTS, SHIFT_ROUNDS = 100, 6  # of a search for a selection's shift


class ProfilePair(ProfiledPair, DominatingPair):
    """A symmetric pair that is known by its deltas; subclasses say what they are."""

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        return np.minimum(1.0, _profile_of(self)(epsilons))

    @abstractmethod
    def _profile(self) -> Profile:
        """Return delta at epsilons >= 0, rounded up."""

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        first, last = points_of(interval, ends)
        far = max(2, last, -first)
        return symmetric_law(self.deltas(np.arange(far + 1) * interval), interval).within(first, last)

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        top = end_of(self.deltas, max(LEAST_TAIL, tail))
        return -top, top

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        ends = self.reach(tail, swapped=swapped)
        law = self.law((ends[1] - ends[0]) / SAMPLE, ends, swapped=swapped)
        return law.losses, law.masses


@lru_cache(maxsize=8)
def _profile_of(pair: ProfilePair) -> Profile:
    return pair._profile()


@dataclass(frozen=True)
class WorstPair(ProfilePair):
    """One of several sessions, whichever it is: the largest delta at each epsilon.

    Attributes:
        sessions: The pairs of each.
    """

    sessions: tuple[tuple[Part, ...], ...]

    def _profile(self) -> Profile:
        each = [profile(parts) for parts in self.sessions]
        return lambda epsilons: np.max([deltas(epsilons) for deltas in each], axis=0)


@dataclass(frozen=True)
class SelectedPair(ProfilePair):
    """The best of a random number of runs: the mean number times one run's delta, at epsilon less a shift.

    Attributes:
        run: The pairs of one run.
        mean: Mean number of runs.
        shape: Of its law; ``inf`` for Poisson.
    """

    run: tuple[Part, ...]
    mean: float
    shape: float

    def _profile(self) -> Profile:
        of_one = profile(self.run)
        shift = selection_shift(of_one, self.mean, self.shape)

        def of_best(epsilons: np.ndarray) -> np.ndarray:
            return np.where(epsilons < shift, 1.0, self.mean * of_one(np.maximum(0.0, epsilons - shift)))

        return of_best


def selection_shift(of_one: Profile, mean: float, shape: float) -> float:
    r"""Return the part of epsilon that the choice costs, from the profile of one run; rounded up.

    Poisson: :math:`E[K]\,\delta(0)`. Truncated negative binomial: :math:`(1 + \eta)` times the least
    :math:`\epsilon_1` with :math:`(1 - \gamma)\,\delta(\epsilon_1) \le \gamma\,(e^{\epsilon_1} - 1)`.
    """
    if shape == math.inf:
        return mean * float(of_one(np.zeros(1))[0])
    gamma = rdp_privacy_accountant._gamma_truncated_negative_binomial(shape, mean)  # rounded down

    def is_enough(epsilons: np.ndarray) -> np.ndarray:
        return (1 - gamma) * of_one(epsilons) <= gamma * np.expm1(epsilons)

    low, high = 0.0, LARGEST_LOSS
    for _ in range(SHIFT_ROUNDS):  # the condition holds from some point on: a finer grid each time
        points = np.linspace(low, high, SHIFT_POINTS)
        enough = is_enough(points)
        if enough[0]:
            return (1 + shape) * low
        if not enough[-1]:
            return math.inf
        first = int(np.argmax(enough))
        low, high = float(points[first - 1]), float(points[first])
    return (1 + shape) * high


def symmetric_law(deltas: np.ndarray, interval: float) -> LossLaw:
    r"""Return the law of a symmetric pair with at least the true deltas, and at most these at 0, d, 2d, ...

    ``deltas`` bound a convex function of :math:`g = e^\epsilon` that goes through 1 at g = -1 when it is continued by
    symmetry. Where the bounds are not convex, points are left out: a chord between two others is a bound as well. A
    bend of the divergence at g is g times less mass in the second world; all masses are rounded up.
    """
    v = _without_bends_down(deltas, interval)
    up, down = math.expm1(interval), -math.expm1(-interval)
    rise = np.append(np.diff(v) / up, 0.0)  # g times the slope, to the right of each point
    masses = rise[1:] - np.diff(v) / down
    rounding = 8 * UNIT * (v[:-1] + v[1:]) * (1 / up + 1 / down)
    above = np.maximum(masses, 0.0) + rounding
    middle = max(0.0, 1 - v[0] + 2 * rise[0]) + 32 * UNIT * (1 + v[0] / up)
    below = above * np.exp(-np.arange(1, len(v)) * interval) * (1 + 4 * UNIT)
    whole = np.concatenate([below[::-1], [middle], above]) + LEAST_MASS
    return LossLaw(interval, -len(above), whole, float(v[-1]))


def _without_bends_down(deltas: np.ndarray, interval: float) -> np.ndarray:
    """Replace deltas above the chord of their neighbours (or of the point (-1, 1)) by the chord."""
    v = np.minimum(1.0, deltas)
    at = np.arange(len(v))
    g = np.exp(at * interval)
    steepest = int(np.argmin((v - 1) / (g + 1)))  # the tangent from (-1, 1)
    kept = at[steepest:]
    tangent = 1 + (v[steepest] - 1) * (g + 1) / (g[steepest] + 1)
    v = np.where(at < steepest, tangent, v)
    for _ in range(ROUNDS):
        left, right = np.diff(kept)[:-1] * interval, np.diff(kept)[1:] * interval
        share = np.expm1(-left) / (np.expm1(-left) - np.expm1(right))  # of the right neighbour, in g
        chord = v[kept[:-2]] * (1 - share) + v[kept[2:]] * share
        bent = v[kept[1:-1]] > chord
        if not bent.any():
            break
        kept = kept[np.concatenate([[True], ~bent, [True]])]
    return _chords(v, kept, interval)


def _chords(v: np.ndarray, kept: np.ndarray, interval: float) -> np.ndarray:
    """Return the values between the points that are kept, on their chords in g."""
    at = np.arange(kept[0], len(v))
    after = np.clip(np.searchsorted(kept, at), 1, max(1, len(kept) - 1))
    if len(kept) < 2:
        return v
    left, right = kept[after - 1], kept[after]
    share = np.expm1((at - left) * interval) / np.expm1((right - left) * interval)
    return np.concatenate([v[: kept[0]], v[left] * (1 - share) + v[right] * share])
