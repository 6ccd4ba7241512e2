"""Truncated Poisson sampling: numbers computed elsewhere, every small mechanism by enumeration, and what is refused."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

import tacita
from tacita import accounting as acc
from tacita.accounting.events.gaussian_sums import UNAMPLIFIED_RATIO
from tacita.accounting.line_pairs import EnvelopePair, MixturePair, ReplacedPair
from tacita.accounting.mixed_pair import MixedPair
from tacita.accounting.pld_accountant import directions
from tacita.accounting.renyi_curve import RenyiCurve
from tacita.errors import BudgetExceededError, UnsupportedEventError
from tacita.linear import SecondMomentEvent
from tacita.testing import check_event

DELTA = 1e-5
LINE = np.linspace(-14.0, 14.0, 140_001)
STEP = LINE[1] - LINE[0]
LEVELS = (0.05, 0.3, 0.8, 1.0, 1.3, 3.0, 12.0)  # g = e^epsilon on both sides of 1


def event(law, relation="add_or_remove_one", noise_std=1.0):
    return acc.GaussianSumEvent(relation=relation, sampling=law, max_contribution=(1.0,), noise_std=(noise_std,))


def epsilon(law, queries, relation="add_or_remove_one", noise_std=1.0):
    return acc.epsilon([acc.Spend(event(law, relation, noise_std), queries)], DELTA).epsilon


def truncated(rate, size, records):
    return acc.TruncatedPoissonLaw(rate, size, records)


@pytest.mark.parametrize(
    ("law", "queries", "by_relation"),
    [
        (truncated(0.01, 600, 60_000), 1000, (10.42, 11.349, 11.110)),
        (truncated(0.01, 650, 60_000), 1000, (5.138, 5.560, 5.168)),
        (truncated(0.01, 700, 60_000), 1000, (1.8799, 2.8649, 1.8792)),
        (truncated(0.01, 720, 60_000), 1000, (1.8303, 2.8441, 1.8296)),
        (truncated(0.02, 220, 10_000), 150, (6.046, 6.299, 6.103)),
        (truncated(0.02, 260, 10_000), 150, (1.6829, 2.2587, 1.6829)),
    ],
)
def test_epsilon_is_that_of_other_programs(law, queries, by_relation):
    """For records removed, another program for this pair; zeroed out at rate 0.01, dp_accounting's for this sampler."""
    found = [epsilon(law, queries, relation) for relation in ("add_or_remove_one", "replace_one", "zero_out_one")]
    assert found == pytest.approx(by_relation, rel=8e-3)
    assert found[:2] == pytest.approx(by_relation[:2], rel=1e-3)


def test_the_chance_of_a_full_batch_is_that_of_the_others():
    assert truncated(0.02, 220, 10_000).full_chance("replace_one") == pytest.approx(0.0831416, rel=1e-5)
    assert truncated(0.02, 260, 10_000).full_chance("replace_one") == pytest.approx(2.2701e-5, rel=1e-4)
    for size in (1, 2, 3):
        law = truncated(0.3, size, 3)
        for relation, others in (("add_or_remove_one", 3), ("zero_out_one", 2), ("replace_one", 2)):
            exact = sum(math.comb(others, k) * 0.3**k * 0.7 ** (others - k) for k in range(size, others + 1))
            assert exact <= law.full_chance(relation) <= exact * (1 + 1e-8) + 1e-299


# Every batch that a small data set can have, and the density of what is released.


def batches(records, rate, size):
    """Yield each batch of these record numbers and its chance: of those that come up, a uniform subset stays."""
    for count in range(len(records) + 1):
        for drawn in itertools.combinations(records, count):
            chance = rate**count * (1 - rate) ** (len(records) - count)
            kept = list(itertools.combinations(drawn, min(size, count)))
            yield from ((batch, chance / len(kept)) for batch in kept)


def released(contributions, rate, size, absent=()):
    """Density on the line of the noisy sum; records in ``absent`` do not exist."""
    records = [i for i in range(len(contributions)) if i not in absent]
    means = {}
    for batch, chance in batches(records, rate, size):
        mean = sum(contributions[i] for i in batch)
        means[mean] = means.get(mean, 0.0) + chance
    return sum(chance * np.exp(-((LINE - mean) ** 2) / 2) for mean, chance in means.items()) / math.sqrt(2 * math.pi)


def divergence(upper, lower, level):
    return float(np.maximum(0.0, upper - level * lower).sum() * STEP)


