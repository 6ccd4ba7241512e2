"""The gates of several ranks: rank 0 sends what it draws and releases, and the others answer without key or ledger.

    rank 0      begin -> draw ──> plan ──> share ──> summed ──> ledger -> noise ──> release ──┃──> release
    rank 1, ...                   plan ──> share ──> summed ──────────────────────> release ──┃──> release

Place: oracles, distributed.process_group -> [distributed.gates] -> distributed.serving.
Proof: docs/derivations/process-group.md.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from tacita._stream import Stream
from tacita._tree import from_bytes, to_bytes
from tacita.distributed.process_group import Ranks, hashed, tensors_digest
from tacita.distributed.sharded import first_of_shard
from tacita.errors import BudgetExceededError
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import GradientSource
from tacita.gradients.processes import is_dtensor, local
from tacita.mechanisms.mechanism import AddsNoise
from tacita.oracles.gate import ReleaseGate, with_noise
from tacita.oracles.query_draws import Plan, QueryDraws

OUTCOME = "outcome"  # the step at which rank 0 tells whether a query counts
STATE = "state"  # the step at which rank 0 tells where it resumes


class LeaderGate:
    """The gate of rank 0, which sends the other ranks each release once its record is on disk.

    All else is the gate's own.
    """

    def __init__(self, gate: ReleaseGate, ranks: Ranks) -> None:
        self._gate, self._ranks = gate, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)

    @property
    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let other threads wait, those that ask another oracle of the ranks, too."""
        with self._gate.lock, self._ranks.lock:
            yield

    def commit(self, query: int, values: dict[str, Any], update: Any = None) -> bool:
        """Commit to the query, or tell the other ranks that it is made again under another number."""
        self._ranks.check_added_up()
        self._query, self._sharded = query, sharded_blocks(values)
        elsewhere = digests(values, self._ranks) if self._sharded else b""
        committed = self._gate.commit(query, values, update, elsewhere=elsewhere)
        if not committed:
            self._ranks.broadcast(OUTCOME, {"again": True})
        return committed

    def release(self, dtypes: Mapping[str, torch.dtype] | None = None) -> Values:
        """Return the gate's release, which every rank has then; of values that are shards each rank has its own."""
        if not self._sharded:
            released = self._gate.release(dtypes)
            self._gate.session.flush()  # the record is on disk before its release leaves the process
            self._send(released)
            return released
        streams = {block: self._gate.query_stream("noise", self._query, block) for block in self._sharded}
        self._gate.session.flush()  # the record is on disk before anybody can know the noise
        secrets = {block: stream.secret.hex() for block, stream in streams.items()}
        self._ranks.broadcast(OUTCOME, {"again": False, "noise": secrets})
        noise = ShardNoise(streams)
        return made_whole(self._gate.release(dtypes, noise), noise, self._ranks)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, and tell the other ranks at which position, with which state."""
        self._gate.load_state_dict(state)
        self._ranks.broadcast(STATE, {"position": self._gate.position}, to_bytes(self._gate.state))

    def _send(self, released: Values) -> None:
        named = [(block, name, value) for block, tensors in released.items() for name, value in tensors.items()]
        told = [(block, name, [*value.shape], str(value.dtype).removeprefix("torch.")) for block, name, value in named]
        self._ranks.broadcast(OUTCOME, {"again": False, "released": told})
        self._ranks.broadcast_tensors([value for _, _, value in named])


class LeaderDraws:
    """The draws of rank 0, which sends the other ranks what a query draws."""

    def __init__(
        self, draws: QueryDraws, ranks: Ranks, oracle: str, source: GradientSource, *, by_shard: bool = False
    ) -> None:
        self._draws, self._ranks, self._oracle, self._source, self._by_shard = draws, ranks, oracle, source, by_shard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draws, name)

    def planned(self, query: int, params: Mapping[str, Tensor]) -> Plan:
        """Return what ``query`` draws once every rank has it, which must ask at the same point ``params``."""
        plan = self._draws.planned(query, params)
        head = {"query": plan.query, "seed": f"{plan.seed:x}"}
        rows = np.ascontiguousarray(plan.rows, np.int64).tobytes()
        self._ranks.oracle = self._oracle
        own = point_digest(self._ranks, self._source, params, by_shard=self._by_shard)
        self._ranks.broadcast("query", head, rows, what="model", own=own)
        return plan


class OnRankZero:
    """Stands on the other ranks for what rank 0 alone has; asking it for anything it does not know raises."""

    def __init__(self, what: str, **known: Any) -> None:
        self._what = what
        vars(self).update(known)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._what}.{name} is known to rank 0 alone, which holds the ledger and the key.")

    def __repr__(self) -> str:
        return f"<{self._what}, which rank 0 holds>"


class WorkerGate:
    """Gate and draws of another rank, which knows of a query what rank 0 sends.

    It is asked in the order in which rank 0 asks its own: :meth:`begin`, :meth:`planned`, :meth:`commit`,
    :meth:`release`. The values that this rank hands to :meth:`commit` are dropped; what it releases is rank 0's.

    Args:
        ranks: The ranks of the oracle.
        oracle: What rank 0 calls the oracle: no two oracles have the same name.
        session: The session's id.
        planned_queries: Number of queries of the session.
        estimator: Decides what is remembered from one query to the next; its state follows rank 0's.
        source: The source of this rank's sums.
        noise: What adds the noise to this rank's shards, and its standard deviation by block.
        by_shard: Whether sums stay in shards, where the model is sharded.
    """

    def __init__(
        self,
        ranks: Ranks,
        oracle: str,
        session: str,
        planned_queries: int,
        *,
        estimator: Estimator,
        source: GradientSource,
        noise: tuple[AddsNoise, Mapping[str, float]],
        by_shard: bool,
    ) -> None:
        self.session_id, self._oracle = session, oracle
        self.session: Any = OnRankZero("session", id=session, planned_queries=planned_queries)
        self.position, self.state = 0, estimator.initial_state(source.shapes)
        self._ranks, self._estimator, self._source = ranks, estimator, source
        self._query, self._coming, self._noise, self._secrets = 0, [], noise, {}
        self._shards: dict[str, Mapping[str, Tensor]] = {}
        self._by_shard = by_shard
        self.lock = ranks.lock

    @property
    def remaining_queries(self) -> int:
        """Number of planned queries that are not used yet, as rank 0 told last."""
        return self.session.planned_queries - self.position

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the gate for one query; where rank 0 has none left, neither has this rank."""
        try:
            yield
        except BudgetExceededError:
            self.position = self.session.planned_queries
            raise

    def begin(self) -> int:
        """Return the number of the last query; rank 0 tells the next one with its plan."""
        return self._query

    def planned(self, last: int, params: Mapping[str, Tensor]) -> Plan:
        """Return rank 0's plan of the next query, which must be asked at the same point ``params``."""
        self._ranks.oracle = self._oracle
        own = point_digest(self._ranks, self._source, params, by_shard=self._by_shard)
        head, rows = self._ranks.broadcast("query", None, what="model", own=own)
        self._query = head["query"]
        return Plan(self._query, np.frombuffer(bytearray(rows), np.int64), int(head["seed"], 16))

    def commit(self, query: int, values: dict[str, Any], update: Any = None) -> bool:
        """Drop the values, and let the estimator remember what it saw if rank 0 recorded the query.

        Returns:
            False if rank 0 makes the query again under another number.
        """
        self._ranks.check_added_up()
        if sharded_blocks(values):
            digests(values, self._ranks)
            self._shards = dict(values)
        values.clear()
        head, _ = self._ranks.broadcast(OUTCOME, None)
        if head["again"]:
            return False
        self.position, self._coming, self._secrets = self._query + 1, head.get("released", []), head.get("noise")
        if self.state is not None:
            self.state = self._estimator.apply(self.state, update)
        return True

    def release(self, dtypes: Any = None) -> Values:
        """Return rank 0's release; where values are shards, that of this rank's own."""
        secrets, self._secrets = self._secrets, None  # kept no longer than the draw
        if secrets:
            streams = {block: Stream(bytes.fromhex(one)) for block, one in secrets.items()}
            noise = ShardNoise(streams)
            mechanism, noise_std = self._noise
            return made_whole(with_noise(mechanism, self._shards, noise_std, noise, dtypes), noise, self._ranks)
        device = next((p.device for p in self._source.model.parameters()), None) if self._source.model else None
        empty = [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for _, _, shape, dtype in self._coming]
        released: Values = {}
        for (block, name, _, _), tensor in zip(self._coming, self._ranks.broadcast_tensors(empty), strict=True):
            released.setdefault(block, {})[name] = tensor
        if self.state is not None:
            self.state = self._estimator.after(self.state, released)
        return released

    def state_dict(self) -> NoReturn:
        """Raise ``RuntimeError``: checkpoints are rank 0's."""
        raise RuntimeError("state_dict() is rank 0's, which alone writes checkpoints: call it there.")

    def load_state_dict(self, state: Any) -> None:
        """Continue at the position of rank 0 and with its state, whatever ``state`` is."""
        head, data = self._ranks.broadcast(STATE, None)
        self.position, self.state = head["position"], from_bytes(data)


