"""The line through the oracle: private values above it, releases below it, the ledger on it.

Place: estimators, mechanisms -> [oracles.line] -> release. Nothing leaves an oracle but through :meth:`Line.noisy`,
which has values only once :meth:`Line.pay` has written the ledger, so no code path can spend without recording.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from tacita.accounting import Reservations, Session
from tacita.errors import BudgetExceededError, ResumeError
from tacita.random import QueryCoins, Randomness, Stream

Blocks = Mapping[str, Mapping[str, Tensor]]
STRETCH = 2**18  # coordinates that get their noise at once, but for a parameter that has more
MOST_RATCHETS = 10_000  # beside one a query: far more checkpoints than a run ever writes
AddNoise = Callable[..., dict[str, dict[str, Tensor]]]  # (values, noise_std, normals) -> released


class Line:
    """Allots query numbers, reserves them, writes the ledger, adds the noise.

    Batch and noise of a query come from PRF(key, session, query). A query that is *redone* after a crash is, by what
    the ledger holds for its number: made as if for the first time (no line); released again, bit for bit and free of
    charge (a line with the same fingerprint); or made anew under the next unused number (another line), which only
    events that compose query by query allow.

    Args:
        session: The session of the ledger that pays.
        mechanism: Adds the noise: ``(values, noise_std, normals) -> released``.
        noise_std: Noise standard deviation by block, at the level of the sum.
        randomness: Where the session's coins and noise come from.
    """

    def __init__(
        self, session: Session, mechanism: AddNoise, noise_std: Mapping[str, float], randomness: Randomness
    ) -> None:
        self.session = session
        self.noise_std = dict(noise_std)
        self.coins = QueryCoins(randomness, session.id)
        self._mechanism = mechanism
        self._randomness = randomness
        self._reservations = Reservations(session)
        self._position = 0
        self._paid: tuple[int, dict[str, Mapping[str, Tensor]]] | None = None  # what has its line, and no noise yet
        self._must_resume = session.opened
        randomness.session_key(session.id)  # before any ratchet, so that a resumed run derives the same
        randomness.claim(session.id, resumed=session.opened)

    @property
    def position(self) -> int:
        """The number that the next query gets, unless it has to be made anew."""
        return self._position

    @property
    def identity(self) -> str:
        """A keyed tag of the session's own key: shows whether a resumed run still has it, and nothing else."""
        return self._randomness.session_key(self.session.id).tag("identity", parts=[])

    @property
    def remaining_queries(self) -> int:
        """Numbers of the plan not used yet."""
        return self.session.planned_queries - self._position

    def resume(self, position: int, generation: int, identity: str) -> None:
        """Continue at ``position``, the checkpoint's, written under the key of ``generation``.

        An older key is ratcheted forward to it. A newer one can redo nothing: used numbers are then left behind.

        Raises:
            ResumeError: The key is newer, numbers are used, and the event does not compose query by query; or the
                position or generation cannot be one of this session; or ``identity`` is of another key, under which
                batches that hold for the whole session (one pass, epochs) would be dealt anew.
        """
        if identity != self.identity:
            raise ResumeError(
                f"session {self.session.id!r} was begun with another key: hand in the randomness that was saved with "
                "the checkpoint (Randomness.load)."
            )
        planned, latest = self.session.planned_queries, self._randomness.generation + self.session.planned_queries
        if not (type(position) is type(generation) is int and 0 <= position <= planned) or generation < 0:
            raise ResumeError(f"session {self.session.id!r} has no such position: the checkpoint is not one of it.")
        if generation > latest + MOST_RATCHETS:  # ratcheting there would take forever
            raise ResumeError("the checkpoint is too far ahead of the private key file: it is not one of this run.")
        while self._randomness.generation < generation:
            self._randomness.ratchet()
        self._must_resume = False
        self._position = position
        if self._randomness.generation > generation:
            self.redo_nothing()

    def redo_nothing(self) -> None:
        """Leave every number behind that has a line: what comes now is not what was asked under it.

        Raises:
            ResumeError: There is such a number, and the event does not compose query by query.
        """
        if self.session.last_query >= self._position:
            self._leave_used_numbers()

    def begin(self) -> int:
        """The number of the query to make now: reserved on disk before any of its noise can be used.

        Raises:
            BudgetExceededError: The plan is used up.
            ResumeError: The session was opened by an earlier run, and :meth:`resume` was not called.
        """
        if self._must_resume:
            raise ResumeError(
                f"session {self.session.id!r} was opened by an earlier run: load its checkpoint before the first query."
            )
        if self.remaining_queries <= 0:
            raise BudgetExceededError(
                f"planned_queries is {self.session.planned_queries} and all are used: register a new session for more."
            )
        if not self.session.opened:
            self.session.open()
        if self.session.lookup(self._position) is None:
            self._reservations.cover(self._position)
        self._randomness.mark_drawn(self.session.id)  # whatever the sampler draws, the noise is drawn
        return self._position

    def skip(self) -> int:
        """Give up the numbers already used and begin the next unused one (a line that does not match)."""
        self._leave_used_numbers()
        return self.begin()

    def pay(self, query: int, values: Blocks) -> bool:
        """Write the ledger: from here on ``query`` counts. False if it was released with other values before."""
        self._paid = None
        tag = self._fingerprint(query, values)
        line = self.session.lookup(query)
        if line is None:
            self.session.spend(query, tag)
        elif not tag or line != tag:
            return False
        self._position = query + 1
        self._paid = (query, dict(values))
        return True

    def noisy(self, dtypes: Mapping[str, torch.dtype] | None = None) -> dict[str, dict[str, Tensor]]:
        """The noisy values of the query that :meth:`pay` has just written the line of; they can be had once.

        They are taken out stretch by stretch, so that each is freed once it has its noise, if nobody else holds it.

        Args:
            dtypes: What noisy values are rounded to, by name: post-processing. Others stay as they are.
        """
        if self._paid is None:
            raise RuntimeError("no query was paid for: call pay() first. A paid query is released once.")
        (query, values), self._paid = self._paid, None
        normals = self._normals(query)
        return {block: self._with_noise(block, dict(values.pop(block)), normals, dtypes or {}) for block in [*values]}

    def release(self, query: int, values: Blocks) -> dict[str, dict[str, Tensor]] | None:
        """Write the ledger, then return the noisy values; ``None`` if ``query`` was released with other values."""
        return self.noisy() if self.pay(query, values) else None

    def _with_noise(
        self, block: str, values: dict[str, Tensor], normals: "Noise", dtypes: Mapping[str, torch.dtype]
    ) -> dict[str, Tensor]:
        released: dict[str, Tensor] = {}
        whole = not getattr(self._mechanism, "in_stretches", False)
        for names in [[*values]] if whole else _stretches({name: x.numel() for name, x in values.items()}):
            stretch = {name: values.pop(name) for name in names}
            noisy = self._mechanism({block: stretch}, self.noise_std, normals)[block]
            released |= {name: x.to(dtypes.get(name, x.dtype)) for name, x in noisy.items()}
        return released

    def _leave_used_numbers(self) -> None:
        if not self.session.event.per_query:
            raise ResumeError(
                f"session {self.session.id!r} cannot be continued: a query of it was released with other values, and "
                "its guarantee is one of the whole session, so it has no unused query to take instead. Register a "
                "new session at full cost."
            )
        self._position = max(self._position, self.session.last_query + 1)

    def _fingerprint(self, query: int, values: Blocks) -> str:
        """A keyed one-time tag of the bounded values; empty (never matching) on devices where it is not cheap."""
        tensors = [value for block in values.values() for value in block.values()]
        if any(value.device.type != "cpu" for value in tensors):
            return ""
        return self._randomness.key.tag(self.session.id, "fingerprint", query, parts=_bytes(tensors))

    def _normals(self, query: int) -> "Noise":
        return Noise(lambda block: self._randomness.key.stream(self.session.id, "noise", query, block))