def worlds(others, record, relation, *, rate, size, replacement=0.0):
    """Densities with the record (the last one) and with what stands in its place."""
    present = released([*others, record], rate, size)
    if relation == "add_or_remove_one":
        return present, released([*others, 0.0], rate, size, absent=(len(others),))
    return present, released([*others, replacement], rate, size)


def pair_of(law, relation, ratio):
    ((pair, _),) = event(law, relation, 1 / ratio).guarantee(1).pairs()
    return pair


def claimed(pair, level, *, swapped):
    """The pair's own divergence from its law on a fine grid."""
    law = pair.law(1e-3, pair.reach(1e-15, swapped=swapped), swapped=swapped)
    return float(law.masses @ np.maximum(0.0, 1 - level * np.exp(-law.losses))) + law.infinity


SMALL = [(3, 1, 0.3), (4, 2, 0.5), (5, 2, 0.9), (5, 1, 0.1), (6, 2, 0.6)]  # records, largest batch, rate


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize(("records", "size", "rate"), SMALL)
def test_no_small_mechanism_is_farther_apart_than_the_pair(records, size, rate, relation):
    """Every batch of every data set of contributions -ratio, 0, ratio and a random one: without any coupling."""
    rng = np.random.default_rng(records + 10 * size)
    for ratio in (0.5, 1.5):
        pair = pair_of(truncated(rate, size, records), relation, ratio)
        bounds = {key: claimed(pair, key[0], swapped=key[1]) for key in itertools.product(LEVELS, (False, True))}
        for middle in (-ratio, 0.0, rng.uniform(-ratio, ratio)):
            others = [-ratio] * (records - 2) + [middle]
            replacement = 0.0 if relation == "zero_out_one" else float(rng.choice([-ratio, 0.0]))
            both = worlds(others, ratio, relation, rate=rate, size=size, replacement=replacement)
            for level in LEVELS:
                for swapped in (False, True):
                    found = divergence(*(both[::-1] if swapped else both), level)
                    assert found <= bounds[level, swapped] + 1e-6


@pytest.mark.parametrize(
    ("records", "size", "ratio", "level"), [(6, 1, 1.5, 50.0), (6, 1, 2.0, 12.0), (4, 1, 2.0, 200.0)]
)
def test_a_record_that_takes_the_place_of_another_shows_more_than_under_poisson_sampling(records, size, ratio, level):
    """The others contribute -C: the whole mechanism, coins unknown, refutes the pair of Poisson sampling."""
    both = worlds([-ratio] * (records - 1), ratio, "add_or_remove_one", rate=0.3, size=size)
    found = divergence(*both, level)
    assert found > 1.02 * claimed(MixturePair((0.0, ratio), (0.7, 0.3)), level, swapped=False)
    assert found < claimed(pair_of(truncated(0.3, size, records), "add_or_remove_one", ratio), level, swapped=False)


def test_no_attacker_who_adapts_does_better_in_two_queries():
    """All contributions of the second query follow the first release: the best policy by dynamic programming."""
    rate, size, ratio, records = 0.5, 1, 1.0, 3
    law = truncated(rate, size, records)
    policies = [
        worlds(list(others), mine, "add_or_remove_one", rate=rate, size=size)
        for mine in (-ratio, ratio)
        for others in ((-ratio, -ratio), (-ratio, ratio), (ratio, ratio), (0.0, 0.0))
    ]
    pair = pair_of(law, "add_or_remove_one", ratio)
    for level, swapped in itertools.product((1.5, 4.0), (False, True)):
        steps = np.geomspace(1e-3, 1e3, 400)
        order = slice(None, None, -1 if swapped else 1)
        best = np.max([[divergence(*both[order], g) for g in steps] for both in policies], axis=0)
        first, other = worlds([-ratio, -ratio], ratio, "add_or_remove_one", rate=rate, size=size)[order]
        needed = level * other / first
        inner = np.interp(needed, steps, best, left=1.0, right=0.0)
        inner = np.where(needed < steps[0], 1 - needed + 1e-3, inner)
        found = float((first * inner).sum() * STEP)
        assert found <= acc.delta([acc.Spend(event(law), 2)], math.log(level)).delta + 2e-3
        assert found <= 1.0
    assert directions([(pair, 2)]) == (False, True)


# The pair's own arithmetic.


