"""Bugs of what a statement says beside epsilon: the risk, other runs, and whether the run is private at all."""

import math
import sys

import numpy as np

from tacita.accounting import curve
from tacita.accounting.curve import attack_accuracy
from tacita.ledger import sections
from tacita.report import run_charts
from tacita.runs import run_list
from tests.planted.plant import bug, put, swap

ATTACK = "tests/accounting/test_attack_accuracy.py::"
CURVE = "tests/accounting/test_curve.py::"
STATEMENT = "tests/ledger/test_statement.py::"
PAGE = "tests/report/test_run_page.py::"
RUNS = "tests/tables/test_run_list.py::"


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


@bug(46, caught_by=[PAGE + "test_printed_bounds_are_never_below_the_computed_ones"])
def bounds_printed_to_nearest():
    """The numbers below the charts of a report are rounded to the nearest, so that half of them promise too much."""
    put(run_charts, "rounded_up", lambda value, digits=4: f"{value:.{digits}g}")


@bug(46, caught_by=[PAGE + "test_printed_numbers_are_still_bounds"])
def charts_are_rounded_to_the_nearest():
    """The tables of a run's charts call a number "at most" that was rounded down."""
    put(run_charts, "rounded_up", lambda value, digits=4: f"{value:.{digits}g}")


@bug(46, caught_by=[ATTACK + "test_it_is_never_below_the_exact_number"])
def risk_rounded_to_the_nearest():
    """The chance of an attacker to be right may be below the bound by its rounding."""
    put(sys.modules["tacita.accounting.curve"], "ACCURACY_ROUNDING", 0.0)


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
