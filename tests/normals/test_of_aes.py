"""Float32 normals of runs that began under AES: near exact ones, whatever the words."""

import math

import numpy as np
import pytest
import torch

from tacita._box_muller import BLOCK, PAIR
from tacita._stream import AES, Stream
from tacita.random import Key


def seeded(seed):
    return Key(bytes([seed]) * 32, secure=False, version=AES).stream("test")


def exact_pairs(stream, blocks):
    """Radii and normals of float32's words in float64, each radius from 84 bits: docs/derivations/noise.md."""
    words = np.frombuffer(stream.bytes(4 * blocks * BLOCK, 16 * 2**96), "<i4").reshape(blocks, 2, PAIR)
    bits = np.frombuffer(stream.bytes(16 * blocks * BLOCK, 16 * 2**97), "<u8").reshape(blocks, 2, PAIR, 2)[:, 0, :, 0]
    word, rest = (words[:, 0] & (2**31 - 1)).astype(float), ((bits >> np.uint64(11)) + 0.5) / 2.0**53
    logs = np.where(word < 2**30, np.log((word + rest) / 2.0**31), np.log1p(-((2.0**31 - word) - rest) / 2.0**31))
    radius, angle = np.sqrt(-2 * logs), np.pi * ((words[:, 1] + 0.5) / 2.0**31)
    return radius, np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def assert_near_exact(draws, stream):
    blocks = len(draws) // BLOCK
    radius, exact = exact_pairs(stream, blocks)
    error = np.abs(draws.double().numpy().reshape(blocks, 2, PAIR) - exact)
    assert (error <= (3e-6 + 1.1e-6 * radius)[:, None]).all(), "not within the stated distance"


def test_float32_normals_are_near_exact_ones():
    assert_near_exact(seeded(2).normals(2048 * BLOCK), seeded(2))


@pytest.mark.parametrize("wrong", ["half an angle", "radius of the next pair", "one value"])
def test_the_check_of_the_distance_can_fail(wrong):
    draws = seeded(2).normals(8 * BLOCK)
    if wrong == "one value":
        draws[3000] += 1e-5
    elif wrong == "half an angle":
        draws = draws.view(8, 2, PAIR).abs().flatten()
    else:
        draws = draws.roll(1)
    with pytest.raises(AssertionError, match="not within"):
        assert_near_exact(draws, seeded(2))


def test_words_near_either_end_go_on_in_a_second_word():
    """The float32 value alone has an error of 1e-4 near radius 0 and of 1e-3 in the tail; no radius is exactly 0."""
    stream, blocks = seeded(3), 4096
    radius, _ = exact_pairs(stream, blocks)
    drawn = stream.normals(blocks * BLOCK).double().view(blocks, 2, PAIR).norm(dim=1).numpy()
    ends = (radius > 4.2) | (radius < 0.02)
    assert ends.sum() > 500
    np.testing.assert_allclose(drawn[ends], radius[ends], rtol=3e-7)


def test_float32_and_float64_normals_share_no_word(monkeypatch):
    """Nor do the words that continue those of float32, for up to 2^60 values of either."""
    starts, whole, blocks = [], Stream._cipher, Stream._blocks

    def spied(self, offset):
        starts.append(offset)
        return whole(self, offset)

    def spied_blocks(self, counter, places):
        starts.append(16 * (counter + int(places.min())))
        return blocks(self, counter, places)

    monkeypatch.setattr(Stream, "_cipher", spied)
    monkeypatch.setattr(Stream, "_blocks", spied_blocks)
    seeded(4).normals(16 * BLOCK, dtype=torch.float64)
    seeded(4).normals(16 * BLOCK)
    assert len(starts) == 3
    assert min(np.diff([int(start) // 2**60 for start in sorted(starts)])) > 16


@pytest.mark.parametrize(
    ("word", "second", "radius"),
    [
        (0, 0, math.sqrt(2 * 85 * math.log(2))),
        (2**31, 0, math.sqrt(2 * 85 * math.log(2))),  # the first bit is not used
        (0, 2**63, math.sqrt(2 * 32 * math.log(2))),
        (1, 2**63, math.sqrt(-2 * math.log(1.5 * 2.0**-31))),
        (2**31 - 1, 2**63, math.sqrt(-2 * math.log1p(-(2.0**-32)))),
        (2**31 - 1, 2**64 - 1, 0.0),
        (2**30, 0, math.sqrt(2 * math.log(2))),
    ],
)
def test_the_float32_tail_reaches_10_8_sigma_and_no_word_gives_an_infinity(word, second, radius, monkeypatch):
    words, seen = np.zeros(BLOCK, np.uint32), []
    words[7] = word
    words[PAIR + 8 :] = 2**32 - 1

    def continuing(self, counter, places):
        seen.extend(places.tolist())
        return np.full((len(places), 2), second, np.uint64)

    monkeypatch.setattr(Stream, "bytes", lambda self, count, offset: words.tobytes())
    monkeypatch.setattr(Stream, "_blocks", continuing)
    out = seeded(0).normals(BLOCK, offset=5 * BLOCK)
    assert out[7].item() == pytest.approx(radius, rel=3e-7)
    assert (5 * BLOCK + 7 in seen) == (word != 2**30)
    assert out.isfinite().all()


def test_any_stretch_of_normals_has_the_same_bits():
    stream = seeded(4)
    whole = stream.normals(300 * BLOCK)
    for offset, count in [(0, 1), (7, 2000), (130 * BLOCK - 3, 100), (BLOCK, 200 * BLOCK)]:
        assert torch.equal(stream.normals(count, offset=offset), whole[offset : offset + count])
