"""What every sampler promises, for every sampler; and what is not taken for one."""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacita.accounting import GaussianSumEvent
from tacita.accounting.sampling_laws import (
    CyclicLaw,
    CyclicPoissonLaw,
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    PoissonUnitLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    TruncatedPoissonLaw,
)
from tacita.sampling import (
    AllocatedSampler,
    CyclicSampler,
    DisjointSampler,
    FixedSizeSampler,
    FullBatchSampler,
    PoissonSampler,
    Sampler,
    ShuffledEpochsSampler,
    UnitPoissonSampler,
    as_sampler,
)

N = 40
CASES = [
    (PoissonSampler(sample_rate=0.3, num_records=N), PoissonLaw(0.3), 12.0),
    (
        PoissonSampler(sample_rate=0.3, num_records=N, max_batch_size=13),
        TruncatedPoissonLaw(0.3, 13, N),
        12.0,
    ),
    (UnitPoissonSampler(sample_rate=0.3, num_records=N, max_rows_per_unit=4), PoissonUnitLaw(0.3, 4), 12.0),
    (FixedSizeSampler(batch_size=7, num_records=N), FixedSizeLaw(7, N), 7.0),
    (FullBatchSampler(num_records=N), FullBatchLaw(), 40.0),
    (DisjointSampler(num_batches=8, num_records=N), DisjointLaw(own_coin=False), 5.0),
    (AllocatedSampler(batches_per_epoch=5, num_records=N), ShuffledEpochsLaw(5, own_coin=True), 8.0),
    (ShuffledEpochsSampler(batches_per_epoch=5, num_records=N), ShuffledEpochsLaw(5, own_coin=False), 8.0),
    (CyclicSampler(batches_per_cycle=5, num_records=N, assignment="coin"), CyclicLaw(5, own_coin=True), 8.0),
    (CyclicSampler(batches_per_cycle=5, num_records=N, assignment="index"), CyclicLaw(5, own_coin=False), 8.0),
    (
        CyclicSampler(batches_per_cycle=3, num_records=N, assignment="coin", turn_rate=0.6),
        CyclicPoissonLaw(3, 0.6, own_coin=True),
        8.0,
    ),
    (
        CyclicSampler(batches_per_cycle=3, num_records=N, assignment="index", turn_rate=0.6),
        CyclicPoissonLaw(3, 0.6, own_coin=False),
        8.0,
    ),
]
every = pytest.mark.parametrize(
    ("sampler", "law", "expected"), CASES, ids=lambda x: repr(x) if isinstance(x, Sampler) else ""
)
QUERIES = range(8)  # as many as the one-pass samplers have


@every
def test_law_divisor_and_rate_follow_from_the_settings(sampler, law, expected):
    assert sampler.law == law
    assert isinstance(sampler.law, SamplingLaw)
    assert sampler.expected_batch_size == pytest.approx(expected, rel=1e-15)
    assert sampler.sample_rate == pytest.approx(expected / N, rel=1e-15)
    assert as_sampler(sampler) is sampler


@every
def test_a_draw_is_ascending_rows_and_the_mask_is_the_same_draw(sampler, law, expected, coins):
    for query in QUERIES:
        rows = sampler.draw(query, coins(), N)
        assert rows.dtype == np.int64
        assert (np.diff(rows) > 0).all()
        assert ((rows >= 0) & (rows < N)).all()
        mask = sampler.mask(query, coins(), N)
        assert mask.dtype == bool
        assert mask.shape == (N,)
        assert np.flatnonzero(mask).tolist() == rows.tolist()


