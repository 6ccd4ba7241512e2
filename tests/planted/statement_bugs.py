"""Bugs of what a statement says beside epsilon: the risk, other runs, and whether the run is private at all."""

import math
import sys

from tacita.accounting.attack_accuracy import attack_accuracy
from tacita.ledger.verdict import verdict
from tacita.pipeline import run_list
from tests.planted.plant import bug, put, swap

ATTACK = "tests/accounting/test_attack_accuracy.py::"
STATEMENT = "tests/ledger/test_statement.py::"
RUNS = "tests/pipeline/test_run_list.py::"
DISCLOSURE = "tests/pipeline/test_disclosure.py::"


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
    swap(verdict, lambda fields: whole({**fields, "secure_randomness": True}))


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
