"""Binomial counts: their exact law, by counting every stream, and by a chi-square test that can fail."""

import numpy as np
import pytest
from scipy.stats import binom, chi2

from tacita._binomials import _binomial, binomials
from tacita.random import Key

DRAWS = 6_000


class Given:
    """Bits that a test chooses, in place of a stream's."""

    def __init__(self, bits):
        self._bits = list(bits)

    def ones(self, count):
        taken, self._bits = self._bits[:count], self._bits[count:]
        return sum(taken)


def of_every_stream(trials, probability, length):
    """The law over all bit strings of this length, which must be enough for every draw."""
    law = np.zeros(trials + 1)
    for number in range(2**length):
        bits = [number >> place & 1 for place in range(length)]
        law[_binomial(Given(bits), trials, probability)] += 2.0**-length
    return law


@pytest.mark.parametrize(
    ("trials", "probability", "length"), [(4, 0.5, 4), (3, 0.25, 6), (3, 0.75, 6), (2, 0.375, 6), (4, 0.625, 12)]
)
def test_the_law_is_exact(trials, probability, length):
    exact = binom.pmf(np.arange(trials + 1), trials, probability)
    assert of_every_stream(trials, probability, length) == pytest.approx(exact, abs=1e-12)


def p_value(draws, trials, probability):
    edges = np.unique(binom.ppf(np.linspace(0.02, 0.98, 20), trials, probability))
    found = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    below = np.concatenate([[0.0], binom.cdf(edges, trials, probability), [1.0]])
    expected = np.diff(below) * len(draws)
    return float(chi2.sf(((found - expected) ** 2 / expected).sum(), len(expected) - 1))


@pytest.mark.parametrize(("trials", "probability"), [(1001, 0.5), (500, 0.3), (90, 0.49991546572250367)])
def test_draws_have_the_law_and_another_one_is_told_apart(trials, probability):
    draws = binomials(Key.insecure(3).stream("noise", trials), DRAWS, trials, probability)
    assert p_value(draws, trials, probability) > 1e-4
    assert p_value(draws, trials + round(0.05 * trials), probability) < 1e-6
    assert p_value(draws, trials, 0.95 * probability) < 1e-6


def test_long_counts_are_read_piece_by_piece(monkeypatch):
    whole = binomials(Key.insecure(0).stream("a"), 3, 100_003, 0.5)
    assert abs(whole - 50_001).max() < 1000
    monkeypatch.setattr("tacita._binomials._PIECE", 1024)
    assert abs(binomials(Key.insecure(0).stream("a"), 3, 100_003, 0.5) - 50_001).max() < 1000
    assert (
        binomials(Key.insecure(0).stream("a"), 1, 8 * 1024 * 3, 0.5)[0]
        == np.unpackbits(np.frombuffer(Key.insecure(0).stream("a").bytes(1024 * 3), np.uint8)).sum()
    )


def test_no_bit_is_used_twice():
    two = binomials(Key.insecure(0).stream("a"), 2, 64, 0.5)
    words = Key.insecure(0).stream("a").words(2)
    assert two.tolist() == [int(word).bit_count() for word in words]


def test_certain_bits_and_wrong_chances():
    stream = Key.insecure(0).stream("a")
    assert binomials(stream, 2, 7, 1.0).tolist() == [7, 7]
    assert binomials(stream, 2, 7, 0.0).tolist() == [0, 0]
    with pytest.raises(ValueError, match="probability must be"):
        binomials(stream, 1, 7, 1.5)
