"""Events of bounded residuals: tables of noise, mixtures over participations, moments of many queries."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from tacita import accounting as acc
from tacita.accounting.events import participations
from tacita.accounting.renyi_curve import ORDERS
from tacita.error_feedback import BoundedResidualEvent
from tacita.error_feedback.participation_sensitivity import moved_by_shares
from tests.accounting.events.feedback import BATCH, QUERIES, RATE, session_epsilon
from tests.accounting.library_pld import library_pld


@pytest.mark.parametrize(
    "row",  # C3, and the noise of three epochs, of Poisson sampling, of plain clipping at C1 + C3 under both
    [(1, 0.00943482, 0.0172902, 0.00690677, 0.00185360), (9, 0.0572863, 0.120476, 0.0345338, 0.00926799)],
)
def test_noise_of_bounded_residuals(events, row):
    residual, epochs, sampled, plain_epochs, plain_sampled = row
    assert session_epsilon(events.bounded_in_epochs(BATCH * epochs, residual=residual)) == pytest.approx(2, rel=2e-5)
    assert session_epsilon(events.bounded(BATCH * sampled, residual=residual)) == pytest.approx(2, rel=2e-5)
    shuffled = acc.GaussianSumEvent(
        relation="zero_out_one",
        max_contribution=(1.0 + residual,),
        noise_std=(BATCH * plain_epochs,),
        sampling=acc.ShuffledEpochsLaw(50, own_coin=False),
    )
    assert session_epsilon(shuffled) == pytest.approx(2, rel=2e-5)
    assert session_epsilon(events.poisson(RATE, BATCH * plain_sampled, contribution=1.0 + residual)) == pytest.approx(
        2, rel=5e-3
    )


def test_bounded_residuals_cost_once_a_session(events):
    """No factor for the number of queries: only participations count."""
    one_pass = events.bounded_in_epochs(20.0, per_epoch=50)
    assert session_epsilon(one_pass, 1) == session_epsilon(one_pass, 50) < session_epsilon(one_pass, 51)
    mu = (math.sqrt(3) + 3) / 20
    assert session_epsilon(one_pass, 150) == pytest.approx(acc.gaussian_epsilon(mu, 1e-5), rel=1e-9)
    twice = events.bounded_in_epochs(20.0, relation="replace_one")
    assert session_epsilon(twice, 150) == pytest.approx(acc.gaussian_epsilon(2 * mu, 1e-5), rel=1e-9)


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize("at", [0.0, 0.7, 2.0])
def test_delta_of_bounded_residuals_is_the_mixture_over_participations(events, relation, at):
    event = events.bounded(17.0, residual=2.0, relation=relation)
    factor = 2 if relation == "replace_one" else 1
    expected = math.fsum(
        stats.binom.pmf(k, QUERIES, RATE) * acc.gaussian_delta(factor * (math.sqrt(k) + 2 * k) / 17, at)
        for k in range(QUERIES + 1)
    )
    assert event.guarantee(QUERIES).delta(at) == pytest.approx(expected, rel=1e-6)
    assert event.guarantee(QUERIES).delta(at) >= expected


def test_bounded_residuals_compose_with_other_sessions(events):
    """Three views of one guarantee, in order; and a small session beside it costs a little."""
    event = events.bounded(17.2902)
    alone = session_epsilon(event)
    tiny = acc.Spend(events.full(1e4), 1)
    beside = acc.epsilon([acc.Spend(event, QUERIES), tiny], 1e-5).epsilon
    assert alone < beside < alone * 1.005
    pld = library_pld(event.guarantee(QUERIES), 2.0**-8)
    for at in (0.5, 1.0, 2.0):
        assert (
            event.guarantee(QUERIES).delta(at) * (1 - 1e-8)
            <= pld.get_delta_for_epsilon(at)
            <= event.guarantee(QUERIES).delta(at) * 1.02 + 1e-12
        )
    curve = event.guarantee(QUERIES).rdp(ORDERS)
    assert (np.diff(curve) > 0).all()
    order = 4.0
    moment = math.fsum(
        stats.binom.pmf(k, QUERIES, RATE) * math.exp(order * (order - 1) / 2 * ((math.sqrt(k) + k) / 17.2902) ** 2)
        for k in range(40)
    )
    assert event.guarantee(QUERIES).rdp(np.array([order]))[0] == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)


def moments_in_full(event, queries, orders):
    """Rényi divergences by a sum over every number of participations."""
    counts = np.arange(1, queries + 1)
    mus = np.array([event.session_mu(int(k)) for k in counts])
    logs = stats.binom.logpmf(counts, queries, event.sampling.sample_rate)
    exponents = [a * (a - 1) * mus**2 / 2 for a in orders]
    excess = np.array([logsumexp(x + np.log(-np.expm1(-x)) + logs) for x in exponents])
    return np.logaddexp(0, excess) / (orders - 1)


@pytest.mark.parametrize(("rate", "std"), [(1e-3, 500.0), (1e-3, 50.0), (0.02, 5000.0), (0.3, 5e4)])
def test_moments_of_many_queries_are_those_of_the_full_sum(events, rate, std):
    """Also at orders where participations that never happen decide."""
    event, queries = events.bounded(std, rate=rate), 20_000
    orders = ORDERS[ORDERS > 1.05]
    full, found = moments_in_full(event, queries, orders), event.guarantee(queries).rdp(orders)
    assert (found >= full * (1 - 1e-12)).all()
    assert (found <= full * 1.5).all()
    useful = full < 20
    assert useful.any()
    assert (found[useful] <= full[useful] * 1.004).all()


@pytest.mark.parametrize(("queries", "rate"), [(150, 0.02), (10**6, 1e-3), (10**6, 0.5), (3, 1e-9), (5, 0.999)])
def test_participations_end_where_they_are_unlikely(queries, rate):
    counts, chances, missed = participations._participations(queries, rate)
    assert missed == stats.binom.sf(counts[-1], queries, rate) <= 1e-22
    assert stats.binom.sf(counts[-1] - 1, queries, rate) > 1e-22
    assert stats.binom.cdf(counts[0] - 1, queries, rate) <= 1e-22 < stats.binom.cdf(counts[0] + 1, queries, rate)
    assert math.fsum(chances) == pytest.approx(1, abs=1e-8)


def test_rare_participations_decide_at_high_orders(events):
    """What the sum up to 10 sigma leaves out is not small there: a tail that is cut off claims too much."""
    event, queries, order = events.bounded(500.0, rate=1e-3), 20_000, 256.0
    likely = np.arange(4097)
    logs = stats.binom.logpmf(likely, queries, 1e-3)
    mus = np.array([event.session_mu(int(k)) for k in likely])
    cut = logsumexp(logs + order * (order - 1) * mus**2 / 2) / (order - 1)
    assert event.guarantee(queries).rdp(np.array([order]))[0] > 2 * cut


def test_moments_of_a_million_queries_take_little_memory(events):
    event = events.bounded(20_000.0, rate=1e-3)
    tracemalloc.start()
    curve = event.guarantee(10**6).rdp(ORDERS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.isfinite(curve).all()
    assert peak < 100e6  # all of them at once: 480 MB an array


def test_everybody_in_every_query(events):
    """Sample rate 1: every query is a participation."""
    assert session_epsilon(events.bounded(200.0, rate=1.0), 16) == pytest.approx(
        acc.gaussian_epsilon((4 + 16) / 200, 1e-5), rel=1e-9
    )
    assert session_epsilon(events.hidden(200.0, rate=1.0), 16) == pytest.approx(
        acc.gaussian_epsilon(4 * 3 / 200, 1e-5), rel=1e-9
    )


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize(
    ("law", "per_epoch"),
    [(acc.ShuffledEpochsLaw(5, own_coin=True), 5), (acc.PoissonLaw(0.1), 1), (acc.FullBatchLaw(), 1)],
    ids=["epochs", "Poisson", "full"],
)
@pytest.mark.parametrize("leak", [0.0, 0.3])
def test_a_fixed_share_takes_relation_law_and_leak_together(relation, law, per_epoch, leak):
    event = BoundedResidualEvent(
        relation=relation,
        sampling=law,
        max_contribution=1.0,
        max_residual=2.0,
        noise_std=7.0,
        injected_share=0.2,
        leak=leak,
    )
    for draws in (1, 2, 3, 8):
        moves = moved_by_shares(draws, 1.0, 2.0, share=0.2, leak=leak, queries_per_epoch=per_epoch)
        assert event.session_mu(draws) == acc.moved(relation) * moves / 7.0
