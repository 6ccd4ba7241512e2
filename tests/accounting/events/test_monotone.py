"""What every event's numbers must do: fall with delta, rise with queries, and be each other's inverse."""

import itertools
import math

import pytest

from tacita import accounting as acc
from tests.accounting.conftest import Events

EVENTS = [event for event in Events.one_of_each() if event.condition is None]
QUERIES = 3


def spent(event, queries=QUERIES):
    return [acc.Spend(event, queries)]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_less_delta_costs_no_less_epsilon(event):
    found = [acc.epsilon(spent(event), delta).epsilon for delta in (1e-4, 1e-5, 1e-8)]
    assert found[0] <= found[1] * (1 + 1e-9)
    assert found[1] <= found[2] * (1 + 1e-9)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_more_queries_cost_no_less(event):
    few, more = (acc.epsilon(spent(event, queries), 1e-5).epsilon for queries in (QUERIES, 2 * QUERIES))
    assert few <= more * (1 + 1e-4)  # the accuracy of the grid


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_delta_at_epsilon_is_the_delta_that_was_asked_for(event):
    found = acc.epsilon(spent(event), 1e-5).epsilon
    if math.isfinite(found):
        assert acc.delta(spent(event), found * (1 + 1e-4) + 1e-9).delta <= 1e-5 * (1 + 1e-3)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("queries", [1, 20])
def test_a_larger_rate_and_less_noise_cost_no_less(relation, queries):
    def cost(rate, noise):
        return acc.epsilon(spent(Events.poisson(rate, noise, relation), queries), 1e-8).epsilon

    for noise in (0.7, 2.0):
        by_rate = [cost(rate, noise) for rate in (1e-7, 1e-6, 1e-4, 1e-2, 0.5, 1.0)]
        assert all(a <= b * (1 + 1e-3) for a, b in itertools.pairwise(by_rate))
    by_noise = [cost(1e-2, noise) for noise in (0.5, 0.8, 2.0, 10.0)]
    assert all(a >= b * (1 - 1e-3) for a, b in itertools.pairwise(by_noise))
