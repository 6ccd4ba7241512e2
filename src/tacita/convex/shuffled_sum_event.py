r"""The event of sums in the shuffle model: every user adds noise bits of its own, and only shuffled bits are seen.

What is seen of a coordinate is a count: the sum of the users' grid steps, plus the ones among all noise bits. A record
moves the counts by a vector of whole numbers. If each coordinate may move over its whole range, the pair is that of
shifted binomial counts, once for each coordinate. If the vector is bounded in L2 norm, the Rényi divergence of order a
is at most :math:`a \cdot 2R^2 / (N + 1)` and a little more, on all counts but a few unlikely ones: R is the norm in
grid steps and N the number of fair noise bits. Proof: docs/derivations/shuffle.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting.dominating_pairs import Part
from tacita.accounting.events.guarantee import Guarantee, gaussian
from tacita.accounting.events.sampled import Charges, Proof, SampledEvent
from tacita.accounting.relations import moved
from tacita.accounting.sampling_laws import DisjointLaw, FullBatchLaw, ShuffledEpochsLaw
from tacita.convex._shifted_binomial import ShiftedBinomialPair
from tacita.errors import UnsupportedEventError

ROUNDED_UP = 1 + 1e-9
Pairs = Callable[[], tuple[Part, ...]]


@dataclass(frozen=True, kw_only=True)
class ShuffledSumEvent(SampledEvent):
    r"""Sums over users, released in the shuffle model.

    Attributes:
        users: Number of users of a query, s >= 1; public.
        coordinates: Number of coordinates that one user moves, d >= 1.
        grid: Steps of a coordinate's whole range, g >= 1.
        noise_bits: Bits of noise that each user adds to each coordinate, b >= 1.
        bit_prob: Chance p of a one, in (0, 1/2].
        l2_bounded: Whether a user's vector is bounded in L2 norm by half a coordinate's range; else every coordinate
            may move over its whole range.
        honest_fraction: Share of the users, in (0, 1], that add their noise bits as they should.
        failure_probability: Chance, for each coordinate of a query, of counts that the Rényi bound leaves out. It is
            added to delta.

    Example:
        >>> event = ShuffledSumEvent(
        ...     relation="replace_one", sampling=FullBatchLaw(), users=500, coordinates=10, grid=23, noise_bits=3149,
        ...     bit_prob=0.5, l2_bounded=True, failure_probability=1e-12)
        >>> event.noise_trials, round(event.radius, 4)
        (1574500, 26.1623)
    """

    users: int
    coordinates: int
    grid: int
    noise_bits: int
    bit_prob: float
    l2_bounded: bool
    honest_fraction: float = 1.0
    failure_probability: float = 1e-12

    released = "a sum in the shuffle model"

    def __post_init__(self) -> None:
        for name in ("users", "coordinates", "grid", "noise_bits"):
            _validate.count(name, getattr(self, name))
        self._check(_validate.probability, "bit_prob", "honest_fraction")
        self._check(_validate.delta, "failure_probability")
        if not self.bit_prob <= 0.5:
            raise ValueError(f"bit_prob must be in (0, 1/2], got {self.bit_prob}.")
        if not isinstance(self.l2_bounded, bool):
            raise ValueError(f"l2_bounded must be a bool, got {self.l2_bounded!r}.")
        if not self.honest_users:
            raise ValueError(
                f"honest_fraction must leave one user or more of {self.users}, got {self.honest_fraction}."
            )
        super().__post_init__()

    @property
    def honest_users(self) -> int:
        """The number of users whose noise bits count."""
        return math.floor(self.users * self.honest_fraction * ROUNDED_UP)

    @property
    def noise_trials(self) -> int:
        """The number N of noise bits in one coordinate that the guarantee counts on."""
        return self.honest_users * self.noise_bits

    @property
    def shift(self) -> int:
        """The largest number of steps by which one user moves one count."""
        return self.grid if moved(self.relation) == 2 else math.ceil(self.grid / 2)

    @property
    def radius(self) -> float:
        """The largest L2 norm, in steps, of what one user moves; rounding to the grid included."""
        root = math.sqrt(self.coordinates)
        if self.whole_range:
            return self.shift * root
        return min(self.grid * moved(self.relation) / 2 + root, self.shift * root)

    @property
    def whole_range(self) -> bool:
        """Whether nothing is known of a user's vector but that each coordinate stays in its range."""
        return not self.l2_bounded or self.coordinates == 1

    @property
    def private(self) -> bool:
        return True

    @property
    def assumptions(self) -> tuple[str, ...]:
        who = "every user" if self.honest_users == self.users else f"at least {self.honest_users} of {self.users} users"
        return (
            *self.sampling.assumptions(self.relation),
            f"{who} of a query sent a message, with noise bits of its own that nobody else knows",
            "nobody sees the messages before they are shuffled, and who sends one does not depend on the data",
        )

    def describe(self) -> str:
        honest = "" if self.honest_users == self.users else f", {self.honest_users} of them honest"
        return (
            f"{self.sampler}, shuffle model: {self.users} users{honest}, each with {self.noise_bits} noise bits "
            f"(chance {self.bit_prob:.6g}) on each of {self.coordinates} coordinates of {self.grid} steps"
        )

    def fair_bits(self) -> tuple[int, float]:
        """Return a number of fair bits that the noise contains, and the chance that it contains fewer.

        A bit that is one with chance p <= 1/2 is a fair bit, masked with chance 1 - 2p independently of everything.
        """
        if self.bit_prob == 0.5:
            return self.noise_trials, 0.0
        slack = math.sqrt(self.noise_trials * math.log(1 / self.failure_probability) / 2)
        return math.floor(2 * self.bit_prob * self.noise_trials / ROUNDED_UP - slack), self.failure_probability

    def renyi(self) -> tuple[float, float, float]:
        """Return A, B and F of one query: D(a) <= A a + B + F a/(a - 1), but for a failure of chance F or less.

        Raises:
            UnsupportedEventError: There are too few noise bits for the bound.
        """
        bits, missing = self.fair_bits()
        middle = (bits + 1) / 2
        tail = math.sqrt(max(0, bits) * math.log(1 / self.failure_probability) / 2)
        farthest = (tail + self.shift - 0.5) / middle * ROUNDED_UP if bits > 0 else math.inf
        if not farthest < 1:
            raise UnsupportedEventError(
                f"noise_bits must be larger: {self.noise_bits} bits of {self.honest_users} users do not cover a shift "
                f"of {self.shift} steps, except with probability {self.failure_probability:g}. Use more bits or users, "
                "or a coarser grid."
            )
        excess = 2 * (math.atanh(farthest) - farthest)
        steps = math.sqrt(self.coordinates) * self.radius  # the largest L1 norm
        failure = self.coordinates * (self.failure_probability + missing) * ROUNDED_UP
        return self.radius**2 / middle * ROUNDED_UP, steps * excess * ROUNDED_UP, failure


