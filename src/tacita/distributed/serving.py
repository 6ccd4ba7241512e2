"""The ranks as sources and oracles of the core meet them: what they build on each rank.

Place: distributed.process_group, sharded, gates -> [distributed.serving] -> the core, by its ``processes_of``.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita.accounting import RELATIONS, NeighboringRelation
from tacita.distributed.gates import LeaderDraws, LeaderGate, OnRankZero, WorkerGate, point_digest
from tacita.distributed.process_group import Ranks, tensors_digest
from tacita.distributed.sharded import ShardedModel, shard_like
from tacita.errors import UnsupportedEventError
from tacita.estimators.estimator import Estimator
from tacita.gradients.batches import flatten
from tacita.gradients.engine import Shapes
from tacita.gradients.functional import LossFn
from tacita.gradients.network_source import NetworkSource
from tacita.gradients.processes import ALONE, Processes, WholeModel, is_sharded
from tacita.gradients.seeds import fresh_seed
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.gradient_oracle import Stages
from tacita.oracles.payment import SessionPlan

SAMPLED_ROWS = 64  # of a Dataset, where the records of several ranks are compared
SESSION = "session"  # the step at which rank 0 tells what was built


class ServingRanks(Ranks):
    """The ranks of a process group, which share the rows of a source and answer the queries of an oracle."""

    def network(self, model: nn.Module, loss_fn: LossFn) -> WholeModel:
        return ShardedModel(model, loss_fn, self) if is_sharded(model) else WholeModel(model)

    def shard(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        return shard_like(tensor, parameter)

    def stages(
        self, lead: Callable[[], Stages], plan: SessionPlan, mechanism: Mechanism | CalibratedGaussian
    ) -> Stages:
        check_alike(self, plan.settings(mechanism), plan)
        return self._leading(lead(), plan) if self.leads else self._working(plan, mechanism)

    def _leading(self, own: Stages, plan: SessionPlan) -> Stages:
        """Return the stages of rank 0: its own, of which it tells the other ranks."""
        source: Any = plan.data.source
        gate: Any = LeaderGate(own.gate, self)
        draws: Any = LeaderDraws(own.draws, self, own.gate.session_id, source)
        self.broadcast(
            SESSION,
            {
                "id": own.gate.session_id,
                "noise_multiplier": own.mechanism.noise_multiplier,
                "noise_std": dict(own.noise_std),
            },
        )
        return own._replace(gate=gate, draws=draws)

    def _working(self, plan: SessionPlan, mechanism: Mechanism | CalibratedGaussian) -> Stages:
        """Return the stages of another rank, which answer rank 0's queries.

        Raises:
            ValueError: This rank has a ledger or a session of its own.
        """
        if not (plan.payment.ledger is None and plan.payment.session is None):
            raise ValueError(
                f"ledger and session must be None on rank {self.rank}: rank 0 alone pays, draws and adds noise. Write "
                "ledger = tacita.Ledger(...) if rank == 0 else None."
            )
        head, _ = self.broadcast(SESSION, None)
        estimator, source, noise_std = plan.estimator, plan.data.source, head["noise_std"]
        resolved = mechanism.at(head["noise_multiplier"]) if isinstance(mechanism, CalibratedGaussian) else mechanism
        gate: Any = WorkerGate(self, head["id"], plan.planned_queries, estimator=estimator, source=source)
        elsewhere: Any = OnRankZero("ledger")
        adds_noise = resolved.on(estimator.steps(source.shapes), noise_std)
        return Stages(elsewhere, adds_noise, noise_std, gate.session, gate, gate)


def ranks_of(group: Any, model: nn.Module) -> Processes:
    """Return the ranks of a process group; of one process that has the whole model, that process alone.

    Raises:
        ValueError: ``group`` is no process group, or ``None`` where the model is sharded.
    """
    if group is None:
        raise ValueError(
            "process_group must be given for a model that fully_shard has sharded (its parameters are DTensors): pass "
            "the group of its mesh, such as torch.distributed.group.WORLD."
        )
    ranks = ServingRanks(group, next(model.parameters(), torch.empty(0)).device)
    return ranks if ranks.size > 1 or is_sharded(model) else ALONE


def check_alike(ranks: Ranks, settings: Mapping[str, Any], plan: SessionPlan) -> None:
    """Raise on every rank unless all ranks have the same settings, sensitivities, parameters and records.

    Records in arrays are compared as a whole; of a ``Dataset`` the length and 64 rows that rank 0 chooses.

    Raises:
        RankError: Something differs; the message says what.
    """
    source, rows = plan.data.source, plan.data.rows
    bounds = [_bound(plan.estimator, relation, source.shapes) for relation in RELATIONS]  # no repr has to tell them
    text = json.dumps([dict(settings), bounds], sort_keys=True)
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)  # the address of an object is no setting
    ranks.check_equal("settings", text.encode())
    with source.whole({} if source.model is None else dict(source.model.named_parameters())) as point:
        own = point_digest(source, point)
    ranks.check_equal("model", own)
    head, _ = ranks.broadcast("records", {"seed": fresh_seed()} if ranks.leads else None)
    chosen = b"" if rows is None else np.asarray(rows).tobytes()
    records = _records_digest(source, head["seed"]) if isinstance(source, NetworkSource) else b""
    ranks.check_equal("records", hashlib.sha256(chosen).digest() + records)


def _bound(estimator: Estimator, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float] | None:
    try:
        return estimator.sensitivity(relation, shapes)
    except UnsupportedEventError:
        return None


def _records_digest(source: NetworkSource, seed: int) -> bytes:
    """Return a digest of arrays as a whole, or of a ``Dataset``'s length and 64 rows that ``seed`` chooses."""
    count, arrays = source.num_rows, source.arrays
    if arrays is None:
        chosen = np.array(sorted(Random(seed).sample(range(count), min(SAMPLED_ROWS, count))), np.int64)
        batches = (flatten(batch, len(one.indices))[0] for one, batch, _ in source.read(chosen, None, seed))
        arrays = [tensor for batch in batches for tensor in batch] if count else []
    on_cpu = (array.cpu() if isinstance(array, Tensor) else array for array in arrays)  # in full, order and all
    return tensors_digest((f"{count} {k}", array) for k, array in enumerate(on_cpu))
