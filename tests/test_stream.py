"""Streams: the exact words, and the laws of what is made from them."""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from tacita._box_muller import BLOCK, PAIR, fill_float64
from tacita._stream import _COINS, LANE, PIECE
from tacita.random import Key, Stream

SECRET = bytes(range(32))
FALSE_ALARM = 1e-6


def seeded(seed):
    return Key.insecure(seed).stream("test")


def ecb_words(first, count):
    """Words of AES-256-CTR, the plain way: encrypt each counter on its own."""
    encryptor = Cipher(algorithms.AES(SECRET), modes.ECB()).encryptor()
    blocks = [encryptor.update(counter.to_bytes(16, "big")) for counter in range(first // 2, (first + count) // 2 + 1)]
    data = b"".join(blocks)[8 * (first % 2) :]
    return [int.from_bytes(data[8 * i : 8 * i + 8], "little") for i in range(count)]


# -- exact identities


@pytest.mark.parametrize(("first", "count"), [(0, 9), (1, 1), (3, 8), (2**35 + 1, 5), (2**60, 4)])
def test_words_are_aes_of_the_counter(first, count):
    assert Stream(SECRET).words(count, first).tolist() == ecb_words(first, count)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 60))
def test_any_stretch_of_bytes_is_the_same_bytes(start, count, skip):
    stream = Stream(SECRET)
    whole = stream.bytes(count + skip, start)
    assert stream.bytes(count, start + skip) == whole[skip:]
    assert stream.words(4).tobytes() == stream.bytes(32)


def test_a_long_draw_equals_its_pieces():
    stream = Stream(SECRET)
    long = stream.words(100_001, 7)
    assert (long[60_000:] == stream.words(40_001, 60_007)).all()


@pytest.mark.parametrize("probability", [0.0, 2.0**-64, 0.3, Fraction(1, 3), 0.5, 1 - 2.0**-53, 1.0])
def test_a_coin_is_one_word_below_the_floored_threshold(probability):
    stream = Stream(SECRET)
    threshold = math.floor(Fraction(probability) * 2**64)
    expected = [word < threshold for word in ecb_words(5, 400)]
    assert stream.bernoulli(400, probability, offset=5).tolist() == expected


def test_the_chance_is_rounded_down(monkeypatch):
    threshold = 2**64 // 3
    monkeypatch.setattr(Stream, "words", lambda self, count, offset=0: np.array([threshold - 1, threshold], np.uint64))
    assert seeded(0).bernoulli(2, Fraction(1, 3)).tolist() == [True, False]


def test_coins_are_the_same_however_they_are_asked_for():
    stream = seeded(0)
    coins = stream.bernoulli(2 * _COINS + 5, 0.25)
    assert (coins[_COINS - 3 :] == stream.bernoulli(_COINS + 8, 0.25, offset=_COINS - 3)).all()