@every
def test_a_draw_depends_on_coins_and_query_alone(sampler, law, expected, coins):
    one = coins()
    forward = [sampler.draw(query, one, N).tolist() for query in QUERIES]
    backward = [sampler.draw(query, one, N).tolist() for query in reversed(QUERIES)][::-1]
    assert forward == backward
    for copied in (copy.copy(sampler), copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert copied == sampler
        assert hash(copied) == hash(sampler)
        assert [copied.draw(query, coins(), N).tolist() for query in QUERIES] == forward


@every
def test_a_draw_handed_out_can_be_changed_without_changing_the_next(sampler, law, expected, coins):
    one = coins()
    first = sampler.draw(0, one, N)
    before = first.tolist()
    first[:] = -1
    assert sampler.draw(0, one, N).tolist() == before


@every
def test_interleaved_sessions_do_not_meet(sampler, law, expected, coins):
    left, right = coins(1), coins(2)
    apart = [sampler.draw(query, left, N).tolist() for query in QUERIES]
    mixed = [(sampler.draw(query, left, N).tolist(), sampler.draw(query, right, N).tolist())[0] for query in QUERIES]
    assert mixed == apart


@every
def test_one_row_less_moves_no_other_or_is_refused(sampler, law, expected, coins):
    for query in QUERIES:
        if sampler.requires_public_count:
            with pytest.raises(ValueError, match="num_records must be the number of records"):
                sampler.draw(query, coins(), N - 1)
        else:
            whole, fewer = sampler.draw(query, coins(), N), sampler.draw(query, coins(), N - 1)
            full = len(whole) == getattr(sampler, "max_batch_size", None) and whole[-1] == N - 1
            entered = np.setdiff1d(fewer, whole) if full else fewer[:0]  # at most one other takes the place
            assert len(entered) <= 1
            assert np.setdiff1d(fewer, entered).tolist() == whole[whole < N - 1].tolist()


@every
def test_no_rows_are_ordinary(sampler, law, expected, coins):
    if sampler.requires_public_count:
        pytest.skip("the number of records is public, and not 0")
    for query in QUERIES:
        assert sampler.draw(query, coins(), 0).tolist() == []
        assert sampler.mask(query, coins(), 0).shape == (0,)


@every
def test_only_relations_that_allow_an_absent_record_go_with_a_private_count(sampler, law, expected):
    assert sampler.requires_public_count == ("add_or_remove_one" not in GaussianSumEvent.charges(sampler.law))


@every
def test_a_query_outside_the_session_is_refused(sampler, law, expected, coins):
    for query in (-1, *([] if sampler.max_queries is None else [sampler.max_queries])):
        with pytest.raises(ValueError, match="query must be in"):
            sampler.draw(query, coins(), N)


@every
def test_settings_are_named_and_frozen(sampler, law, expected):
    with pytest.raises(TypeError):
        type(sampler)(N)
    with pytest.raises(TypeError):
        type(sampler)(num_records=N, batch=3)
    with pytest.raises(AttributeError):
        sampler.num_records = N + 1
    assert f"num_records={N}" in repr(sampler)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonSampler(num_records=0, sample_rate=0.1), "num_records must be an integer >= 1"),
        (lambda: PoissonSampler(num_records=10.0, sample_rate=0.1), "num_records must be an integer >= 1"),
        (
            lambda: UnitPoissonSampler(num_records=9, sample_rate=0, max_rows_per_unit=1),
            r"sample_rate must be in \(0, 1\]",
        ),
        (lambda: UnitPoissonSampler(num_records=9, sample_rate=0.1, max_rows_per_unit=0), "max_rows_per_unit must be"),
        (lambda: FixedSizeSampler(batch_size=0, num_records=9), "batch_size must be an integer >= 1"),
        (lambda: FixedSizeSampler(batch_size=10, num_records=9), "num_records must be an integer >= 10"),
        (lambda: FullBatchSampler(num_records=-1), "num_records must be an integer >= 1"),
        (lambda: DisjointSampler(num_batches=0, num_records=9), "num_batches must be an integer >= 1"),
        (lambda: AllocatedSampler(batches_per_epoch=0, num_records=9), "batches_per_epoch must be"),
        (
            lambda: CyclicSampler(batches_per_cycle=0, num_records=9, assignment="coin"),
            "batches_per_cycle must be",
        ),
        (
            lambda: CyclicSampler(batches_per_cycle=2, num_records=9, assignment="permutation"),
            "'coin' or 'index'",
        ),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "loader",
    [
        torch.utils.data.DataLoader(torch.zeros(4, 1), shuffle=True),
        torch.utils.data.WeightedRandomSampler([0.5, 0.5], 2),
        torch.utils.data.RandomSampler(range(4)),
        torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(4)), 2, False),
        32,
        None,
        PoissonSampler,
    ],
    ids=lambda loader: type(loader).__name__,
)
def test_a_loader_is_never_taken_for_a_sampler(loader):
    with pytest.raises(TypeError, match=r"does not say how records are drawn.*Use PoissonSampler"):
        as_sampler(loader)


