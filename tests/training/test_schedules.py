"""Schedules, averages of the caller's and views in the five-line path: a resumed run has the same iterates."""

import functools
from typing import ClassVar

import pytest
import torch
from torch.optim import lr_scheduler as schedules

import tacita
from tacita.runs import checkpoint
from tests.containers import HOLDERS, Items
from tests.devices import models_move_to_the_device, on_each_device
from tests.training.test_fit import SETTINGS, Stop, loss_fn, problem

pytestmark = pytest.mark.usefixtures("models_move")
device, models_move = on_each_device, models_move_to_the_device

PUBLIC = problem(seed=1)[2]
STEPS = 16
SCHEDULES = {
    "milestones": lambda optimizer, steps: schedules.MultiStepLR(optimizer, [5, 9, 9, 12], gamma=0.5),
    "cosine": schedules.CosineAnnealingLR,
    "one cycle": lambda optimizer, steps: schedules.OneCycleLR(optimizer, max_lr=1.0, total_steps=steps),
    "function": lambda optimizer, steps: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "warmup": lambda optimizer, steps: schedules.SequentialLR(
        optimizer,
        [schedules.LinearLR(optimizer, 0.1, total_iters=4), schedules.MultiStepLR(optimizer, [3, 6], gamma=0.3)],
        milestones=[6],
    ),
    "plateau": lambda optimizer, steps: schedules.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9, factor=0.7),
}


class Recorded(torch.optim.SGD):
    """SGD that notes the learning rate of each step."""

    rates: ClassVar[list[float]] = []

    def step(self, closure=None):
        self.rates.append(self.param_groups[0]["lr"])
        return super().step(closure)


def run(data=None, **changes):
    model, _, own = problem()
    optimizer = functools.partial(Recorded, lr=0.5, momentum=0.9)
    settings = {**SETTINGS, "optimizer": optimizer, "randomness": tacita.Randomness.insecure(0), **changes}
    Recorded.rates.clear()
    return tacita.fit(model, loss_fn, data or own, **settings)


def weights(found):
    return torch.cat([p.detach().flatten() for p in found.model.parameters()])


def stop_at(at):
    def stop(releases, spent):
        if spent.queries == at:
            raise Stop

    return [stop]


def killed_and_resumed(folder, at, **changes):
    with pytest.raises(Stop):
        run(**changes, callbacks=stop_at(at), folder=folder)
    return run(**changes, folder=folder)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_followed_and_resumed_bit_for_bit(tmp_path, name):
    changes = {"scheduler": SCHEDULES[name], "public_data": PUBLIC if name == "plateau" else None}
    whole = run(**changes, folder=tmp_path / "whole")
    rates = list(Recorded.rates)
    assert len(rates) == STEPS
    assert len(set(rates)) > 2
    assert name == "plateau" or rates == plain_rates(name)
    resumed = killed_and_resumed(tmp_path / "run", 8, **changes)
    assert Recorded.rates == rates[7:]
    assert torch.equal(weights(resumed), weights(whole))


