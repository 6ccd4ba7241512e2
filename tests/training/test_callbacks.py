"""What watches a run: it is handed releases and public numbers, and nothing that a record could move."""

import math
import weakref

import pytest
import torch

import tacita
from tacita.ledger import Ledger
from tacita.oracles import Release
from tacita.training.callbacks import Spent
from tests.training.test_fit import SETTINGS, Stop, interrupted, loss_fn, problem

PUBLIC = problem(seed=1)[2]


class Record(tacita.Callback):
    """Keep all that is handed in."""

    def __init__(self):
        self.steps, self.losses, self.ends = [], [], []

    def on_step(self, releases, spent):
        self.steps.append((releases, spent, spent.queries, spent.planned_queries, spent.epsilon_so_far, spent.epsilon))

    def on_public_loss(self, loss, spent):
        self.losses.append((spent.queries, loss))

    def on_end(self, spent):
        self.ends.append(spent.queries)


def run(data=None, **changes):
    model, _, own = problem()
    settings = {**SETTINGS, "randomness": tacita.Randomness.insecure(0), **changes}
    return tacita.fit(model, loss_fn, data or own, **settings)


def test_a_callback_sees_every_step_every_public_loss_and_the_end():
    record, numbers = Record(), []
    found = run(callbacks=[record, lambda releases, spent: numbers.append(spent.queries)], public_data=PUBLIC)
    assert [step[2] for step in record.steps] == numbers == list(range(1, 17))
    assert {step[3] for step in record.steps} == {16}
    assert record.losses == list(found.public_losses)
    assert record.ends == [16]
    assert [release.query for releases, *_ in record.steps for release in releases] == list(range(16))
    so_far = [step[4] for step in record.steps]
    assert so_far == sorted(so_far)
    assert so_far[-1] == found.ledger.made_epsilon(1e-3)
    assert {step[5] for step in record.steps} == {found.ledger.epsilon(1e-3)}


def test_a_callback_may_be_called_less_often():
    record, each = Record(), []
    record.every = 5
    run(callbacks=[record, lambda releases, spent: each.append(spent.queries)], public_data=PUBLIC, public_every=8)
    assert [step[2] for step in record.steps] == [5, 10, 15, 16]
    assert [made for made, _ in record.losses] == [8, 16]
    assert len(each) == 16
    record.every = 0
    with pytest.raises(ValueError, match="every must be"):
        run(callbacks=[record])


def test_what_a_callback_is_handed_is_what_left_the_oracle(monkeypatch):
    """The same objects, and those alone: releases, tensors in them, and public numbers."""
    record, left, query = Record(), [], tacita.GradientOracle.query

    def seen(self, params):
        left.append(query(self, params))
        return left[-1]

    monkeypatch.setattr(tacita.GradientOracle, "query", seen)
    run(callbacks=[record])
    assert [releases for releases, *_ in record.steps] == [(release,) for release in left]
    for releases, spent, *_ in record.steps:
        handed = list(contents((releases, spent)))
        assert {type(one) for one in handed} <= {tuple, dict, str, int, float, torch.Tensor, Release, Spent, Ledger}
        tensors = [one for one in handed if isinstance(one, torch.Tensor)]
        released = [*releases[0].gradient.values(), *releases[0].released["all"].values()]
        assert {id(one) for one in tensors} == {id(one) for one in released}
        assert not any(one.requires_grad or one.grad is not None for one in tensors)


def contents(thing):
    """What an argument of a callback holds; a ledger stands for its public lines."""
    yield thing
    if isinstance(thing, tuple | dict):
        for part in [*thing.values(), *thing] if isinstance(thing, dict) else thing:
            yield from contents(part)
    elif isinstance(thing, Release | Spent):
        for part in vars(thing).values():
            yield from contents(part)


def test_the_public_numbers_do_not_depend_on_the_records():
    """Under add_or_remove_one: as many rows as declared, half of them, none."""
    x, y = problem()[2]

    def numbers(rows):
        record = Record()
        run((x[:rows], y[:rows]), callbacks=[record])
        spent = [(step[1].queries, step[1].planned_queries, step[1].delta, *step[2:]) for step in record.steps]
        extra = [{name: value for name, value in vars(step[1]).items() if name[0] != "_"} for step in record.steps]
        noise = [(r.divisor, dict(r.noise_std), r.query) for releases, *_ in record.steps for r in releases]
        return spent, extra, noise

    assert numbers(200) == numbers(100) == numbers(0)


