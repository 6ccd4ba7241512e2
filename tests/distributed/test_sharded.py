"""An oracle on a model that FSDP2 has sharded releases what it releases on the whole model in one process."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import tacita
from tacita.distributed import serving, sharded
from tacita.errors import BudgetExceededError, RankError, UnsupportedModuleError
from tacita.oracles import trainable
from tests.distributed.processes import run_processes
from tests.distributed.ranks import results

ROWS, QUERIES = 40, 4
X = torch.randn(ROWS, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = X.sum(1)


class Tied(nn.Module):
    """A network with a tied parameter, a frozen one and a buffer; 7 is divided by neither 2 nor 3."""

    def __init__(self):
        super().__init__()
        self.enter, self.inner, self.leave = nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(7, 1)
        self.again = nn.Linear(7, 7)
        self.again.weight = self.inner.weight
        self.frozen = nn.Linear(7, 7)
        for p in self.frozen.parameters():
            p.requires_grad_(False)
        self.register_buffer("scale", torch.full((7,), 1.5))

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        h = h * self.scale.to(h.dtype)  # no policy casts a buffer
        return self.leave(torch.tanh(self.again(torch.tanh(self.frozen(self.inner(h))))))


def loss_fn(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]).square()


def make_model(kind=Tied):
    torch.manual_seed(1)
    return kind().double()


def shard(model, size, root=(), **options):
    mesh = init_device_mesh("cpu", (size,))
    for layer in (model.enter, model.leave):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **{**options, **dict(root)})


def make_oracle(model, rank=0, group=None, kind=tacita.ClippedGradientOracle, loss_fn=loss_fn, **more):
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row") if rank == 0 else None
    settings = dict(
        ledger=ledger,
        sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=ROWS),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=QUERIES,
        process_group=group,
        randomness=tacita.Randomness.insecure(0) if rank == 0 else None,
    )
    return kind(model, loss_fn, (X, Y), **{**settings, **more})


OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
    "foreach": lambda params: torch.optim.AdamW(params, lr=0.05, foreach=True),
    "fused": lambda params: torch.optim.Adam(params, lr=0.05, fused=True),
}


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def flat(gradient):
    return torch.cat([full(gradient[name]).flatten() for name in sorted(gradient)])


def whole(model):
    return {name: full(p) for name, p in model.named_parameters()}


def trained(oracle, optimizer="momentum", public=False):
    """The releases of a run, and the parameters at its end."""
    model = oracle.source.model
    stepped, released = OPTIMIZERS[optimizer](model.parameters()), []
    while oracle.remaining_queries:
        released.append(flat(oracle.backward().gradient))
        for p in model.parameters():
            assert (p.grad is not None) == p.requires_grad
            if isinstance(p, DTensor) and p.requires_grad:
                assert isinstance(p.grad, DTensor)
                assert (p.grad.placements, p.grad.device_mesh) == (p.placements, p.device_mesh)
                assert p.grad.to_local().shape == p.to_local().shape
        stepped.step()
        if public:
            with torch.no_grad():
                model(X[:3])  # FSDP's own forward pass, which leaves the root unsharded
    return torch.stack(released), flat(whole(model))


def on_shards(size, optimizer="momentum", public=False, **more):
    def work(rank, group):
        return trained(make_oracle(shard(make_model(), size), rank, group, **more), optimizer, public)

    return results(run_processes(size, work))


def assert_same(found, alone):
    for released, ends in found:
        torch.testing.assert_close(released, alone[0], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(ends, alone[1], rtol=1e-11, atol=1e-11)
        assert torch.equal(released, found[0][0])
        assert torch.equal(ends, found[0][1])


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_sharded_run_is_that_of_the_whole_model(size, optimizer):
    alone = trained(make_oracle(make_model()), optimizer)
    assert_same(on_shards(size, optimizer), alone)


@pytest.mark.parametrize("optimizer", ["foreach", "fused"])
def test_optimizers_for_lists_of_shards_are_seen_to_step(optimizer):
    assert_same(on_shards(2, optimizer), trained(make_oracle(make_model()), optimizer))


@pytest.mark.parametrize(("size", "rows"), [(2, 5), (3, 1)])
def test_a_rank_with_fewer_physical_batches_computes_along(size, rows):
    more = dict(max_physical_batch_size=rows)
    assert_same(on_shards(size, **more), trained(make_oracle(make_model(), **more)))


def test_the_loop_refuses_shards():
    def build(rank, group):
        make_oracle(shard(make_model(), 2), rank, group, method="loop")

    refusal(2, build, UnsupportedModuleError, 'method="loop" runs a whole model')


def test_a_program_is_traced_once_for_all_queries(monkeypatch):
    made = []
    program = serving.GatheringProgram
    monkeypatch.setattr(serving, "GatheringProgram", lambda *given, **more: made.append(1) or program(*given, **more))

    def work(rank, group):
        oracle = make_oracle(shard(make_model(), 2), rank, group, max_physical_batch_size=8)
        trained(oracle)
        return len(made)

    assert results(run_processes(2, work)) == [1, 1]


def test_a_mesh_with_replicas_of_the_shards_is_served():
    def work(rank, group):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        return trained(make_oracle(fully_shard(make_model(), mesh=mesh), rank, group))

    assert_same(results(run_processes(4, work)), trained(make_oracle(make_model())))


def test_error_feedback_remembers_the_same_on_shards():
    more = dict(feedback=tacita.PrivateFeedback(max_feedback_norm=0.02))

    def work(rank=0, group=None):
        model = make_model() if group is None else shard(make_model(), 2)
        if group is not None:
            model(X[:2]).sum()  # an oracle may be built after a forward pass
        return trained(make_oracle(model, rank, group, kind=tacita.ErrorFeedbackOracle, **more))

    assert_same(results(run_processes(2, work)), work())


def test_modules_that_keep_lists_of_their_parameters_are_served():
    class Recurrent(Tied):
        def __init__(self):
            super().__init__()
            self.enter = nn.LSTM(1, 7, batch_first=True)  # has a list of its parameters beside them

        def forward(self, x):
            return self.leave(self.enter(x.unsqueeze(2))[0][:, -1] * self.frozen(self.scale))

    def work(rank=0, group=None):
        model = make_model(Recurrent)
        for module in (model.inner, model.again):
            module.requires_grad_(False)
        return trained(make_oracle(model if group is None else shard(model, 2), rank, group))

    assert_same(results(run_processes(2, work)), work())


def test_sums_on_a_grid_and_their_noise_have_the_bits_of_one_process():
    more = dict(mechanism=tacita.RoundedGaussian(noise_multiplier=1.0), max_physical_batch_size=4)
    released, ends = trained(make_oracle(make_model(), **more))
    for found in on_shards(3, **more):
        assert torch.equal(found[0], released)
        assert torch.equal(found[1], ends)


def test_without_noise_the_sum_is_that_of_the_clipped_rows():
    more = dict(mechanism=tacita.GaussianMechanism(noise_multiplier=0.0))
    assert_same(on_shards(2, **more), trained(make_oracle(make_model(), **more)))


def test_a_model_whose_root_is_not_sharded_is_served():
    def work(rank, group):
        model, mesh = make_model(), init_device_mesh("cpu", (2,))
        for layer in (model.enter, model.frozen):
            fully_shard(layer, mesh=mesh)
        return trained(make_oracle(model, rank, group), public=True)

    assert_same(results(run_processes(2, work)), trained(make_oracle(make_model())))


def fully(model, mesh, **options):
    fully_shard([model.enter, model.leave], mesh=mesh)
    return fully_shard(model, mesh=mesh, **options)


WAYS = {
    "several modules as one": fully,
    "whole after a forward pass": lambda model, mesh: fully(model, mesh, reshard_after_forward=False),
    "some parameters left whole": lambda model, mesh: fully(model, mesh, ignored_params={model.inner.bias}),
    "the last axis": lambda model, mesh: fully_shard(
        model, mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1) if p.shape[-1] % 2 == 0 else None
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_shard_and_a_public_backward_pass_between(way):
    class Patched(Tied):
        def __init__(self):
            super().__init__()
            self.leave = nn.Linear(7, 1)
            self.leave.forward = type(self.leave).forward.__get__(self.leave)  # bound to the module itself
            self.enter = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 7))

    def work(rank=0, group=None):
        model = make_model(Patched)
        if group is not None:
            model = WAYS[way](model, init_device_mesh("cpu", (2,)))
        oracle = make_oracle(model, rank, group)
        optimizer, released = torch.optim.SGD(model.parameters(), lr=0.1), []
        while oracle.remaining_queries:
            released.append(flat(oracle.backward().gradient))
            optimizer.step()
            loss_fn(model, (X[:4], Y[:4])).mean().backward()  # of public rows, through FSDP
        return torch.stack(released), flat(whole(model))

    assert_same(results(run_processes(2, work)), work())


def test_a_plan_that_is_used_up_ends_on_every_rank():
    def work(rank, group):
        oracle = make_oracle(shard(make_model(), 2), rank, group, planned_queries=1)
        oracle.backward()
        torch.optim.SGD(oracle.source.model.parameters(), lr=0.1).step()
        oracle.backward()

    assert [type(error) for error in run_processes(2, work)] == [BudgetExceededError] * 2


def test_a_public_forward_pass_between_queries_changes_nothing():
    assert_same(on_shards(2, public=True), trained(make_oracle(make_model())))


def test_ranks_without_rows_and_with_empty_shards_stay_in_step():
    more = dict(sampler=tacita.PoissonSampler(sample_rate=0.01, num_records=ROWS), planned_queries=6)
    assert_same(on_shards(3, **more), trained(make_oracle(make_model(), **more)))


def test_between_queries_a_rank_holds_shards_alone():
    def work(rank, group):
        oracle = make_oracle(shard(make_model(), 2), rank, group)
        release = oracle.backward()
        held = [
            p.to_local().untyped_storage().nbytes()
            for p in (*oracle.source.model.parameters(), *release.gradient.values())
        ]
        held += [x.to_local().nbytes for x in release.released["all"].values()]  # beside them their stream's block
        return sum(held)

    params = [*make_model().parameters()]
    whole = sum(p.nbytes * (3 if p.requires_grad else 1) for p in params)
    assert sum(results(run_processes(2, work))) <= 1.2 * whole  # FSDP pads shards to the longest one


def test_modes_and_hooks_set_after_the_oracle_was_built_are_seen():
    class Drops(Tied):
        def __init__(self):
            super().__init__()
            self.drop, self.factor = nn.Dropout(0.5), 1.0

        def forward(self, x):
            return super().forward(self.drop(x)) * self.factor

    def changed(rank=0, group=None):
        model = make_model(Drops)
        sharded = model if group is None else shard(model, 2)
        oracle = make_oracle(sharded, rank, group)
        oracle.backward()
        sharded.eval()
        sharded.factor = 0.5
        sharded.inner.register_forward_hook(lambda module, args, output: output * 1.1)
        sharded.scale.mul_(2)
        torch.optim.SGD(sharded.parameters(), lr=0.0).step()
        return flat(oracle.backward().gradient)

    alone = changed()
    for found in results(run_processes(2, changed)):
        torch.testing.assert_close(found, alone, rtol=1e-11, atol=1e-11)


def test_gradients_are_taken_in_turns_on_shards():
    def work(rank=0, group=None):
        model = make_model()
        model = model if group is None else shard(model, 2)
        oracle = make_oracle(model, rank, group)
        oracle.backward(updates=[model.enter.bias])
        grad = model.enter.bias.grad.full_tensor() if group else model.enter.bias.grad
        none = [p.grad is None for p in model.parameters()]
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        oracle.backward()
        with pytest.raises(RuntimeError, match="not updated after the first step"):
            oracle.backward()  # on every rank, also where a shard is empty
        return grad, none

    alone = work()
    for grad, none in results(run_processes(2, work)):
        torch.testing.assert_close(grad, alone[0], rtol=1e-11, atol=1e-11)
        assert none == alone[1]


@pytest.mark.parametrize("place", ["read", "update"])
def test_a_rank_that_fails_tells_the_others_and_the_query_can_be_asked_again(place):
    def work(rank, group):
        oracle = make_oracle(shard(make_model(), 2), rank, group)
        if rank == 1:
            owner, name = {
                "read": (oracle.source, "read"),
                "update": (oracle._updates, "check"),
            }[place]
            setattr(owner, name, lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError if rank == 1 else RankError):
            oracle.backward()
        if rank == 1:
            delattr(owner, name)
        lines = oracle.session.queries_made if rank == 0 else 0
        return lines, *trained(oracle)

    found = results(run_processes(2, work))
    assert [lines for lines, *_ in found] == [0, 0]
    assert_same([one for _, *one in found], trained(make_oracle(make_model())))


def test_a_rank_that_is_gone_while_parameters_are_gathered_is_an_error():
    def work(rank, group):
        oracle = make_oracle(shard(make_model(), 2), rank, group)
        if rank == 1:
            DTensor.full_tensor = lambda self: (_ for _ in ()).throw(KeyboardInterrupt)
        raised = []
        for _ in range(2):
            try:
                oracle.backward()
            except BaseException as error:
                raised.append((type(error), "lost each other" in str(error)))
                if rank == 1:
                    break
        return raised

    first, second = run_processes(2, work)
    assert first == [(RankError, True)] * 2
    assert second == [(KeyboardInterrupt, False)]


@pytest.mark.parametrize("differs", ["frozen", "unsharded", "values", "method"])
def test_ranks_that_differ_are_refused_when_the_oracle_is_built(differs):
    def work(rank, group):
        model, more = make_model(), {}
        if rank == 1 and differs == "frozen":
            model.leave.bias = nn.Parameter(torch.zeros(1))  # float32
        if rank == 1 and differs == "unsharded":
            init_device_mesh("cpu", (2,))
        else:
            shard(model, 2)
        if rank == 1 and differs == "values":
            model.scale += 1e-9
        if rank == 1 and differs == "method":
            more = dict(method="nonsense")
        make_oracle(model, rank, group, **more)

    first, second = run_processes(2, work)
    assert isinstance(first, RankError)
    assert isinstance(second, ValueError if differs == "method" else RankError)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_a_run_is_resumed_from_its_checkpoint_on_another_number_of_ranks(tmp_path, sizes):
    def part(rank, group, resumes):
        ledger, randomness, more = None, None, {}
        if rank == 0:
            ledger = tacita.Ledger(
                tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row"
            )
            randomness = tacita.Randomness.insecure(0)
            more = dict(session=ledger.sessions[0]) if resumes else {}
        model = shard(make_model(), group.size())
        oracle = make_oracle(model, rank, group, ledger=ledger, randomness=randomness, **more)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        if resumes:
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            checkpoint.load(state, checkpoint_id=tmp_path / "shards")
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            oracle.load_state_dict(torch.load(tmp_path / "oracle.pt") if rank == 0 else {})
        while oracle.remaining_queries > (0 if resumes else 2):
            oracle.backward()
            optimizer.step()
        if not resumes:
            if rank == 0:
                torch.save(oracle.state_dict(), tmp_path / "oracle.pt")
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            checkpoint.save(state, checkpoint_id=tmp_path / "shards")
        if ledger is not None:
            ledger.close()
        return flat(whole(model))

    results(run_processes(sizes[0], lambda rank, group: part(rank, group, False)))
    _, ends = trained(make_oracle(make_model()), "adam")
    for found in results(run_processes(sizes[1], lambda rank, group: part(rank, group, True))):
        torch.testing.assert_close(found, ends, rtol=1e-11, atol=1e-11)


def refusal(size, build, kind, says):
    found = run_processes(size, build)
    assert all(isinstance(error, (kind, RankError)) for error in found), found
    assert any(says in str(error) for error in found), found


def test_shards_without_a_process_group_are_refused():
    def build(rank, group):
        make_oracle(shard(make_model(), 2), rank, None)

    refusal(2, build, ValueError, "process_group must be given")


def test_a_mesh_of_other_ranks_is_refused():
    def build(rank, group):
        pairs = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2])]
        mesh = init_device_mesh("cpu", (3,))
        model = fully_shard(make_model(), mesh=mesh)
        make_oracle(model, 0 if rank == 2 else rank, pairs[rank == 2])

    refusal(3, build, ValueError, "process_group must have the ranks of the mesh")


def test_tensor_parallelism_is_refused():
    def build(rank, group):
        mesh = init_device_mesh("cpu", (2,))
        model = make_model()
        model.leave.weight = nn.Parameter(distribute_tensor(model.leave.weight.detach(), mesh, [Shard(1)]))
        make_oracle(model, rank, group)

    def beside(rank, group):
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
        model = make_model()
        parallelize_module(model.leave, mesh["tensor"], {"": ColwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
        make_oracle(model, rank, group)

    refusal(2, build, UnsupportedModuleError, "hold the whole model on every rank")
    refusal(2, beside, UnsupportedModuleError, "another kind of parallelism")


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
POLICIES = {  # of the layers, of the root
    "bfloat16": (BF16, BF16),
    "output": (BF16, MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)),
    "layers in float32": (MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.bfloat16), BF16),
    "inputs as they are": (BF16, MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)),
}


class ByHand(nn.Module):
    """The whole network under policies, by hand: the parameters cast, and hooks for what modules take and give."""

    def __init__(self, network, layers, root):
        super().__init__()
        self.network = network.bfloat16()
        for policy, modules in ((layers, (network.enter, network.leave)), (root, (network,))):
            for module in modules:
                if module is not network:
                    module.to(policy.param_dtype)
                if policy.cast_forward_inputs:
                    module.register_forward_pre_hook(
                        lambda _, args, dtype=policy.param_dtype: tuple(one.to(dtype) for one in args)
                    )
                if policy.output_dtype is not None:
                    module.register_forward_hook(lambda _, args, out, dtype=policy.output_dtype: out.to(dtype))

    def forward(self, x):
        return self.network(x)


@pytest.mark.parametrize("name", POLICIES)
def test_a_query_under_a_policy_is_that_of_the_whole_model_cast_by_hand(name, monkeypatch):
    """At each point of the sharded run one process asks the same query of the parameters, cast by hand."""
    layers, root = POLICIES[name]
    monkeypatch.setitem(globals(), "X", X.float())
    monkeypatch.setitem(globals(), "Y", Y.float())

    def work(rank, group):
        oracle = make_oracle(shard(make_model().float(), 2, dict(mp_policy=root), mp_policy=layers), rank, group)
        by_hand = ByHand(make_model().float(), layers, root)
        alone = make_oracle(by_hand)
        optimizer = torch.optim.Adam(oracle.source.model.parameters(), lr=0.05)
        found = []
        while oracle.remaining_queries:
            now = whole(oracle.source.model)
            point = {n: now[n.removeprefix("network.")].to(p.dtype) for n, p in trainable(by_hand).items()}
            expected = alone.query(point).gradient
            for one, gradient in oracle.backward().gradient.items():
                assert gradient.dtype == torch.float32  # as the shards are
                found.append((full(gradient), expected[f"network.{one}"]))
            optimizer.step()
        return found

    for found in results(run_processes(2, work)):
        assert len(found) == QUERIES * 7
        for got, expected in found:
            torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


def test_the_forward_pass_of_a_policy_is_fsdps_own():
    """Without noise and clipping a full batch gives the gradient that FSDP2 itself computes."""

    def work(rank, group):
        model = shard(make_model().float(), 2, dict(mp_policy=POLICIES["output"][1]), mp_policy=BF16)
        rows = X[: 2 * (ROWS // 2)].float(), Y.float()
        oracle = make_oracle(
            model, rank, group, sampler=tacita.FullBatchSampler(num_records=ROWS), planned_queries=1,
            clipper=tacita.FlatClipper(max_grad_norm=1e6), mechanism=tacita.GaussianMechanism(noise_multiplier=0.0),
        )  # fmt: skip
        found = {name: full(one) for name, one in oracle.backward().gradient.items()}
        loss_fn(model, [one[rank::2] for one in rows]).sum().backward()
        return [(found[name], 2 * full(p.grad) / ROWS) for name, p in model.named_parameters() if p.requires_grad]

    for pairs in results(run_processes(2, work)):
        for got, expected in pairs:
            torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05 * expected.abs().max().item())


def test_two_ranks_under_a_policy_release_what_one_does():
    def work(rank, group):
        oracle = make_oracle(shard(make_model().float(), group.size(), mp_policy=BF16), rank, group)
        return flat(oracle.backward().gradient)

    (alone,) = results(run_processes(1, work))
    for found in results(run_processes(2, work)):
        torch.testing.assert_close(found, alone, rtol=2e-5, atol=2e-5)


class Words(nn.Module):
    """What it computes is written by the same operators in each dtype."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2, 8)

    def forward(self, x):
        return self.table((x[:, 0] > 0).long()).sum(1)