def _seen_in_some_queries(event: ShuffledSumEvent, queries: int) -> Guarantee:
    """Charge the largest number of queries that one record can be in, whatever happens between them."""
    draws = event.sampling.most_draws(queries)
    if draws == 0:
        return gaussian(0.0)
    pair = ShiftedBinomialPair(event.noise_trials, event.bit_prob, event.shift)
    pairs: Pairs = lambda: ((pair, event.coordinates * draws),)  # noqa: E731
    try:
        slope, excess, failure = event.renyi()
    except UnsupportedEventError:  # too few noise bits for the Rényi bound
        return Guarantee(pairs=pairs)

    def rdp(orders: np.ndarray) -> np.ndarray:
        a = np.asarray(orders, dtype=float)
        return draws * (slope * a + excess + failure * a / (a - 1) * ROUNDED_UP)

    return Guarantee(pairs=pairs if event.whole_range else None, rdp=rdp, additive_delta=draws * failure)


_EVERY: Charges = {"replace_one": "every query, whole range", "zero_out_one": "every query, half the range"}
_ONCE: Charges = {"replace_one": "one query in all, whole range", "zero_out_one": "one query in all, half the range"}
_EPOCHS: Charges = {
    "replace_one": "one query an epoch, whole range",
    "zero_out_one": "one query an epoch, half the range",
}
# Batches must have a public size: where each record draws its own batch, nothing is proved.
ShuffledSumEvent.proofs = {
    FullBatchLaw: Proof(_EVERY, _seen_in_some_queries),
    DisjointLaw: Proof({}, _seen_in_some_queries, if_absence_moves=_ONCE),
    ShuffledEpochsLaw: Proof({}, _seen_in_some_queries, if_absence_moves=_EPOCHS),
}
