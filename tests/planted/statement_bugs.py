"""Bugs of what a statement says beside epsilon: the risk, other runs, and whether the run is private at all."""

import math
import sys
from types import SimpleNamespace

import numpy as np

from tacita.accounting import curve
from tacita.accounting.curve import attack_accuracy
from tacita.ledger import sections
from tacita.ledger.verdict import exact_score, verdict
from tacita.report import run_charts, run_page
from tacita.report.run_numbers import RunNumbers
from tacita.tables import run_list, statement_versions
from tests.planted.plant import bug, put, swap

ATTACK = "tests/accounting/test_attack_accuracy.py::"
CURVE = "tests/accounting/test_curve.py::"
STATEMENT = "tests/ledger/test_statement.py::"
PAGE = "tests/report/test_run_page.py::"
RUNS = "tests/tables/test_run_list.py::"
DISCLOSURE = "tests/tables/test_disclosure.py::"


@bug(
    46,
    caught_by=[
        ATTACK + "test_it_is_the_most_that_the_guarantee_allows",
        ATTACK + "test_randomised_response_meets_it_and_the_bound_is_not_below",
    ],
)
def risk_at_half_of_epsilon():
    """The chance of an attacker to be right is computed as if epsilon were shared by two directions."""
    swap(attack_accuracy, lambda epsilon, delta, prior=0.5: 1 - (1 - delta) / (1 + math.exp(min(epsilon / 2, 700.0))))


@bug(
    46,
    caught_by=[
        STATEMENT + "test_test_streams_are_said_first",
        DISCLOSURE + "test_a_seed_repeats_a_run_and_is_not_private",
    ],
)
def seeded_run_called_private():
    """A run whose noise came from a seed has the verdict and the risk of one with secret noise."""
    whole = verdict
    swap(whole, lambda fields: whole({**fields, "secure_randomness": True}))


@bug(16, caught_by=[RUNS + "test_no_total_where_none_follows", RUNS + "test_no_total_from_a_list_that_cannot_be_read"])
def any_runs_are_added_up():
    """Epsilons of runs are added up though their relations or units differ, or one of them is not private."""
    put(run_list, "_in_the_way", lambda runs: "")


@bug(16, caught_by=[RUNS + "test_runs_under_one_name_are_added_up"])
def total_of_the_dearest_run():
    """Several runs on the same data are said to guarantee together what the dearest of them guarantees alone."""
    put(run_list, "math", _Dearest(sys.modules["math"]))


class _Dearest:
    """The module ``math``, whose sums are maxima."""

    def __init__(self, whole):
        self._whole = whole

    def __getattr__(self, name):
        return max if name == "fsum" else getattr(self._whole, name)


@bug(65, caught_by=[PAGE + "test_a_changed_run_is_not_shown_as_private"])
def changed_run_reported_as_it_says():
    """The page about a run shows the verdict of its statement, whatever became of its files."""
    put(run_page, "_verdict", lambda run: run_page.VERDICTS[run.fields["verdict"]])


@bug(46, caught_by=[PAGE + "test_printed_bounds_are_never_below_the_computed_ones"])
def bounds_printed_to_nearest():
    """The numbers below the charts of a report are rounded to the nearest, so that half of them promise too much."""
    put(run_charts, "rounded_up", lambda value, digits=4: f"{value:.{digits}g}")


@bug(
    65,
    caught_by=[PAGE + "test_a_changed_run_is_not_shown_as_private", PAGE + "test_a_seeded_run_is_not_shown_as_private"],
)
def curves_without_a_guarantee():
    """A report draws what an attack can find of runs that guarantee nothing, by their claimed epsilon."""
    put(RunNumbers, "guaranteed", True)


@bug(46, caught_by=[PAGE + "test_the_trade_off_of_gaussian_pairs_stays_above_the_exact_one"])
def trade_off_drawn_through_its_corners():
    """The curve of what an attack can find is halved between guessing and the bound."""
    whole = RunNumbers.most_true_positives
    put(RunNumbers, "most_true_positives", lambda run, rates: (whole(run, rates) + rates) / 2)


