"""Events of a hidden error: reference values, tables of noise, domination by quadrature, refusals."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from tacita import accounting as acc
from tacita import error_feedback
from tacita.errors import UnsupportedEventError
from tests.accounting.events.feedback import BATCH, QUERIES, RATE, TABLE, hidden_every, session_epsilon
from tests.accounting.library_pld import library_pld


def test_gaussian_mu_of_the_papers_targets():
    assert acc.gaussian_mu(2, 1e-5) == pytest.approx(0.501552, abs=5e-7)
    assert acc.gaussian_mu(8, 8e-6) == pytest.approx(1.65149, abs=5e-6)


def test_renyi_divergences_of_one_query(events):
    orders = np.array([2.0, 3.0, 8.0])
    found = events.hidden(10.0, 2.0).guarantee(1).rdp(orders)
    np.testing.assert_allclose(found, [0.0408121, 0.0612303, 0.163451], rtol=3e-6)
    assert (orders * 4 / 200 < found).all()
    assert (found < orders * 9 / 200).all()
    assert events.hidden(1.0, 0.0).guarantee(1).rdp(np.array([2.0]))[0] == pytest.approx(6.87077e-4, rel=3e-6)


@pytest.mark.parametrize(
    "row",
    [  # noise, change of the error, contribution, epsilon by O2, by O1
        (0.5, 0.02, 0.001, 1.95037, 2.05730),
        (50, 2, 0.001, 1.94822, 1.94928),
        (0.05, 0.002, 0.001, 1.97002, 3.07462),
        (10, 2, 1, 13.0360, 21.7592),
    ],
)
def test_epsilon_of_a_session(events, row):
    std, error, contribution, sampled, any_batches = row
    o2 = session_epsilon(events.hidden(std, error, contribution))
    o1 = session_epsilon(events.hidden_anyhow(std, error, contribution, "zero_out_one"))
    assert o2 == pytest.approx(sampled, rel=5e-3)
    assert o1 == pytest.approx(any_batches, rel=1e-5)
    assert o2 <= o1


def test_without_an_error_it_is_the_sampled_gaussian(events):
    assert session_epsilon(events.hidden(1.0, 0.0)) == pytest.approx(1.65434, rel=5e-3)
    assert session_epsilon(events.hidden(1.0, 0.0)) == pytest.approx(
        session_epsilon(events.poisson(RATE, 1.0)), rel=1e-3
    )


def test_composing_both_parts_with_the_whole_noise_is_too_little(events):
    """It misses the cross term of error and batch."""
    apart = [acc.Spend(events.poisson(RATE, 10.0), QUERIES), acc.Spend(events.full(10.0, contribution=2.0), QUERIES)]
    wrong = acc.epsilon(apart, 1e-5).epsilon
    assert wrong == pytest.approx(12.8715, rel=5e-3)
    assert wrong < 0.995 * session_epsilon(events.hidden(10.0, 2.0))


@pytest.mark.parametrize("row", TABLE)
def test_noise_for_epsilon_2(events, row):
    feedback, zero_out, replace, sampled, first, alone = row
    error = 2 * BATCH * feedback

    def reached(make, std):
        return session_epsilon(make(BATCH * std))

    exact = dict(rel=2e-5)
    assert reached(lambda s: events.hidden_anyhow(s, error, relation="zero_out_one"), zero_out) == pytest.approx(
        2, **exact
    )
    assert reached(lambda s: events.hidden_anyhow(s, error, relation="replace_one"), replace) == pytest.approx(
        2, **exact
    )
    assert reached(lambda s: events.hidden_anyhow(s, error, 0.0, relation="zero_out_one"), alone) == pytest.approx(
        2, **exact
    )
    assert reached(lambda s: events.hidden(s, error), sampled) == pytest.approx(2, rel=5e-3)

    def first_draw(std):
        return error_feedback.FirstDrawEvent(relation="add_or_remove_one", inner=events.hidden(std, error))

    assert reached(first_draw, first) == pytest.approx(2, rel=2e-5)


OTHER_RUNS = [  # records, queries, epsilon, delta, noise of O1 under add/remove at C2 = 1, 0.1, 0.01, 0.001
    (50_000, 100, 2, 1e-5, (39.8962, 4.00756, 0.418701, 0.0598144)),
    (42_000, 420, 8, 8e-6, (24.8311, 2.49428, 0.260596, 0.0372280)),
    (42_000, 210, 8, 8e-6, (17.5582, 1.76372, 0.184269, 0.0263242)),
]


@pytest.mark.parametrize("row", OTHER_RUNS)
def test_noise_of_the_papers_other_runs(events, row):
    records, queries, target, delta, noise = row
    for feedback, std in zip((1, 0.1, 0.01, 0.001), noise, strict=True):
        event = events.hidden_anyhow(BATCH * std, 2 * BATCH * feedback, relation="zero_out_one")
        assert session_epsilon(event, queries, delta) == pytest.approx(target, rel=2e-5)
        rate = BATCH / records
        assert session_epsilon(
            events.hidden(BATCH * std, 2 * BATCH * feedback, rate=rate), queries, delta
        ) <= target * (1 + 1e-3)


@pytest.mark.parametrize(
    ("mean_std", "feedback", "expected"),
    [
        (0.00407168, 1, 1.81394e7),
        (0.00407168, 0.1, 185348),
        (0.00407168, 0.01, 2263.47),
        (0.00407168, 0.001, 78.3834),
        (3.32452, 1, 57.8225),
        (0.332460, 0.1, 58.2060),
        (0.0333282, 0.01, 61.8948),
    ],
)
def test_rigorous_epsilon_of_the_published_noise(events, mean_std, feedback, expected):
    event = events.hidden_anyhow(BATCH * mean_std, 2 * BATCH * feedback, relation="zero_out_one")
    assert session_epsilon(event) == pytest.approx(expected, rel=2e-5)
    assert session_epsilon(events.hidden(BATCH * mean_std, 2 * BATCH * feedback)) <= expected * (1 + 1e-4)


def test_several_rows_a_unit(events):
    one, two = events.hidden(50.0, 2.0, 3.0), events.hidden(50.0, 2.0, 3.0, rows=2)
    assert session_epsilon(two) > session_epsilon(one)
    same = acc.MixtureOfGaussiansEvent(
        relation="add_or_remove_one",
        shifts=(2.0, 5.0, 8.0),
        probabilities=tuple(stats.binom.pmf(range(3), 2, RATE)),
        noise_std=50.0,
    )
    assert session_epsilon(two) == pytest.approx(session_epsilon(same), rel=1e-9)


def hockey_stick(upper, lower, level):
    return integrate.quad(lambda x: max(0.0, upper(x) - level * lower(x)), -30, 30, limit=2000, epsabs=1e-11)[0]


def mixture(shifts, chances, std=1.0):
    return lambda x: sum(p * stats.norm.pdf(x, s, std) for s, p in zip(shifts, chances, strict=True))


@pytest.mark.parametrize("level", [0.3, 1.0, 1.7, 6.0])
def test_the_discretised_pair_is_never_below_the_exact_one(events, level):
    present, absent = mixture((0.8, 1.3), (0.7, 0.3)), mixture((0.0,), (1.0,))
    pld = library_pld(events.hidden(1.0, 0.8, 0.5, 0.3).guarantee(1), 2.0**-12)
    exact = max(hockey_stick(present, absent, level), hockey_stick(absent, present, level))
    assert exact * (1 - 1e-7) <= pld.get_delta_for_epsilon(math.log(level)) <= exact * 1.001 + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_no_shorter_or_slanted_shift_exceeds_the_pair(seed):
    """What one record does in one query, in two dimensions: a in the ball of radius D, with a + h, |h| <= C."""
    rng = np.random.default_rng(seed)
    error, contribution, rate = rng.uniform(0.2, 1.5), rng.uniform(0.1, 1.0), rng.uniform(0.05, 0.6)

    def ball(radius):
        x = rng.normal(size=2)
        return radius * rng.uniform() ** 0.5 * x / np.linalg.norm(x)

    a, h = ball(error), ball(contribution)
    if seed == 0:
        a, h = np.array([error, 0.0]), np.array([contribution, 0.0])
    axis = np.arange(-9, 9, 0.05)
    x, y = np.meshgrid(axis, axis)

    def density(point):
        return np.exp(-((x - point[0]) ** 2 + (y - point[1]) ** 2) / 2) / (2 * np.pi) * 0.05**2

    present, absent = (1 - rate) * density(a) + rate * density(a + h), density((0.0, 0.0))
    pair = mixture((error, error + contribution), (1 - rate, rate)), mixture((0.0,), (1.0,))
    for level in (0.4, 1.0, 1.5, 4.0):
        for upper, lower, bound in (
            (present, absent, hockey_stick(*pair, level)),
            (absent, present, hockey_stick(*reversed(pair), level)),
        ):
            found = float(np.maximum(0, upper - level * lower).sum())
            assert found <= bound + 1e-4
            if seed == 0:
                assert found == pytest.approx(bound, abs=1e-4)


def test_nothing_is_amplified_under_replace_one(events):
    """What earlier releases tell of the record's coins differs between the worlds: every query costs 2C + D."""
    event = events.hidden(relation="replace_one")
    assert event.guarantee(9).mu == 3 * event.query_mu == pytest.approx(3 * (2 * 1.0 + 2.0) / 50.0)
    assert event.sampler == "Poisson sampling, no amplification"
    assert events.hidden().guarantee(9).mu is None
    with pytest.raises(UnsupportedEventError, match="no guarantee is proved for a hidden error under replace_one"):
        events.hidden(relation="replace_one", rows=2)


def test_a_redone_query_may_take_another_number_where_each_is_charged_alone(events):
    """The proofs of the events charged query by query allow any error that is a function of earlier coins."""
    assert events.hidden().per_query
    assert events.hidden_anyhow().per_query
    assert not hidden_every(2).per_query
    assert not events.bounded().per_query


@pytest.mark.parametrize("rows", [1, 3])
def test_all_rows_of_a_unit_count_beside_the_error(events, rows):
    """Where every row is in every batch, a query is a Gaussian one of all that the unit moves."""
    event = events.hidden(std=10.0, error=2.0, contribution=1.5, rate=1.0, rows=rows)
    assert event.sensitivity == pytest.approx(1.5 * rows + 2.0)
    spends = [acc.Spend(event, 4)]
    assert acc.epsilon(spends, 1e-5).epsilon == pytest.approx(
        acc.gaussian_epsilon(2 * (1.5 * rows + 2.0) / 10.0, 1e-5), rel=2e-3
    )
    assert acc.epsilon(spends, 1e-5).epsilon >= acc.gaussian_epsilon(2 * (1.5 * rows + 2.0) / 10.0, 1e-5)