def test_ranks_with_different_policies_are_refused():
    def build(rank, group):
        read_as = torch.bfloat16 if rank else torch.float32
        policy = MixedPrecisionPolicy(param_dtype=read_as, cast_forward_inputs=False)
        model = fully_shard(Words(), mesh=init_device_mesh("cpu", (2,)), mp_policy=policy)
        make_oracle(model, rank, group, loss_fn=lambda model, batch: model(batch[0]).square())

    assert all(isinstance(one, RankError) for one in run_processes(2, build))


def test_a_parameter_travels_in_the_dtype_of_its_policy(monkeypatch):
    def work(rank, group):
        sent = []
        gathered = DTensor.full_tensor
        monkeypatch.setattr(DTensor, "full_tensor", lambda self: sent.append(self.dtype) or gathered(self))
        oracle = make_oracle(shard(make_model().float(), 2, mp_policy=BF16), rank, group)
        oracle.backward()
        return {*sent}

    assert results(run_processes(2, work)) == [{torch.bfloat16}] * 2


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_policy_whose_sums_would_have_another_precision_is_refused(kind):
    def build(rank, group):
        other = {torch.float32: torch.float64, torch.float64: torch.bfloat16}[kind]
        model = shard(make_model().to(kind), 2, mp_policy=MixedPrecisionPolicy(param_dtype=other))
        make_oracle(model, rank, group)

    refusal(2, build, UnsupportedModuleError, "param_dtype of its MixedPrecisionPolicy")


