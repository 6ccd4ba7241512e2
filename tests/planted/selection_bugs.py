"""Bugs of tuning: a choice that is not charged, charged for less than it costs, or told about."""

import os
import shutil
from dataclasses import replace

import numpy as np

from tacita.accounting import _profile_pairs
from tacita.ledger import Session
from tacita.random import Key, Randomness
from tacita.runs.folder import RunFolder
from tacita.tables import (
    Grid,
    NumberOfRuns,
    best_of,
    choose,
    number_of_runs,
    resume,
    run_cost,
    run_list,
    sweep,
    table_run,
    trials,
)
from tacita.tables import (
    selection_text as statement_text,
)
from tacita.tables.selection_events import ComposedEvent, RepeatAndSelectEvent, WorstOfEvent
from tacita.tables.settings import TableSettings
from tacita.tables.working_folder import WorkingFolder
from tests.planted.plant import bug, put, reform, swap

LAW = "tests/tables/test_number_of_runs.py::"
GRID = "tests/tables/test_grid.py::"
PRICE = "tests/tables/test_price.py::"
INNER = "tests/tables/test_run_cost.py::"
CHOICE = "tests/tables/test_best_of.py::"
CHOOSE = "tests/tables/test_choose.py::"
SWEEP = "tests/tables/test_sweep.py::"
WORDS = "tests/tables/test_selection_text.py::"
REGISTER = "tests/tables/test_run_list.py::"
COMPOSED = "tests/accounting/events/test_composed.py::"


@bug(16, 17, caught_by=[PRICE + "test_what_is_charged_covers_the_exact_divergence"])
def the_choice_costs_nothing():
    """The best of several runs is charged as one run."""
    reform(RepeatAndSelectEvent, rdp=lambda event, queries: event.inner.guarantee(event.inner_queries).rdp)


@bug(
    16,
    caught_by=[
        INNER + "test_calibrated_is_within_the_target_and_close",
        CHOOSE + "test_the_best_comes_out_and_the_whole_is_within_the_target",
    ],
)
def runs_calibrated_as_if_there_were_one():
    """The noise is calibrated for one run, and the session of the choice is registered at that noise."""

    def calibrated(inner_at, runs, relation, target, alongside=()):
        return run_cost.calibrate(inner_at, relation, *target, alongside)

    swap(run_cost.calibrated, calibrated)


@bug(16, caught_by=[LAW + "test_the_number_has_its_law", LAW + "test_it_costs_no_more_than_what_is_accounted"])
def more_runs_than_are_accounted():
    """The number of runs is drawn with a mean that is a tenth larger than the one that is charged."""
    gamma = number_of_runs._gamma
    swap(gamma, lambda mean, shape: gamma(1.1 * mean, shape))


@bug(16, caught_by=[LAW + "test_the_number_has_its_law[5.0-inf]", LAW + "test_chances"])
def poisson_number_with_another_mean():
    """A Poisson number of runs has a mean that is a tenth larger than the one that is charged."""
    poisson = number_of_runs._poisson
    put(number_of_runs, "_poisson", lambda mean: poisson(1.1 * mean))


@bug(16, caught_by=[LAW + "test_the_number_has_its_law"])
def a_fixed_number_of_runs():
    """The number of runs is the mean, whatever is drawn: the proof needs it to be random."""
    put(NumberOfRuns, "draw", lambda self, stream: round(self.mean_runs))


@bug(16, caught_by=[CHOICE + "test_the_session_is_on_disk_before_the_number_is_drawn"])
def the_number_is_drawn_first():
    """The number of runs is drawn before the ledger has the session."""
    choose_best = best_of.best_of

    def hasty(session, sweep, randomness, attempt, place):
        sweep.runs.draw(randomness.session_key(session.id).stream("number of runs"))
        return choose_best(session, sweep, randomness, attempt, place)

    swap(choose_best, hasty)


@bug(16, caught_by=[CHOICE + "test_padding_makes_runs_without_consequence"])
def padded_runs_may_win():
    """Runs that are made for the time that they take are candidates like any other: more runs than are charged."""
    attempts = best_of.best_of

    def generous(session, sweep, randomness, attempt, place):
        keep, best = place.record, []

        def kept(found):
            keep(found or best[-1])

        def attempted(point, coins):
            best.append(attempt(point, coins))
            return best[-1]

        place.record = kept
        return attempts(session, sweep, randomness, attempted, place)

    swap(attempts, generous)


@bug(16, caught_by=[CHOICE + "test_runs_have_points_and_coins_of_their_own"])
def runs_share_their_coins():
    """Every run has the same key, so that runs are not independent."""
    derive = Key.derive
    put(Key, "derive", lambda self, *labels: derive(self, *(labels[:1] if labels[0] == "run" else labels)))


