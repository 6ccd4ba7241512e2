"""Each rank adds the noise of its own shards, after the query is paid for, and every number gets it exactly once."""

import json
import math
import os
import signal

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import tacita
from tacita.distributed import gates, process_group, serving
from tacita.distributed.gates import ShardNoise, made_whole
from tacita.errors import RankError
from tacita.estimators import ClippedSum
from tests.distributed.processes import run_processes
from tests.distributed.ranks import results
from tests.distributed.test_sharded import flat, make_model, make_oracle, shard, trained, whole


def test_a_release_of_nothing_is_the_noise_of_one_process_bit_for_bit():
    def work(rank=0, group=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 301), nn.Linear(301, 7)).double()
        if group is not None:
            fully_shard(model, mesh=init_device_mesh("cpu", (group.size(),)))
        zero = lambda model, batch: 0.0 * model(batch[0]).sum(1)  # noqa: E731
        oracle = make_oracle(model, rank, group, loss_fn=zero)
        found = oracle.backward().released["all"]
        own = [x.to_local() if isinstance(x, DTensor) else x for x in found.values()]
        return flat(found), torch.cat([x.flatten() for x in own]), oracle.noise_std["all"]

    alone, _, std = work()
    for size in (2, 3):
        for found, own, stated in results(run_processes(size, work)):
            assert torch.equal(found, alone)
            assert stated == std
            share = own.square().mean().item() / std**2  # of this rank alone: chi-square over its degrees of freedom
            assert abs(share - 1) < 5 * math.sqrt(2 / own.numel())


