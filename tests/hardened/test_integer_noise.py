"""Integer noise: its exact laws, the arithmetic in doubt, and that a value depends on its digits alone."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch

from tacita._box_muller import BLOCK, CHUNK64, PAIR
from tacita._stream import LANE, PIECE
from tacita.hardened import integer_noise
from tacita.hardened.integer_noise import REGION, discrete_gaussians, rounded_normals
from tacita.random import Key, Stream

FALSE_ALARM = 1e-6
N = 10**6


def seeded(seed):
    return Key.insecure(seed).stream("test")


# -- laws: chi-square over the support, and twins that fail


def rounded_law(k, scale):
    high, low = np.abs(k) + 0.5, np.abs(k) - 0.5
    return scipy.stats.norm.sf(low / scale) - scipy.stats.norm.sf(high / scale)


def discrete_law(k, scale):
    every = np.arange(-math.ceil(40 * scale) - 5, math.ceil(40 * scale) + 6)
    return np.exp(-(k**2) / (2 * scale**2)) / np.exp(-(every**2) / (2 * scale**2)).sum()


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


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.3, 20.0])
def test_discrete_gaussians_have_their_law(scale):
    assert_law(discrete_gaussians(seeded(2), N, scale), discrete_law, scale)


@pytest.mark.parametrize("wrong", [0.994, 1.006])
def test_the_law_check_sees_a_scale_off_by_0_6_percent(wrong):
    with pytest.raises(AssertionError, match="not the stated law"):
        assert_law(rounded_normals(seeded(3), N, 3.3 * wrong), rounded_law, 3.3)
    with pytest.raises(AssertionError, match="not the stated law"):
        assert_law(discrete_gaussians(seeded(3), N, 3.3 * wrong), discrete_law, 3.3)


@pytest.mark.parametrize("scale", [0.4, 1.0, 2.0])
def test_the_law_check_tells_one_law_from_the_other(scale):
    with pytest.raises(AssertionError, match="not the stated law"):
        assert_law(discrete_gaussians(seeded(4), N, scale), rounded_law, scale)
    with pytest.raises(AssertionError, match="not the stated law"):
        assert_law(rounded_normals(seeded(4), N, scale), discrete_law, scale)


@pytest.mark.parametrize("draw", [rounded_normals, discrete_gaussians])
@pytest.mark.parametrize("scale", [2.0**10, 2.0**24, 1.7 * 2.0**33])
def test_large_scales_have_scale_and_shape(draw, scale):
    count = N if scale < 2.0**30 else N // 10
    draws = draw(seeded(5), count, scale) / scale
    low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=count)
    assert low < np.square(draws).sum() < high
    assert scipy.stats.kstest(draws, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("lag", [1, 512, 1024])
@pytest.mark.parametrize("draw", [rounded_normals, discrete_gaussians])
def test_values_are_uncorrelated_even_within_a_pair(draw, lag):
    draws = draw(seeded(6), N + lag, 3.0) / np.sqrt(9 + 1 / 12 * (draw is rounded_normals))
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


# -- the discrete Gaussian's chance of acceptance


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.0, 2.0**20])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_chance_of_acceptance_is_enclosed(scale, k):
    with mpmath.workprec(400):
        s = mpmath.mpf(scale)
        cell = mpmath.erf((k + 0.5) / s / mpmath.sqrt(2)) - mpmath.erf((k - 0.5) / s / mpmath.sqrt(2))
        cell0 = 2 * mpmath.erf(0.5 / s / mpmath.sqrt(2))
        exact = mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s * s)) * cell0 / cell
        found = integer_noise._enclosed_chance(integer_noise._interval(128), k, scale)
        low, high = (mpmath.mpf(end) for end in found._mpi_)
        assert abs(low - exact) < mpmath.mpf(2) ** -90
        assert abs(high - exact) < mpmath.mpf(2) ** -90
        low, high = integer_noise._chance(k, scale, 64)
        assert low <= exact <= high
        assert 1 - exact <= integer_noise._largest_rejection(np.array([k]), scale)[0] * (1 + 1e-12)


def test_a_coin_is_compared_digit_by_digit():
    """A coin that agrees with the chance in 80 bits is decided by the next word."""
    scale, k = 2.0, 3
    iv = integer_noise._interval(400)
    chance = integer_noise._enclosed_chance(iv, k, scale)
    digits = integer_noise.to_int((chance * iv.mpf(2) ** 208)._mpi_[0], "f")  # the first 208 bits
    begun = [digits >> 192, (digits >> 128) & (2**64 - 1)]
    for change, accepted in ((-1, True), (1, False)):
        following = ((digits >> 64) & (2**64 - 1)) + change
        stream = Digits({5 + LANE: following})
        assert integer_noise._accepted_exactly(stream, scale, k, 5, begun) is accepted


def test_large_scales_with_every_value_in_doubt_are_the_same(monkeypatch):
    stream, scale = seeded(11), 900.0
    expected = discrete_gaussians(stream, 2 * BLOCK, scale)
    monkeypatch.setattr(integer_noise, "_may_be_rejected_early", lambda k, units, scale: np.ones(len(k), bool))
    assert (discrete_gaussians(stream, 2 * BLOCK, scale) == expected).all()


def test_rejected_values_are_drawn_anew_from_words_of_their_own(monkeypatch):
    stream, scale = seeded(12), 0.6
    first, final = rounded_normals(stream, 50_000, scale), discrete_gaussians(stream, 50_000, scale)
    changed = (first != final).mean()
    assert 0.005 < changed < 0.2
    asked = []
    whole = Stream.words_at
    monkeypatch.setattr(Stream, "words_at", lambda self, places: asked.append(places) or whole(self, places))
    coins, read = [], Stream.bytes
    monkeypatch.setattr(
        Stream, "bytes", lambda self, count, offset=0: coins.append((offset, count)) or read(self, count, offset)
    )
    discrete_gaussians(stream, 50_000, scale)
    assert min(offset for offset, _ in coins) >= 8 * REGION
    assert max(offset + count for offset, count in coins) <= 16 * REGION
    places = np.concatenate(asked)
    assert len(np.unique(places)) == len(places)
    assert places.min() >= 2 * REGION  # never a word of the first draw, nor of its coins


class LastCoin(Stream):
    """The first attempt's coins begin with ones alone: the largest coin there is."""

    __slots__ = ()

    def bytes(self, count, offset=0):
        return b"\xff" * count if 8 * REGION <= offset < 16 * REGION else super().bytes(count, offset)

    def words_at(self, places):
        more = (places >= 2 * REGION) & (places < 3 * REGION)
        return np.where(more, np.uint64(2**64 - 1), super().words_at(places))