class Noise:
    """The noise of one query: standard normals, or the stream of a block for noise of another law."""

    def __init__(self, stream: Callable[[str], Stream]) -> None:
        self.stream = stream
        self._next: dict[str, tuple[Stream, int]] = {}  # of each block, and how many normals it has given

    def __call__(self, block: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Standard normals shaped as ``like``: the next stretch of the block's stream, never one of before."""
        dtype = torch.float64 if any(x.dtype == torch.float64 for x in like.values()) else torch.float32
        sizes = [x.numel() for x in like.values()]
        device = next(iter(like.values())).device
        stream, given = self._next.get(block) or (self.stream(block), 0)
        self._next[block] = stream, given + sum(sizes)
        flat = stream.normals((sum(sizes),), dtype=dtype, device=device, offset=given)
        return {name: draw.view(x.shape) for (name, x), draw in zip(like.items(), flat.split(sizes), strict=True)}


def _stretches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Names that follow one another, ended where they have ``STRETCH`` coordinates; the last ones may have fewer."""
    names: list[str] = []
    for name in sizes:
        names.append(name)
        if sum(sizes[name] for name in names) >= STRETCH:
            yield names
            names = []
    if names:
        yield names


def _bytes(tensors: list[Tensor]) -> Iterator[np.ndarray]:
    for value in tensors:
        array = value.detach().contiguous().view(-1)
        yield array.view(torch.uint8).numpy() if len(array) else np.empty(0)  # an empty one has no bytes to view