@pytest.mark.parametrize("ranks", ["all", "some"])
def test_every_block_has_a_stream_of_its_own(ranks):
    def work(rank=0, group=None):
        model = make_model()
        if group is not None:
            mesh = init_device_mesh("cpu", (2,))
            fully_shard(model, mesh=mesh, ignored_params=set() if ranks == "all" else {model.enter.weight})
        clipper = tacita.PerLayerClipper(max_grad_norm={"enter": 1.0, "": 2.0})
        return trained(make_oracle(model, rank, group, clipper=clipper))

    alone = work()
    for released, ends in results(run_processes(2, work)):
        torch.testing.assert_close(released, alone[0], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(ends, alone[1], rtol=1e-11, atol=1e-11)


def test_the_line_is_on_disk_before_any_rank_can_know_the_noise(tmp_path):
    path = tmp_path / "ledger.jsonl"

    def work(rank, group):
        ledger, told = None, []
        if rank == 0:
            ledger = tacita.Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row")
        oracle = make_oracle(shard(make_model(), 2), rank, group, ledger=ledger)
        broadcast, flushed = process_group.Ranks.broadcast, []
        if ledger is not None:
            journal = ledger._registry.journal
            flush = journal.sync
            journal.sync = lambda: (flush(), flushed.append(path.read_text().splitlines()))

        def seen(self, step, message, *args, **more):
            if message is not None and message.get("noise"):
                told.append([json.loads(line)["kind"] for line in flushed[-1]].count("query"))
            return broadcast(self, step, message, *args, **more)

        process_group.Ranks.broadcast = seen
        trained(oracle)
        return told

    assert results(run_processes(2, work))[0] == [1, 2, 3, 4]


class Told:
    """Stands for ranks, and gives a table of what each of them drew."""

    def __init__(self, *rows):
        self.rows = rows

    def collect(self, step, own):
        return torch.tensor([own.tolist(), *([row] for row in self.rows)])

    def broadcast_tensors(self, tensors):
        return tensors

    def stop(self, why):
        raise RankError(why)


@pytest.mark.parametrize(
    ("others", "fine"),
    [
        ([[1, 10, 9, 13, 3], [1, 10, 9, 16, 3]], True),
        ([[1, 10, 9, 16, 3], [1, 10, 9, 13, 3]], True),  # in any order
        ([[1, 10, 9, 13, 6], [1, 10, 9, 19, 0]], True),  # an empty shard
        ([[1, 10, 9, 13, 3]], False),  # a rank that drew nothing
        ([[1, 10, 9, 13, 3], [0, 0, 0, 0, 0]], False),
        ([[1, 10, 9, 12, 4], [1, 10, 9, 16, 3]], False),  # an overlap
        ([[1, 10, 9, 13, 3], [1, 10, 9, 13, 3], [1, 10, 9, 16, 3]], False),  # one range twice
        ([[1, 10, 9, 14, 2], [1, 10, 9, 16, 3]], False),  # a gap
        ([[1, 10, 9, 10, 3], [1, 10, 9, 16, 3]], False),  # one range twice for another, of the right size in all
        ([[1, 10, 9, 13, 3], [2, 10, 9, 16, 3]], False),  # another stream
        ([[1, 10, 9, 13, 3], [1, 10, 9, 16, 4]], False),  # too long
    ],
)
def test_nothing_is_released_unless_the_ranges_tile_every_parameter(others, fine):
    noise = ShardNoise({})
    noise.drawn = [(1, 10, 9, 10, 3)]
    if fine:
        assert made_whole({}, noise, Told(*others)) == {}
        return
    with pytest.raises(RankError, match="exactly once: nothing is released"):
        made_whole({}, noise, Told(*others))


def test_a_fingerprint_is_of_every_shard(monkeypatch):
    monkeypatch.setattr(gates, "is_dtensor", lambda x: True)

    class Alone:
        def collect(self, step, own):
            return own

    values = [{"all": {"a": torch.ones(2), "b": torch.full((2,), b)}} for b in (1.0, 1.0, 2.0)]
    first, same, other = (gates.digests(one, Alone()) for one in values)
    assert first == same != other


def test_only_plain_sums_with_plain_noise_stay_shards():
    estimator, noise = ClippedSum(clipper=tacita.FlatClipper(max_grad_norm=1.0)), tacita.GaussianMechanism
    correlated = tacita.CorrelatedGaussian(noise_multiplier=1.0, bands=3, power=0.6)
    assert serving.stays_in_shards(estimator, noise(noise_multiplier=1.0))
    assert not serving.stays_in_shards(estimator, correlated)


def test_a_rank_that_changes_its_own_noise_changes_nothing():
    def work(rank, group):
        oracle = make_oracle(shard(make_model(), 2), rank, group)
        paid = oracle.noise_std["all"]
        if rank == 1:
            oracle.noise_std["all"] = 0.0
        released = flat(oracle.backward().released["all"])
        return paid, released, rank == 0 or oracle.gate._secrets is None

    (paid, released, _), (_, other, forgotten) = results(run_processes(2, work))
    alone = make_oracle(make_model(), 0, None)
    assert torch.equal(released, other)
    torch.testing.assert_close(released, flat(alone.backward().released["all"]), rtol=1e-11, atol=1e-11)
    assert paid == alone.noise_std["all"]
    assert forgotten  # the key of the query's noise


def test_a_rank_that_adds_no_noise_stops_the_release_on_every_rank():
    def work(rank, group):
        oracle = make_oracle(shard(make_model(), 2), rank, group)
        if rank == 1:
            gates.with_noise = lambda mechanism, values, *args: values
        with pytest.raises(RankError):
            oracle.backward()
        return oracle.session.queries_made if rank == 0 else None

    assert results(run_processes(2, work)) == [1, None]  # paid for


def test_a_redone_query_whose_values_differ_on_another_rank_takes_the_next_number():
    def work(rank, group):
        oracle = make_oracle(shard(make_model(), 2), rank, group)
        params = dict(oracle.source.model.named_parameters())
        params = {name: p for name, p in params.items() if p.requires_grad}
        begun = oracle.state_dict() if rank == 0 else {}
        first = oracle.query(params)
        oracle.load_state_dict(begun)
        same = oracle.query(params)
        oracle.load_state_dict(begun)
        if rank == 1:
            shard_like = serving.shard_like
            serving.shard_like = lambda *args, **more: shard_like(*args, **more) + 1e-9
        other = oracle.query(params)
        return [one.query for one in (first, same, other)], flat(first.gradient), flat(same.gradient)

    for queries, first, same in results(run_processes(2, work)):
        assert queries == [0, 0, 1]
        assert torch.equal(first, same)


PLACES = {  # where a rank is killed in the second query -> how many lines the ledger has at least
    "gathers": (DTensor, "full_tensor", 1),
    "sums": (serving.ShardingRanks, "reduced", 1),
    "fingerprint": (gates, "digests", 1),
    "noise": (gates.ShardNoise, "__call__", 2),
    "release": (gates, "made_whole", 2),
}


@pytest.mark.parametrize(
    ("place", "killed", "sizes"),
    [*((place, 1, (2, 3)) for place in PLACES), ("sums", 0, (3, 2)), ("noise", 0, (3, 2)), ("release", 0, (2, 2))],
)
def test_a_rank_is_killed_and_the_run_goes_on_with_others(tmp_path, place, killed, sizes):
    """No number's noise is released with two values, and the ledger has every release."""
    path = tmp_path / "ledger.jsonl"

    def begun(rank, group, resumes):
        more = {}
        if rank == 0:
            ledger = tacita.Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row")
            more = dict(ledger=ledger, session=ledger.sessions[0] if resumes else None)
        oracle = make_oracle(shard(make_model(), group.size()), rank, group, **more)
        return oracle, torch.optim.SGD(oracle.source.model.parameters(), lr=0.1)

    def first(rank, group):
        oracle, optimizer = begun(rank, group, False)
        oracle.backward()
        optimizer.step()
        if rank == 0:
            torch.save(oracle.state_dict(), tmp_path / "oracle.pt")
        torch.save(whole(oracle.source.model), tmp_path / f"model.{rank}")
        if rank == killed:
            owner, name, _ = PLACES[place]
            setattr(owner, name, lambda *args, **more: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(RankError):
            oracle.backward()

    def again(rank, group):
        oracle, optimizer = begun(rank, group, True)
        point = torch.load(tmp_path / "model.0")
        with torch.no_grad():
            for name, p in oracle.source.model.named_parameters():
                p.copy_(serving.shard_like(point[name], p))
        oracle.load_state_dict(torch.load(tmp_path / "oracle.pt") if rank == 0 else {})
        queries = []
        while oracle.remaining_queries:
            queries.append(oracle.backward().query)
            optimizer.step()
        return queries, oracle.session.queries_made if rank == 0 else None

    run_processes(sizes[0], first, may_die=killed)
    lines = [json.loads(line)["kind"] for line in path.read_text().splitlines()].count("query")
    assert lines == PLACES[place][2]
    found = results(run_processes(sizes[1], again))
    queries = found[0][0]
    assert all(one == queries for one, _ in found)
    assert queries[0] == 1 or (queries[0] == 2 and lines == 2)  # that number is left behind
    assert queries[-1] == 3
    assert found[0][1] == 4


def test_two_oracles_on_one_source_have_sums_of_their_own_kind():
    def work(rank=0, group=None):
        model = make_model()
        first = make_oracle(model if group is None else shard(model, 2), rank, group)
        ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row") if rank == 0 else None
        second = tacita.GradientOracle(
            first.source,
            estimator=tacita.AdaptiveClippedSum(divisor=12.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=40),
            ledger=ledger,
            planned_queries=2,
            randomness=tacita.Randomness.insecure(1) if rank == 0 else None,
        )
        params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        return torch.stack([flat(one.query(params).gradient) for one in (first, second, first, second)])

    alone = work()
    for found in results(run_processes(2, work)):
        torch.testing.assert_close(found, alone, rtol=1e-11, atol=1e-11)
