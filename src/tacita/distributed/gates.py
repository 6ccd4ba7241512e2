"""The gates of several ranks: rank 0 sends what it draws and releases, and the others answer without key or ledger.

    rank 0      begin -> draw ──> plan ──> share ──> summed ──> ledger -> noise ──> release ──┃──> release
    rank 1, ...                   plan ──> share ──> summed ──────────────────────> release ──┃──> release

Place: oracles, distributed.process_group -> [distributed.gates] -> distributed.serving.
Proof: docs/derivations/process-group.md.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from tacita._tree import from_bytes, to_bytes
from tacita.distributed.process_group import Ranks, tensors_digest
from tacita.errors import BudgetExceededError
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import GradientSource
from tacita.oracles.gate import ReleaseGate
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

    def commit(self, query: int, values: dict[str, Any], update: Any = None) -> bool:
        """Commit to the query, or tell the other ranks that it is made again under another number."""
        self._ranks.check_added_up()
        committed = self._gate.commit(query, values, update)
        if not committed:
            self._ranks.broadcast(OUTCOME, {"again": True})
        return committed

    def release(self, dtypes: Mapping[str, torch.dtype] | None = None) -> Values:
        """Return the gate's release, which every rank has then."""
        released = self._gate.release(dtypes)
        self._gate.session.flush()  # the record is on disk before its release leaves the process
        self._send(released)
        return released

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

    def __init__(self, draws: QueryDraws, ranks: Ranks, session: str, source: GradientSource) -> None:
        self._draws, self._ranks, self._session, self._source = draws, ranks, session, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draws, name)

    def planned(self, query: int, params: Mapping[str, Tensor]) -> Plan:
        """Return what ``query`` draws once every rank has it, which must ask at the same point ``params``."""
        plan = self._draws.planned(query, params)
        head = {"query": plan.query, "seed": f"{plan.seed:x}"}
        rows = np.ascontiguousarray(plan.rows, np.int64).tobytes()
        own = point_digest(self._source, params)
        self._ranks.broadcast(f"query of {self._session}", head, rows, what="model", own=own)
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
        session: The session's id.
        planned_queries: Number of queries of the session.
        estimator: Decides what is remembered from one query to the next; its state follows rank 0's.
        source: The source of this rank's sums.
    """

    def __init__(
        self, ranks: Ranks, session: str, planned_queries: int, *, estimator: Estimator, source: GradientSource
    ) -> None:
        self.session_id = session
        self.session: Any = OnRankZero("session", id=session, planned_queries=planned_queries)
        self.position, self.state = 0, estimator.initial_state(source.shapes)
        self._ranks, self._estimator, self._source = ranks, estimator, source
        self._query, self._coming = 0, []
        self.lock = nullcontext()  # rank 0 numbers the queries

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
        own = point_digest(self._source, params)
        head, rows = self._ranks.broadcast(f"query of {self.session_id}", None, what="model", own=own)
        self._query = head["query"]
        return Plan(self._query, np.frombuffer(bytearray(rows), np.int64), int(head["seed"], 16))

    def commit(self, query: int, values: dict[str, Any], update: Any = None) -> bool:
        """Drop the values, and let the estimator remember what it saw if rank 0 recorded the query.

        Returns:
            False if rank 0 makes the query again under another number.
        """
        self._ranks.check_added_up()
        values.clear()
        head, _ = self._ranks.broadcast(OUTCOME, None)
        if head["again"]:
            return False
        self.position, self._coming = self._query + 1, head["released"]
        if self.state is not None:
            self.state = self._estimator.apply(self.state, update)
        return True

    def release(self, dtypes: Any = None) -> Values:
        """Return rank 0's release."""
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


def point_digest(source: GradientSource, params: Mapping[str, Tensor]) -> bytes:
    """Return a digest of the point and of the model's buffers, which must be the same on every rank."""
    buffers = () if source.model is None else source.model.named_buffers()
    return tensors_digest([*params.items(), *buffers])
