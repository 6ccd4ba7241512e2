"""Bugs of models that are sharded: which shard a rank keeps, and what counts as a step of the optimizer."""

from tacita.distributed import sharded
from tacita.oracles import updates
from tests.planted.plant import bug, put, swap

SHARDED = "tests/distributed/test_sharded.py::"
SAME = [SHARDED + "test_a_sharded_run_is_that_of_the_whole_model"]


@bug(caught_by=[*SAME, SHARDED + "test_a_shard_is_the_ranks_own_and_its_memory_too"])
def the_shard_of_another_rank():
    """A rank keeps the shard of the release that belongs to the next rank."""
    whole = sharded.shard_like

    def next_ranks(tensor, parameter, **more):
        if sharded.is_dtensor(tensor) or not sharded.is_dtensor(parameter):
            return tensor
        rows = -(-len(tensor) // parameter.device_mesh.size())
        return whole(tensor.roll(-rows, 0), parameter, **more)

    swap(whole, next_ranks)


@bug(caught_by=[SHARDED + "test_optimizers_for_lists_of_shards_are_seen_to_step"])
def steps_on_shards_are_not_seen():
    """A step by the kernels for lists of shards counts as none, and the next query is refused."""
    put(updates, "is_dtensor", lambda tensor: False)