@pytest.mark.parametrize("high", [1, 7, 2**40, 3 * 2**61, 2**63])
def test_integers_are_words_modulo_high_with_rejected_words_replaced(high):
    stream = Stream(SECRET)
    limit = high * (2**64 // high)

    def plain(place):
        while (word := ecb_words(place, 1)[0]) >= limit:
            place += LANE
        return word % high

    assert stream.integers(40, high, offset=3).tolist() == [plain(3 + i) for i in range(40)]


def test_float64_normals_are_box_muller_of_the_words():
    stream, blocks = seeded(1), 5
    words = stream.words(blocks * BLOCK).view(np.int64).reshape(blocks, 2, -1) >> 11
    radius = np.sqrt(-2 * np.log((words[:, 0] + 2.0**52 + 1) / 2.0**53))
    angle = np.pi * (words[:, 1] / 2.0**52)
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    drawn = stream.normals(blocks * BLOCK, dtype=torch.float64).numpy()
    np.testing.assert_allclose(drawn, expected, rtol=0, atol=1e-14)


@given(st.integers(0, 5000), st.integers(0, 3000))
def test_any_stretch_of_normals_has_the_same_bits(offset, count):
    stream = Stream(SECRET)
    assert torch.equal(stream.normals(count, offset=offset), stream.normals(8000)[offset : offset + count])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_the_bits_of_normals_do_not_depend_on_threads_or_chunks(threads, dtype):
    stream, count, before = seeded(3), 2 * PIECE + 3 * BLOCK + 17, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = stream.normals(count, dtype=dtype)
    finally:
        torch.set_num_threads(before)
    pieces = [stream.normals(3 * BLOCK, dtype=dtype, offset=i) for i in range(0, count, 3 * BLOCK)]
    assert torch.equal(whole, torch.cat(pieces)[:count])


def test_the_shape_only_folds_the_stream():
    stream = seeded(4)
    assert torch.equal(stream.normals((3, 0, 2)), torch.empty(3, 0, 2))
    assert torch.equal(stream.normals((2, 3, 5)).flatten(), stream.normals(30))
    assert stream.normals(()).shape == ()


def given_words(words):
    """Return a function that gives these words."""
    return lambda out: out.__setitem__(slice(None), words.view(np.uint8))


def test_the_float64_tail_reaches_8_5_sigma_and_no_word_gives_an_infinity():
    words = np.zeros(BLOCK, np.uint64)
    words[0] = 2**63  # the smallest uniform, 2^-53
    words[1] = 2**63 - 1  # the largest, 1
    words[PAIR + 2 :] = 2**64 - 1
    out = np.empty(BLOCK)
    fill_float64(out, given_words(words))
    assert out[0] == pytest.approx(math.sqrt(2 * 53 * math.log(2)), abs=1e-12)
    assert out[0] > 8.5
    assert out[1] == 0
    assert np.isfinite(out).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_gets_the_same_bits():
    stream = seeded(5)
    for offset in (0, 777):
        assert torch.equal(
            stream.normals(3000, device="cuda", offset=offset).cpu(), stream.normals(3000, offset=offset)
        )


def test_permutations_and_choices_are_what_they_say():
    stream = seeded(6)
    for n in (0, 1, 2, 1000):
        assert sorted(stream.permutation(n).tolist()) == list(range(n))
        for k in {0, n // 3, n // 2, n - n // 4, n}:
            chosen = stream.choice(n, k)
            assert len(chosen) == k == len(set(chosen.tolist()))
            assert (np.diff(chosen) > 0).all()
            assert chosen.dtype == np.int64
            assert ((chosen >= 0) & (chosen < n)).all()


def test_a_tie_redraws_the_whole_permutation(monkeypatch):
    lanes = {0: [5, 5, 1], LANE: [9, 3, 6]}
    monkeypatch.setattr(Stream, "words", lambda self, count, offset=0: np.array(lanes[offset], np.uint64))
    assert seeded(0).permutation(3).tolist() == [1, 2, 0]


# -- hostile settings


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_noise_of_few_bits_is_refused(dtype):
    with pytest.raises(ValueError, match=r"dtype must be torch\.float32 or torch\.float64"):
        seeded(0).normals(3, dtype=dtype)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: s.words(-1), "count must be >= 0"),
        (lambda s: s.words(1, -1), "offset must be >= 0"),
        (lambda s: s.normals((2, -1)), "shape must be >= 0"),
        (lambda s: s.bernoulli(3, 1.1), r"probability must be in \[0, 1\]"),
        (lambda s: s.bernoulli(3, math.nan), r"probability must be in \[0, 1\]"),
        (lambda s: s.integers(3, 0), "high must be in"),
        (lambda s: s.integers(3, 2**63 + 1), "high must be in"),
        (lambda s: s.choice(3, 4), "k must be at most n"),
        (lambda s: Stream(b"short"), "must have 32 bytes"),
    ],
)
def test_settings_out_of_range_are_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask(seeded(0))


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_is_neither_shown_nor_copied(copier):
    assert repr(seeded(0)) == "Stream(<secret>)"
    with pytest.raises(TypeError, match="neither copied nor pickled"):
        copier(seeded(0))


# -- laws: exact, with a stated false-alarm rate, and twins that fail


def assert_normal_scale(draws, std=1.0):
    """sum(draws^2) / std^2 is chi-square(n)."""
    low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=draws.numel())
    ratio = draws.double().square().sum().item() / std**2
    assert low < ratio < high, f"std is {(ratio / draws.numel()) ** 0.5:.4f} x the stated one"


def assert_normal_shape(draws):
    assert scipy.stats.kstest(draws.double().numpy(), "norm").pvalue > FALSE_ALARM, "not the normal shape"


def assert_normal_tail(count, trials):
    """How many of ``trials`` lie beyond 5 sigma is Binomial(trials, 2 Phi(-5))."""
    law = scipy.stats.binomtest(count, trials, 2 * scipy.stats.norm.cdf(-5))
    assert law.pvalue > FALSE_ALARM, "not the normal tail"


