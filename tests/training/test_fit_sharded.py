"""``fit`` on a model that FSDP2 has sharded is the run of one process: its weights, its checkpoints, its seal."""

import json

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tacita
from tacita.errors import RankError, ResumeError, UnsupportedModuleError
from tacita.training.loop import Checkpoints
from tests.distributed.processes import run_processes
from tests.distributed.ranks import results
from tests.training.small_run import SETTINGS, loss_fn, rows

QUERIES = 6


class Network(nn.Module):
    """7 is divided by neither 2 nor 3; a frozen layer, whose digest is in the checkpoint, and a buffer."""

    def __init__(self):
        super().__init__()
        self.enter, self.frozen, self.leave = nn.Linear(3, 7), nn.Linear(7, 7), nn.Linear(7, 1)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.full((7,), 1.5))

    def forward(self, x):
        return self.leave(self.frozen(torch.tanh(self.enter(x)) * self.scale))


def make_model(rank=0, group=None, seed=1):
    """The network; shards of rank 0's weights stand on the other ranks only because all ranks have one seed."""
    torch.manual_seed(seed)
    model = Network()
    if rank:
        model.scale.zero_()  # whole on every rank: rank 0's
    if group is not None:
        mesh = init_device_mesh("cpu", (group.size(),))
        fully_shard(model.enter, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def fit(rank=0, group=None, folder=None, *, seed=1, **changes):
    """Train; return the run, and the whole weights at its end."""
    settings = dict(**SETTINGS, epochs=1.5, folder=folder, randomness=tacita.Randomness.insecure(0))
    settings |= dict(process_group=group, max_physical_batch_size=8, **changes)
    x, y = (one.double() for one in rows())
    run = tacita.fit(make_model(rank, group, seed).double(), loss_fn, (x, y), **settings)
    return run, {name: full(one) for name, one in run.model.state_dict().items()}


def full(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def weights_of(size, folder=None, **changes):
    return results(run_processes(size, lambda rank, group: fit(rank, group, folder, **changes)[1]))


def assert_same(found, expected):
    for one in found:
        assert one.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(one[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_sharded_run_ends_with_the_weights_of_one_process(size):
    assert_same(weights_of(size), fit()[1])


CHANGES = {
    "momentum": dict(optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)),
    "ema": dict(average="ema"),
    "half": dict(average="half"),
    "schedule": dict(scheduler=lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.3)),
    "feedback": dict(feedback=tacita.PrivateFeedback(max_feedback_norm=0.2)),
    "adaptive": dict(max_grad_norm="adaptive"),
    "correlated": dict(noise="correlated"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_computed_of_iterates_and_sums_is_that_of_one_process(change):
    changes = {**CHANGES[change]}
    if "max_grad_norm" in changes:
        changes["clipper"] = None
    assert_same(weights_of(2, **changes), fit(**changes)[1])


def killed_after(queries):
    """Let the process that writes checkpoints die once the one of that query is written."""
    save = Checkpoints.save

    def dying(self, state):
        save(self, state)
        if state.oracle.gate.position == queries:
            raise KeyboardInterrupt

    Checkpoints.save = dying  # in a forked process


@pytest.mark.parametrize(("first", "second", "average"), [(2, 1, "last"), (2, 3, "ema"), (3, 2, "last")])
def test_a_killed_run_goes_on_on_another_number_of_ranks(tmp_path, first, second, average):
    folder, changes = tmp_path / "run", dict(average=average)

    def killed(rank, group):
        killed_after(4)
        fit(rank, group, folder, **changes)

    died = run_processes(first, killed)
    assert isinstance(died[0], KeyboardInterrupt)
    assert all(isinstance(one, RankError) for one in died[1:])
    (session,) = tacita.Ledger.load(folder / "ledger.jsonl").sessions
    assert session.queries_made == 4
    assert_same(weights_of(second, folder, **changes), fit(folder=tmp_path / "alone", **changes)[1])
    assert tacita.Ledger.load(folder / "ledger.jsonl").sealed is not None


@pytest.mark.parametrize("publish", ["all", "trainable"])
def test_the_published_model_is_whole_and_a_sealed_run_is_loaded_on_every_rank(tmp_path, publish):
    folder = tmp_path / "run"

    def killed(rank, group):
        tacita.runs.run_lifecycle.RunLifecycle.finish = lambda self: 1 / 0
        fit(rank, group, folder, publish=publish)

    assert isinstance(run_processes(2, killed)[0], ZeroDivisionError)
    (ended,) = weights_of(1, tmp_path / "alone")
    written = safetensors.torch.load((folder / "model.safetensors").read_bytes())
    assert written.keys() == {name for name in ended if publish == "all" or not name.startswith("frozen")}
    for name, value in written.items():
        torch.testing.assert_close(value, ended[name], rtol=1e-9, atol=1e-9)
    assert json.loads((folder / "statement.json").read_text())["files"].keys() == {"model.safetensors"}
    assert_same(weights_of(3, folder, publish=publish), ended)  # trained no more


def test_a_run_of_other_frozen_weights_is_not_continued(tmp_path):
    def killed(rank, group):
        killed_after(4)
        fit(rank, group, tmp_path / "run")

    run_processes(2, killed)
    (first, second) = run_processes(2, lambda rank, group: fit(rank, group, tmp_path / "run", seed=2))
    assert isinstance(first, ResumeError)
    assert "parameters that the model does not train differ" in str(first)
    assert isinstance(second, RankError)


def test_another_optimizer_goes_on_from_the_checkpoint_of_the_shards(tmp_path):
    changes = dict(optimizer=lambda params: torch.optim.SGD(params, lr=0.05))

    def killed(rank, group):
        killed_after(4)
        fit(rank, group, tmp_path / "run")

    run_processes(2, killed)
    found = results(run_processes(3, lambda rank, group: fit(rank, group, tmp_path / "run", **changes)[1]))
    assert_same(found[1:], found[0])
    ledger = tacita.Ledger.load(tmp_path / "run" / "ledger.jsonl")
    assert ledger.sessions[0].queries_made == QUERIES
    text = (tmp_path / "run" / "statement.txt").read_text()
    assert "The optimizer was changed when the run was resumed, after 4 queries" in " ".join(text.split())


REFUSED = {
    "callbacks": dict(callbacks=[lambda releases, spent: None]),
    "public_data": dict(public_data=rows()),
    "export": dict(export=lambda run, folder: None),
    "average='random'": dict(average="random"),
}


@pytest.mark.parametrize("setting", [*REFUSED, "a random iterate"])
def test_what_rank_zero_would_run_alone_is_refused(setting, tmp_path):
    own = dict(average=lambda params: tacita.RandomIterate(params, num_steps=QUERIES))
    changes = REFUSED.get(setting, own)
    found = run_processes(2, lambda rank, group: fit(rank, group, tmp_path / "run", **changes))
    says = setting if setting in REFUSED else "average='random'"
    assert any(f"{says} must be left out" in str(one) for one in found), found
    assert all(isinstance(one, UnsupportedModuleError | RankError) for one in found), found


def test_shards_without_a_process_group_are_refused():
    def work(rank, group):
        fit(rank, None) if group is None else tacita.fit(make_model(rank, group), loss_fn, rows(), **SETTINGS, epochs=1)

    assert all("process_group must be given" in str(one) for one in run_processes(2, work))


def test_an_optimizer_with_shards_of_another_shape_is_refused(tmp_path):
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    self.state[p]["rows"] = p.detach().sum(-1)

    found = run_processes(
        2, lambda rank, group: fit(rank, group, tmp_path / "run", optimizer=lambda params: Odd(params, lr=0.1))
    )
    assert "keeps 'rows' in shards of another shape" in str(found[0])