def sampled(shift, rate, level, *, swapped):
    """Divergence of (mixture, Gaussian), or of its swap, by the point where the likelihood ratio is the level."""
    inside = ((1 / level if swapped else level) - 1 + rate) / rate
    at = -math.inf if inside <= 0 else math.log(inside) / shift + shift / 2
    if swapped:
        return float(ndtr(at) - level * ((1 - rate) * ndtr(at) + rate * ndtr(at - shift)))
    return float((1 - rate) * ndtr(-at) + rate * ndtr(shift - at) - level * ndtr(-at))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("full", [1e-9, 1e-3, 0.4, 1.0])
def test_a_mixed_pair_has_the_mean_of_both_divergences(full, swapped):
    pair = MixedPair(MixturePair((0.0, 1.0), (0.9, 0.1)), MixturePair((0.0, 2.0), (0.9, 0.1)), full)
    for level in LEVELS:
        of = [sampled(shift, 0.1, level, swapped=swapped) for shift in (1.0, 2.0)]
        exact = (1 - full) * of[0] + full * of[1]
        assert exact - 1e-15 <= claimed(pair, level, swapped=swapped) <= exact * 1.001 + 1e-6


def test_a_mixed_pair_that_is_always_one_is_that_one():
    usual, rare = ReplacedPair(1.0, 0.2), EnvelopePair(2.0, 0.2)
    for chance, other in ((0.0, usual), (1.0, rare)):
        found = MixedPair(usual, rare, chance).law(0.01, other.reach(1e-9, swapped=False), swapped=False)
        expected = other.law(0.01, other.reach(1e-9, swapped=False), swapped=False)
        assert (found.first, found.loss_error) == (expected.first, expected.loss_error)
        assert found.masses == pytest.approx(expected.masses, rel=1e-14)
    assert MixedPair(usual, rare, 0.5).symmetric


@pytest.mark.parametrize("swapped", [False, True])
def test_a_mixed_pair_mixes_masses_and_infinity_and_has_the_larger_rounding(swapped):
    usual, rare, points = MixturePair((0.0, 1.0), (0.9, 0.1)), EnvelopePair(2.0, 0.1), np.arange(-20, 11) * 0.05
    masses, infinity, error = MixedPair(usual, rare, 0.25).at(points, swapped=swapped)
    of = [pair.at(points, swapped=swapped) for pair in (usual, rare)]
    assert masses == pytest.approx(0.75 * of[0][0] + 0.25 * of[1][0], rel=1e-14)
    assert min(of[0][1], of[1][1]) > 0
    assert 0.75 * of[0][1] + 0.25 * of[1][1] <= infinity == pytest.approx(0.75 * of[0][1] + 0.25 * of[1][1])
    assert of[0][2] != of[1][2]
    assert error == max(of[0][2], of[1][2])
    assert not MixedPair(usual, rare, 0.25).symmetric
    assert not MixedPair(ReplacedPair(1.0, 0.1), usual, 0.25).symmetric


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_epsilon_falls_with_the_limit_to_that_of_poisson_and_rises_with_the_records(relation):
    poisson = epsilon(acc.PoissonLaw(0.1), 20, relation)
    by_size = [epsilon(truncated(0.1, size, 200), 20, relation) for size in (1, 15, 20, 30, 40, 201)]
    by_records = [epsilon(truncated(0.1, 30, records), 20, relation) for records in (29, 150, 200, 400)]
    for rising in (by_size[::-1], by_records):
        assert all(less < more for less, more in itertools.pairwise(rising))
    assert by_size[-1] == pytest.approx(poisson, rel=1e-4)
    assert by_records[0] == pytest.approx(poisson, rel=1e-4)
    assert by_size[0] <= epsilon(acc.FullBatchLaw(), 20, relation, 0.5)


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize("size", [15, 25, 35])
def test_the_renyi_curve_is_above_the_pair_and_near_it(relation, size):
    law = truncated(0.1, size, 150)
    spend = acc.Spend(event(law, relation, 2.0), 20)
    by_curve = RenyiCurve([spend.guarantee.rdp]).epsilon(DELTA)
    assert epsilon(law, 20, relation, 2.0) < by_curve < 1.5 * epsilon(law, 20, relation, 2.0)


