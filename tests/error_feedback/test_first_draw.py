"""The first draw of a hidden error: reference values, quadrature of both directions, simulation, the counterexample."""

import math

import numpy as np
import pytest
from scipy import stats

from tacita import accounting as acc
from tacita import error_feedback
from tacita.accounting.renyi_curve import ORDERS
from tacita.error_feedback.first_draw import backward_divergences, forward_divergences
from tacita.errors import UnsupportedEventError
from tests.accounting.events.feedback import BATCH, QUERIES, RATE, TABLE, WHOLE, session_epsilon, through_orders


def test_divergences_of_the_first_draw():
    found = forward_divergences(RATE, 0.2, 0.1, 10, (2.0, 3.0, 8.0))
    np.testing.assert_allclose(found, [0.00529154, 0.00819318, 0.0265074], rtol=3e-6)


@pytest.mark.parametrize(("feedback", "first"), [(row[0], row[4]) for row in TABLE])
def test_noise_by_the_first_draw_and_whole_orders(feedback, first):
    key = (RATE, 2 * feedback / first, 0.001 / first, QUERIES)
    assert through_orders(forward_divergences(*key, tuple(WHOLE))) == pytest.approx(2, rel=2e-5)
    assert through_orders(backward_divergences(*key, WHOLE)) < 1.9


def first_draw_law(rate, jump, step, queries):
    """Every pattern of coins with its mean vector and chance."""
    patterns = [np.array([(n >> t) & 1 for t in range(queries)]) for n in range(2**queries)]
    before = [np.concatenate([[0], np.maximum.accumulate(b)[:-1]]) for b in patterns]
    means = np.array([b * step + w * jump for b, w in zip(patterns, before, strict=True)])
    chances = np.array([rate ** b.sum() * (1 - rate) ** (queries - b.sum()) for b in patterns])
    return means, chances


@pytest.mark.parametrize(("rate", "jump", "step"), [(0.3, 0.8, 0.5), (0.05, 1.2, 0.1), (0.6, 0.1, 0.7)])
def test_both_directions_of_the_first_draw_against_quadrature(rate, jump, step):
    """Two queries: the exact divergences of the pair, on a grid of the plane."""
    means, chances = first_draw_law(rate, jump, step, 2)
    axis = np.arange(-14, 16, 0.04)
    x, y = np.meshgrid(axis, axis)
    ratio = sum(p * np.exp(m[0] * x + m[1] * y - (m @ m) / 2) for m, p in zip(means, chances, strict=True))
    base = np.exp(-(x * x + y * y) / 2) / (2 * np.pi) * 0.04**2
    for order in (2.0, 3.0, 6.0):
        forward = math.log((ratio**order * base).sum()) / (order - 1)
        backward = math.log((ratio ** (1 - order) * base).sum()) / (order - 1)
        assert forward_divergences(rate, jump, step, 2, (order,))[0] == pytest.approx(forward, rel=1e-6)
        found = backward_divergences(rate, jump, step, 2, np.array([order]))[0]
        assert backward <= found <= order * (jump + step) ** 2  # two queries without amplification


def test_between_whole_orders_the_moments_interpolate():
    key = (RATE, 0.2, 0.1, 10)
    at = forward_divergences(*key, (2.0, 2.5, 3.0))
    assert at[0] < at[1] < at[2]
    assert at[1] * 1.5 == pytest.approx((at[0] * 1 + at[2] * 2) / 2)
    assert forward_divergences(*key, (65.0,))[0] == math.inf


def test_first_draw_is_never_above_the_queries_on_their_own(events):
    inner = events.hidden(41.9, 2.0, 0.001)
    event = error_feedback.FirstDrawEvent(relation="add_or_remove_one", inner=inner)
    curve, each = event.guarantee(QUERIES).rdp(ORDERS), inner.guarantee(QUERIES).rdp(ORDERS)
    assert (curve <= each).all()
    assert np.isfinite(curve).all()
    assert session_epsilon(event) < 0.86 * session_epsilon(inner)


