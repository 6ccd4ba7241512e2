"""Bugs of tuning: a choice that is not charged, charged for less than it costs, or told about."""

import os

import numpy as np

from tacita.ledger import Session
from tacita.runs.folder import RunFolder
from tacita.tables import (
    best_of,
    choose,
    run_cost,
    sweep,
    trials,
)
from tacita.tables.selection_events import ComposedEvent
from tacita.tables.settings import TableSettings
from tacita.tables.working_folder import WorkingFolder
from tests.planted.plant import bug, put

INNER = "tests/tables/test_run_cost.py::"
CHOICE = "tests/tables/test_best_of.py::"
CHOOSE = "tests/tables/test_choose.py::"
SWEEP = "tests/tables/test_sweep.py::"
REGISTER = "tests/tables/test_run_list.py::"
COMPOSED = "tests/accounting/events/test_composed.py::"


@bug(16, caught_by=[CHOICE + "test_another_winner_than_the_one_released_is_refused"])
def a_second_winner_is_released():
    """After a release another winner is released at no charge."""
    lookup = Session.lookup

    def blind(self, query):
        return None if self.purpose == best_of.PURPOSE else lookup(self, query)

    put(Session, "lookup", blind)
    put(Session, "spend", lambda self, query, fingerprint="": None)


@bug(16, caught_by=[INNER + "test_a_run_that_plans_more_is_refused"])
def only_the_first_session_is_held_against_the_plan():
    """Of a run's sessions only the first is compared with what was declared."""
    worst = run_cost.worst_curve

    def first(ledger):
        sessions = ledger.sessions[:1]
        return worst(type("OneSession", (), {"sessions": sessions, "shares": ledger.shares}))

    put(run_cost, "worst_curve", first)
    put(run_cost, "_covered", lambda ledger, declared: True)


@bug(16, caught_by=[INNER + "test_the_worst_curve_is_that_of_the_worst_record"])
def parts_overlook_the_dearer():
    """Of a training and a score beside it, the cheaper is taken for the whole."""
    put(run_cost.np, "max", np.min)


@bug(
    16,
    caught_by=[
        COMPOSED + "test_all_of_them_is_the_sum_order_by_order",
        COMPOSED + "test_the_best_of_several_costs_by_the_whole_run",
        CHOOSE + "test_a_score_beside_the_training_is_free",
    ],
)
def the_score_of_a_run_is_free():
    """A score on the records of the training is left out of what a run spends."""
    put(ComposedEvent, "_together", lambda self, curves: curves[0])
    put(ComposedEvent, "_joint_pairs", lambda self, pairs, queries: pairs[0]())


@bug(16, caught_by=[CHOOSE + "test_values_are_clamped_and_noise_has_the_stated_scale"])
def a_record_votes_without_bound():
    """A record's value is not clamped before it enters the score."""
    put(trials.Tensor, "clamp", lambda self, *bounds: self)


@bug(16, caught_by=[CHOICE + "test_the_ledger_tells_nothing_of_the_number"])
def the_ledger_counts_the_runs():
    """The ledger of the selection has a line for every run."""
    keep = WorkingFolder.record
    sessions = []
    opened = Session.open

    def remembered(self):
        opened(self)
        sessions.append(self)

    def telling(self, found):
        keep(self, found)
        session = sessions[-1]
        session._owner.journal.append({"kind": "reserve", "session": session.id, "first": 0, "last": 0})

    put(Session, "open", remembered)
    put(WorkingFolder, "record", telling)


@bug(16, caught_by=[CHOOSE + "test_the_number_of_runs_comes_out_nowhere", SWEEP + "test_the_number_of_runs_is_nowhere"])
def the_statement_tells_the_number():
    """The statement says how many runs were made."""
    keep, said, made = WorkingFolder.record, best_of.field_of, []

    def counted(self, found):
        keep(self, found)
        made.append(self.done)

    put(WorkingFolder, "record", counted)
    for user in (choose, sweep):
        put(user, "field_of", lambda *args, **kwargs: {**said(*args, **kwargs), "runs": made[-1] if made else 0})


@bug(
    16,
    caught_by=[
        CHOICE + "test_the_working_folder_holds_the_best_alone_and_is_private",
        SWEEP + "test_interrupted_its_working_folder_is_private_and_then_gone",
    ],
)
def losers_are_kept():
    """The weights of runs that lost stay in the working folder."""
    put(WorkingFolder, "_remove_others", lambda self: None)
    rank = WorkingFolder.record

    def keep(self, found):
        rank(self, found)
        if self.path is not None and found is not None and not self._weights(self.done - 1).exists():
            self._weights(self.done - 1).write_bytes(b"")

    put(WorkingFolder, "record", keep)


@bug(41, caught_by=[CHOICE + "test_the_working_folder_holds_the_best_alone_and_is_private"])
def the_working_folder_is_open_to_all():
    """The working folder can be entered by everybody."""
    chmod = os.chmod
    put(os, "chmod", lambda path, mode, **rest: chmod(path, 0o755 if mode == 0o700 else mode, **rest))


@bug(16, caught_by=[REGISTER + "test_a_run_chosen_by_hand_says_so"])
def a_choice_by_hand_is_not_told():
    """A run that was chosen by hand says nothing of it."""
    build = TableSettings.__init__

    def built(self, *args, **fields):
        build(self, *args, **{**fields, "chosen_among": None})

    put(TableSettings, "__init__", built)


@bug(caught_by=[CHOOSE + "test_a_folder_of_somebody_else_is_refused_untouched"])
def a_folder_is_taken_over():
    """The working folder may be one that holds something else."""
    put(RunFolder, "empty", True)
