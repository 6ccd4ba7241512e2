r"""One round of a sum in the shuffle model: the user's encoder, a relay that only shuffles, and the analyzer.

    user's vector -> UserEncoder -> message ──> Shuffler -> shuffled bits ──┃──> Analyzer -> estimate of the sum

The three may run in three processes: what goes from one to the next is bytes. A message holds, for each coordinate, a
fixed number of bits, of which as many are one as the user's steps on the grid and noise bits together. The shuffler
never looks at a bit. What it sends on tells how many ones there are in each coordinate, and nothing else.

Place: accounting, random -> [oracles.shuffle_round] -> oracles.shuffled. Proof: docs/derivations/shuffle.md.
Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Algorithms 11
and 14. Differs from it in two points: the local randomizer runs once for each user, and the analyzer subtracts s C.
"""

import hashlib
import struct
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita._binomials import binomials
from tacita.accounting.events.wrapped import ConditionalEvent
from tacita.accounting.relations import NeighboringRelation
from tacita.accounting.sampling_laws import FullBatchLaw, SamplingLaw
from tacita.convex.shuffle_calibration import NoiseBits
from tacita.convex.shuffled_sum_event import ShuffledSumEvent
from tacita.random import Key

SHRUNK = 1 - 1e-6  # of a norm, so that rounding to float64 cannot lengthen a vector past its bound
_HEADER = struct.Struct("<8sB16sIQI")  # magic, kind, round, coordinates, bits of a coordinate, messages
_MAGIC = b"tacita\x00\x01"
_MESSAGE, _SHUFFLED = 1, 2


