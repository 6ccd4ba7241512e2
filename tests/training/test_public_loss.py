"""The loss on public data: of the point where the run would end, on public rows alone; and the end that it decides."""

import itertools
import math

import pytest
import torch

import tacita
from tacita.training.public_loss import EarlyStop, public_loss
from tests.training.test_fit import SETTINGS, Stop, loss_fn, problem

PUBLIC = problem(seed=1)[2]
STEPS = 16


def fast(params):
    return torch.optim.SGD(params, lr=0.5)


def run(data=None, **changes):
    model, _, own = problem()
    settings = {**SETTINGS, "optimizer": fast, "randomness": tacita.Randomness.insecure(0), **changes}
    return tacita.fit(model, loss_fn, data or own, **settings)


def weights(found):
    return torch.cat([p.detach().flatten() for p in found.model.parameters()])


@pytest.mark.parametrize("average", ["last", "all", "half", "ema"])
def test_the_loss_is_that_of_the_point_where_the_run_would_end(average):
    found = run(public_data=PUBLIC, average=average)
    assert [made for made, _ in found.public_losses] == list(range(1, STEPS + 1))
    assert found.public_losses[-1][1] == pytest.approx(loss_fn(found.model, PUBLIC).double().mean().item(), rel=1e-6)
    assert torch.equal(weights(found), weights(run(average=average)))  # looking changes no bit
    losses = dict(found.public_losses)
    other = dict(run(public_data=PUBLIC).public_losses)
    apart = [made for made in losses if abs(losses[made] - other[made]) > 1e-7]
    first = {"last": STEPS + 1, "all": 2, "half": STEPS // 2 + 2, "ema": 2}[average]
    assert apart == list(range(first, STEPS + 1))


def test_it_is_computed_on_public_rows_alone():
    """The private rows are not read, whatever they hold."""

    class Counting(torch.utils.data.Dataset):
        reads = 0

        def __len__(self):
            return 30

        def __getitem__(self, index):
            Counting.reads += 1
            return PUBLIC[0][index] + torch.rand(()), PUBLIC[1][index]

    x, y = problem()[2]
    data = Counting()
    first, second = (public_loss(problem()[0], loss_fn, data) for _ in range(2))
    assert first == second  # what its rows draw is the same each time
    assert Counting.reads == 60
    found = run((x[:0], y[:0]), public_data=data, public_every=8)
    assert [made for made, _ in found.public_losses] == [8, 16]
    assert Counting.reads == 120


def test_its_last_value_is_that_of_the_end():
    assert [made for made, _ in run(public_data=PUBLIC, public_every=7).public_losses] == [7, 14, 16]


def test_frozen_modes_come_back():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    model[1].eval()
    public_loss(model, loss_fn, PUBLIC)
    assert (model.training, model[1].training, model[2].training) == (True, False, True)


def test_no_rows_have_no_loss():
    assert math.isnan(public_loss(problem()[0], loss_fn, (torch.zeros(0, 3), torch.zeros(0))))


# -- the end that it decides


@pytest.mark.parametrize(
    ("losses", "patience", "ends"),
    [
        ([3.0, 2.0, 1.0], 1, False),
        ([1.0, 1.0], 1, True),  # as good is no better
        ([1.0, 2.0, 0.5, 0.6], 2, False),
        ([1.0, 2.0, 0.5, 0.6, 0.55], 2, True),
        ([math.nan, math.nan], 2, True),
        ([1.0, math.nan, 0.5], 2, False),
        ([], 1, False),
    ],
)
def test_a_run_ends_after_so_many_losses_that_are_no_improvement(losses, patience, ends):
    assert EarlyStop(patience=patience).ends(losses) == ends


def test_an_improvement_may_have_to_be_a_large_one():
    slow = [1.0 - 0.01 * k for k in range(6)]
    assert not EarlyStop(patience=2).ends(slow)
    assert EarlyStop(patience=2, min_improvement=0.1).ends(slow)


def diverging(params):
    return torch.optim.SGD(params, lr=50.0)


def stopped(**changes):
    early_stop = EarlyStop(patience=2)
    return run(public_data=PUBLIC, early_stop=early_stop, **{"optimizer": diverging, **changes})


def test_an_early_end_states_the_plans_epsilon():
    found = stopped()
    session = found.ledger.sessions[0]
    assert session.closed
    assert session.queries_made == len(found.public_losses) < STEPS
    assert EarlyStop(patience=2).ends([loss for _, loss in found.public_losses])
    assert not EarlyStop(patience=2).ends([loss for _, loss in found.public_losses[:-1]])
    whole = run()
    stated, plan = found.statement.to_json(), whole.statement.to_json()
    assert stated["epsilon"] == plan["epsilon"] == whole.ledger.epsilon(1e-3)
    assert stated["epsilon_spent"] < stated["epsilon"]
    words = " ".join(stated["caveats"])
    assert f"ended after {session.queries_made} of 16 planned queries" in words
    assert "The guarantee is that of the whole plan." in words
    assert "planned queries, by" not in " ".join(plan["caveats"])


def test_the_path_to_an_early_end_is_that_of_the_whole_run():
    found = stopped(average="ema")
    whole = run(public_data=PUBLIC, optimizer=diverging, average="ema")
    assert found.public_losses == whole.public_losses[: len(found.public_losses)]


def test_a_run_whose_loss_improves_is_not_ended():
    found = run(public_data=PUBLIC, early_stop=EarlyStop(patience=STEPS))
    assert found.ledger.sessions[0].queries_made == STEPS


@pytest.mark.parametrize("average", ["last", "ema"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path, average):
    """The losses so far, and the decision, are in the checkpoint: early, late, at the last step."""
    whole = stopped(average=average, folder=tmp_path / "whole")
    steps = len(whole.public_losses)
    for at in (2, steps - 1, steps):
        folder = tmp_path / f"at {at}"

        def stop(releases, spent, at=at):
            if spent.queries == at:
                raise Stop

        with pytest.raises(Stop):
            stopped(average=average, folder=folder, callbacks=[stop])
        resumed = stopped(average=average, folder=folder)
        assert torch.equal(weights(resumed), weights(whole))
        assert resumed.public_losses == whole.public_losses
        assert resumed.ledger.sessions[0].queries_made == steps


def test_a_run_killed_between_its_early_end_and_its_seal_is_finished(monkeypatch, tmp_path):
    """The session is closed, with queries of the plan unused: no further query is made."""
    whole = stopped(folder=tmp_path / "whole")

    def killed(*args, **kwargs):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(tacita.Ledger, "seal", killed)
        with pytest.raises(Stop):
            stopped(folder=tmp_path / "run")
    resumed = stopped(folder=tmp_path / "run")
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.ledger.sessions[0].queries_made == len(whole.public_losses)
    assert "planned queries, by" in " ".join(resumed.statement.to_json()["caveats"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (dict(early_stop=EarlyStop(patience=1)), "early_stop needs public_data"),
        (dict(early_stop=EarlyStop(patience=1), public_data=PUBLIC, average="random"), "without average='random'"),
        (dict(public_every=0, public_data=PUBLIC), "public_every must be"),
    ],
)
def test_wrong_settings_raise_before_anything_is_spent(tmp_path, wrong, says):
    with pytest.raises(ValueError, match=says):
        run(**wrong, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_random_iterate_of_the_callers_is_refused_with_an_early_stop():
    with pytest.raises(ValueError, match="without a RandomIterate"):
        stopped(average=lambda params: tacita.RandomIterate(params, num_steps=STEPS))


@pytest.mark.parametrize(("name", "value"), list(itertools.product(["patience", "min_improvement"], [-1, math.nan])))
def test_an_early_stop_checks_its_settings(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        EarlyStop(**{"patience": 1, name: value})
