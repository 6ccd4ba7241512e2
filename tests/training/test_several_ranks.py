"""A run of ``fit`` on several ranks is rank 0's run, and the others end with its model."""

import pytest
import torch

import tacita
from tacita.errors import RankError, ResumeError
from tacita.oracles import ReleaseGate
from tacita.runs import checkpoint
from tests.devices import models_move_to_the_device, on_each_device
from tests.distributed.ranks import results, run_ranks
from tests.training.small_run import SETTINGS, loss_fn, rows

pytestmark = pytest.mark.usefixtures("models_move")
device, models_move = on_each_device, models_move_to_the_device

QUERIES = 6


class Rows(torch.utils.data.Dataset):
    """A regression on 40 rows; the process stops when ``stop`` rows were read."""

    def __init__(self, stop=None):
        (self.x, self.y), self.stop, self.read = rows(), stop, 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.read += 1
        if self.read == self.stop:
            raise KeyboardInterrupt
        return self.x[index], self.y[index]


def fit(rank, group, folder=None, *, stop=None, seed=0, **changes):
    """Train; only rank 0 starts from the weights of ``seed``. Returns the run and its weights."""
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.1 if rank == 0 else 9.0)
    settings = dict(
        **SETTINGS,
        epochs=1.5,
        folder=folder,
        hardened=True,
        method="loop",
        randomness=tacita.Randomness.insecure(0),
        process_group=group,
    )
    run = tacita.fit(model, loss_fn, Rows(stop), **{**settings, **changes})
    return run, torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return fit(0, None, tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize("average", ["last", "random"])
def test_all_ranks_end_with_the_model_of_one_process(average, alone, tmp_path):
    _, expected = alone if average == "last" else fit(0, None, tmp_path / "alone", average=average)
    found = results(run_ranks(2, lambda rank, group: fit(rank, group, tmp_path / "run", average=average)))
    assert all(torch.equal(weights, expected) for _, weights in found)
    (run, _), (other, _) = found
    assert run.statement.text
    assert run.statement.to_json()["conditional_epsilon"] <= 3.0  # of the loop; its condition is in the statement
    assert run.folder == tmp_path / "run"
    with pytest.raises(AttributeError, match="known to rank 0 alone"):
        other.statement.text  # noqa: B018


@pytest.mark.parametrize(("sizes", "stopped", "stop"), [((2, 3), 1, 56), ((2, 1), 0, 96)])
def test_a_stopped_run_is_continued_by_another_number_of_ranks(sizes, stopped, stop, alone, tmp_path):
    """On a grid the sums have the same bits, so that the redone queries are the ones that were paid for."""

    def work(rank, group, stop=None):
        return fit(rank, group, tmp_path / "run", stop=stop if rank == stopped else None)

    first = run_ranks(sizes[0], lambda rank, group: work(rank, group, stop))
    assert isinstance(first[stopped], KeyboardInterrupt)
    assert all(isinstance(error, RankError) for rank, error in enumerate(first) if rank != stopped)
    ledger = tacita.Ledger.load(tmp_path / "run" / "ledger.jsonl")
    assert 0 < ledger.sessions[0].queries_made < QUERIES
    assert ledger.sessions[0].queries_spent >= ledger.sessions[0].queries_made
    found = results(run_ranks(sizes[1], work))
    assert all(torch.equal(weights, alone[1]) for _, weights in found)
    assert found[0][0].ledger.sessions[0].queries_made == QUERIES


def test_a_plan_that_ends_with_a_redone_query_ends_on_every_rank(tmp_path, monkeypatch):
    """The last query has a line and no checkpoint; redone, its values differ, and no number is left for it."""
    made, save = [], checkpoint.save

    def dying(*arguments):
        made.append(1)
        if len(made) == QUERIES + 1:  # the first checkpoint is made before the first query
            raise KeyboardInterrupt
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", dying)
        first = run_ranks(2, lambda rank, group: fit(rank, group, tmp_path / "run"))
    assert [type(error) for error in first] == [KeyboardInterrupt, RankError]
    monkeypatch.setattr(ReleaseGate, "_fingerprint", lambda self, query, values, elsewhere: "")
    (run, weights), (_, other) = results(run_ranks(2, lambda rank, group: fit(rank, group, tmp_path / "run")))
    assert run.ledger.sessions[0].queries_made == QUERIES
    assert torch.equal(weights, other)


SCHEDULES = {
    "steps": lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.3),
    "plateau": lambda optimizer, steps: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0),
}
PUBLIC = [Rows()[row] for row in range(20)]