@pytest.mark.parametrize("way", ["loss", "attribute", "global of a method"])
def test_a_model_reached_by_another_way_is_served(way):
    class Listed(Tied):
        def forward(self, x):
            if way == "global of a method":
                return globals()["_MODEL"].enter(x).sum(1, keepdim=True) + super().forward(x)
            return super().forward(x) + (
                self.layers[0](x[:, :1].expand(-1, 7)).sum(1, keepdim=True) if way == "attribute" else 0
            )

    def work(rank=0, group=None):
        model = make_model(Listed)
        globals()["_MODEL"] = model if group is None else shard(model, 2)
        model.layers = [model.inner]
        more = {}
        if way == "loss":
            more = dict(loss_fn=lambda other, batch: (model(batch[0]).squeeze(1) - batch[1]).square())
        return trained(make_oracle(model, rank, group, **more))

    assert_same(results(run_processes(2, work)), work())


def test_a_model_that_is_sharded_after_the_oracle_was_built_is_refused():
    def build(rank, group):
        model = make_model()
        oracle = make_oracle(model, rank, group)
        shard(model, 2)
        model(X[:2])  # its parameters look whole now
        oracle.backward()

    refusal(2, build, UnsupportedModuleError, "shard the model first")


def test_fsdp1_is_refused():
    def build(rank, group):
        model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"), use_orig_params=True)
        make_oracle(model, rank, group)

    refusal(2, build, UnsupportedModuleError, "shard the model with fully_shard")


