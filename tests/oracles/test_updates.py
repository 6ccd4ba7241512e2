"""``backward`` with a word: several releases in one step, optimizers that take turns; without one, the check stays."""

import pytest
import torch

import tacita
from tacita.oracles import updates
from tests.devices import on_each_device

device = on_each_device


def grads(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def released(*releases):
    return {name: sum(release.gradient[name] for release in releases) for name in releases[0].gradient}


def equal(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_releases_of_one_step_add_up(problem, make_oracle):
    model, oracle = problem[0], make_oracle()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        releases = [oracle.backward(), oracle.backward(accumulate=True), oracle.backward(accumulate=True)]
        torch.testing.assert_close(grads(model), released(*releases))
        optimizer.step()
    assert oracle.remaining_queries == 4
    assert oracle.session.queries_made == 6  # each is a query like any other


def test_a_parameter_that_was_updated_starts_anew(problem, make_oracle):
    """Without zero_grad() too: a release goes into one step."""
    model, oracle = problem[0], make_oracle()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for cleared in (False, True, False):
        first = oracle.backward(accumulate=True)
        assert equal(grads(model), released(first))
        oracle.backward(accumulate=True)
        optimizer.step()
        if cleared:
            optimizer.zero_grad()


def test_cleared_gradients_start_anew(problem, make_oracle):
    model, oracle = problem[0], make_oracle()
    oracle.backward()
    model.zero_grad()
    assert equal(grads(model) if model.weight.grad is not None else {}, {})
    last = oracle.backward(accumulate=True)
    assert equal(grads(model), released(last))


@pytest.mark.parametrize("change", ["in place", "other"])
def test_what_somebody_else_left_in_grad_is_not_added_to(problem, make_oracle, change):
    """A raw gradient would otherwise come out with the noise of the releases alone."""
    model, oracle = problem[0], make_oracle()
    oracle.backward()
    if change == "in place":
        model.bias.grad.mul_(2)
    else:
        model.bias.grad = torch.ones_like(model.bias)
    made = oracle.session.queries_made
    with pytest.raises(RuntimeError, match=r"was changed since: .*bias"):
        oracle.backward(accumulate=True)
    assert oracle.session.queries_made == made  # refused before anything is spent
    for p in model.parameters():
        torch.nn.init.ones_(p)
    model.weight.grad = model.bias.grad = None
    oracle.backward(accumulate=True)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_plain_backward_adds_nothing_to_a_release(problem, make_oracle, device, accumulate):
    """The line of an old script that was left behind would add the batch's own gradient."""
    if device.type != "cpu":
        pytest.skip("an exception in any hook aborts the process on the simulated device")
    model, loss_fn, data = problem
    oracle, optimizer = make_oracle(), torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn(model, data).mean().backward()  # before any release, as when a model is trained on public data
    oracle.backward()
    for _ in range(2):
        given = grads(model)
        with pytest.raises(RuntimeError, match=r"delete loss\.backward\(\)"):
            loss_fn(model, data).mean().backward()
        assert equal(grads(model), given)
        torch.autograd.grad(loss_fn(model, data).mean(), model.weight)
        oracle.backward(accumulate=True) if accumulate else None
    optimizer.step()
    optimizer.zero_grad()
    loss_fn(model, data).mean().backward()
    assert model.weight.grad.abs().sum() > 0


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


def test_gradients_that_were_there_before_the_first_release_are_not_added_to(problem, make_oracle, device):
    model, loss_fn, data = problem
    loss_fn(model, [tensor.to(device) for tensor in data]).mean().backward()
    with pytest.raises(RuntimeError, match="accumulate=True adds to what the last backward"):
        make_oracle().backward(accumulate=True)


def test_who_says_nothing_is_still_checked(problem, make_oracle):
    model, oracle = problem[0], make_oracle()
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    oracle.backward()
    oracle.backward(accumulate=True)
    optimizer.step()
    oracle.backward(accumulate=True)
    with pytest.raises(RuntimeError, match="not updated after the first step: bias"):
        oracle.backward()


def test_two_backwards_without_a_word_are_refused(make_oracle):
    oracle = make_oracle()
    oracle.backward()
    with pytest.raises(RuntimeError, match=r"not updated after the first step: .*backward\(accumulate=True\)"):
        oracle.backward()
    assert oracle.session.queries_made == 1
    oracle.backward(accumulate=True)  # the way out that the message names
    assert oracle.session.queries_made == 2


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
    alone = oracle.backward(accumulate=True)  # a step was made: there is nothing to add to
    assert all(torch.equal(p.grad, alone.gradient[name]) for name, p in model.named_parameters())


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
