"""What every event's numbers must do: move the right way with delta, queries, noise and rate, and be inverse."""

import itertools
import math
from dataclasses import fields, replace

import pytest

from tacita import accounting as acc
from tests.accounting.conftest import Events

EVENTS = [event for event in Events.one_of_each() if event.condition is None]
EVERY = pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
QUERIES, DELTA = 3, 1e-5
GRID = 1 + 1e-4  # the accuracy of the grid: two readings may differ by it
NOISE = {"noise_std": 1.2, "scale": 1.2, "threshold_scale": 1.2, "query_scale": 1.2, "noise_bits": 2}
COSTS = {"rho": 0.8, "epsilon": 0.8}  # where an event states its cost, that stands for its noise
SAMPLERS = {"sample_rate": lambda rate: rate / 2, "batch_size": lambda size: size // 2}


def spent(event, queries=QUERIES):
    return [acc.Spend(event, queries)]


def cost(event, queries=QUERIES, delta=DELTA):
    return acc.epsilon(spent(event, queries), delta).epsilon


def changed(thing, change):
    """The event with ``change(name, value)`` in place of each field's value, in the events inside it, too."""

    def new(name, value):
        if isinstance(value, acc.Event):
            return changed(value, change)
        return tuple(new("part", one) for one in value) if name == "parts" else change(name, value)

    return replace(thing, **{field.name: new(field.name, getattr(thing, field.name)) for field in fields(thing)})


def noisier(name, value):
    by = (NOISE | COSTS).get(name, 1)
    return (
        tuple(by * one for one in value) if isinstance(value, tuple) and by != 1 else value if by == 1 else by * value
    )


def rarer(name, value):
    if name != "sampling":
        return value
    return changed(value, lambda setting, number: SAMPLERS.get(setting, lambda same: same)(number))


RARER = [(event, changed(event, rarer)) for event in EVENTS if changed(event, rarer) != event]


@EVERY
def test_less_delta_costs_no_less(event):
    for more, less in itertools.pairwise([1e-4, 1e-5, 1e-8]):
        assert cost(event, delta=more) <= cost(event, delta=less) * (1 + 1e-9)


@EVERY
def test_more_queries_cost_no_less(event):
    for few, more in itertools.pairwise([1, QUERIES, 2 * QUERIES]):
        assert cost(event, few) <= cost(event, more) * GRID


@EVERY
def test_more_noise_costs_less(event):
    other = changed(event, noisier)
    assert other != event
    for delta in (1e-4, 1e-5):
        assert cost(other, delta=delta) < cost(event, delta=delta)


@pytest.mark.parametrize(("event", "other"), RARER, ids=lambda event: type(event).__name__)
def test_a_smaller_rate_costs_less(event, other):
    for delta in (1e-4, 1e-5):
        assert cost(other, delta=delta) < cost(event, delta=delta)


def test_every_law_with_a_rate_is_among_them():
    laws = {type(event.sampling) for event, _ in RARER if hasattr(event, "sampling")}
    assert laws == {acc.PoissonLaw, acc.PoissonUnitLaw, acc.FixedSizeLaw, acc.TruncatedPoissonLaw}
    assert len(RARER) > 12


@EVERY
def test_epsilon_and_delta_are_inverse_from_above_and_below(event):
    found = cost(event)
    assert 0 < found < math.inf
    assert acc.delta(spent(event), found * GRID).delta <= DELTA * (1 + 1e-3)
    assert acc.delta(spent(event), found * 0.98).delta > DELTA  # no smaller epsilon would do, as delta sees it
    at = acc.delta(spent(event), 0.7 * found).delta
    assert cost(event, delta=at) == pytest.approx(0.7 * found, rel=1e-4)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("queries", [1, 20])
def test_a_larger_rate_and_less_noise_cost_no_less_far_out(relation, queries):
    def at(rate, noise):
        return cost(Events.poisson(rate, noise, relation), queries, 1e-8)

    for noise in (0.7, 2.0):
        by_rate = [at(rate, noise) for rate in (1e-7, 1e-6, 1e-4, 1e-2, 0.5, 1.0)]
        assert all(a <= b * (1 + 1e-3) for a, b in itertools.pairwise(by_rate))
    by_noise = [at(1e-2, noise) for noise in (0.5, 0.8, 2.0, 10.0)]
    assert all(a >= b * (1 - 1e-3) for a, b in itertools.pairwise(by_noise))