def test_a_stationary_test_refuses_shards():
    def build(rank, group):
        tacita.StationaryTest(
            shard(make_model(), 1), loss_fn, (X, Y), num_records=ROWS, epsilon=1.0, alpha=0.1, hessian_lipschitz=1.0,
            max_grad_norm=1.0, declared_max_hessian_norm=1.0, max_tests=1, failure_probability=0.1,
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        )  # fmt: skip

    refusal(1, build, UnsupportedModuleError, "StationaryTest does not take a model that fully_shard has sharded")


def test_a_shard_is_the_ranks_own_and_its_memory_too():
    def work(rank, group):
        mesh = init_device_mesh("cpu", (3,))
        full = torch.arange(21.0).view(7, 3)
        parameter = distribute_tensor(full, mesh, [Shard(0)])
        found = sharded.shard_like(full, parameter)
        return found.to_local(), found.full_tensor(), found.to_local().untyped_storage().nbytes()

    rows = [(0, 3), (3, 6), (6, 7)]
    for (first, last), (local, full, size) in zip(rows, results(run_processes(3, work)), strict=True):
        assert torch.equal(local, torch.arange(21.0).view(7, 3)[first:last])
        assert torch.equal(full, torch.arange(21.0).view(7, 3))
        assert size == local.numel() * 4


