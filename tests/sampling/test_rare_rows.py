"""Poisson sampling that asks no row: the same law as a coin for each, from a number of words near that of the batch."""

import tracemalloc
from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy.stats

from tacita.random import Key
from tacita.sampling import PoissonSampler, poisson
from tacita.sampling._rare_rows import _BELOW, _fallen, _process, rare_rows

RATE, SIZE, CELLS = 1 / 64, 8, 2**16  # at this rate a cell has 2^8 rows


def stream(seed=0):
    return Key.insecure(seed).stream("batch")


@pytest.fixture(scope="module")
def cells():
    """Which rows of each cell are drawn, (cells, rows of a cell)."""
    member = np.zeros(CELLS << SIZE, bool)
    member[np.asarray(rare_rows(stream(), len(member), RATE))] = True
    return member.reshape(CELLS, -1)


@pytest.mark.parametrize("rate", [2.0**-6, 0.01, 1e-3, 2.0**-20, 1e-9, 2.0**-39, 2.0**-40, 2.0**-60, 5e-324])
def test_the_chance_of_a_row_is_the_rate_and_never_above_it(rate):
    keep, size = _process(rate)
    assert 0 <= keep < 2**64
    with localcontext() as context:
        context.prec = 60
        mean = Decimal(8 * keep) / Decimal(2**64) / Decimal(2**size)  # balls that stay, on a row
        chance = 1 - (-mean).exp()
        assert 0 <= Decimal(rate) - chance <= Decimal(2) ** -63


def test_the_numbers_of_balls_are_poisson_to_128_bits():
    with localcontext() as context:
        context.prec = 80
        below, mass = Decimal(0), Decimal(-8).exp()
        for count, found in enumerate(_BELOW):
            below += mass
            mass *= Decimal(8) / (count + 1)
            assert abs(found - below * 2**128) <= 1
    assert _BELOW[-1] < 2**128
    assert len(_BELOW) < 128  # the place of a ball is that of its cell, and of no other


def test_every_row_has_the_stated_chance(cells, assert_binomial):
    assert (_process(RATE)[1]) == SIZE
    assert_binomial(cells.sum(axis=0), CELLS, RATE)
    with pytest.raises(AssertionError, match="frequency"):
        assert_binomial(cells.sum(), cells.size, 1.02 * RATE)


def test_rows_are_drawn_in_pairs_as_if_alone(cells, assert_binomial):
    together = cells.T.astype(np.float32) @ cells.astype(np.float32)
    assert_binomial(together[np.triu_indices(2**SIZE, 1)], CELLS, RATE**2)
    assert_binomial((cells[:-1] & cells[1:]).sum(axis=0), CELLS - 1, RATE**2)
    assert_binomial((cells[:-1, -1] & cells[1:, 0]).sum(), CELLS - 1, RATE**2)


def test_the_number_of_rows_of_a_cell_is_binomial(cells, assert_law):
    def check(counts):
        law, most = scipy.stats.binom(2**SIZE, RATE), 12
        found = np.bincount(np.minimum(counts, most), minlength=most + 1)
        assert_law(found, [*law.pmf(range(most)), law.sf(most - 1)])

    check(cells.sum(axis=1))
    with pytest.raises(AssertionError, match="law"):  # a cell's rows drawn with a fixed number of balls
        check(np.random.default_rng(0).hypergeometric(8, 2**SIZE - 8, 129, CELLS))


def test_rows_depend_neither_on_how_many_there_are_nor_on_how_they_are_read():
    whole = np.asarray(rare_rows(stream(), 10**7, 1e-3))
    assert np.asarray(rare_rows(stream(), 10**6 + 1, 1e-3)).tolist() == whole[whole <= 10**6].tolist()
    keep, size = _process(1e-3)
    one = [_fallen(stream(), np.array([cell], np.uint64), keep, size) for cell in range(20)]
    assert np.concatenate(one).tolist() == whole[whole < 20 << size].tolist()
    assert len(rare_rows(stream(), 10**7, 1e-3)) == len(whole)
    assert len(rare_rows(stream(), 0, 1e-3)) == 0


def test_where_64_bits_do_not_decide_how_many_balls_fall_128_do():
    class Ties:
        def pairs(self, lane, places):
            if lane:
                return np.stack([np.zeros(len(places), np.uint64), places % np.uint64(128) << np.uint64(50)], axis=1)
            high, low = divmod(_BELOW[3], 2**64)
            return np.array([[high, low - 1], [high, low], [high, low + 1]], np.uint64)

    assert _fallen(Ties(), np.arange(3, dtype=np.uint64), 1, 14).tolist() == [  # type: ignore[arg-type]
        *range(3), *range(2**14, 2**14 + 4), *range(2**15, 2**15 + 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("num_records", "rate", "rare"), [(2**20 + 1, 2.0**-6, True), (2**20, 2.0**-6, False), (2**30, 0.016, False)]
)
def test_public_settings_alone_decide_how_rows_are_found(num_records, rate, rare, coins):
    sampler = PoissonSampler(sample_rate=rate, num_records=num_records)
    for num_rows in (2**16, 2**21):  # whatever their number is
        expected = np.asarray(rare_rows(coins().for_query(2), num_rows, rate))
        if not rare:
            expected = np.flatnonzero(coins().for_query(2).bernoulli(num_rows, rate))
        assert sampler.draw(2, coins(), num_rows).tolist() == expected.tolist()
        assert np.asarray(sampler.batch(2, coins(), num_rows)).tolist() == expected.tolist()


def test_of_too_many_rare_rows_those_with_the_smallest_words_stay(coins, monkeypatch):
    monkeypatch.setattr(poisson, "MANY_ROWS", 10)
    drawn = PoissonSampler(sample_rate=0.01, num_records=1000).draw(1, coins(), 5000)
    words = coins().for_query(1).words(5000)
    limited = PoissonSampler(sample_rate=0.01, num_records=1000, max_batch_size=7)
    assert limited.draw(1, coins(), 5000).tolist() == sorted(sorted(drawn, key=lambda row: words[row])[:7])
    assert len(drawn) > 7


def test_a_batch_of_a_thousand_million_rows_takes_the_memory_of_a_batch(coins, assert_binomial):
    sampler = PoissonSampler(expected_batch_size=1000, num_records=10**9)
    tracemalloc.start()
    sizes = [len(sampler.batch(query, coins(), 10**9)) for query in range(20)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert_binomial(sum(sizes), 20 * 10**9, 1e-6)