@bug(46, caught_by=[PAGE + "test_printed_numbers_are_still_bounds"])
def charts_are_rounded_to_the_nearest():
    """The tables of a run's charts call a number "at most" that was rounded down."""
    put(run_charts, "rounded_up", lambda value, digits=4: f"{value:.{digits}g}")


@bug(46, caught_by=[ATTACK + "test_it_is_never_below_the_exact_number"])
def risk_rounded_to_the_nearest():
    """The chance of an attacker to be right may be below the bound by its rounding."""
    put(sys.modules["tacita.accounting.attack_accuracy"], "_ROUNDING", 0.0)


@bug(16, caught_by=[RUNS + "test_a_run_from_a_seed_is_listed_as_one"])
def a_seeded_run_adds_up_as_private():
    """A run whose noise came from a seed is listed as one with secret noise."""
    listed = run_list.record

    def as_secret(settings, randomness, unit):
        listed(settings, SimpleNamespace(session_key=randomness.session_key, secure=True), unit)

    swap(listed, as_secret)


OTHER_VERSION = "tests/tables/test_table_statement.py::test_other_"


@bug(65, caught_by=[OTHER_VERSION + "numbers_are_no_words_of_another_version"])
def any_epsilon_of_another_version_is_believed():
    """Of a statement that names another version, bounds need not follow from the ledger."""
    whole = statement_versions._reworded

    def believed(name, stated, again):
        return name in statement_versions.UPPER_BOUNDS or whole(name, stated, again)

    put(statement_versions, "_reworded", believed)


@bug(65, caught_by=["tests/tables/test_table_statement.py::test_a_verdict_under_conditions_stays_one_in_other_words"])
def conditions_of_a_verdict_are_words():
    """The verdict in a statement of another version may leave out that the guarantee is one under conditions."""
    put(statement_versions, "CONDITIONAL", "\0")


@bug(65, caught_by=[OTHER_VERSION + "words_of_the_same_version_or_without_a_seal_are_a_change"])
def another_version_need_not_be_sealed():
    """A statement that names another version may have other words than its ledger was sealed with."""
    whole = statement_versions.compare_statements
    swap(whole, lambda stated, again, *, sealed: whole(stated, again, sealed=True))


@bug(
    46,
    caught_by=[
        STATEMENT + "test_an_exact_score_has_a_verdict_of_its_own",
        "tests/tables/test_train.py::test_a_score_outside_the_guarantee_is_repeated_in_the_statement",
    ],
)
def exact_score_called_private():
    """A run whose score is exact, of private rows, has the verdict of one without."""
    swap(exact_score, lambda fields: False)


@bug(46, caught_by=[STATEMENT + "test_the_price_of_a_choice_by_hand_stands_first_and_is_rounded_up"])
def price_of_a_choice_left_out():
    """The price of a choice by hand stands under the caveats alone."""
    put(sections, "CHOSEN", "chosen by nobody")


@bug(
    46,
    caught_by=[
        STATEMENT + "test_the_risk_is_said_in_plain_words",
        CURVE + "test_known_sessions_are_told_apart_far_less_than_epsilon_alone_says",
    ],
)
def risk_of_epsilon_alone():
    """The risk is computed from epsilon and delta alone, though the whole privacy curve is known."""
    swap(curve.curve_accuracy, lambda deltas, prior=0.5: 0.731)


@bug(46, caught_by=[CURVE + "test_the_curve_of_mu_lies_above_everywhere", CURVE + "test_mu_is_that_of_gaussian_noise"])
def mu_compared_at_one_epsilon():
    """The mu beside epsilon is that of a Gaussian curve which meets the plan's at epsilon 0 alone."""
    whole = curve._lies_above
    swap(
        whole,
        lambda mu, points, wanted: bool(curve.gaussian_deltas(points, np.array(0.97 * mu))[0] >= 0.97 * wanted[0]),
    )


@bug(46, caught_by=[CURVE + "test_no_prior_is_better_in_the_other_direction"])
def priors_do_not_move_epsilon():
    """The risk of an attacker with a prior is read at epsilon of ten times the odds, which is too far out."""
    put(curve, "ROUNDED_UP", 0.5)