def plain_rates(name):
    """The rates of a plain PyTorch loop."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5, momentum=0.9)
    scheduler, rates = SCHEDULES[name](optimizer, STEPS), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_a_plateau_moves_on_with_the_public_loss():
    found = run(scheduler=SCHEDULES["plateau"], public_data=PUBLIC, public_every=2)
    seen = list(Recorded.rates)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler, rates, losses = SCHEDULES["plateau"](optimizer, STEPS), [], dict(found.public_losses)
    for made in range(1, STEPS + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        if made in losses:
            scheduler.step(losses[made])
    assert seen == rates
    with pytest.raises(ValueError, match="must not be ReduceLROnPlateau without public_data"):
        run(scheduler=SCHEDULES["plateau"])


def test_another_schedule_on_resume_gets_fresh_noise_and_starts_anew(tmp_path):
    """As with another optimizer: its numbers stay paid for, and the statement says so."""
    with pytest.raises(Stop):
        run(scheduler=SCHEDULES["cosine"], callbacks=stop_at(8), folder=tmp_path / "run")
    resumed = run(scheduler=SCHEDULES["milestones"], folder=tmp_path / "run")
    assert resumed.ledger.sessions[0].queries_made == STEPS
    assert resumed.ledger.epsilon(1e-3) <= 2.0
    assert "was changed when the run was resumed, after 8 queries" in " ".join(resumed.statement.to_json()["caveats"])
    assert Recorded.rates == plain_rates("milestones")[: STEPS - 8]


def test_a_checkpoint_keeps_integer_keys_and_kinds_of_containers(tmp_path):
    """MultiStepLR counts its milestones in a Counter: with texts for keys it would never meet one."""
    checkpoint.save(tmp_path / "c", {"map": {3: 1, "3": 2, 4: {5: torch.ones(1)}}}, {})
    found, _ = checkpoint.load(tmp_path / "c")
    assert found["map"][3] == 1
    assert found["map"]["3"] == 2
    assert found["map"][4][5] == 1
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    own = schedules.MultiStepLR(optimizer, [5, 9, 9]).state_dict()
    checkpoint.save(tmp_path / "c", own, {})
    typed = checkpoint._in_types_of(own, checkpoint.load(tmp_path / "c")[0])
    assert typed == own
    assert type(typed["milestones"]) is type(own["milestones"])


def test_a_schedule_that_no_checkpoint_can_hold_is_refused_before_the_first_query(tmp_path):
    class Odd(schedules.StepLR):
        def state_dict(self):
            return {**super().state_dict(), "odd": object()}

    with pytest.raises(TypeError, match="a checkpoint cannot hold"):
        run(scheduler=lambda optimizer, steps: Odd(optimizer, 1), folder=tmp_path / "run")
    assert not tacita.Ledger.load(tmp_path / "run" / "ledger.jsonl").sessions[0].opened


# -- averages of the caller's

DRAWN = tacita.Randomness.insecure(4).session_key("a key")
AVERAGES = {
    "ema": lambda params: tacita.ExponentialAverage(params, decay=0.8),
    "tail": lambda params: tacita.SuffixAverage(params, skip=11),
    "random": lambda params: tacita.RandomIterate(params, num_steps=STEPS, stream=DRAWN.stream("iterate")),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_of_the_callers_resumes_bit_for_bit(tmp_path, name):
    changes = {"average": AVERAGES[name], "scheduler": SCHEDULES["cosine"]}
    whole = run(**changes, folder=tmp_path / "whole")
    resumed = killed_and_resumed(tmp_path / "run", 13, **changes)
    assert torch.equal(weights(resumed), weights(whole))


def test_other_settings_of_an_average_do_not_resume(tmp_path):
    with pytest.raises(Stop):
        run(average=AVERAGES["ema"], callbacks=stop_at(8), folder=tmp_path / "run")
    for other in (lambda params: tacita.ExponentialAverage(params, decay=0.9), AVERAGES["tail"], "last"):
        with pytest.raises(tacita.ResumeError):
            run(average=other, folder=tmp_path / "run")


def test_what_is_no_average_is_refused():
    with pytest.raises(TypeError, match=r"average must make a tacita\.SuffixAverage.*got dict"):
        run(average=dict)


# -- several views a record


def noisy(record):
    return record[0] + torch.randn(3), record[1]


def test_views_are_those_of_an_oracle_of_ones_own():
    found = run(views=3, augment=noisy)
    model, _, data = problem()
    records = tacita.SeveralViews(data, 3, noisy)
    plain = tacita.fit(
        model, tacita.mean_over_views(loss_fn), records, **SETTINGS, randomness=tacita.Randomness.insecure(0),
        optimizer=functools.partial(Recorded, lr=0.5, momentum=0.9),
    )  # fmt: skip
    assert torch.equal(weights(found), weights(plain))
    assert found.ledger.epsilon(1e-3) == run().ledger.epsilon(1e-3)  # a view costs nothing
    assert not torch.equal(weights(found), weights(run(views=1, augment=noisy)))
    assert run(views=3, augment=noisy, public_data=PUBLIC).public_losses  # public rows have one view each


def test_views_of_records_with_a_collate_fn_and_of_a_part():
    def collate(records):
        return {"x": torch.stack([x for x, _ in records]), "y": torch.tensor([int(y) for _, y in records])}

    def named(model, batch):
        return loss_fn(model, (batch["x"], batch["y"]))

    parts = tacita.split(problem()[2], [0.5, 0.5], randomness=tacita.Randomness.insecure(1))
    settings = {**SETTINGS, "num_records": 100, "views": 2, "augment": noisy}
    model, other = problem()[0], problem()[0]
    key = {"randomness": tacita.Randomness.insecure(0)}
    tacita.fit(model, named, parts[0], **settings, **key, collate_fn=collate, public_data=PUBLIC)
    tacita.fit(other, loss_fn, parts[0], **settings, randomness=tacita.Randomness.insecure(0))
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize(
    "of", [lambda x, y: (x, y), lambda x, y: Items(x, y, HOLDERS["tuple"])], ids=["arrays", "items"]
)
def test_views_resume_bit_for_bit_and_are_bound(tmp_path, of):
    changes = {"data": of(*problem()[2]), "views": 2, "augment": noisy, "folder": tmp_path / "run"}
    whole = run(**{**changes, "folder": tmp_path / "whole"})
    with pytest.raises(Stop):
        run(**changes, callbacks=stop_at(8))
    with pytest.raises(tacita.ResumeError, match="other settings"):  # another program
        run(**{**changes, "views": 3})
    assert torch.equal(weights(run(**changes)), weights(whole))


def test_a_data_set_that_draws_when_it_is_read_can_be_resumed(tmp_path):
    """Its rows are read for the tag of the data under the same seed each time."""
    changes = {"data": Items(*problem()[2], HOLDERS["tuple"], lambda row: row + torch.rand(3))}
    whole = run(**changes, folder=tmp_path / "whole")
    assert torch.equal(weights(killed_and_resumed(tmp_path / "run", 8, **changes)), weights(whole))
    with pytest.raises(Stop):
        run(**changes, callbacks=stop_at(8), folder=tmp_path / "other")
    changed = Items(problem()[2][0] + 1, problem()[2][1], HOLDERS["tuple"], lambda row: row + torch.rand(3))
    with pytest.raises(tacita.ResumeError):
        run(data=changed, folder=tmp_path / "other")
