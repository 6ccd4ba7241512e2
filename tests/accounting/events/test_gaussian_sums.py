"""Gaussian sum events: golden numbers, the factor 2 and its traps, blocks, sessions that are not one query a step."""

import math

import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting.renyi_curve import RenyiCurve
from tests.accounting.library_pld import library_pld

DELTA = 1e-5


def epsilon(event, queries, delta=DELTA):
    return acc.epsilon([acc.Spend(event, queries)], delta).epsilon


def rdp_epsilon(event, queries, delta=DELTA):
    return RenyiCurve([event.guarantee(queries).rdp]).epsilon(delta)


GOLDEN = [  # sample rate, queries, noise over contribution, add_or_remove_one, replace_one
    (0.02, 150, 1.0, 1.6543, 2.2419),
    (0.01, 1000, 1.0, 1.8282, 2.8434),
    (0.02, 150, 2.0, 0.4955, 0.9126),
    (0.1, 100, 4.0, 0.9829, 1.9899),
]


@pytest.mark.parametrize("golden", GOLDEN)
@pytest.mark.parametrize("contribution", [1.0, 0.25])
def test_poisson(events, golden, contribution):
    rate, queries, ratio, add_or_remove, replace = golden
    for relation, expected in (
        ("add_or_remove_one", add_or_remove),
        ("zero_out_one", add_or_remove),
        ("replace_one", replace),
    ):
        found = epsilon(events.poisson(rate, ratio * contribution, relation, contribution), queries)
        assert expected * (1 - 1e-4) <= found <= expected * 1.005


@pytest.mark.parametrize(
    ("relation", "exact", "by_rdp"),
    [
        ("add_or_remove_one", 17.8566, 19.0536),
        ("zero_out_one", 17.8566, 19.0536),
        ("replace_one", 46.2112, 48.8017),
    ],
)
def test_full_batch(events, relation, exact, by_rdp):
    event = events.full(1.0, relation)
    assert epsilon(event, 10) == pytest.approx(exact, abs=1e-4)
    assert rdp_epsilon(event, 10) == pytest.approx(by_rdp, abs=1e-3)
    composed = library_pld(event.guarantee(10), 2.0**-12)
    assert exact - 1e-4 <= composed.get_epsilon_for_delta(DELTA) <= exact * 1.005


def test_fixed_size(events):
    """The envelope of both branches, composed, and its Rényi curve: 20.9871 by the bound of Wang, Balle and
    Kasiviswanathan (2019), Theorem 27."""
    assert 14.819 < epsilon(events.fixed(1.0), 1000) < 14.829
    assert rdp_epsilon(events.fixed(1.0), 1000) == pytest.approx(16.9141, rel=1e-4)
    forgotten_factor = events.fixed(2.0)
    assert epsilon(forgotten_factor, 1000) < 2.4
    assert rdp_epsilon(forgotten_factor, 1000) == pytest.approx(2.4556, rel=1e-4)


@pytest.mark.parametrize(("batch", "queries", "std"), [(1, 1, 1.0), (5, 30, 2.0), (50, 60, 4.0)])
def test_fixed_size_is_between_one_direction_and_the_full_batch(events, batch, queries, std):
    """Its pair is above Poisson's for a move by 2C, which is one of its branches, and below full batches."""
    found = epsilon(events.fixed(std, batch, 100), queries)
    branch = epsilon(events.poisson(batch / 100, std / 2), queries)
    assert branch <= found * 1.002
    assert found <= epsilon(events.full(std, "replace_one"), queries)


def test_replace_one_is_never_the_add_or_remove_curve_of_the_same_noise(events):
    for rate in (0.02, 1.0):
        plain, replaced = (epsilon(events.poisson(rate, 1.0, r), 20) for r in ("add_or_remove_one", "replace_one"))
        assert replaced > 1.1 * plain
    # halving the multiplier instead (s / 2C into the add-or-remove pair) would charge too much under sampling
    assert epsilon(events.poisson(0.02, 1.0, "replace_one"), 150) < epsilon(events.poisson(0.02, 0.5), 150)