@pytest.mark.parametrize("kind", [type(sampler) for sampler, _, _ in CASES])
def test_a_sampler_that_draws_otherwise_inherits_no_law(kind):
    with pytest.raises(TypeError, match=rf"Every cannot be derived from {kind.__name__}.*Derive it from tacita.sampl"):

        class Every(kind):
            def draw(self, query, coins, num_rows):
                return np.arange(num_rows)


def test_a_sampler_of_ones_own_states_its_law():
    class Every(Sampler):
        num_records, sample_rate, law, expected_batch_size = N, 1.0, FullBatchLaw(), float(N)

        def draw(self, query, coins, num_rows):
            return np.arange(num_rows)

    assert as_sampler(Every()).law == FullBatchLaw()


# -- integers for steps


@given(st.integers(1, 10**7))
def test_an_epoch_of_one_nth_is_n_queries(n):
    assert PoissonSampler(sample_rate=1 / n, num_records=n).queries_per_epoch == n
    assert PoissonSampler(expected_batch_size=1, num_records=n).queries_per_epoch == n


def test_floating_point_would_lose_or_add_queries():
    assert any(int(1 / (1 / n)) != n or math.ceil(1 / Fraction(1 / n)) != n for n in range(1, 2000))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 50))
def test_queries_are_the_exact_ceiling(batch, records, epochs):
    batch, records = min(batch, records), max(batch, records)
    exact = -(-epochs * records // batch)
    assert PoissonSampler(expected_batch_size=batch, num_records=records).queries_for(epochs) == exact
    assert FixedSizeSampler(batch_size=batch, num_records=records).queries_for(epochs) == exact


@pytest.mark.parametrize(("rate", "epochs", "queries"), [(0.01, 3, 300), (0.02, 0.5, 25), (0.3, 1, 4), (0.1, 0.7, 7)])
def test_decimal_rates_mean_what_they_say(rate, epochs, queries):
    assert PoissonSampler(sample_rate=rate, num_records=100).queries_for(epochs) == queries


def test_one_epoch_of_the_others():
    assert FullBatchSampler(num_records=5).queries_per_epoch == 1
    assert AllocatedSampler(batches_per_epoch=93, num_records=930).queries_per_epoch == 93
    assert AllocatedSampler(batches_per_epoch=49, num_records=9).queries_for(2) == 98


@pytest.mark.parametrize("epochs", [0, -1, math.nan, math.inf])
def test_epochs_must_be_a_positive_number(epochs):
    with pytest.raises(ValueError, match="epochs must be a finite number > 0"):
        FullBatchSampler(num_records=5).queries_for(epochs)


@pytest.mark.parametrize("batches", [7, 2**26 + 1, 67257382, 2**31 - 1])
def test_an_epoch_has_its_batches_whatever_the_rounding_of_their_share(batches):
    epochs = AllocatedSampler(batches_per_epoch=batches, num_records=10)
    one_pass = DisjointSampler(num_batches=batches, num_records=10)
    assert epochs.queries_per_epoch == epochs.law.queries_per_epoch == one_pass.queries_per_epoch == batches
