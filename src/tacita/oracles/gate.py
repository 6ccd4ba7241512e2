"""The release gate: private values go in, the ledger is written, and noisy values come out.

Place: estimators, mechanisms -> [oracles.gate] -> release. Values leave an oracle through :meth:`ReleaseGate.release`
alone, and it has them only after :meth:`ReleaseGate.commit` has written the ledger. So no code path can spend without
recording.
"""

import copy
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita._stream import Noise
from tacita.errors import BudgetExceededError, ResumeError
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.processes import local
from tacita.ledger import Reservations, Session
from tacita.ledger.session import BLOCK
from tacita.mechanisms.mechanism import AddsNoise, Blocks, Mechanism
from tacita.random import Key, QueryCoins, Randomness, Stream

JOINED = 2**28  # bytes of values that are joined for one copy to the CPU
STRETCH = 2**18  # coordinates that get their noise at once, but for a parameter that has more
MOST_RATCHETS = 10_000  # in addition to one for each query: far more checkpoints than a run ever writes
_CHANGING: Any = object()  # stands for a state while it is being changed


class ReleaseGate:
    """Numbers the queries, reserves their numbers, writes the ledger, keeps the estimator's state, adds the noise.

    A query calls :meth:`begin`, :meth:`commit` and :meth:`release`, in this order, ``with gate.lock, gate.turn():``. An
    interrupt (Ctrl-C) at any point of it leaves a gate that can be asked again, and pays for no less than was released.

    Batch and noise of a query come from PRF(key, session, query). After a crash a query may be *redone*. What happens
    then depends on the ledger:

    * It has no record of the number: the query is made under a new key, of which a copy of the run knows nothing.
    * It has a record with the same fingerprint: the query is released again, bit for bit, at no charge.
    * It has a record with another fingerprint: the query is made again under the next unused number. Only events that
      compose query by query allow that.

    Args:
        session: The session of the ledger that pays.
        mechanism: Adds the noise.
        noise_std: Noise standard deviation by block, at the level of the sum.
        randomness: The key that the session's coins and noise come from.
        reservation: Number of queries that are reserved at once.
        estimator: Decides what is remembered from one query to the next; ``None`` if nothing is.
        state: The estimator's state before the first query.
        contribution: Largest L2 norm that one record adds to each block, where it is not that of the session's event.

    Raises:
        LedgerError: The noise is less than what the session's event promises.
    """

    def __init__(
        self,
        session: Session,
        mechanism: AddsNoise,
        noise_std: Mapping[str, float],
        randomness: Randomness,
        reservation: int = BLOCK,
        *,
        estimator: Estimator | None = None,
        state: Any = None,
        contribution: Mapping[str, float] | None = None,
    ) -> None:
        self.session, self.noise_std = session, dict(noise_std)
        self.session_id, self._planned_queries = session.id, session.planned_queries
        self._mechanism, self._contribution, self._randomness = mechanism, contribution, randomness
        self._compared: tuple | None = None
        self._check_paid()
        self._reservations = Reservations(session, reservation)
        self._estimator, self._state = estimator, state
        self._position = 0
        # A query whose record is written, and whose noise is not added.
        self._unreleased: tuple[int, dict[str, Mapping[str, Tensor]]] | None = None
        self._other_values = False  # whether the number at this position was released with other values
        self._must_resume = session.opened
        self.lock = randomness.query_lock  # other threads wait
        self._asking: FrameType | None = None  # the call that makes a query now
        self._name = randomness.claim(session.id, ledger=session.ledger, resumed=session.opened)
        self.coins = QueryCoins(randomness, self._name)
        if not session.opened:
            randomness.renew(self._name, 0)  # of one that was opened, numbers may have to be redone: see resume()
        randomness.session_key(self._name)  # before any ratchet, so that a resumed run derives the same
        self.assigned_rows = 0  # how many rows have their batches for the whole session
        self._lags = mechanism.lags if isinstance(mechanism, Mechanism) else 0
        self._noise_memory: dict[Any, Any] = {}

    @property
    def position(self) -> int:
        """The number of the next query, unless that query has to be made under a later one."""
        return self._position

    @property
    def state(self) -> Any:
        """The estimator's state. The estimator decides whether it is private.

        Raises:
            ResumeError: A query was interrupted while the state changed.
        """
        if self._state is _CHANGING:
            raise ResumeError(
                f"session {self.session.id!r} was interrupted while its estimator's state was changing, and its "
                "guarantee does not cover a state that is half changed: load the last checkpoint."
            )
        return self._state

    @property
    def identity(self) -> str:
        """A keyed tag of the session's own key, and of what else must be the same for all of the session.

        That is the number of rows, if their batches hold for the whole session, and in a tag of its own the key of the
        last noise, if it is to be taken back. It shows whether a resumed run still has them, and nothing else.
        """
        return self._identity(self._position)

    def _identity(self, position: int) -> str:
        parts = [np.array(self.assigned_rows)] if self.assigned_rows else []
        found = self.session_key.tag("identity", parts=parts)
        if self._lags and position:
            noise = self._randomness.noise_key(self._name, position - 1).stream("identity").words(2)
            found += " " + self.session_key.tag("last noise", position - 1, parts=[noise])
        return found

    @property
    def session_key(self) -> Key:
        """The session's own key, for draws that hold for the whole session; no ratchet changes it."""
        return self._randomness.session_key(self._name)

    def query_stream(self, purpose: str, query: int, *labels: str) -> Stream:
        """Return the stream for a purpose of a query; ``labels`` name a part of it, such as a block."""
        return self._randomness.query_key(self._name, query).stream(self._name, purpose, query, *labels)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the gate for one query, from :meth:`begin` to :meth:`release`, under :attr:`lock`.

        Raises:
            RuntimeError: A query of the same gate is asked for within one, by its model, loss or data set.
        """
        if _is_running(self._asking):
            raise RuntimeError(
                f"session {self.session.id!r} was asked for a query from within one: the model, the loss and the "
                "data set of an oracle must not ask it."
            )
        try:
            self._asking = sys._getframe(2)  # that of whoever wrote ``with gate.turn()``
            self.session.settle()
            yield
        finally:
            self._asking = None

    @property
    def remaining_queries(self) -> int:
        """Number of planned queries that are not used yet."""
        return self.session.planned_queries - self._position

    def resume(self, position: int, generation: int, identity: str, state: Any = None) -> None:
        """Continue at ``position`` with ``state``, from a checkpoint written under the key of ``generation``.

        An older key is ratcheted forward to that generation. A newer one cannot redo a query, so that all used numbers
        are left behind. Queries that the ledger has not seen are drawn under a new key (:meth:`Randomness.renew
        <tacita.Randomness.renew>`), so that two copies of a run that are both continued have no noise in common. Both
        cost, and the ledger of either knows its own queries alone.

        Raises:
            ResumeError: The key is newer, numbers are used, and the event does not compose query by query; or the
                position or the generation is impossible in this session; or ``identity`` belongs to another key, under
                which batches that hold for the whole session (one pass, epochs) would be dealt again.
        """
        if not (type(position) is type(generation) is int and 0 <= position <= self._planned_queries) or generation < 0:
            raise ResumeError(
                f"session {self.session.id!r} has no such position: the checkpoint belongs to another one."
            )
        known, own = (str(one).split(" ") for one in (identity, self._identity(position)))
        over = self.session.closed and position > self.session.last_query  # nothing is drawn: its noise is forgotten
        if known[0] != own[0] or (known != own and not over):
            raise ResumeError(
                f"session {self.session.id!r} was begun with another key, or with other data if its records have their "
                "batches for the whole session: hand in the randomness that was saved with the checkpoint "
                "(Randomness.load), and the same records."
            )
        furthest = self._randomness.generation + self._planned_queries + MOST_RATCHETS
        if generation > furthest:  # ratcheting there would take forever
            raise ResumeError("the checkpoint is too far ahead of the private key file: it belongs to another run.")
        if self._lags and self._randomness.generation > generation:
            raise ResumeError(
                f"session {self.session.id!r} cannot go back behind its private key file: its queries take back the "
                "noise of those before, so none may be made anew. Load the last checkpoint."
            )
        self._keep_noise(position)
        self.advance_key(generation)
        if self._must_resume:  # after the key has moved on, which leaves earlier changes of it behind
            self._randomness.renew(self._name, self.session.last_query + 1)
        self._position, self._state = position, state
        if self._randomness.generation > generation:
            self.redo_nothing()
        self._must_resume = self._other_values = False

    def redo_nothing(self) -> None:
        """Skip all query numbers already in the ledger: the coming queries use different values.

        Raises:
            ResumeError: A number is in the ledger, and the event does not compose query by query.
        """
        if self.session.last_query >= self._position:
            self._leave_used_numbers()

    def begin(self) -> int:
        """Return the number of the next query, reserved on disk before any of its noise can be used.

        If :meth:`commit` found that the last number was released with other values, all used numbers are left behind,
        with a warning.

        Raises:
            BudgetExceededError: The plan is used up.
            LedgerError: The noise is less than what the session's event promises.
            ResumeError: The session was opened by an earlier run, and :meth:`resume` was not called; or numbers must
                be left behind, and the event does not compose query by query.
        """
        session = self.session
        self._check_paid()  # here, so that nothing is spent in vain, and again where the noise is added
        if self._must_resume:
            raise ResumeError(
                f"session {session.id!r} was opened by an earlier run: load its checkpoint before the first query."
            )
        if self._other_values:
            self._other_values, query = False, self._position
            self._leave_used_numbers()
            self._warn_of_missing(query)
        query = self._position
        if query >= self._planned_queries:
            raise BudgetExceededError(
                f"planned_queries is {session.planned_queries} and all are used: plan more "
                "in a new run. More on these records in this ledger takes a share or a filter that was set aside first."
            )
        if session.lookup(query) is None:
            if session.is_reserved(query):  # with an earlier query of its group
                session.begin(query)
            else:
                if not session.opened:
                    session.open()
                self._reservations.prepare(query)
        self._randomness.write_back()  # where a key is that nobody has written yet
        self._randomness.mark_drawn(self._name)  # even if the sampler draws nothing, the noise is drawn
        return query

    def commit(self, query: int, values: dict[str, Any], update: Any = None, *, elsewhere: bytes = b"") -> bool:
        """Write the ledger, so that ``query`` counts, and let the estimator remember what it saw.

        The state changes in place. If that is interrupted, the state cannot be used any more, so that a query never
        counts without being remembered.

        Args:
            query: The number that :meth:`begin` returned.
            values: The bounded values by block. The dictionary is emptied, so that the gate alone holds them.
            update: What :meth:`Estimator.bound <tacita.estimators.Estimator.bound>` returned beside the values.
            elsewhere: A digest of the parts of the values that other processes hold.

        Returns:
            False if the query was released with other values before. Then nothing has changed, :meth:`begin` leaves
            its number behind, and the query is made again under the next one.
        """
        state, self._unreleased = self.state, None
        tag, written = self._fingerprint(query, values, elsewhere), self.session.lookup(query)
        if written is not None and written != tag:
            self._other_values = True
            return False
        if written is None:
            self.session.spend(query, tag)
        self._state = None if state is None else _CHANGING
        self._position, self._unreleased = query + 1, (query, dict(values))
        values.clear()
        if self._estimator is not None and state is not None:
            self._state = self._estimator.apply(state, update)
        return True

    def release(self, dtypes: Mapping[str, torch.dtype] | None = None, normals: Any = None) -> Values:
        """Return the noisy values of the query that :meth:`commit` has just recorded; only once for each query.

        Noise is added to a few parameters at a time, so that the memory of their bounded values is freed early.

        Args:
            dtypes: The dtype that noisy values are rounded to, by parameter name, which is post-processing. Values
                that are not named keep their dtype.
            normals: Draws the part of the query's noise that is added here; by default all of it.

        Raises:
            LedgerError: The noise is less than what the session's event promises.
        """
        if self._unreleased is None:
            raise RuntimeError("no query waits for its noise: call commit() first. A query is released once.")
        self._check_paid()
        (query, values), self._unreleased = self._unreleased, None
        released = with_noise(self._mechanism, values, self.noise_std, normals or self._normals(query), dtypes)
        self._keep_noise(self._position)
        if self._estimator is not None and self._state is not None:
            self._state = self._estimator.after(self._state, released)
        return released

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs. ``estimator_state`` is private unless the estimator says otherwise."""
        with self.lock:
            return {
                "session": self.session.id,
                "position": self._position,
                "generation": self._randomness.generation,
                "identity": self.identity,
                "estimator_state": copy.deepcopy(self.state),  # which the next query may change in place
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`, as :meth:`resume` does.

        Raises:
            ResumeError: The state is one of another session, or :meth:`resume` raises.
        """
        with self.lock:
            if state["session"] != self.session.id:
                raise ResumeError(f"the checkpoint is of session {state['session']!r}, not of {self.session.id!r}.")
            memory = copy.deepcopy(state["estimator_state"])
            self.resume(state["position"], state["generation"], state["identity"], memory)

    def checkpoint(self, write: Callable[[dict[str, Any]], Any], key: Path) -> None:
        """Save a run: ledger, checkpoint and the next key reach the disk in this order.

        No release may leave the process, in a checkpoint or elsewhere, before its record. The checkpoint is one for the
        *next* key, so that a run that is killed in between can be resumed.

        Args:
            write: Writes a checkpoint that holds the state it is given, whole or not at all.
            key: The private file of the key.
        """
        with self.lock:
            self.session.flush()
            following = self._randomness.generation + 1
            write({**self.state_dict(), "generation": following})
            self.advance_key(following)
            ended = [self._randomness.name_for(one, self.session.ledger) for one in self.session.ended]
            self._randomness.end_noise(ended)
            self._randomness.save(key)

    def advance_key(self, generation: int) -> None:
        """Move on to the key of ``generation``, so that nothing drawn under an earlier one can be drawn again."""
        with self.lock:
            while self._randomness.generation < generation:
                self._randomness.ratchet()

    def _check_paid(self) -> None:
        """Check that the noise is at least what the session's event promises. Repeat only after a change.

        A mechanism that compares in its own way is asked each time, because it may look at anything.
        """
        contribution = None if self._contribution is None else tuple(self._contribution.items())
        asked = (self._mechanism, self.session, tuple(self.noise_std.items()), contribution)
        if asked != self._compared or getattr(type(self._mechanism), "check_paid", None) is not Mechanism.check_paid:
            self._mechanism.check_paid(self.session.event, self.noise_std, self._contribution)
            self._compared = asked

    def _leave_used_numbers(self) -> None:
        if not self.session.event.per_query:
            raise ResumeError(
                f"session {self.session.id!r} cannot be continued: a query of it was released with other values, and "
                "its guarantee is one of the whole session, so it has no unused query to take instead. Register a "
                "new session at full cost: in a share that was set aside before the first query (register_share), or "
                "in a ledger with a filter."
            )
        self._position = max(self._position, self.session.last_query + 1)

    def _warn_of_missing(self, query: int) -> None:
        goes_on = f"goes on with number {self._position}" if self.remaining_queries else "has no number left"
        warnings.warn(
            f"query {query} of session {self.session.id!r} gives another value than when it was first made (another "
            "number of rows in memory, device, thread count or setting): what was made before stays spent, and the "
            f"session {goes_on}, so that it lacks {self._position - query} of its steps.",
            stacklevel=2,
        )

    def _fingerprint(self, query: int, values: Blocks, elsewhere: bytes = b"") -> str:
        """Return a keyed one-time tag of the values and of all that decides which noise each of them gets.

        Values of another device are copied to the CPU together (:func:`_bytes_of`).
        """
        named = [(block, name, x) for block, tensors in values.items() for name, x in tensors.items()]
        layout = [(block, name, tuple(x.shape), str(x.dtype)) for block, name, x in named]
        added = repr(self._mechanism) if isinstance(self._mechanism, Mechanism) else ""
        described = repr((layout, added, sorted(self.noise_std.items()))).encode() + elsewhere
        parts = chain([described], _bytes_of(local(x) for _, _, x in named))
        return self._randomness.query_key(self._name, query).tag(self._name, "fingerprint", query, parts=parts)

    def _normals(self, query: int) -> Noise:
        def earlier(lag: int, block: str, name: str) -> Stream:
            return self._randomness.noise_key(self._name, query - lag).stream(block, name)

        return Noise(partial(self.query_stream, "noise", query), query, earlier, self._noise_memory)

    def _keep_noise(self, position: int) -> None:
        """Keep the keys of noise that queries from ``position`` on take back, and no older ones."""
        if self._lags:
            first = position - int(min(self._lags, position))
            self._randomness.keep_noise(self._name, first, position)


def with_noise(
    mechanism: AddsNoise, values: dict[str, Any], noise_std: Mapping[str, float], normals: Any, dtypes: Any = None
) -> Values:
    """Add the noise to ``STRETCH`` coordinates or more at a time, in order, if the mechanism may be called so.

    ``values`` is emptied, so that the memory of each tensor is freed early.
    """
    blocks: Values = {}
    for block in [*values]:
        left, released, stretch, held = dict(values.pop(block)), blocks.setdefault(block, {}), {}, 0
        for name in [*left]:
            stretch[name] = left.pop(name)
            held += stretch[name].numel()
            if left and (held < STRETCH or not mechanism.in_stretches):
                continue
            noisy = mechanism({block: stretch}, noise_std, normals)[block]
            released |= {one: x.to((dtypes or {}).get(one, x.dtype)) for one, x in noisy.items()}
            stretch, held = {}, 0
    return blocks


def answer(
    gate: ReleaseGate, bounded: Callable[[int], tuple[dict, Any]], dtypes: Mapping[str, torch.dtype] | None = None
) -> tuple[int, Values, Any]:
    """Make one query, ``with gate.lock, gate.turn():``; return its number, its noisy values, and what was remembered.

    The ledger is written before any noise is added. A redone query that was released with other values before is made
    again under the next unused number.

    Args:
        gate: Numbers the query, pays for it and adds the noise.
        bounded: Returns the bounded values of the query of that number, and what the estimator remembers of it.
        dtypes: As in :meth:`ReleaseGate.release`.
    """
    while True:
        query = gate.begin()
        values, update = bounded(query)
        if gate.commit(query, values, update):  # the ledger is written: from here on the query counts
            return gate.position - 1, gate.release(dtypes), update


def _bytes_of(tensors: Iterable[Tensor]) -> Iterator[np.ndarray]:
    """Yield the bytes of each tensor. Those of another device are joined there: the host waits for every copy."""
    flat = (x.detach().reshape(-1).contiguous().view(torch.uint8) for x in tensors)
    for device, alike in groupby(flat, key=lambda x: x.device):
        if device.type == "cpu":
            yield from (x.numpy() for x in alike)
            continue
        waiting = [*alike]
        while waiting:
            joined, held = [waiting.pop(0)], 0
            while waiting and (held := held + joined[-1].numel()) + waiting[0].numel() <= JOINED:
                joined.append(waiting.pop(0))
            whole = (torch.cat(joined) if len(joined) > 1 else joined[0]).cpu()
            yield from (x.numpy() for x in whole.split([len(x) for x in joined]))


def _is_running(call: FrameType | None) -> bool:
    """Return whether a call is under way in this thread. A flag could stay set for ever after an interrupt."""
    frame: FrameType | None = sys._getframe()
    while call is not None and frame is not None:
        if frame is call:
            return True
        frame = frame.f_back
    return False