@pytest.mark.parametrize(
    ("rate", "queries", "needed"), [(0.01, 2, {"forward", "backward"}), (0.3, 200, {"forward", "each query"})]
)
def test_the_curve_is_that_of_the_worse_direction_at_every_order(rate, queries, needed):
    """Unless the queries on their own cost less. Which of the three it is depends on the order."""
    step, jump, orders = 1.0, 0.1, np.array([1.5, 2.0, 4.0, 8.0, 20.0])
    inner = error_feedback.HiddenErrorEvent(
        relation="add_or_remove_one",
        sampling=acc.PoissonLaw(rate),
        max_contribution=step,
        max_error_change=jump,
        noise_std=1.0,
    )
    bounds = {
        "forward": forward_divergences(rate, jump, step, queries, tuple(orders.tolist())),
        "backward": backward_divergences(rate, jump, step, queries, orders),
        "each query": inner.guarantee(queries).rdp(orders),
    }
    curve = error_feedback.FirstDrawEvent(relation="add_or_remove_one", inner=inner).guarantee(queries).rdp(orders)
    worse = np.maximum(bounds["forward"], bounds["backward"])
    np.testing.assert_array_equal(curve, np.minimum(worse, bounds["each query"]))
    assert {name for name, bound in bounds.items() if (curve == bound).any()} == needed


@pytest.mark.parametrize("std", [36.0, 38.0, 40.0, 42.0])
def test_first_draw_is_above_a_simulation_of_itself(events, std):
    """Monte Carlo of the tight pair (4e6 runs): delta(2) = 3.30e-5, 1.28e-5, 4.9e-6, 1.9e-6."""
    simulated = {36.0: (3.30e-5, 1.3e-6), 38.0: (1.28e-5, 8e-7), 40.0: (4.9e-6, 5e-7), 42.0: (1.9e-6, 3e-7)}
    event = error_feedback.FirstDrawEvent(relation="add_or_remove_one", inner=events.hidden(std, 2.0, 0.001))
    mean, error = simulated[std]
    bound = acc.delta([acc.Spend(event, QUERIES)], 2.0).delta
    assert mean - 5 * error < bound < 8 * mean


def test_the_counterexample_to_the_published_theorem(events):
    """S, the sum of what one record moved, over the noise of the sum: N(0, 1) without the record, a mixture with it."""
    std, first = 3.32452, np.arange(QUERIES)
    means = 2 * (QUERIES - 1 - first) / (math.sqrt(QUERIES) * std)
    chances = RATE * (1 - RATE) ** first
    never = (1 - RATE) ** QUERIES

    def present(threshold):
        return float(chances @ stats.norm.sf(threshold - means) + never * stats.norm.sf(threshold))

    assert stats.norm.sf(4) == pytest.approx(3.16712e-5, rel=3e-6)
    assert present(4.0) == pytest.approx(0.724927, abs=1e-4)
    thresholds = np.linspace(2, 4, 801)
    gain = [present(t) - math.exp(2) * stats.norm.sf(t) for t in thresholds]
    assert max(gain) == pytest.approx(0.813580, abs=1e-4)
    assert thresholds[int(np.argmax(gain))] == pytest.approx(2.75, abs=0.02)
    for event in (
        events.hidden(BATCH * std, 2.0 * BATCH),
        error_feedback.FirstDrawEvent(relation="add_or_remove_one", inner=events.hidden(BATCH * std, 2.0 * BATCH)),
    ):
        assert acc.delta([acc.Spend(event, QUERIES)], 2.0).delta >= max(gain)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda e: error_feedback.FirstDrawEvent(relation="add_or_remove_one", inner=e.hidden(rows=2)),
            "under a PoissonLaw",
        ),
        (
            lambda e: error_feedback.FirstDrawEvent(relation="replace_one", inner=e.hidden_anyhow()),
            "under a PoissonLaw",
        ),
        (
            lambda e: error_feedback.FirstDrawEvent(relation="replace_one", inner=e.hidden(relation="replace_one")),
            "and add_or_remove_one or zero_out_one",
        ),
    ],
)
def test_first_draw_is_refused(events, make, says):
    with pytest.raises(UnsupportedEventError, match=says):
        make(events)