def test_poisson_at_rate_one_is_the_full_batch(events):
    for relation in acc.RELATIONS:
        assert epsilon(events.poisson(1.0, 2.0, relation), 7) == pytest.approx(
            epsilon(events.full(2.0, relation), 7), rel=1e-9
        )


def test_sampling_all_records_is_the_full_batch(events):
    assert epsilon(events.fixed(2.0, 50, 50), 7) == pytest.approx(epsilon(events.full(2.0, "replace_one"), 7), rel=1e-9)


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_blocks_are_one_query_of_the_joint_sensitivity(relation):
    split = {"max_contribution": (3.0, 1.0, 2.0), "noise_std": (6.0, 4.0, 8.0)}
    joint = {"max_contribution": (math.sqrt(1 / 4 + 1 / 16 + 1 / 16),), "noise_std": (1.0,)}
    for law in (acc.FullBatchLaw(), acc.PoissonLaw(0.1), acc.DisjointLaw(own_coin=True)):
        one, several = (acc.GaussianSumEvent(relation=relation, sampling=law, **blocks) for blocks in (joint, split))
        assert epsilon(several, 20) == pytest.approx(epsilon(one, 20), rel=1e-9)


def test_a_block_nobody_contributes_to_is_free():
    alone = acc.GaussianSumEvent(
        sampling=acc.FullBatchLaw(), relation="replace_one", max_contribution=(1.0,), noise_std=(1.0,)
    )
    padded = acc.GaussianSumEvent(
        sampling=acc.FullBatchLaw(), relation="replace_one", max_contribution=(1.0, 0.0), noise_std=(1.0, 0.0)
    )
    assert padded.ratio == alone.ratio


def test_one_pass_is_one_query_however_many(events):
    event = acc.GaussianSumEvent(
        sampling=acc.DisjointLaw(own_coin=True), relation="replace_one", max_contribution=(1.0,), noise_std=(2.0,)
    )
    once = epsilon(events.full(2.0, "replace_one"), 1)
    assert [epsilon(event, queries) for queries in (1, 10, 10_000)] == [once] * 3


EPOCHS = acc.GaussianSumEvent(
    relation="replace_one",
    max_contribution=(1.0,),
    noise_std=(2.0,),
    sampling=acc.ShuffledEpochsLaw(10, own_coin=True),
)


def test_shuffled_epochs_is_one_query_an_epoch_begun(events):
    full = events.full(2.0, "replace_one")
    for queries, epochs in ((1, 1), (10, 1), (11, 2), (30, 3)):
        assert epsilon(EPOCHS, queries) == epsilon(full, epochs)


def test_two_sessions_of_epochs_are_not_rounded_together(events):
    both = acc.epsilon([acc.Spend(EPOCHS, 5), acc.Spend(EPOCHS, 5)], DELTA).epsilon
    assert both == epsilon(events.full(2.0, "replace_one"), 2)


def test_counts_move_by_the_root_of_two_under_replace_one(events):
    for relation, factor in (("add_or_remove_one", 1.0), ("zero_out_one", 1.0), ("replace_one", math.sqrt(2))):
        counts = acc.HistogramGaussianEvent(relation=relation, max_contribution=(3.0,), noise_std=(5.0,))
        assert epsilon(counts, 4) == pytest.approx(acc.gaussian_epsilon(factor * 3 / 5 * 2, DELTA), rel=1e-12)


def test_no_noise_is_not_private_and_not_an_error(events):
    for event in (
        events.full(0.0),
        events.poisson(0.1, 0.0, "replace_one"),
        events.fixed(0.0),
        events.unit(0.1, 0.0, 3),
        acc.LaplaceEvent(relation="add_or_remove_one", l1_sensitivity=1.0, scale=0.0),
        acc.GaussianSumEvent(
            sampling=acc.FullBatchLaw(), relation="zero_out_one", max_contribution=(math.inf,), noise_std=(1.0,)
        ),
        acc.GaussianSumEvent(
            sampling=acc.FullBatchLaw(), relation="zero_out_one", max_contribution=(1.0, 1.0), noise_std=(1.0, 0.0)
        ),
    ):
        bound = acc.epsilon([acc.Spend(event, 1)], DELTA)
        assert bound.epsilon == math.inf
        assert "non-private" in bound.accountant
        assert acc.delta([acc.Spend(event, 1)], 5.0).delta == 1.0


