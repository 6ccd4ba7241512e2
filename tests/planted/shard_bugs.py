"""Bugs of models that are sharded: which shard a rank keeps, and what the parameters of a query are."""

from contextlib import nullcontext

from tacita.distributed import sharded
from tacita.distributed.sharded import PlainTwin, ShardedModel
from tacita.oracles import updates
from tests.planted.plant import bug, put, swap

SHARDED = "tests/distributed/test_sharded.py::"
SAME = [SHARDED + "test_a_sharded_run_is_that_of_the_whole_model"]


@bug(caught_by=[*SAME, SHARDED + "test_a_shard_is_the_ranks_own_and_its_memory_too"])
def the_shard_of_another_rank():
    """A rank keeps the shard of the release that belongs to the next rank."""
    whole = sharded.shard_like

    def next_ranks(tensor, parameter):
        if not sharded.is_dtensor(parameter):
            return tensor
        rows = -(-len(tensor) // parameter.device_mesh.size())
        return whole(tensor.roll(-rows, 0), parameter)

    swap(whole, next_ranks)


@bug(caught_by=[SHARDED + "test_optimizers_for_lists_of_shards_are_seen_to_step"])
def steps_on_shards_are_not_seen():
    """A step by the kernels for lists of shards counts as none, and the next query is refused."""
    put(updates, "is_dtensor", lambda tensor: False)


@bug(caught_by=[SHARDED + "test_modes_and_hooks_set_after_the_oracle_was_built_are_seen"])
def the_twin_of_the_first_query():
    """Modes, hooks and attributes that are set later are not those of the twin."""
    whole = PlainTwin._fill

    def fill(self, own, given, tensors):
        before = {key: value for key, value in own.items() if key not in ("_parameters", "_modules")}
        before |= {key: value.copy() for key, value in before.items() if key in sharded._HOOKS}
        whole(self, own, given, tensors)
        for key, value in before.items():
            own[key] = value

    put(PlainTwin, "_fill", fill)


@bug(caught_by=[SHARDED + "test_a_model_reached_by_another_way_is_refused"])
def the_sharded_model_may_be_called():
    """A loss that calls the sharded model itself is served: FSDP's hooks run, and its gradients are not in the sums."""
    put(PlainTwin, "check_alone", lambda self, loss_fn: None)
    put(ShardedModel, "_not_called", lambda self: nullcontext())