@bug(16, caught_by=[CHOICE + "test_stopped_it_goes_on_with_the_same_number_and_points"])
def another_number_after_a_stop():
    """An interrupted selection draws its number and its points again."""
    load = Randomness.load.__func__

    def loaded(cls, path):
        found = load(cls, path)
        found._key = found._key.next()
        found._sessions = {}
        return found

    put(Randomness, "load", classmethod(loaded))


@bug(16, caught_by=[CHOICE + "test_another_winner_than_the_one_released_is_refused"])
def a_second_winner_is_released():
    """After a release another winner is released at no charge."""
    lookup = Session.lookup

    def blind(self, query):
        return None if self.purpose == best_of.PURPOSE else lookup(self, query)

    put(Session, "lookup", blind)
    put(Session, "spend", lambda self, query, fingerprint="": None)


@bug(
    16,
    caught_by=[
        INNER + "test_a_run_that_plans_more_is_refused",
        CHOOSE + "test_a_run_that_plans_more_than_it_declared_is_refused",
        SWEEP + "test_runs_are_charged_for_what_they_plan",
    ],
)
def runs_may_spend_more_than_declared():
    """Nobody holds a run's ledger against what was declared for it."""
    swap(run_cost.check_ledger, lambda ledger, event: None)


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


@bug(16, caught_by=[COMPOSED + "test_the_worst_is_the_maximum_order_by_order"])
def the_worst_is_the_first():
    """The worst of several events is taken to be the first."""
    put(WorstOfEvent, "_together", lambda self, curves: curves[0])


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


@bug(16, caught_by=[COMPOSED + "test_all_of_them_is_the_composition_of_the_distributions"])
def a_distribution_is_left_out():
    """The privacy loss distribution of a composition is that of its first part."""
    put(ComposedEvent, "_joint_pairs", lambda self, pairs, queries: pairs[0]())


@bug(16, caught_by=[INNER + "test_the_largest_mu_leaves_the_curve_as_it_is"])
def the_free_score_is_too_loud():
    """The score beside a training is given more than the training's curve leaves free."""
    mu = run_cost.largest_mu
    swap(mu, lambda event, queries=1: 1.05 * mu(event, queries))


@bug(16, caught_by=[CHOOSE + "test_values_are_clamped_and_noise_has_the_stated_scale"])
def the_score_has_no_noise():
    """Runs are compared by the exact score."""
    put(trials, "_noise", lambda session: {trials.SCORE: 0.0})


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
    keep, said, made = WorkingFolder.record, statement_text.field_of, []

    def counted(self, found):
        keep(self, found)
        made.append(self.done)

    put(WorkingFolder, "record", counted)
    put(statement_text, "field_of", lambda *args, **kwargs: {**said(*args, **kwargs), "runs": made[-1] if made else 0})


@bug(16, caught_by=[SWEEP + "test_the_number_of_runs_is_nowhere"])
def progress_counts_the_runs():
    """A line is shown for every run."""
    attempt = sweep._CandidateRunner.attempt

    def showing(self, point, randomness):
        self.selecting.task.say("run finished")
        return attempt(self, point, randomness)

    put(sweep._CandidateRunner, "attempt", showing)


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


@bug(41, caught_by=[CHOOSE + "test_stopped_it_goes_on_to_the_same_bits"])
def the_working_folder_stays():
    """The working folder of a finished selection is left behind."""
    put(RunFolder, "finish", lambda self: None)


@bug(16, caught_by=[GRID + "test_weights_make_a_value_likelier"])
def weights_are_forgotten():
    """Points are drawn uniformly, whatever the weights say."""
    put(Grid, "draw", lambda self, stream: int(stream.integers(1, len(self.points))[0]))


@bug(16, caught_by=[REGISTER + "test_a_run_chosen_by_hand_says_so"])
def a_choice_by_hand_is_not_told():
    """A run that was chosen by hand says nothing of it."""
    build = TableSettings.__init__

    def built(self, *args, **fields):
        build(self, *args, **{**fields, "chosen_among": None})

    put(TableSettings, "__init__", built)


@bug(16, caught_by=[REGISTER + "test_runs_under_one_name_are_flagged", REGISTER + "test_statement_shows_the_flag"])
def other_runs_are_not_told():
    """A run on a data set with others is reported as if it were alone."""
    put(run_list, "others", lambda path, dataset: 0)


@bug(16, caught_by=[CHOOSE + "test_what_the_ledger_holds_already_is_part_of_the_target"])
def what_was_registered_before_is_forgotten():
    """A selection is calibrated as if its ledger held nothing else."""
    put(choose, "_alongside", lambda ledger: [])