def test_no_contribution_costs_nothing(events):
    for event in (events.full(1.0, contribution=0.0), events.poisson(0.1, 1.0, contribution=0.0)):
        assert epsilon(event, 100) == 0


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_rdp_is_above_pld(events, relation):
    """Two accountants, two conventions: a factor forgotten in one of them shows here."""
    cases = [(events.poisson(q, s, relation), t) for q, s, t in ((0.02, 1.0, 150), (0.2, 3.0, 30), (0.01, 0.6, 300))]
    cases += [(events.full(2.0, relation), 10)]
    for event, queries in cases:
        tight, loose = epsilon(event, queries), rdp_epsilon(event, queries)
        assert tight <= loose <= 1.5 * tight + 0.2


def test_rdp_of_the_replace_one_pair_against_a_plain_sum(events):
    rate, std, order = 0.1, 1.3, 4.5
    x = np.linspace(-25, 25, 1_000_001) * std
    upper, lower = (
        ((1 - rate) * np.exp(-(x**2) / 2 / std**2) + rate * np.exp(-((x - shift) ** 2) / 2 / std**2))
        / math.sqrt(2 * math.pi)
        / std
        for shift in (1.0, -1.0)
    )
    plain = math.log(np.sum(upper * (upper / lower) ** (order - 1)) * (x[1] - x[0])) / (order - 1)
    curve = events.poisson(rate, std, "replace_one").guarantee(3).rdp(np.array([order]))
    assert curve[0] == pytest.approx(3 * plain, rel=1e-6)


@pytest.mark.parametrize(("batch", "std"), [(100, 0.3), (100, 3.0), (1, 1.0), (5000, 40.0)])
def test_fixed_size_is_below_the_bound_of_the_paper(events, batch, std):
    """Wang, Balle and Kasiviswanathan (2019), Theorem 27, at noise over 2C; it bounds the same mechanism."""
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    orders = np.array([2.0, 3.0, 32.0, 256.0])
    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    sampled = dp_event.SampledWithoutReplacementDpEvent(10_000, batch, dp_event.GaussianDpEvent(std / 2))
    accountant.compose(sampled, 5)
    found = events.fixed(std, batch).guarantee(5).rdp(orders)
    assert np.all(found <= accountant.rdp * (1 + 1e-8))
    assert np.min(found / accountant.rdp) < 0.99


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize("law", [acc.PoissonLaw(0.3), acc.PoissonLaw(1.0), acc.FixedSizeLaw(3, 10)], ids=repr)
@pytest.mark.parametrize("blocks", [((1.0,), (2.0,)), ((1.0, 3.0), (2.0, 4.0))], ids=["a block", "two blocks"])
def test_without_its_sampling_a_session_is_full_batches(relation, law, blocks):
    """Whatever is read off where sampling is not counted on has both blocks, and twice the contribution if replaced."""
    if isinstance(law, acc.FixedSizeLaw) and relation != "replace_one":
        return
    contribution, noise_std = blocks
    settings = {"relation": relation, "max_contribution": contribution, "noise_std": noise_std}
    sampled = acc.GaussianSumEvent(sampling=law, **settings).guarantee(9)
    full = acc.GaussianSumEvent(sampling=acc.FullBatchLaw(), **settings).guarantee(9)
    factor = 2 if relation == "replace_one" else 1
    assert full.mu == pytest.approx(3 * factor * math.hypot(*np.divide(contribution, noise_std)))
    assert sampled.unsampled_mu == full.mu
    assert sampled.mu == (full.mu if law == acc.PoissonLaw(1.0) else None)


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_without_its_sampling_a_unit_is_all_its_rows(events, rate):
    guarantee = events.unit(rate, 2.0, 3).guarantee(4)
    assert guarantee.unsampled_mu == pytest.approx(2 * 3 * events.unit(rate, 2.0, 3).ratio)
    assert guarantee.mu == (guarantee.unsampled_mu if rate == 1.0 else None)
