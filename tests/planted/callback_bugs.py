"""Bugs of what watches a run, of records of several views, and of releases that are saved."""

import math
from dataclasses import replace

import torch

from tacita.gradients import SeveralViews, batches, seeds
from tacita.gradients.data import ItemRows
from tacita.oracles import gate
from tacita.random import Stream
from tacita.runs import checkpoint
from tacita.runs.checkpoint import TrainingState
from tacita.training import fingerprint
from tacita.training.callbacks import Spent, Watch
from tests.planted.plant import bug, put, swap

CALLBACKS = "tests/training/test_callbacks.py::"
PUBLIC = "tests/training/test_public_loss.py::"
SCHEDULES = "tests/training/test_schedules.py::"
VIEWS = "tests/gradients/test_views.py::"


@bug(42, caught_by=[CALLBACKS + "test_what_a_callback_is_handed_is_what_left_the_oracle"])
def sums_handed_to_callbacks():
    """A callback is handed the clipped sum without its noise beside the release."""
    noisy, step = gate.ReleaseGate.release, Watch.step

    def keeping(self, *args):
        self.sums = {name: value.clone() for _, block in self._unreleased[1].items() for name, value in block.items()}
        return noisy(self, *args)

    def telling(self, releases):
        sums = self._state.oracle.gate.sums
        step(self, tuple(replace(release, released={**release.released, "sums": sums}) for release in releases))

    put(gate.ReleaseGate, "release", keeping)
    put(Watch, "step", telling)


@bug(7, 42, caught_by=[CALLBACKS + "test_the_public_numbers_do_not_depend_on_the_records"])
def batch_size_handed_to_callbacks():
    """A callback is told how many records the query drew."""
    whole = Spent.__init__

    def telling(self, oracle, delta):
        whole(self, oracle, delta)
        self.batch_size = len(oracle.draws.batch(max(oracle.gate.position - 1, 0)))

    put(Spent, "__init__", telling)


def watched_without_flush() -> None:
    """Let nothing be flushed while a step is shown to callbacks and measured on public rows."""
    whole = Watch.step

    def hasty(self, releases):
        ledger = self._state.oracle.ledger
        ledger.flush = lambda: None
        whole(self, releases)
        del ledger.flush

    put(Watch, "step", hasty)


@bug(11, 42, caught_by=[CALLBACKS + "test_the_ledger_is_on_disk_before_a_callback"])
def callbacks_before_the_ledger_is_on_disk():
    """A callback is handed a release whose line may still be lost."""
    watched_without_flush()


@bug(42, caught_by=[PUBLIC + "test_it_is_computed_on_public_rows_alone"])
def public_loss_of_private_rows():
    """The loss that is shown, and that may end the run, is that of the private rows."""
    whole = Watch.__init__

    def init(self, state, watching, **more):
        shown = None if watching.public_data is None else state.oracle.source._rows
        whole(self, state, replace(watching, public_data=shown), **more)

    put(Watch, "__init__", init)


@bug(caught_by=[PUBLIC + "test_an_early_end_states_the_plans_epsilon"])
def early_end_unsaid():
    """A run that the public loss has ended states nothing of it."""
    put(TrainingState, "changes_in_words", lambda self: [])


@bug(43, caught_by=[PUBLIC + "test_a_resumed_run_ends_where_an_uninterrupted_one_does"])
def losses_forgotten_on_resume():
    """A resumed run starts to count losses without improvement anew."""
    whole = TrainingState.from_tree
    put(TrainingState, "from_tree", lambda self, tree: whole(self, {**tree, "public_losses": []}))


@bug(43, caught_by=[PUBLIC + "test_a_run_killed_between_its_early_end_and_its_seal_is_finished"])
def early_end_forgotten_on_resume():
    """A run that was ended and killed before its seal goes on with queries that its session has closed."""
    whole = TrainingState.from_tree
    put(TrainingState, "from_tree", lambda self, tree: whole(self, {**tree, "stopped": False}))


@bug(43, caught_by=[SCHEDULES + "test_a_schedule_is_followed_and_resumed_bit_for_bit"])
def schedule_forgotten_on_resume():
    """A resumed run starts its schedule anew."""
    whole = TrainingState.to_tree
    put(TrainingState, "to_tree", lambda self: {**whole(self), "scheduler": None})


@bug(43, caught_by=[SCHEDULES + "test_a_schedule_is_followed_and_resumed_bit_for_bit"])
def milestones_as_texts():
    """A checkpoint turns the numbers of a schedule's milestones into texts, which no step ever equals."""

    def texts(own, saved):
        return {
            key: {str(k): v for k, v in one.items()} if isinstance(one, dict) else one for key, one in saved.items()
        }

    swap(checkpoint._in_types_of, texts)


@bug(43, caught_by=[SCHEDULES + "test_a_data_set_that_draws_when_it_is_read_can_be_resumed"])
def data_bound_to_a_draw():
    """The tag of a data set that draws when it is read covers what it drew, so that no resume finds it again."""
    put(fingerprint, "seed_generators", lambda seed: None)


@bug(22, caught_by=[VIEWS + "test_one_record_moves_the_sum_by_one_threshold_whatever_its_views"])
def views_clipped_one_by_one():
    """Each view of a record is a record of its own: one record moves the sum by as many thresholds."""
    whole = SeveralViews.__getitem__

    def one_view(self, index):
        views = whole(self, index // self.views)
        return batches.map_tensors(lambda tensor: tensor[index % self.views].unsqueeze(0), views)

    put(SeveralViews, "__len__", lambda self: self.views * len(self.dataset[0]))
    put(SeveralViews, "__getitem__", one_view)


@bug(caught_by=[VIEWS + "test_what_a_record_draws_depends_on_the_query_and_the_record_alone"])
def views_drawn_one_after_the_other():
    """What a record draws depends on how many records were read before it."""

    def item(self, index, seed):
        if index == 0:
            seeds.seed_generators(seed)
        return self._dataset[index]

    put(ItemRows, "_item", item)


@bug(42, caught_by=["tests/oracles/test_stretches.py::test_a_saved_release_holds_no_noise_of_other_values"])
def noise_beside_a_release():
    """The memory of a released tensor holds noise of other tensors, and is saved with it."""
    whole = Stream.normals

    def beside(self, shape, *, offset=0, **more):
        return whole(self, (offset + math.prod(shape) + 1,), **more)[offset:-1].view(shape)

    put(Stream, "normals", beside)


@bug(caught_by=["tests/test_containers.py::test_a_dataclass_is_built_anew_for_other_rows"])
def dataclass_copied():
    """One record's dataclass keeps what was computed of the whole batch."""
    import copy

    def mapped(function, batch):
        if isinstance(batch, torch.Tensor) or batch is None:
            return None if batch is None else function(batch)
        made = copy.copy(batch)
        for name in ("x", "y"):
            object.__setattr__(made, name, function(getattr(batch, name)))
        return made

    swap(batches.map_leaves, mapped)
