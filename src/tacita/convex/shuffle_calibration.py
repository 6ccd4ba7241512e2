r"""How many noise bits each user of a shuffled sum adds: the paper's numbers, exact ones, and the least that suffice.

Place: events.shuffled, accountant -> [accounting.shuffle_calibration] -> oracles. Numbers in, numbers out.
Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Lemmas 49 and
56, Algorithms 10, 11, 13 and 14. Differs from it where docs/derivations/shuffle.md says so: the paper's split for
medians does not keep to its epsilon (its condition on epsilon is too weak), and Lemma 56 needs many more bits than an
exact computation. Whatever the method, the epsilon of a session is that of its event.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tacita import _validate
from tacita.accounting.accountant import epsilon as epsilon_of
from tacita.accounting.events.event import Spend
from tacita.accounting.relations import NeighboringRelation
from tacita.accounting.sampling_laws import SamplingLaw
from tacita.convex._shifted_binomial import shift_epsilon
from tacita.convex.shuffled_sum_event import ShuffledSumEvent
from tacita.errors import UnsupportedEventError

Calibration = Literal["least", "hockey_stick", "paper"]
LARGEST_LEMMA_EPSILON = 15.0
MOST_BITS = 2**28
SHARE_OF_DELTA = 1e-3  # for the counts that a Rényi bound leaves out


@dataclass(frozen=True, kw_only=True)
class NoiseBits:
    """The public numbers of a shuffled count.

    Attributes:
        grid: Steps g of a coordinate's range.
        noise_bits: Noise bits b of each user.
        bit_prob: Chance p of a one.
    """

    grid: int
    noise_bits: int
    bit_prob: float

    def variance(self, users: int, value_range: float = 1.0) -> float:
        r"""Return the variance :math:`(\tau/g)^2\, b s p (1 - p)` of the noise on a sum of ``users`` values.

        Rounding to the grid adds :math:`(\tau/g)^2 \sum_i q_i (1 - q_i) \le \tau^2 s / 4 g^2`; :math:`\tau` is
        ``value_range`` and :math:`q_i` the fractional part of value i in steps.
        """
        return (value_range / self.grid) ** 2 * self.noise_bits * users * self.bit_prob * (1 - self.bit_prob)

    def event(self, relation: NeighboringRelation, sampling: SamplingLaw, **users: Any) -> ShuffledSumEvent:
        """Return the event of sums with these bits; ``users`` are its other settings."""
        return ShuffledSumEvent(
            relation=relation,
            sampling=sampling,
            grid=self.grid,
            noise_bits=self.noise_bits,
            bit_prob=self.bit_prob,
            **users,
        )


def scalar_grid(users: int) -> int:
    """Return the least grid for which rounding adds no more than a user's range: max(2, ceil(sqrt(users)))."""
    return max(2, math.isqrt(max(0, users - 1)) + 1)


def vector_grid(users: int, dim: int) -> int:
    """Return max(2, ceil(sqrt(users)), ceil(2 sqrt(dim))), so that rounding hardly lengthens a user's vector."""
    return max(scalar_grid(users), math.isqrt(4 * dim - 1) + 1)


def scalar_noise_bits(
    users: int, *, grid: int, epsilon: float, delta: float, calibration: Calibration = "hockey_stick"
) -> NoiseBits:
    r"""Return the noise bits of a sum of numbers in a known range (P_1D, Algorithm 14).

    * ``"hockey_stick"`` (and ``"least"``): p = 1/2 and the least b for which a shift of the whole range is (epsilon,
      delta)-DP, computed exactly.
    * ``"paper"`` (Lemma 56): :math:`b = \lfloor 180 g^2 \ln(2/\delta) / (\epsilon^2 s) \rfloor + 1`. It promises
      :math:`(1 + 2/g)\,\epsilon` for the whole range. It needs epsilon <= 15 and g >= sqrt(s).

    Example:
        >>> scalar_noise_bits(100, grid=10, epsilon=1.0, delta=1e-6)
        NoiseBits(grid=10, noise_bits=72, bit_prob=0.5)
        >>> scalar_noise_bits(100, grid=10, epsilon=1.0, delta=1e-6, calibration="paper").noise_bits
        2612
    """
    _check(users, epsilon, delta, calibration)
    if calibration != "paper":
        enough = least(lambda bits: shift_epsilon(bits * users, 0.5, grid, delta) <= epsilon)
        return NoiseBits(grid=grid, noise_bits=enough, bit_prob=0.5)
    if epsilon > LARGEST_LEMMA_EPSILON or grid < math.sqrt(users):
        raise ValueError(
            f'calibration="paper" needs epsilon <= 15 and grid >= sqrt(users), got epsilon {epsilon:g}, grid {grid} '
            f'and {users} users. Use calibration="hockey_stick".'
        )
    half = 90 * grid**2 * math.log(2 / delta) / (epsilon**2 * users)
    bits = math.floor(2 * half) + 1
    return NoiseBits(grid=grid, noise_bits=bits, bit_prob=half / bits)


