"""Float32 normals: the words are ChaCha20's, the normals near exact ones, and the bits those of any device."""

import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacita._normals import definition
from tacita._normals.definition import GROUP, LANES, PAIRS, pairs, words
from tacita.random import Stream
from tests.devices import on_each_device
from tests.normals import eager

device = on_each_device

KEY = bytes(range(1, 33))
CARRY = 2**32 // LANES  # the group with which the counter's second word begins


def filled(first, groups, key=KEY):
    out = np.empty(groups * GROUP, np.float32)
    definition.fill(key, first, out)
    return out


def test_eager_chacha20_has_the_test_vector_of_rfc_8439():
    """Appendix A.1, test vector 1: key, nonce and counter 0."""
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert eager.blocks(bytes(32), 0, 1, torch.device("cpu")).numpy().tobytes().hex() == expected


@pytest.mark.parametrize("first", [0, 5, CARRY - 3, CARRY, 2**40 + 1])
def test_words_are_chacha20s_under_a_counter_of_64_bits(first):
    """6,400 blocks each, from eager PyTorch, whose counter carries by itself."""
    groups = 100
    ours = eager.blocks(KEY, first * LANES, groups * LANES, torch.device("cpu")).numpy()
    ours = ours[: 3 * PAIRS].reshape(PAIRS, 3, groups, LANES).transpose(1, 2, 0, 3)
    for group in range(groups):
        assert (words(KEY, first + group, 1)[:, 0] == ours[:, group]).all()


@pytest.mark.parametrize("first", [0, CARRY - 2, 3 * CARRY + 7])
def test_every_device_gives_the_bits_of_numpy(device, first):
    made = eager.normals(KEY, first, 5, device)
    assert made.device.type == device.type
    assert made.cpu().numpy().tobytes() == filled(first, 5).tobytes()


def test_a_device_without_float64_gives_the_bits():
    from tests.simulated_device import NAME, without_float64

    with without_float64():
        made = eager.normals(KEY, 4, 2, torch.device(NAME))
    assert made.cpu().numpy().tobytes() == filled(4, 2).tobytes()


def test_the_bits_do_not_depend_on_chunks_or_on_what_else_is_drawn():
    first, groups = CARRY - 70, 150  # meets the ends of chunks, and the carry
    whole = filled(first, groups)
    for start, count in [(0, 1), (5, 1), (69, 2), (63, 65), (149, 1)]:
        assert filled(first + start, count).tobytes() == whole[start * GROUP : (start + count) * GROUP].tobytes()


def test_groups_and_keys_share_no_values():
    drawn = np.concatenate([filled(0, 2), filled(CARRY, 2), filled(0, 2, bytes(32))])
    assert len(np.unique(drawn)) > 0.999 * len(drawn)  # equal floats come by chance


# -- the distance from an exact normal


def exact(high, low, angle):
    """Radius and pair of the words in extended precision: docs/derivations/noise.md."""
    mirrored = high < 0
    v = np.where(mirrored, ~high, high).astype(np.longdouble)
    v += (np.where(mirrored, ~low, low).view(np.uint32) >> 1) * np.longdouble(2.0**-31) + np.longdouble(2.0**-32)
    radius = np.sqrt(-2 * np.where(mirrored, np.log1p(-v * 2.0**-32), np.log(v * 2.0**-32)))
    t = ((angle << 2) >> 2) * (np.longdouble(math.pi) / 2**31)
    cosine, sine = np.cos(t) * np.where(angle < 0, -1, 1), np.sin(t)
    change = (angle & 2**30) != 0
    return radius, np.where(change, sine, cosine) * radius, np.where(change, cosine, sine) * radius


def assert_near_exact(pair, words):
    radius, *exactly = exact(*words)
    error = np.maximum(*(np.abs(got - right) for got, right in zip(pair, exactly, strict=True)))
    assert (error <= 3.6e-7 * radius).all(), "not within the stated distance"


def some_words(count=2_000_000):
    """Random words, and in every third a v of any size, as rare words have it."""
    draws = np.random.default_rng(0)
    high, low, angle = draws.integers(-(2**31), 2**31, (3, count), np.int32)
    high[::3] = (high[::3] & 0x7FFFFFFF) >> draws.integers(0, 32, len(high[::3]), np.int32)
    low[::9] = (low[::9] & 0x7FFFFFFF) >> draws.integers(0, 32, len(low[::9]), np.int32)
    high[1::3] = ~(np.abs(high[1::3]) >> draws.integers(0, 31, len(high[1::3]), np.int32))
    return high, low, angle


def test_normals_are_near_exact_ones():
    given = some_words()
    assert_near_exact(pairs(*given), given)


@pytest.mark.parametrize("wrong", ["a radius", "an angle", "one value"])
def test_the_check_of_the_distance_can_fail(wrong):
    given = some_words(1000)
    first, second = pairs(*given)
    if wrong == "one value":
        second[500] *= np.float32(1 + 2e-6)
    elif wrong == "a radius":
        first, second = pairs(np.roll(given[0], 1), *given[1:])
    else:
        first, second = second, first
    with pytest.raises(AssertionError, match="not within"):
        assert_near_exact((first, second), given)


CORNERS = np.array([-(2**31), -(2**31) + 1, -(2**30), -1, 0, 1, 2, 2**24, 2**30 - 1, 2**30, 2**31 - 1], np.int32)


def test_no_word_gives_an_infinity_and_the_tail_reaches_9_4_sigma():
    given = tuple(x.ravel() for x in np.meshgrid(CORNERS, CORNERS, CORNERS, indexing="ij"))
    made = pairs(*given)
    assert_near_exact(made, given)
    radius = np.hypot(*(x.astype(np.float64) for x in made))
    assert radius.max() == pytest.approx(math.sqrt(2 * 64 * math.log(2)), rel=3e-7)
    assert radius.max() > 9.41
    assert radius.min() == pytest.approx(math.sqrt(2 * 2.0**-64), rel=3e-7)  # never 0


def test_no_number_on_the_way_is_subnormal():
    """Some devices and modes round them to zero."""
    given = tuple(x.ravel() for x in np.meshgrid(CORNERS, CORNERS, CORNERS, indexing="ij"))
    before = [x.tobytes() for x in pairs(*given)]
    assert torch.set_flush_denormal(True)
    try:
        tensors = [torch.from_numpy(x) for x in given]
        flushed = pairs(*tensors)
    finally:
        torch.set_flush_denormal(False)
    assert [x.numpy().tobytes() for x in flushed] == before


def test_streams_draw_float32_normals_under_a_key_of_their_own():
    """No two streams share it, and AES's key serves no other cipher."""
    secrets = [bytes([i]) * 32 for i in range(3)]
    derived = [HKDF(SHA256(), 32, salt=b"tacita normals v2", info=b"").derive(secret) for secret in secrets]
    for secret, key in zip(secrets, derived, strict=True):
        assert Stream(secret).normals(3 * GROUP).numpy().tobytes() == filled(0, 3, key).tobytes()
