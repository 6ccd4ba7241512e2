"""The oracle of a rank other than 0: it computes its share of every query, and keeps no key, no ledger and no noise.

    rank 0      begin -> draw ──> told ──> share ──> summed ──> ledger -> noise ──> handed out ──┃──> release
    rank 1, ...                   told ──> share ──> summed ─────────────────────> handed out ──┃──> release

Place: gradients.process_group -> [oracles.following] -> oracles.gradient_oracle.
Proof: docs/derivations/process-group.md.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from tacita._row_numbers import RowNumbers
from tacita._tree import from_bytes, to_bytes
from tacita.accounting import RELATIONS, NeighboringRelation
from tacita.errors import BudgetExceededError, UnsupportedEventError
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import GradientSource, Shapes
from tacita.gradients.network_source import NetworkSource
from tacita.distributed.process_group import Ranks, tensors_digest
from tacita.gradients.seeds import fresh_seed
from tacita.oracles.records import OracleData


class Plan(NamedTuple):
    """What rank 0 drew for a query: its number, the rows of its batch and the seed of what the model draws itself."""

    query: int
    rows: np.ndarray | RowNumbers
    seed: int


class AtRankZero:
    """Stands on the other ranks for what rank 0 alone has; asking it for anything it does not know raises."""

    def __init__(self, what: str, **known: Any) -> None:
        self._what = what
        vars(self).update(known)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._what}.{name} is known to rank 0 alone, which holds the ledger and the key.")

    def __repr__(self) -> str:
        return f"<{self._what}, which rank 0 holds>"


class FollowingLine:
    """The place of the line on a rank that follows: it knows of a query what rank 0 tells.

    It is asked in the order in which rank 0 asks its own: :meth:`begin`, :meth:`commit`, :meth:`noisy`. The values that
    this rank hands to :meth:`commit` are dropped; what it releases is rank 0's.

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
        self.session: Any = AtRankZero("session", id=session, planned_queries=planned_queries)
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
        """Hold the line for one query; an exception on this rank ends the query on all."""
        with self._ranks.together():
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
        head, rows = self._ranks.told(f"query of {self.session.id}", None, what="model", own=own)
        self._query = head["query"]
        return Plan(self._query, np.frombuffer(bytearray(rows), np.int64), int(head["seed"], 16))

    def commit(self, query: int, values: dict[str, Any], seen: Any = None) -> bool:
        """Drop the values, and let the estimator remember what it saw if rank 0 recorded the query.

        Returns:
            False if rank 0 makes the query again under another number.
        """
        self._ranks.check_added_up()
        values.clear()
        head, _ = self._ranks.told(OUTCOME, None)
        if head["again"]:
            return False
        self.position, self._coming = self._query + 1, head["released"]
        if self.state is not None:
            self.state = self._estimator.remember(self.state, seen)
        return True

    def noisy(self, dtypes: Any = None) -> Values:
        """Return rank 0's release."""
        device = next((p.device for p in self._source.model.parameters()), None) if self._source.model else None
        empty = [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for _, _, shape, dtype in self._coming]
        released: Values = {}
        for (block, name, _, _), tensor in zip(self._coming, self._ranks.handed_out(empty), strict=True):
            released.setdefault(block, {})[name] = tensor
        if self.state is not None:
            self.state = self._estimator.after(self.state, released)
        return released

    def take_over(self) -> None:
        """Continue where rank 0 does, which tells position and state (:func:`tell_state`)."""
        head, state = self._ranks.told(STATE, None)
        self.position, self.state = head["position"], from_bytes(state)


OUTCOME = "outcome"  # the step at which rank 0 tells whether a query counts
SESSION, STATE = "session", "state"  # the steps at which rank 0 tells what was built, and where it resumes


def tell_session(ranks: Ranks, session: str, noise_multiplier: float, noise_std: Mapping[str, float]) -> None:
    """Tell the other ranks which session pays, and how much noise it adds."""
    ranks.told(SESSION, {"id": session, "noise_multiplier": noise_multiplier, "noise_std": dict(noise_std)})


def told_session(ranks: Ranks, ledger: Any, session: Any) -> tuple[str, float, dict[str, float]]:
    """Return what :func:`tell_session` told: the session's id, noise multiplier and noise standard deviations.

    Raises:
        ValueError: This rank has a ledger or a session of its own.
    """
    if not (ledger is None and session is None):
        raise ValueError(
            f"ledger and session must be None on rank {ranks.rank}: rank 0 alone pays, draws and adds noise. Write "
            "ledger = tacita.Ledger(...) if rank == 0 else None."
        )
    head, _ = ranks.told(SESSION, None)
    return head["id"], head["noise_multiplier"], head["noise_std"]


def tell_state(ranks: Ranks, position: int, state: Any) -> None:
    """Tell the other ranks where rank 0 resumes, and with which state of the estimator."""
    if ranks.size > 1:
        ranks.told(STATE, {"position": position}, to_bytes(state))


def tell_plan(session: str, plan: Plan, source: GradientSource, params: Mapping[str, Tensor]) -> None:
    """Tell the other ranks what rank 0 drew, if they ask at the same point ``params``."""
    head = {"query": plan.query, "seed": f"{plan.seed:x}"}
    rows = np.ascontiguousarray(plan.rows, np.int64)
    own = point_digest(source, params)
    source.ranks.told(f"query of {session}", head, rows.tobytes(), what="model", own=own)


def tell_again(ranks: Ranks) -> None:
    """Tell the other ranks that the query is made again under another number."""
    ranks.told(OUTCOME, {"again": True})


def hand_out(ranks: Ranks, released: Values) -> None:
    """Give the other ranks a release, whose line is on disk."""
    named = [(block, name, value) for block, tensors in released.items() for name, value in tensors.items()]
    described = [(block, name, [*value.shape], str(value.dtype).removeprefix("torch.")) for block, name, value in named]
    ranks.told(OUTCOME, {"again": False, "released": described})
    ranks.handed_out([value for _, _, value in named])


def point_digest(source: GradientSource, params: Mapping[str, Tensor]) -> bytes:
    """Return a digest of the point and of the model's buffers, which must be the same on every rank."""
    buffers = () if source.model is None else source.model.named_buffers()
    return tensors_digest([*params.items(), *buffers])


def _bound(estimator: Estimator, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float] | None:
    try:
        return estimator.sensitivity(relation, shapes)
    except UnsupportedEventError:
        return None


def check_alike(ranks: Ranks, settings: Mapping[str, Any], data: OracleData, estimator: Estimator) -> None:
    """Raise on every rank unless all ranks have the same settings, sensitivities, parameters and records.

    Records in arrays are compared as a whole; of a ``Dataset`` the length and 64 rows that rank 0 chooses.

    Raises:
        RankError: Something differs; the message says what.
    """
    if ranks.size == 1:
        return
    bounds = [_bound(estimator, relation, data.source.shapes) for relation in RELATIONS]  # no repr has to tell them
    text = json.dumps([dict(settings), bounds], sort_keys=True)
    ranks.agree("settings", re.sub(r" at 0x[0-9a-fA-F]+", "", text).encode())  # the address of an object is no setting
    model = data.source.model
    with data.source.whole({} if model is None else dict(model.named_parameters())) as point:
        own = point_digest(data.source, point)
    ranks.agree("model", own)
    head, _ = ranks.told("records", {"seed": fresh_seed()} if ranks.leads else None)
    rows = b"" if data.rows is None else np.asarray(data.rows).tobytes()
    records = data.source.records_digest(head["seed"]) if isinstance(data.source, NetworkSource) else b""
    ranks.agree("records", hashlib.sha256(rows).digest() + records)