def test_the_model_is_left_as_it_was():
    def work(rank, group):
        model = shard(make_model(), 2)
        before = [copy.copy(vars(module)) for module in model.modules()]
        hooks = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
        oracle = make_oracle(model, rank, group)
        oracle.backward()
        same = all(
            a.keys() == vars(m).keys() and all(a[k] is vars(m)[k] for k in a)
            for a, m in zip(before, model.modules(), strict=True)
        )
        return same, hooks == [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]

    assert results(run_processes(2, work)) == [(True, True)] * 2


def test_a_mesh_on_which_a_rank_would_get_the_shard_of_another_is_refused():
    def work(rank, group):
        model = fully_shard(make_model(), mesh=DeviceMesh("cpu", [1, 0]))
        make_oracle(model, rank, group)

    refusal(2, work, UnsupportedModuleError, "ascending order")


def test_a_forward_pass_that_did_not_end_is_refused():
    def work(rank, group):
        model = shard(make_model(), 2)
        oracle = make_oracle(model, rank, group)
        with pytest.raises(RuntimeError):
            model(torch.zeros(1, 99, dtype=torch.float64))
        oracle.backward()

    refusal(2, work, UnsupportedModuleError, "a forward pass outside of the oracle has not ended")


def test_a_hook_on_a_shard_is_refused():
    def work(rank, group):
        model = shard(make_model(), 2)
        oracle = make_oracle(model, rank, group)
        model.enter.weight.register_hook(lambda gradient: 2 * gradient)
        oracle.backward()

    refusal(2, work, UnsupportedModuleError, "'enter.weight' has a hook")


def test_ranks_that_update_different_parameters_are_refused():
    def work(rank, group):
        model = shard(make_model(), 2)
        oracle = make_oracle(model, rank, group)
        oracle.backward(updates=[model.enter.weight] if rank else [model.enter.bias])

    refusal(2, work, RankError, "name different parameters")


def test_the_model_can_be_moved_after_a_query():
    def work(rank, group):
        model = shard(make_model(), 2)
        oracle = make_oracle(model, rank, group)
        oracle.backward()
        model.to("cpu")
        return True

    assert run_processes(2, work) == [True, True]