def assert_uniform(counts):
    assert scipy.stats.chisquare(counts).pvalue > FALSE_ALARM, "not uniform"


N = 10**6  # standard error of the estimated std: 1 / sqrt(2 N) = 0.07 %


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_have_scale_and_shape(dtype):
    draws = seeded(7).normals(N, dtype=dtype)
    assert_normal_scale(draws)
    assert_normal_shape(draws)


@pytest.mark.parametrize("wrong", [0.994, 1.006])
def test_the_scale_check_can_fail(wrong):
    with pytest.raises(AssertionError, match="the stated one"):
        assert_normal_scale(wrong * seeded(8).normals(N))


def test_the_shape_check_can_fail():
    student = torch.from_numpy(np.random.default_rng(0).standard_t(15, N) * math.sqrt(13 / 15))  # variance 1
    with pytest.raises(AssertionError, match="shape"):
        assert_normal_shape(student)


TAIL_CALLS, TAIL_DRAWS = 16, 4 * 10**6  # 36.7 expected beyond 5 sigma


def test_normals_have_the_tail():
    beyond = sum(
        int((seeded(9).normals(TAIL_DRAWS, offset=call * TAIL_DRAWS).abs() > 5).sum()) for call in range(TAIL_CALLS)
    )
    assert_normal_tail(beyond, TAIL_CALLS * TAIL_DRAWS)


@pytest.mark.parametrize("count", [0, 9, 75])  # a uniform of 18 bits cuts the tail at 4.995 and gives 0
def test_the_tail_check_can_fail(count):
    with pytest.raises(AssertionError, match="tail"):
        assert_normal_tail(count, TAIL_CALLS * TAIL_DRAWS)


@pytest.mark.parametrize("lag", [1, 2, 512, 1024, 4096])
def test_normals_are_uncorrelated_even_within_a_pair(lag):
    draws = seeded(10).normals(N + lag, dtype=torch.float64)
    correlation = (draws[:-lag] * draws[lag:]).mean().item() * math.sqrt(N)  # N(0, 1) up to O(1 / sqrt(N))
    assert abs(correlation) < 5.2
    squares = ((draws[:-lag] ** 2 - 1) * (draws[lag:] ** 2 - 1)).mean().item() * math.sqrt(N) / 2
    assert abs(squares) < 5.2


def test_words_are_uniform_in_every_byte():
    data = np.frombuffer(seeded(11).bytes(8 * 10**5), np.uint8).reshape(-1, 8)
    for place in range(8):
        assert_uniform(np.bincount(data[:, place], minlength=256))


def test_coins_have_their_chance():
    ones = int(seeded(12).bernoulli(N, 0.02).sum())
    assert scipy.stats.binomtest(ones, N, 0.02).pvalue > FALSE_ALARM
    assert scipy.stats.binomtest(ones, N, 0.021).pvalue < FALSE_ALARM


def test_integers_are_unbiased_where_a_plain_modulus_is_not():
    high, stream = 3 * 2**61, seeded(13)
    thirds = np.bincount(stream.integers(20_000, high) // 2**61, minlength=3)
    assert_uniform(thirds)
    with pytest.raises(AssertionError, match="not uniform"):
        assert_uniform(np.bincount((stream.words(20_000) % np.uint64(high)).astype(np.int64) // 2**61, minlength=3))


def test_permutations_are_uniform():
    key = Key.insecure(14)
    codes = [key.stream(i).permutation(4) @ np.array([64, 16, 4, 1]) for i in range(6000)]
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 24
    assert_uniform(counts)


@pytest.mark.parametrize(("n", "k", "subsets"), [(6, 2, 15), (6, 4, 15), (5, 1, 5), (6, 3, 20)])
def test_choices_are_uniform_subsets(n, k, subsets):
    key = Key.insecure(15)
    codes = [sum(1 << int(j) for j in key.stream(i).choice(n, k)) for i in range(4000)]
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == subsets
    assert_uniform(counts)


def test_seeds_fit_torch_and_differ():
    seeds = {Key.insecure(16).stream(i).seed() for i in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_words_at_are_the_words():
    places = [0, 1, 5, 2**50 + 3, LANE + 4, 2**62 + 7]
    assert seeded(15).words_at(np.array(places)).tolist() == [int(seeded(15).words(1, p)[0]) for p in places]
    assert len(seeded(15).words_at(np.array([], np.int64))) == 0
