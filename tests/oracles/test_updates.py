"""``backward``: what it leaves is used once and alone, also by optimizers that take turns."""

import pytest
import torch

import tacita
from tacita.oracles import updates
from tests.devices import on_each_device

device = on_each_device


def grads(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def equal(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_plain_backward_adds_nothing_to_a_release(problem, make_oracle, device):
    """The line of an old script that was left behind would add the batch's own gradient."""
    if device.type != "cpu":
        pytest.skip("an exception in any hook aborts the process on the simulated device")
    model, loss_fn, data = problem
    oracle, optimizer = make_oracle(), torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn(model, data).mean().backward()  # before any release, as when a model is trained on public data
    oracle.backward()
    given = grads(model)
    with pytest.raises(RuntimeError, match=r"delete loss\.backward\(\)"):
        loss_fn(model, data).mean().backward()
    assert equal(grads(model), given)
    torch.autograd.grad(loss_fn(model, data).mean(), model.weight)
    optimizer.step()
    optimizer.zero_grad()
    loss_fn(model, data).mean().backward()
    assert model.weight.grad.abs().sum() > 0


def test_a_release_in_inference_mode_is_one_as_ever(problem, make_oracle):
    model, loss_fn, data = problem
    make_oracle().backward()
    expected = grads(model)
    oracle, optimizer = make_oracle(), torch.optim.SGD(model.parameters(), lr=0.1)  # the same streams
    with torch.inference_mode():
        oracle.backward()
    assert equal(grads(model), expected)
    assert oracle.session.queries_made == 1
    if model.weight.is_cpu:  # an exception in any hook aborts the process on the simulated device
        with pytest.raises(RuntimeError, match=r"delete loss\.backward\(\)"):
            loss_fn(model, data).mean().backward()
    optimizer.step()
    oracle.backward()


def test_a_plain_backward_adds_nothing_after_the_model_has_moved_either(problem):
    """Autograd adds up elsewhere then."""
    model, (x, y) = torch.nn.Linear(4, 1), problem[2]

    def loss_fn(model, batch):
        return (model(batch[0].to(model.weight.dtype)).squeeze(1) - batch[1]).square()

    oracle = tacita.ClippedGradientOracle(
        model,
        loss_fn,
        (x, y),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.FullBatchSampler(num_records=60),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=2,
    )
    oracle.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.double()
    oracle.backward()
    with pytest.raises(RuntimeError, match=r"delete loss\.backward\(\)"):
        loss_fn(model, (x, y)).mean().backward()


def test_two_backwards_without_a_word_are_refused(make_oracle):
    oracle = make_oracle()
    oracle.backward()
    with pytest.raises(RuntimeError, match=r"not updated after the first step: weight, bias\. .*use query\(\)"):
        oracle.backward()
    assert oracle.session.queries_made == 1


def test_optimizers_take_turns(problem, make_oracle):
    """Each steps on its own release; the other's parameters stay where they are, whatever the other optimizer holds."""
    model, oracle = problem[0], make_oracle()
    turns = [[model.weight], [model.bias]]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1) for _ in turns]
    for query in range(6):
        mine, other = turns[query % 2], turns[1 - query % 2][0]
        before = other.detach().clone()
        release = oracle.backward(updates=mine)
        name = "weight" if query % 2 == 0 else "bias"
        assert torch.equal(mine[0].grad, release.gradient[name])
        assert other.grad is None
        optimizers[query % 2].step()
        assert torch.equal(other, before)


def test_whose_turn_it_is_must_be_updated(problem, make_oracle):
    model, oracle = problem[0], make_oracle()
    oracle.backward(updates=[model.weight])
    torch.optim.SGD([model.weight], lr=0.1).step()
    oracle.backward(updates=[model.bias])
    with pytest.raises(RuntimeError, match=r"not updated after the first step: bias\."):
        oracle.backward()


@pytest.mark.parametrize("wrong", ["none", "foreign", "frozen"])
def test_updates_that_are_no_parameters_are_refused(problem, make_oracle, wrong):
    model = problem[0]
    model.bias.requires_grad_(False)
    oracle = make_oracle()
    updates = {"none": [], "foreign": [torch.zeros(1)], "frozen": [model.weight, model.bias]}[wrong]
    with pytest.raises(ValueError, match="updates must hold trainable parameters"):
        oracle.backward(updates=updates)
    assert oracle.session.queries_made == 0


def test_gradients_are_not_kept_alive(problem, make_oracle):
    """A second copy of every gradient would otherwise be held during the next query."""
    import weakref

    model, oracle = problem[0], make_oracle()
    oracle.backward()
    kept = weakref.ref(model.weight.grad)
    model.zero_grad(set_to_none=True)
    assert kept() is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_fused_optimizer_updates_too(problem, make_oracle, kind):
    """PyTorch's fused kernels do not raise the versions by which an update is seen."""
    model, oracle = problem[0], make_oracle()
    optimizer = kind(model.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        oracle.backward()
        optimizer.step()


def test_a_fused_optimizer_of_some_parameters_is_still_refused(problem, make_oracle):
    model, oracle = problem[0], make_oracle()
    oracle.backward()
    torch.optim.SGD([model.weight], lr=0.1, fused=True).step()
    with pytest.raises(RuntimeError, match=r"not updated after the first step: bias\."):
        oracle.backward()


def test_fused_steps_of_other_models_are_left_alone(monkeypatch, make_oracle):
    make_oracle().backward()
    raised = []
    monkeypatch.setattr(updates, "increment_version", raised.append)
    bystander = torch.nn.Parameter(torch.ones(3))
    bystander.grad = torch.ones(3)
    torch.optim.SGD([bystander], lr=0.1, fused=True).step()
    assert not raised


def test_the_last_gradients_are_gone_when_a_query_begins(monkeypatch, problem, make_oracle):
    """Their memory serves the query; after one that raises there is nothing left to step on."""
    model, oracle = problem[0], make_oracle()
    oracle.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    monkeypatch.setattr(oracle, "query", lambda params: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(OSError, match="the disk is full"):
        oracle.backward()
    assert all(p.grad is None for p in model.parameters())