def vector_rho(epsilon: float, delta: float) -> float:
    """Return the rho for which (delta/2)-approximate rho-zCDP is (epsilon, delta)-DP, by the simple conversion."""
    log = math.log(2 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


def vector_noise_bits(
    users: int, dim: int, *, epsilon: float, delta: float, calibration: Calibration, grid: int | None = None
) -> NoiseBits:
    """Return the noise bits of one sum of vectors bounded in L2 norm (P_vec, Algorithm 11).

    Each coordinate is calibrated alone, at delta/(2 dim), and they are composed as approximate zCDP. ``"paper"`` uses
    Lemma 56 for a coordinate, ``"hockey_stick"`` the exact divergences. Both are far from the least number of bits,
    which :func:`least_noise_bits` finds.

    Example:
        >>> vector_noise_bits(500, 10, epsilon=1.0, delta=1e-6, calibration="hockey_stick").noise_bits
        3149
    """
    _check(users, epsilon, delta, calibration)
    grid = vector_grid(users, dim) if grid is None else _validate.count("grid", grid)
    root, allowed, share = math.sqrt(dim), math.sqrt(2 * vector_rho(epsilon, delta)), delta / (2 * dim)
    if calibration == "paper":
        return scalar_noise_bits(
            users, grid=grid, epsilon=allowed / (1 + 2 * root / grid), delta=share, calibration="paper"
        )
    limit = allowed / (grid + root)  # of an epsilon for each step of a shift

    def is_enough(bits: int, shifts: range) -> bool:
        return all(shift_epsilon(bits * users, 0.5, shift, share) <= limit * shift for shift in shifts)

    enough = least(lambda bits: is_enough(bits, range(grid, grid + 1)))
    while not is_enough(enough, range(1, grid)):  # the ratio grows with the shift wherever it was computed
        enough += 1
    return NoiseBits(grid=grid, noise_bits=enough, bit_prob=0.5)


def median_epsilon(scalar_epsilon: float, scalar_delta: float, dim: int) -> float:
    r"""Return the epsilon of ``dim`` counts of :math:`(2\epsilon_j, \delta_j)` each, by advanced composition.

    It is :math:`2 d \epsilon_j (e^{2\epsilon_j} - 1) + 2 \epsilon_j \sqrt{2 d \ln(1/\delta_j)}`, at :math:`(d + 1)
    \delta_j` (proof of Proposition 53).
    """
    twice = 2 * scalar_epsilon
    return dim * twice * math.expm1(twice) + twice * math.sqrt(2 * dim * math.log(1 / scalar_delta))


def paper_median_split(dim: int, *, epsilon: float, delta: float) -> tuple[float, float]:
    r"""Return the epsilon and delta of each count in Algorithm 13.

    They are :math:`\epsilon_j = \epsilon / 4\sqrt{2 d \ln(1/\delta_j)}` and :math:`\delta_j = \delta/2d`. The paper
    claims them for :math:`\epsilon \le 8 \ln(2d/\delta)`, which is false. Here the total is computed.

    Raises:
        ValueError: The counts together spend more than ``epsilon``.

    Example:
        >>> scalar_epsilon, scalar_delta = paper_median_split(10, epsilon=1.0, delta=1e-6)
        >>> round(scalar_epsilon, 7), round(median_epsilon(scalar_epsilon, scalar_delta, 10), 6)
        (0.0136341, 0.507538)
    """
    share = delta / (2 * dim)
    each = epsilon / (4 * math.sqrt(2 * dim * math.log(1 / share)))
    total = median_epsilon(each, share, dim)
    if not total <= epsilon:
        raise ValueError(
            f"epsilon must be smaller for the paper's split: its counts together spend {total:.6g}, not {epsilon:g}. "
            'Use calibration="least".'
        )
    return each, share


def least_noise_bits(event: ShuffledSumEvent, *, queries: int, epsilon: float, delta: float) -> ShuffledSumEvent:
    """Return ``event`` with the least number of noise bits for which ``queries`` queries are (epsilon, delta)-DP.

    The chance of counts that the Rényi bound leaves out is set to a thousandth of delta in all.
    """
    _check(event.users, epsilon, delta, "least")
    _validate.count("queries", queries)
    event = with_failures(event, queries=queries, delta=delta)

    def is_enough(bits: int) -> bool:
        try:
            return epsilon_of([Spend(replace(event, noise_bits=bits), queries)], delta).epsilon <= epsilon
        except ArithmeticError:  # no finite epsilon at this delta
            return False

    return replace(event, noise_bits=least(is_enough))


def with_failures(event: ShuffledSumEvent, *, queries: int, delta: float) -> ShuffledSumEvent:
    """Return ``event`` with a thousandth of ``delta``, over all queries, for the counts that the bound leaves out."""
    counts = event.coordinates * max(1, event.sampling.most_draws(queries))
    return replace(event, failure_probability=SHARE_OF_DELTA * delta / (2 * counts))


def least(is_enough: Callable[[int], bool]) -> int:
    """Return the least number >= 1 that is enough; every larger one must be.

    Raises:
        UnsupportedEventError: Not even 2^28 is.
    """
    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
        if high > MOST_BITS:
            raise UnsupportedEventError("no number of noise bits reaches this epsilon and delta: allow more of either.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _check(users: int, epsilon: float, delta: float, calibration: str) -> None:
    _validate.count("users", users)
    _validate.positive("epsilon", epsilon)
    _validate.delta("delta", delta)
    if calibration not in get_args(Calibration):
        raise ValueError(f"calibration must be one of {', '.join(get_args(Calibration))}, got {calibration!r}.")
