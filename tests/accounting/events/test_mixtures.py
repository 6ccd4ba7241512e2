"""Several rows a unit: one row is the Poisson cell, more rows cost more."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq
from scipy.special import logsumexp

from tacita import accounting as acc
from tacita.accounting.renyi_curve import ORDERS, RenyiCurve

DELTA = 1e-5


def epsilon(event, queries):
    return acc.epsilon([acc.Spend(event, queries)], DELTA).epsilon


def test_one_row_is_the_poisson_cell(events):
    unit, poisson = events.unit(0.02, 1.0, 1), events.poisson(0.02, 1.0)
    assert epsilon(unit, 150) == pytest.approx(epsilon(poisson, 150), rel=2e-3)
    assert epsilon(unit, 150) == pytest.approx(1.6543, rel=5e-3)
    whole = np.arange(2.0, 65.0)  # between whole orders dp_accounting's curve is an upper bound, ours exact
    assert unit.guarantee(150).rdp(whole) == pytest.approx(poisson.guarantee(150).rdp(whole), rel=1e-6)
    assert np.all(unit.guarantee(150).rdp(ORDERS[:-4]) <= poisson.guarantee(150).rdp(ORDERS[:-4]) * (1 + 1e-6))


def test_more_rows_cost_more_but_less_than_the_group(events):
    by_rows = [epsilon(events.unit(0.02, 2.0, rows), 100) for rows in (1, 2, 4)]
    assert by_rows[0] < 0.7 * by_rows[1] < 0.7 * 0.7 * by_rows[2]
    all_or_none = epsilon(events.poisson(0.02, 2.0, contribution=4.0), 100)  # four rows under one coin
    assert by_rows[2] < all_or_none


def test_every_row_in_every_query_is_one_gaussian(events):
    assert epsilon(events.unit(1.0, 6.0, 3), 5) == epsilon(events.full(2.0), 5)


def test_a_mixture_written_out_is_the_unit_event(events):
    written = acc.MixtureOfGaussiansEvent(
        relation="add_or_remove_one", shifts=(0.0, 1.5, 3.0), probabilities=(0.81, 0.18, 0.01), noise_std=3.0
    )
    assert epsilon(written, 20) == pytest.approx(epsilon(events.unit(0.1, 2.0, 2), 20), rel=1e-3)


def delta_of_one_query(rate, std, draws, epsilon):
    """The exact delta of a sum with ``draws`` draws of one record: its likelihood ratio grows with what is seen."""
    chances = stats.binom.pmf(range(draws + 1), draws, rate)

    def excess(x):
        return logsumexp((2 * x * np.arange(draws + 1) - np.arange(draws + 1) ** 2) / (2 * std**2), b=chances) - epsilon

    edge = brentq(excess, -50 * std, 50 * std)
    return chances @ stats.norm.sf((edge - np.arange(draws + 1)) / std) - math.exp(epsilon) * stats.norm.sf(edge / std)


def test_a_draw_for_each_micro_batch_is_the_unit_event(events):
    """One query, exactly: accumulating four draws of rate q is a unit of four rows, not one draw of rate 4 q."""
    rate, std, draws = 0.025, 0.9361, 4
    true, claimed = epsilon(events.unit(rate, std, draws), 1), epsilon(events.poisson(draws * rate, std), 1)
    assert delta_of_one_query(rate, std, draws, true) == pytest.approx(DELTA, rel=5e-3)
    assert delta_of_one_query(draws * rate, std, 1, claimed) == pytest.approx(DELTA, rel=5e-3)
    assert delta_of_one_query(rate, std, draws, claimed) > 3 * DELTA, "what is charged as one draw is not private so"


@pytest.mark.parametrize(
    ("micro_batches", "queries", "true"), [((0.025, 0.9361, 4), 100, 9.52), ((0.02, 1.0089, 8), 50, 10.49)]
)
def test_a_draw_for_each_micro_batch_costs_more_than_one_a_step(events, micro_batches, queries, true):
    """Gradient accumulation over Poisson draws, charged as one draw of the whole rate: 8.0 is claimed."""
    rate, std, draws = micro_batches
    assert epsilon(events.poisson(draws * rate, std), queries) == pytest.approx(8.0, rel=2e-3)
    assert epsilon(events.unit(rate, std, draws), queries) == pytest.approx(true, rel=2e-3)


def test_chances_of_zero_and_shifts_of_zero():
    common = {"relation": "add_or_remove_one", "noise_std": 1.0}
    padded = acc.MixtureOfGaussiansEvent(shifts=(0.0, 1.0, 9.0), probabilities=(0.9, 0.1, 0.0), **common)
    plain = acc.MixtureOfGaussiansEvent(shifts=(0.0, 1.0), probabilities=(0.9, 0.1), **common)
    assert epsilon(padded, 5) == epsilon(plain, 5)
    assert epsilon(acc.MixtureOfGaussiansEvent(shifts=(0.0,), probabilities=(1.0,), **common), 5) == 0


@pytest.mark.parametrize("probabilities", [(0.5, 0.4), (0.5,), (1.5, -0.5)])
def test_chances_are_a_distribution(probabilities):
    with pytest.raises(ValueError, match="probabilities must"):
        acc.MixtureOfGaussiansEvent(
            relation="add_or_remove_one", shifts=(0.0, 1.0), probabilities=probabilities, noise_std=1.0
        )


@pytest.mark.parametrize(("rate", "std", "rows", "queries"), [(0.02, 1.0, 4, 50), (0.3, 4.0, 2, 20), (0.05, 1.0, 1, 9)])
def test_rdp_is_above_pld(events, rate, std, rows, queries):
    event = events.unit(rate, std, rows)
    assert epsilon(event, queries) <= RenyiCurve([event.guarantee(queries).rdp]).epsilon(DELTA) < np.inf