def watched(rank, group, folder=None, schedule="plateau", **changes):
    """Train with a schedule, an average, public data and callbacks; returns what fit does, and the steps called."""
    called = []
    settings = dict(
        scheduler=SCHEDULES[schedule],
        average="ema",
        public_data=PUBLIC,
        public_every=1,
        callbacks=[lambda releases, spent: called.append(spent.queries)],
        optimizer=lambda params: torch.optim.SGD(params, lr=1.5),  # so large that the loss grows now and then
    )
    return *fit(rank, group, folder, **{**settings, **changes}), called


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_rank_follows_the_schedule_and_rank_zero_is_the_one_that_is_watched(schedule):
    """Ranks with other parameters than rank 0's are refused in the next query."""
    run, expected, called = watched(0, None, schedule=schedule)
    found = results(run_ranks(2, lambda rank, group: watched(rank, group, schedule=schedule)))
    assert all(torch.equal(weights, expected) for _, weights, _ in found)
    assert [steps for *_, steps in found] == [called, []]
    assert found[0][0].public_losses == run.public_losses
    losses = [loss for _, loss in run.public_losses]
    assert len(losses) == QUERIES
    assert schedule == "steps" or sorted(losses) != losses[::-1]  # the plateau has moved on


def test_an_early_end_is_one_of_all_ranks_also_when_it_is_resumed(tmp_path, monkeypatch):
    """Once in one go; once killed between the end and the seal."""
    stop = dict(early_stop=tacita.EarlyStop(patience=2, min_improvement=100.0))
    run, expected, called = watched(0, None, tmp_path / "alone", **stop)
    assert called == [1, 2, 3]

    def work(rank, group, name):
        return watched(rank, group, tmp_path / name, **stop)

    with monkeypatch.context() as patch:
        patch.setattr(tacita.Ledger, "seal", lambda *arguments: 1 / 0)
        first = run_ranks(2, lambda *of: work(*of, "killed"))
    assert [type(error) for error in first] == [ZeroDivisionError, RankError]
    for name, made in (("whole", called), ("killed", [])):
        found = results(run_ranks(2, lambda *of, name=name: work(*of, name)))
        assert all(torch.equal(weights, expected) for _, weights, _ in found)
        assert [steps for *_, steps in found] == [made, []]
        assert found[0][0].ledger.sessions[0].queries_made == 3
        assert found[0][0].public_losses == run.public_losses


def test_an_error_of_a_callback_ends_the_run_of_all():
    first, second = run_ranks(2, lambda *of: watched(*of, callbacks=[lambda releases, spent: 1 / 0]))
    assert isinstance(first, ZeroDivisionError)
    assert isinstance(second, RankError)


def test_a_sealed_run_gives_every_rank_its_model(alone, tmp_path, monkeypatch):
    monkeypatch.setattr("tacita.runs.run_lifecycle.RunLifecycle.finish", lambda self: 1 / 0)
    found = run_ranks(2, lambda rank, group: fit(rank, group, tmp_path / "run"))
    assert isinstance(found[0], ZeroDivisionError)
    monkeypatch.undo()
    found = results(run_ranks(2, lambda rank, group: fit(rank, group, tmp_path / "run")))
    assert all(torch.equal(weights, alone[1]) for _, weights in found)


def test_an_error_of_rank_zero_ends_the_run_of_all(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    first, second = run_ranks(2, lambda rank, group: fit(rank, group, tmp_path / "run"))
    assert isinstance(first, ResumeError)
    assert isinstance(second, RankError)
    assert "another rank failed" in str(second)


def test_models_that_differ_in_shape_are_refused():
    def work(rank, group):
        tacita.fit(
            torch.nn.Linear(3 + rank, 1), loss_fn, Rows(), target_epsilon=3.0, target_delta=1e-3, epochs=1,
            num_records=40, process_group=group,
        )  # fmt: skip

    assert all("different parameters" in str(error) for error in run_ranks(2, work))