def point_digest(
    ranks: Ranks, source: GradientSource, params: Mapping[str, Tensor], *, by_shard: bool = False
) -> bytes:
    """Return a digest of the point and of the model's buffers, which must be the same on every rank.

    Shards, of which each rank has others, enter by what they are shards of.
    """
    if source.model is not None:
        ranks.begin(source.model, by_shard=by_shard)
    buffers = () if source.model is None else source.model.named_buffers()
    shards: dict[str, Any] = {name: p for name, p in params.items() if is_dtensor(p)}
    whole = [(name, p) for name, p in params.items() if name not in shards]
    placed = repr([(name, p.shape, p.dtype, p.placements) for name, p in shards.items()])
    return tensors_digest([*whole, *buffers]) + placed.encode()


class ShardNoise:
    """The noise of one query on this rank's shards: of each block's one logical stream the range that a shard has.

    Args:
        streams: The stream of each block; its values depend on their place alone.

    Attributes:
        drawn: For each shard a tag of the stream, the place and size of the whole tensor in it, and those of the shard.
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self._streams, self._places = streams, dict.fromkeys(streams, 0)
        self.drawn: list[tuple[int, int, int, int, int]] = []

    def __call__(self, block: str, like: Mapping[str, Any]) -> dict[str, Any]:
        """Return standard normals placed as ``like``, the same as a process alone draws there."""
        dtype = torch.float64 if any(x.dtype == torch.float64 for x in like.values()) else torch.float32
        stream, found = self._streams[block], {}
        for name, x in like.items():
            begins, first = self._places[block], first_of_shard(x)
            own, offset = local(x), begins + (first or 0)
            self._places[block] += x.numel()
            draw = stream.normals(own.shape, dtype=dtype, device=x.device, offset=offset)
            if first is not None:
                self.drawn.append((hashed(stream.secret), begins, x.numel(), offset, own.numel()))
                draw = type(x).from_local(
                    draw, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
                )
            found[name] = draw
        return found


def sharded_blocks(values: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
    """Return the blocks of ``values`` if any value is a shard; else none."""
    return [*values] if any(is_dtensor(x) for tensors in values.values() for x in tensors.values()) else []


def digests(values: Mapping[str, Mapping[str, Tensor]], ranks: Ranks) -> bytes:
    """Return SHA-256 of every rank's shards, which all ranks give at once."""
    own = hashlib.sha256()
    for x in (x for tensors in values.values() for x in tensors.values() if is_dtensor(x)):
        own.update(local(x).detach().cpu().contiguous().view(torch.uint8).numpy().data)
    mine = torch.from_numpy(np.frombuffer(own.digest(), np.int64).copy())
    return ranks.collect("fingerprint", mine).cpu().numpy().tobytes()


def made_whole(released: Values, noise: ShardNoise, ranks: Ranks) -> Values:
    """Return a release once it is sure that each of its numbers has the noise of its place, from one rank or another.

    What is no shard is rank 0's.

    Raises:
        RankError: The ranges that the ranks drew leave something out, overlap, or are of another stream. Every rank
            raises it, and nothing is released.
    """
    table = ranks.collect("noise", torch.tensor(noise.drawn, dtype=torch.int64).reshape(-1, 5))
    rows = sorted(row for one in table.tolist() for row in one)
    for tag, begins, count, *_ in noise.drawn:
        place = begins
        for first, drawn in (row[3:] for row in rows if row[:3] == [tag, begins, count]):
            place = place + drawn if first == place else -1
        if place != begins + count:
            ranks.stop("the ranks did not add the noise of every place exactly once: nothing is released.")
    named = [
        (block, name, x) for block, tensors in released.items() for name, x in tensors.items() if not is_dtensor(x)
    ]
    for (block, name, _), x in zip(named, ranks.broadcast_tensors([x for *_, x in named]), strict=True):
        released[block][name] = x
    return released