@bug(
    16,
    72,
    caught_by=[
        CHOOSE + "test_another_selection_is_not_continued",
        CHOOSE + "test_another_ledger_does_not_go_on_with_it",
        CHOOSE + "test_runs_of_a_session_that_never_opened_are_refused",
    ],
)
def another_budget_s_winner():
    """A working folder is gone on with under whatever budget and ledger: its runs come out at the wrong price."""
    put(resume, "check_resumable", lambda ledger, event, settings, folder, key_found: None)


@bug(16, caught_by=[CHOOSE + "test_another_selection_is_not_continued[changes8-ledger.jsonl]"])
def other_records_score_the_rest():
    """An interrupted selection goes on with other records to score: a winner by two measures."""
    put(resume, "bind", lambda run, settings, held_out: settings)


@bug(16, caught_by=[CHOOSE + "test_another_selection_is_not_continued[changes9-ledger.jsonl]"])
def only_row_numbers_are_bound():
    """Of the records that score only their numbers are held against those that the selection began with."""
    put(resume, "data_parts", lambda dataset, key: iter(()))


@bug(caught_by=[CHOOSE + "test_a_folder_of_somebody_else_is_refused_untouched"])
def a_folder_is_taken_over():
    """The working folder may be one that holds something else."""
    put(RunFolder, "empty", True)


@bug(caught_by=[CHOOSE + "test_what_others_put_into_the_folder_stays"])
def everything_in_the_folder_is_removed():
    """At the end the folder goes with whatever is in it."""
    put(RunFolder, "finish", lambda self: shutil.rmtree(self.path))


@bug(16, caught_by=[SWEEP + "test_another_step_size_does_not_go_on_with_a_sweep"])
def a_sweep_goes_on_with_another_step_size():
    """The step size is not part of what an interrupted sweep is held against."""
    bound = table_run.bound_settings
    swap(bound, lambda settings: {name: value for name, value in bound(settings).items() if name != "lr"})


@bug(16, caught_by=[SWEEP + "test_another_test_file_does_not_go_on_with_a_sweep"])
def a_sweep_goes_on_with_another_test_file():
    """The file that ranks the runs is not part of what an interrupted sweep is held against."""
    bind = table_run.bind_to_input
    swap(bind, lambda run, settings, source: bind(run, replace(settings, test_file=None), source))


@bug(16, caught_by=[SWEEP + "test_a_candidate_that_is_refused_is_found_before_the_number_is_drawn"])
def a_refusal_tells_what_was_drawn():
    """A candidate that cannot train is refused when it is drawn, and not before."""
    put(sweep._CandidateRunner, "check", lambda self: None)


@bug(16, caught_by=[WORDS + "test_the_printed_chance_is_not_below_the_true_one"])
def the_chance_is_rounded_down():
    """The chance that time tells the number of runs is printed rounded to the nearest."""
    put(statement_text, "_chance_up", lambda chance: f"{chance:.2g}")


@bug(73, caught_by=[WORDS + "test_a_score_that_chose_the_run_is_said_to_be_too_good"])
def the_winners_score_is_not_qualified():
    """Nobody says that the score of the winner of several runs is too good on average."""
    whole = statement_text.caveats
    swap(whole, lambda sweep, said: [one for one in whole(sweep, said) if "on average" not in one])


@bug(16, caught_by=[PRICE + "test_the_expected_number_is_reached"])
def expected_number_forgotten():
    """The delta of one run is not multiplied by how many runs there are on average."""
    whole = _profile_pairs.SelectedPair._profile

    def of_one(self):
        deltas_at = whole(self)
        return lambda epsilons: deltas_at(epsilons) / self.mean

    put(_profile_pairs.SelectedPair, "_profile", of_one)


@bug(16, caught_by=[PRICE + "test_the_profile_covers_any_order_of_the_results"])
def choice_takes_no_epsilon():
    """Of the profile's two prices only the number of runs is charged, not the shift of epsilon."""
    swap(_profile_pairs.selection_shift, lambda *law: 0.0)


@bug(16, caught_by=[INNER + "test_a_smaller_curve_of_another_mechanism_is_refused"])
def curves_alone_decide():
    """A run is held against the declared curve alone, where the selection is priced by a profile."""
    put(run_cost, "_covered", lambda ledger, declared: True)


@bug(16, caught_by=["tests/accounting/events/test_composed.py::test_the_worst_is_the_maximum_order_by_order"])
def the_first_for_the_worst():
    """The worst of several sessions has the profile of the first."""
    put(_profile_pairs.WorstPair, "_profile", lambda self: _profile_pairs.profile(self.sessions[0]))
