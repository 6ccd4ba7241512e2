"""Integer noise: its exact law, the arithmetic in doubt, and that a value depends on its digits alone."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch

from tacita._box_muller import BLOCK, CHUNK64, PAIR
from tacita._stream import LANE, PIECE
from tacita.hardened import integer_noise
from tacita.hardened.integer_noise import rounded_normals
from tacita.random import Key, Stream

FALSE_ALARM = 1e-6
N = 10**6


def seeded(seed):
    return Key.insecure(seed).stream("test")


# -- the law: chi-square over the support, and twins that fail


def rounded_law(k, scale):
    high, low = np.abs(k) + 0.5, np.abs(k) - 0.5
    return scipy.stats.norm.sf(low / scale) - scipy.stats.norm.sf(high / scale)


def assert_law(draws, law, scale):
    """Chi-square over the support, in bins of one integer where 20 or more are expected, the two tails one bin each."""
    reach = int(np.flatnonzero(len(draws) * law(np.arange(100 * math.ceil(scale) + 9.0), scale) >= 20).max())
    support = np.arange(-reach, reach + 1)
    expected = len(draws) * law(support.astype(float), scale)
    counts = np.bincount(np.clip(draws, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    tail = (len(draws) - expected.sum()) / 2
    if 2 * tail >= 20:
        expected, counts = np.append(expected, 2 * tail), np.append(counts[1:-1], counts[0] + counts[-1])
    else:
        counts, expected = counts[1:-1], expected * (counts[1:-1].sum() / expected.sum())
    assert scipy.stats.chisquare(counts, expected).pvalue > FALSE_ALARM, "not the stated law"


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.3, 20.0])
def test_rounded_normals_have_the_law_of_a_rounded_normal(scale):
    assert_law(rounded_normals(seeded(1), N, scale), rounded_law, scale)


@pytest.mark.parametrize("wrong", [0.994, 1.006])
def test_the_law_check_sees_a_scale_off_by_0_6_percent(wrong):
    with pytest.raises(AssertionError, match="not the stated law"):
        assert_law(rounded_normals(seeded(3), N, 3.3 * wrong), rounded_law, 3.3)


@pytest.mark.parametrize("scale", [0.4, 1.0, 2.0])
def test_the_law_check_tells_one_law_from_the_other(scale):
    """The discrete Gaussian, whose masses are in proportion to the density."""
    support = np.arange(-math.ceil(40 * scale), math.ceil(40 * scale) + 1)
    masses = np.exp(-(support**2) / (2 * scale**2))
    other = np.random.default_rng(4).choice(support, N, p=masses / masses.sum())
    with pytest.raises(AssertionError, match="not the stated law"):
        assert_law(other, rounded_law, scale)


@pytest.mark.parametrize("scale", [2.0**10, 2.0**24, 1.7 * 2.0**33])
def test_large_scales_have_scale_and_shape(scale):
    count = N if scale < 2.0**30 else N // 10
    draws = rounded_normals(seeded(5), count, scale) / scale
    low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=count)
    assert low < np.square(draws).sum() < high
    assert scipy.stats.kstest(draws, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("lag", [1, 512, 1024])
def test_values_are_uncorrelated_even_within_a_pair(lag):
    draws = rounded_normals(seeded(6), N + lag, 3.0) / np.sqrt(9 + 1 / 12)
    assert abs((draws[:-lag] * draws[lag:]).mean() * math.sqrt(N)) < 5.2
    assert abs(((draws[:-lag] ** 2 - 1) * (draws[lag:] ** 2 - 1)).mean() * math.sqrt(N) / 2) < 5.2


# -- each value, against a slow reference in multiprecision


def real_normal(stream, index, precision=400):
    """The real value behind ``index``, from 320 bits of its digits."""
    block, lane = divmod(index, BLOCK)
    of_u = block * BLOCK + lane % PAIR
    with mpmath.workprec(precision):
        first, *rest = (int(stream.words(1, of_u + j * LANE)[0]) for j in range(5))
        u = mpmath.mpf(first >> 1) / 2**63 + sum(mpmath.mpf(w) / 2 ** (63 + 64 * (j + 1)) for j, w in enumerate(rest))
        words = [int(stream.words(1, of_u + PAIR + j * LANE)[0]) for j in range(5)]
        t = sum(mpmath.mpf(w) / 2 ** (64 * (j + 1)) for j, w in enumerate(words))
        angle = 2 * mpmath.pi * (t - (t >= 0.5))
        return mpmath.sqrt(-2 * mpmath.log(u)) * (mpmath.sin if lane >= PAIR else mpmath.cos)(angle)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0**24, 2.0**36])
def test_rounded_normals_equal_the_reference(scale):
    stream = seeded(7)
    drawn = rounded_normals(stream, 3 * BLOCK, scale)
    for index in [*range(0, 3 * BLOCK, 37), *range(PAIR - 2, PAIR + 2)]:
        with mpmath.workprec(400):
            assert drawn[index] == int(mpmath.floor(scale * real_normal(stream, index) + 0.5))


def test_the_refined_path_is_taken_and_gives_the_same(monkeypatch):
    stream, scale = seeded(8), 2.0**20
    expected = rounded_normals(stream, BLOCK, scale)
    calls = []
    refined = integer_noise._refined
    monkeypatch.setattr(integer_noise, "_refined", lambda *args, **named: calls.append(1) or refined(*args, **named))
    monkeypatch.setattr(integer_noise, "LINEAR", 1e30)  # everything is in doubt
    assert (rounded_normals(stream, BLOCK, scale) == expected).all()
    assert len(calls) == BLOCK


def test_doubt_occurs_at_the_rate_of_the_bound():
    """At scale 2^36 the bound leaves some values in doubt: a few in ten thousand."""
    words = seeded(9).words(2 * N).view(np.int64)
    found = integer_noise._nearest(words[:N], words[N:], 2.0**36)
    for _, doubtful in found:
        assert 50 < doubtful.sum() < 5000
    assert integer_noise._nearest(words[:N], words[N:], 2.0**10)[0][1].sum() <= 2


def test_the_bound_holds_against_multiprecision():
    """The float64 value before rounding is within the stated bound of the value of either end of the interval."""
    words = seeded(10).words(4000).view(np.int64)
    words[:4] = [2, 2**63 - 2, 2**40, 2**62]  # u near 0 and near 1
    u_words, t_words = words[:2000], words[2000:]
    u = (u_words.view(np.uint64) >> np.uint64(1)).astype(np.int64)
    radius = np.sqrt(-2 * np.log(u * 2.0**-63))
    value = torch.cos(torch.from_numpy(t_words * (math.pi * 2.0**-63))).numpy() * radius
    with np.errstate(divide="ignore"):
        stated = integer_noise.LINEAR - 1, integer_noise.INVERSE  # 1: the product with the scale
        bound = 2.0**-53 * (stated[0] * radius + stated[1] * (1 + 2.0**-10 / (u * 2.0**-63)) / radius)
    worst = 0.0
    with mpmath.workprec(300):
        for i in range(0, 2000, 3):
            for end in (0, 1):
                top = mpmath.mpf(int(u[i]) + end) / 2**63
                exact = mpmath.sqrt(-2 * mpmath.log(top)) * mpmath.cos(mpmath.pi * (int(t_words[i]) + end) / 2**63)
                worst = max(worst, float(abs(exact - value[i]) / bound[i]))
    assert 0.01 < worst < 1


def test_hostile_words_are_in_doubt_and_never_wrong():
    """u = 0, the smallest u, u = 1, and angles at the axes."""
    u = np.array([0, 1, 2, -1, -2, 2**63 - 1, -(2**63)], np.int64)
    t = np.array([0, 0, 2**62, -(2**62), -(2**63), 1, 2**63 - 1], np.int64)
    for integers, doubtful in integer_noise._nearest(u, t, 2.0**20):
        assert doubtful[[0, 1, 3]].all()  # m = 0, and u that rounds to 1
        assert (np.abs(integers) < 10 * 2**20).all()


class Digits(Stream):
    """A stream whose words at given places are given."""

    __slots__ = ("given",)

    def __init__(self, given):
        super().__init__(bytes(32))
        self.given = given

    def words(self, count, offset=0):
        return np.array([self.given.get(offset + i, 0) for i in range(count)], np.uint64)


def test_the_tail_goes_on_where_64_bits_end():
    """u below 2^-63: further digits are read, and the value lies beyond the 9.35 sigma that 64 bits reach."""
    stream = Digits({0: 0, LANE: 0, 2 * LANE: 1 << 63, 5000: 0})
    assert integer_noise._refined(stream, 0, 5000, 1000.0, sine=False) == 13321  # sqrt(2 * 128 ln 2) = 13.3208
    assert integer_noise._refined(Digits({0: 1, LANE: 1 << 63}), 0, 5000, 1000.0, sine=False) == 9419
    nearly_one = Digits({j * LANE: 2**64 - 1 for j in range(3)})
    assert integer_noise._refined(nearly_one, 0, 5000, 1.0, sine=False) == 0


def test_a_tie_that_64_bits_leave_open_reads_more_digits(monkeypatch):
    """sin t is 0 up to the digits that one word has: the integer hangs on the next."""
    reads, words = [], Digits.words
    monkeypatch.setattr(
        Digits, "words", lambda self, count, offset=0: reads.append(offset) or words(self, count, offset)
    )
    for following, expected in ((0, 0), (2**63, 1)):  # r = 1.177: between 0 and 1.85 after one word
        stream = Digits({0: 2**63, 5000: 0, 5000 + LANE: following})
        assert integer_noise._refined(stream, 0, 5000, 2.0**62, sine=True) == expected
    assert 5000 + LANE in reads


# -- a value is a function of its place


@pytest.mark.parametrize("scale", [0.6, 2.0**22])
def test_any_stretch_has_the_same_values(scale):
    stream = seeded(13)
    whole = rounded_normals(stream, 6000, scale)
    for offset, count in [(0, 0), (0, 1), (511, 3), (1023, 1025), (5000, 999)]:
        assert (rounded_normals(stream, count, scale, offset=offset) == whole[offset : offset + count]).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_values_do_not_depend_on_threads_or_chunks(threads):
    stream, count, before = seeded(14), PIECE + 2 * CHUNK64 + 77, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = rounded_normals(stream, count, 2.0**20)
    finally:
        torch.set_num_threads(before)
    pieces = [rounded_normals(stream, CHUNK64, 2.0**20, offset=i) for i in range(0, count, CHUNK64)]
    assert (np.concatenate(pieces)[:count] == whole).all()


def test_no_noise_is_zero_and_wrong_settings_raise():
    assert not rounded_normals(seeded(16), 3000, 0.0).any()
    for wrong in (-1.0, math.nan, math.inf, 2.0**37):
        with pytest.raises(ValueError, match="scale must be in"):
            rounded_normals(seeded(16), 3, wrong)
    with pytest.raises(ValueError, match="count must be an integer >= 0"):
        rounded_normals(seeded(16), -1, 1.0)


def test_an_integer_beyond_int64_wraps():
    stream = Digits({0: 2**63, 5000: 0})
    value = integer_noise._refined(stream, 0, 5000, 2.0**63, sine=False)
    assert -(2**63) <= value < 2**63
