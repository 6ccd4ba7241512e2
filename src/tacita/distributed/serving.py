"""The ranks as sources and oracles of the core meet them: what they build on each rank.

Place: distributed.process_group, sharded, gates -> [distributed.serving] -> the core, by its ``processes_of``.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from tacita.accounting import RELATIONS, NeighboringRelation
from tacita.distributed.gates import LeaderDraws, LeaderGate, OnRankZero, WorkerGate, point_digest
from tacita.distributed.gather_at_use import GatheringProgram
from tacita.distributed.process_group import Ranks, tensors_digest
from tacita.distributed.sharded import check_shards, first_of_shard, plain, shard_like, shard_names
from tacita.errors import UnsupportedEventError, UnsupportedModuleError
from tacita.estimators import ClippedSum
from tacita.estimators.estimator import Estimator
from tacita.gradients.batches import flatten
from tacita.gradients.engine import Shapes
from tacita.gradients.functional import LossFn, ModuleTree
from tacita.gradients.network_source import NetworkSource
from tacita.gradients.processes import ALONE, Processes, is_dtensor, is_sharded
from tacita.gradients.program.run import Program, build
from tacita.gradients.program.trace import fixed_tensors
from tacita.gradients.seeds import fresh_seed
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism, Mechanism
from tacita.oracles.gradient_oracle import Stages
from tacita.oracles.payment import SessionPlan

SAMPLED_ROWS = 64  # of a Dataset, where the records of several ranks are compared
SESSION = "session"  # the step at which rank 0 tells what was built


class ServingRanks(Ranks):
    """The ranks of a process group, which share the rows of a source and answer the queries of an oracle."""

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
        by_shard, oracle = stays_in_shards(plan.estimator, own.mechanism), secrets.token_hex(16)
        draws: Any = LeaderDraws(own.draws, self, oracle, source, by_shard=by_shard)
        self.broadcast(
            SESSION,
            {
                "id": own.gate.session_id,
                "oracle": oracle,
                "noise_multiplier": own.mechanism.noise_multiplier,
                "noise_std": dict(own.noise_std),
            },
        )
        self.oracle = oracle
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
        adds_noise = resolved.on(estimator.steps(source.shapes), noise_std)
        gate: Any = WorkerGate(
            self,
            head["oracle"],
            head["id"],
            plan.planned_queries,
            estimator=estimator,
            source=source,
            noise=(adds_noise, dict(noise_std)),
            by_shard=stays_in_shards(estimator, adds_noise),
        )
        self.oracle, elsewhere = head["oracle"], cast(Any, OnRankZero("ledger"))
        return Stages(elsewhere, adds_noise, noise_std, gate.session, gate, gate)


class ShardingRanks(ServingRanks):
    """Ranks over which FSDP2 has sharded a model."""

    _names: frozenset[str] = frozenset()
    _by_shard = False  # whether the sums of the present query stay shards

    def stages(self, lead: Callable[[], Stages], plan: SessionPlan, *given: Any) -> Stages:
        source: Any = plan.data.source
        if source.method == "loop":
            raise UnsupportedModuleError(
                'method="loop" runs a whole model, and this one is sharded: use method="program".'
            )
        return super().stages(lead, plan, *given)

    def build(self, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any) -> Program:
        """Make the program of a model, which gathers shards where it reads them."""
        inputs = [*params.values(), *fixed_tensors(ModuleTree(model), params).values()]
        sharded = {k: one.dtype for k, one in enumerate(inputs) if is_dtensor(one)}
        with plain(model):
            own = ModuleTree(model).by_name
            point = {name: own[name] if is_dtensor(p) else p for name, p in params.items()}
            return build(model, loss_fn, point, like, partial(GatheringProgram, gather=self.gathered, sharded=sharded))

    def gathered(self, parameter: Any, dtype: torch.dtype | None = None) -> Tensor:
        """Return a parameter whole, cast to ``dtype`` before it is sent; all ranks are at the same one."""
        if not is_dtensor(parameter):
            return parameter
        read = parameter.to(dtype or parameter.dtype)
        return self.at_once("shards", repr((read.shape, read.dtype)).encode(), read.full_tensor)

    def idle_chunks(self, rows: int, chunk_rows: int | None) -> int:
        of_leader, own = (len(range(rank, rows, self.size)) for rank in (0, self.rank))
        return -(-of_leader // (chunk_rows or max(1, of_leader))) - -(-own // (chunk_rows or max(1, own)))

    def reduced(self, params: Mapping[str, Tensor], name: str, total: Tensor) -> Tensor:
        if not self._by_shard or first_of_shard(params[name]) is None:
            return total
        self._added = True
        what = f"sum of {name} {tuple(total.shape)} {total.dtype}"
        return self.at_once("shards", what.encode(), lambda: shard_like(total, params[name], summed=True))

    def add_up(self, values: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return the sums over all ranks; those that are shards are that already."""
        found = super().add_up([{name: x for name, x in one.items() if not is_dtensor(x)} for one in values])
        return [
            {name: summed.get(name, x) for name, x in one.items()} for one, summed in zip(values, found, strict=True)
        ]

    def begin(self, model: nn.Module, *, by_shard: bool) -> None:
        self._by_shard = by_shard
        if not self._names:
            check_shards(model, self)
            self._names = shard_names(model)
        elif shard_names(model) != self._names:
            raise UnsupportedModuleError(
                "FSDP holds parameters whole that were shards: a forward pass outside of the oracle has not ended. "
                "Build the model and the oracle anew, from a checkpoint."
            )


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
    device = next(model.parameters(), torch.empty(0)).device
    if is_sharded(model):
        sharding = ShardingRanks(group, device)
        with sharding.fail_together():
            sharding.begin(model, by_shard=False)
        return sharding
    ranks = ServingRanks(group, device)
    return ranks if ranks.size > 1 else ALONE


def stays_in_shards(estimator: Estimator, mechanism: Any) -> bool:
    """Return whether each number of a query is summed and gets its noise alone, so that no rank needs all of them.

    Other estimators get whole sums, and every rank the whole release.
    """
    return type(estimator) is ClippedSum and type(mechanism) is GaussianMechanism


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
    point = {} if source.model is None else dict(source.model.named_parameters())
    ranks.check_equal("model", point_digest(ranks, source, point))
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