def test_the_renyi_curve_of_a_mixture_is_the_integral():
    law, orders = truncated(0.2, 2, 9), np.array([1.5, 2.0, 8.0])
    full = law.full_chance("add_or_remove_one")
    gauss = np.exp(-(LINE**2) / 2) / math.sqrt(2 * math.pi)
    moments = sum(
        share * ((0.8 + 0.2 * np.exp(mu * LINE - mu * mu / 2))[None, :] ** orders[:, None] * gauss).sum(axis=1) * STEP
        for share, mu in ((1 - full, 0.5), (full, 1.0))
    )
    found = event(law, noise_std=2.0).guarantee(3).rdp(orders)
    assert found == pytest.approx(3 * np.log(moments) / (orders - 1), rel=1e-6)


def test_the_renyi_curve_of_batches_that_are_always_full_is_that_of_an_exchange():
    """Where a record takes the place of another one in every query, it moves the sum as in a batch of a fixed size."""
    orders = np.array([1.5, 2.0, 8.0, 40.0])
    fixed = event(acc.FixedSizeLaw(200, 1000), "replace_one", 2.0).guarantee(3).rdp(orders)
    for relation in ("zero_out_one", "replace_one"):
        assert event(truncated(0.2, 1, 1000), relation, 2.0).guarantee(3).rdp(orders) == pytest.approx(fixed, rel=1e-8)


def test_without_amplification_a_full_batch_still_moves_by_two_records_where_one_may_be_absent():
    for relation, mu in (("add_or_remove_one", 2.0), ("zero_out_one", 1.0), ("replace_one", 2.0)):
        assert event(truncated(0.1, 5, 50), relation).guarantee(4).unsampled_mu == pytest.approx(2 * mu)
        assert event(truncated(1.0, 5, 50), relation).guarantee(4).mu == pytest.approx(2 * mu)
        assert event(truncated(0.1, 5, 50), relation, 0.0).guarantee(4).mu == math.inf
        loud = 1.5 / UNAMPLIFIED_RATIO  # noise with which two records move the sum too far for amplification
        assert event(truncated(0.1, 5, 50), relation, loud).guarantee(4).mu == pytest.approx(2 * mu / loud)


# What the event says, and what is refused.


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_the_event_keeps_its_contract_and_states_its_condition(relation):
    stated = event(truncated(0.1, 20, 150), relation)
    check_event(stated)
    ledger = tacita.Ledger(neighboring_relation=relation, privacy_unit="one row")
    ledger.register(stated, planned_queries=10, purpose="train")
    printed = str(tacita.statement(ledger, delta=1e-5))
    assert "at most 20 records a query" in printed
    assert ("the data hold at most 150 records" in printed) == (relation == "add_or_remove_one")
    assert (ledger.epsilon(1e-5) == math.inf) == (relation == "add_or_remove_one")


def test_a_cap_takes_no_condition():
    ledger = tacita.Ledger(
        neighboring_relation="add_or_remove_one", privacy_unit="one row", max_epsilon=9.0, max_delta=1e-5
    )
    with pytest.raises((BudgetExceededError, UnsupportedEventError), match="the data hold at most 150 records"):
        ledger.register(event(truncated(0.1, 20, 150)), planned_queries=10, purpose="train")


def test_other_releases_are_refused_by_name():
    with pytest.raises(UnsupportedEventError, match="max_batch_size: no guarantee is proved"):
        SecondMomentEvent(
            relation="replace_one", sampling=truncated(0.1, 5, 50), max_contribution=(1.0,), noise_std=(2.0,)
        )


@pytest.mark.parametrize("settings", [(0.0, 5, 50), (1.5, 5, 50), (0.1, 0, 50), (0.1, 5, 0), (0.1, 2.5, 50)])
def test_a_law_refuses_wrong_settings(settings):
    with pytest.raises(ValueError, match="must be"):
        truncated(*settings)


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_the_least_limit_is_the_least_that_costs_hardly_more(relation):
    plain = event(acc.PoissonLaw(0.05), relation)
    size = acc.least_max_batch_size(plain, 100, DELTA, num_records=2000)
    most = 1.005 * epsilon(acc.PoissonLaw(0.05), 100, relation)
    assert 100 < size < 200
    assert (
        epsilon(truncated(0.05, size, 2000), 100, relation)
        <= most
        < epsilon(truncated(0.05, size - 1, 2000), 100, relation)
    )
    assert acc.least_max_batch_size(plain, 100, DELTA, num_records=3) <= 4
    with pytest.raises(ValueError, match="under Poisson sampling"):
        acc.least_max_batch_size(replace(plain, sampling=acc.FullBatchLaw()), 100, DELTA, num_records=2000)
