"""Laws of counts, exact, with a stated false-alarm rate; coins from a seed."""

import numpy as np
import pytest
import scipy.stats

from tacita.random import QueryCoins, Randomness

FALSE_ALARM = 1e-6


@pytest.fixture
def coins():
    """``coins(seed)``: the coins of one session."""
    return lambda seed=0, session="train-1": QueryCoins(Randomness.insecure(seed), session)


@pytest.fixture
def assert_binomial():
    """Fail unless every count is Binomial(trials, probability): exact tails, shared out over the counts."""

    def check(counts, trials, probability):
        law, counts = scipy.stats.binom(trials, probability), np.ravel(counts)
        tails = 2 * np.minimum(law.cdf(counts), law.sf(counts - 1))
        assert tails.min() > FALSE_ALARM / counts.size, "not the stated frequency"

    return check


@pytest.fixture
def assert_law():
    """Fail unless counts of outcomes have the stated chances: chi-square, every cell expected 20 times or more."""

    def check(counts, chances):
        expected = np.asarray(chances) * np.sum(counts)
        assert expected.min() >= 20, "pool the outcomes"
        assert scipy.stats.chisquare(counts, expected).pvalue > FALSE_ALARM, "not the stated law"

    return check