def test_the_ledger_is_on_disk_before_a_callback(monkeypatch, tmp_path):
    """A line that is lost would let a redone query be released with other values under the same noise."""
    lines, flush, path = [], tacita.Ledger.flush, tmp_path / "run" / "ledger.jsonl"
    monkeypatch.setattr(
        tacita.Ledger, "flush", lambda self: flush(self) or lines.append(path.read_text().count("query"))
    )
    seen = []

    def check(releases, spent):
        on_disk = [line for line in path.read_text().splitlines() if '"kind":"query"' in line.replace(" ", "")]
        seen.append((len(on_disk), lines[-1] == path.read_text().count("query")))

    run(callbacks=[check], folder=tmp_path / "run")
    assert seen == [(made, True) for made in range(1, 17)]


def test_callbacks_change_no_bit_whatever_they_do():
    def rude(releases, spent):
        torch.manual_seed(0)
        torch.rand(spent.queries)
        for release in releases:
            for value in release.gradient.values():
                value.zero_()
        model.eval()

    model, _, data = problem()
    found = tacita.fit(model, loss_fn, data, **SETTINGS, callbacks=[rude], randomness=tacita.Randomness.insecure(0))
    assert torch.equal(found.model.weight, run().model.weight)
    assert model.training


def test_releases_are_dropped_where_nobody_asks_for_them(monkeypatch):
    """Else a run would hold the gradient of the last step while it makes the next one."""
    left, query = [], tacita.GradientOracle.query

    def seen(self, params):
        at_query.append(sum(one() is not None for one in left))
        release = query(self, params)
        left.append(weakref.ref(release))
        return release

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            at_step.append(sum(one() is not None for one in left))
            return super().step(closure)

    monkeypatch.setattr(tacita.GradientOracle, "query", seen)
    for callbacks, held in (((), 0), ([lambda releases, spent: None], 1)):
        at_query, at_step = [], []
        run(optimizer=lambda params: Counting(params, lr=0.1), callbacks=callbacks)
        assert set(at_query) == {0}
        assert set(at_step) == {held}


def test_an_exception_ends_the_run_which_can_be_resumed(tmp_path):
    whole = run(folder=tmp_path / "whole")

    def stop(releases, spent):
        if spent.queries == 7:
            raise Stop

    with pytest.raises(Stop):
        run(callbacks=[stop], folder=tmp_path / "run")
    record = Record()
    resumed = run(callbacks=[record], folder=tmp_path / "run")
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert resumed.ledger.sessions[0].queries_made == 16
    assert [step[2] for step in record.steps] == list(range(7, 17))  # the step that was not saved comes again


def test_a_resumed_run_calls_again_from_its_checkpoint(monkeypatch, tmp_path):
    """About twenty checkpoints a run, here one a step: the steps before are not told again."""
    interrupted(monkeypatch, tmp_path / "run", 9)
    record = Record()
    run(callbacks=[record], folder=tmp_path / "run", randomness=None)
    assert [step[2] for step in record.steps] == list(range(10, 17))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [([3], "got int"), ([Record], "got Record"), (lambda releases, spent: None, "must be a list"), (Record(), "list")],
)
def test_what_is_no_callback_is_refused_before_anything_is_spent(tmp_path, wrong, says):
    with pytest.raises(TypeError, match=says):
        run(callbacks=wrong, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_numbers_in_words():
    found = []
    run(callbacks=[lambda releases, spent: found.append(repr(spent))])
    assert found[2] == "Spent(3 of 16 queries, delta=0.001)"
    assert math.isfinite(float(found[2].split("=")[1][:-1]))


def test_a_callback_that_would_fail_or_never_be_called_is_refused_before_a_release():
    class Misspelt(tacita.Callback):
        def on_step_end(self, releases, spent):
            raise AssertionError

    class Short(tacita.Callback):
        def on_end(self):
            raise AssertionError

    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
    for callback, says in [
        (Misspelt(), "callback Misspelt has a method 'on_step_end', which is never called. Did you mean 'on_step'"),
        (Short(), r"Short.on_end must take \(spent\), got \(\)"),
        (lambda releases: None, r"a function in callbacks must take \(releases, spent\), got \(releases\)"),
    ]:
        with pytest.raises(TypeError, match=says):
            run(callbacks=[callback], ledger=ledger)
    assert not ledger.sessions