@pytest.mark.parametrize("scale", [2.0, 900.0, 5000.0, 2.0**20])
def test_the_last_coins_reject_however_small_the_chance(scale):
    """At large scales a rejection is rarer than one in 2^17, and is looked for where a coin begins with 16 ones."""
    stream = LastCoin(bytes(range(32)))
    first, final = rounded_normals(stream, 2 * BLOCK, scale), discrete_gaussians(stream, 2 * BLOCK, scale)

    def certain(values):  # what the last coin decides
        return np.array([float(integer_noise._chance(int(abs(k)), scale, 128)[1]) < 1 - 2.0**-46 for k in values])

    assert certain(first[:2000]).mean() > 0.5
    kept = certain(first[first == final]).sum() / len(first)
    assert kept <= 3 / scale + 0.02  # those that were drawn anew, and came out the same
    assert (first == final)[first == 0].all()  # 0 is always kept


# -- a value is a function of its place


@pytest.mark.parametrize("draw", [rounded_normals, discrete_gaussians])
@pytest.mark.parametrize("scale", [0.6, 2.0**22])
def test_any_stretch_has_the_same_values(draw, scale):
    stream = seeded(13)
    whole = draw(stream, 6000, scale)
    for offset, count in [(0, 0), (0, 1), (511, 3), (1023, 1025), (5000, 999)]:
        assert (draw(stream, count, scale, offset=offset) == whole[offset : offset + count]).all()


@pytest.mark.parametrize("draw", [rounded_normals, discrete_gaussians])
@pytest.mark.parametrize("threads", [1, 3])
def test_values_do_not_depend_on_threads_or_chunks(draw, threads):
    stream, count, before = seeded(14), PIECE + 2 * CHUNK64 + 77, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = draw(stream, count, 2.0**20)
    finally:
        torch.set_num_threads(before)
    pieces = [draw(stream, CHUNK64, 2.0**20, offset=i) for i in range(0, count, CHUNK64)]
    assert (np.concatenate(pieces)[:count] == whole).all()


def test_words_at_are_the_words():
    places = [0, 1, 5, REGION + 3, LANE + 4, 2**62 + 7]
    assert seeded(15).words_at(np.array(places)).tolist() == [int(seeded(15).words(1, p)[0]) for p in places]
    assert len(seeded(15).words_at(np.array([], np.int64))) == 0


@pytest.mark.parametrize("draw", [rounded_normals, discrete_gaussians])
def test_no_noise_is_zero_and_wrong_settings_raise(draw):
    assert not draw(seeded(16), 3000, 0.0).any()
    for wrong in (-1.0, math.nan, math.inf, 2.0**37):
        with pytest.raises(ValueError, match="scale must be in"):
            draw(seeded(16), 3, wrong)
    with pytest.raises(ValueError, match="count must be an integer >= 0"):
        draw(seeded(16), -1, 1.0)


def test_an_integer_beyond_int64_wraps():
    stream = Digits({0: 2**63, 5000: 0})
    value = integer_noise._refined(stream, 0, 5000, 2.0**63, sine=False)
    assert -(2**63) <= value < 2**63
