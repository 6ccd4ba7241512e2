"""Bugs of what watches a run, of records of several views, and of releases that are saved."""

import math
from dataclasses import replace

import torch

from tacita.gradients import SeveralViews, batches, seeds
from tacita.gradients.data import ItemRows
from tacita.oracles import gate
from tacita.random import Stream
from tacita.runs import checkpoint
from tacita.training.callbacks import Watch
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


def watched_without_flush() -> None:
    """Let nothing be flushed while a step is shown to callbacks and measured on public rows."""
    whole = Watch.step

    def hasty(self, releases):
        ledger = self._state.oracle.ledger
        ledger.flush = lambda: None
        whole(self, releases)
        del ledger.flush

    put(Watch, "step", hasty)


@bug(42, caught_by=[PUBLIC + "test_it_is_computed_on_public_rows_alone"])
def public_loss_of_private_rows():
    """The loss that is shown, and that may end the run, is that of the private rows."""
    whole = Watch.__init__

    def init(self, state, watching, **more):
        shown = None if watching.public_data is None else state.oracle.source._rows
        whole(self, state, replace(watching, public_data=shown), **more)

    put(Watch, "__init__", init)


@bug(43, caught_by=[SCHEDULES + "test_a_schedule_is_followed_and_resumed_bit_for_bit"])
def milestones_as_texts():
    """A checkpoint turns the numbers of a schedule's milestones into texts, which no step ever equals."""

    def texts(own, saved):
        return {
            key: {str(k): v for k, v in one.items()} if isinstance(one, dict) else one for key, one in saved.items()
        }

    swap(checkpoint._in_types_of, texts)


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