@dataclass(frozen=True, kw_only=True)
class ShuffleRound:
    """The public settings of a round, which users, shuffler and analyzer share.

    Attributes:
        name: Names the round, such as session and query. A message of another round is refused.
        users: Number of users s that are asked, >= 1.
        dim: Number of coordinates d of a user's vector.
        half_range: C: each coordinate is clamped to [-C, C]; in the vector's units.
        l2_bounded: Whether the vector is first scaled to an L2 norm of at most C.
        bits: Grid and noise bits.
        honest_fraction: Share of the users whose noise the guarantee counts on. All others may send no message, or one
            without noise. A round with fewer messages is aborted.

    Example:
        >>> from tacita.convex.shuffle_calibration import NoiseBits
        >>> shared = ShuffleRound(name="round 1", users=3, dim=2, half_range=1.0, l2_bounded=True,
        ...                       bits=NoiseBits(grid=4, noise_bits=8, bit_prob=0.5))
        >>> shuffler = Shuffler(shared)
        >>> for user, vector in enumerate(([0.5, 0.5], [1.0, 0.0], [0.0, -2.0])):
        ...     shuffler.add(UserEncoder(shared).message(np.array(vector)), sender=user)
        >>> Analyzer(shared).counts(shuffler.shuffled()).shape
        (2,)
    """

    name: str
    users: int
    dim: int
    half_range: float
    l2_bounded: bool
    bits: NoiseBits
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name must be a text, got {type(self.name).__name__}.")
        _validate.threshold("half_range", self.half_range)
        self._event("replace_one", FullBatchLaw())  # checks the rest

    @property
    def min_messages(self) -> int:
        """The least number of messages that are shuffled: that of the honest users."""
        return self._event("replace_one", FullBatchLaw()).honest_users

    @property
    def length(self) -> int:
        """Number of bits of one user in one coordinate."""
        return self.bits.grid + self.bits.noise_bits

    @property
    def step(self) -> float:
        """The width of a grid step, in the vector's units."""
        return 2 * self.half_range / self.bits.grid

    def event(self, relation: NeighboringRelation) -> ConditionalEvent:
        """Return what a round spends where users run the encoder themselves, which nobody can enforce."""
        inner = self._event(relation, FullBatchLaw())
        text = (
            f"at least {inner.honest_users} of {inner.users} users run the encoder as it stands, and the shuffler "
            "shows nobody a message"
        )
        return ConditionalEvent(relation=relation, inner=inner, condition_text=text)

    def message_event(self, relation: NeighboringRelation) -> ShuffledSumEvent:
        """Return the event of one message for somebody who sees it unshuffled, such as a dishonest shuffler."""
        return self.bits.event(relation, FullBatchLaw(), users=1, coordinates=self.dim, l2_bounded=False)

    def _event(self, relation: NeighboringRelation, law: SamplingLaw) -> ShuffledSumEvent:
        return self.bits.event(
            relation,
            law,
            users=self.users,
            coordinates=self.dim,
            l2_bounded=self.l2_bounded,
            honest_fraction=self.honest_fraction,
        )

    def sums(self, counts: np.ndarray, messages: int) -> np.ndarray:
        r"""Return the estimate of the sum from counts of ones: :math:`\frac{2C}{g} (Y - p b m) - m C`."""
        noise = counts - self.bits.bit_prob * self.bits.noise_bits * messages
        return self.step * noise - messages * self.half_range

    def _header(self, kind: int, messages: int) -> bytes:
        tag = hashlib.sha256(repr(self).encode()).digest()[:16]
        return _HEADER.pack(_MAGIC, kind, tag, self.dim, self.length, messages)

    def _payload(self, data: bytes, kind: int) -> tuple[np.ndarray, int]:
        """Return the bits of each coordinate, (dim, bits), and the number of messages they are of.

        Raises:
            ValueError: The bytes are not such a message of this round.
        """
        messages = 1
        if kind == _SHUFFLED and len(data) >= _HEADER.size:
            messages = _HEADER.unpack_from(data)[5]
        row = -(-messages * self.length // 8)
        same = data[: _HEADER.size] == self._header(kind, messages) and len(data) == _HEADER.size + row * self.dim
        if not same or not (kind == _MESSAGE or self.min_messages <= messages <= self.users):
            raise ValueError(f"this message is not from round {self.name!r}, or not from the expected side of it.")
        packed = np.frombuffer(data, np.uint8, offset=_HEADER.size).reshape(self.dim, row)
        return np.unpackbits(packed, axis=1, count=messages * self.length), messages


class UserEncoder:
    """A user's side of a round: bounds the vector, rounds it to the grid, and adds noise bits.

    Args:
        shared: The round.
        key: The user's secret; by default a new one from the system. Only tests hand one in.
    """

    def __init__(self, shared: ShuffleRound, key: Key | None = None) -> None:
        self.shared, self._key, self._used = shared, key or Key.system(), False

    def message(self, vector: np.ndarray) -> bytes:
        """Return the message of the user's ``vector``, (dim,); its length is the same for everybody.

        A vector that is not finite counts as zero.

        Raises:
            RuntimeError: The encoder has sent its message: two of them would have the same noise.
            ValueError: The vector has another shape.
        """
        shared, given = self.shared, np.asarray(vector, dtype=np.float64)
        if given.shape != (shared.dim,):
            raise ValueError(f"vector must have shape ({shared.dim},), got {given.shape}.")
        if self._used:
            raise RuntimeError("an encoder sends one message: build a new one for another round.")
        self._used = True
        coins = uniforms(self._key.stream("shuffle", shared.name, "rounding").words(shared.dim))
        steps = in_steps(
            bounded(given, shared.half_range, l2=shared.l2_bounded), shared.half_range, shared.bits.grid, coins
        )
        noise = self._key.stream("shuffle", shared.name, "noise")
        ones = steps + binomials(noise, shared.dim, shared.bits.noise_bits, shared.bits.bit_prob)
        bits = np.arange(shared.length) < ones[:, None]
        return shared._header(_MESSAGE, 1) + np.packbits(bits, axis=1).tobytes()

    def __repr__(self) -> str:
        return f"UserEncoder({self.shared.name!r})"


class Shuffler:
    """The relay: puts the bits of each coordinate, of all users together, into a random order.

    Args:
        shared: The round.
        key: The relay's secret; by default a new one from the system. Only tests hand one in.
    """

    def __init__(self, shared: ShuffleRound, key: Key | None = None) -> None:
        self.shared, self._key = shared, key or Key.system()
        self._bits: list[np.ndarray] = []
        self._senders: set[Hashable] = set()
        self._done = False

    def add(self, message: bytes, *, sender: Hashable) -> None:
        """Take a user's message. Who sent it is forgotten with the round.

        Raises:
            ValueError: It is no message of this round, or ``sender`` has sent one; or there are enough.
        """
        bits, _ = self.shared._payload(message, _MESSAGE)
        if self._done or sender in self._senders or len(self._bits) == self.shared.users:
            raise ValueError(f"round {self.shared.name!r} takes no further message of this sender.")
        self._senders.add(sender)
        self._bits.append(bits)

    def shuffled(self) -> bytes:
        """Return all bits of each coordinate in a random order, once.

        Raises:
            RuntimeError: There are fewer messages than the noise must come from; or the round is over.
        """
        shared, messages = self.shared, len(self._bits)
        if self._done or messages < shared.min_messages:
            raise RuntimeError(
                f"round {shared.name!r} is over, or has fewer than {shared.min_messages} messages: it is aborted."
            )
        self._done = True
        together = np.concatenate(self._bits, axis=1)
        for label, row in enumerate(together):
            row[:] = row[self._key.stream("shuffle", shared.name, "order", label).permutation(len(row))]
        self._bits, self._senders = [], set()
        return shared._header(_SHUFFLED, messages) + np.packbits(together, axis=1).tobytes()

    def __repr__(self) -> str:
        return f"Shuffler({self.shared.name!r})"


class Analyzer:
    """The server: counts the ones, and makes an estimate of them. All it sees may be published.

    Args:
        shared: The round.
    """

    def __init__(self, shared: ShuffleRound) -> None:
        self.shared = shared

    def counts(self, shuffled: bytes) -> np.ndarray:
        """Return the number of ones of each coordinate, (dim,), int64."""
        return self.shared._payload(shuffled, _SHUFFLED)[0].sum(axis=1, dtype=np.int64)

    def sums(self, shuffled: bytes) -> np.ndarray:
        """Return the unbiased estimate of the sum of the bounded vectors, (dim,), float64."""
        return self.shared.sums(self.counts(shuffled), self.shared._payload(shuffled, _SHUFFLED)[1])

    def __repr__(self) -> str:
        return f"Analyzer({self.shared.name!r})"


def bounded(rows: np.ndarray, half_range: float, *, l2: bool) -> np.ndarray:
    """Return rows, (..., d), clamped to [-C, C], with a norm of at most C if ``l2``; zeros if not finite."""
    largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
    finite = np.isfinite(largest)
    rows = np.where(finite, rows, 0.0)
    if l2:
        scale = np.where(finite & (largest > 0), largest, 1.0)  # so that no square overflows
        norm = np.linalg.norm(rows / scale, axis=-1, keepdims=True) * scale
        with np.errstate(divide="ignore", over="ignore"):
            rows = rows * np.minimum(1.0, SHRUNK * half_range / np.where(norm > 0, norm, 1.0))
    return np.clip(rows, -half_range, half_range)


def in_steps(rows: np.ndarray, half_range: float, grid: int, coins: np.ndarray) -> np.ndarray:
    """Round rows in [-C, C] to whole steps 0 .. grid without bias, int64; ``coins`` are uniform in [0, 1)."""
    exact = np.clip((rows / half_range + 1.0) * (grid / 2), 0.0, grid)
    below = np.floor(exact)
    return np.minimum(below + (coins < exact - below), grid).astype(np.int64)


def uniforms(words: np.ndarray) -> np.ndarray:
    """Return numbers in [0, 1), multiples of 2^-53, from words of a stream."""
    return (words >> np.uint64(11)) * 2.0**-53
