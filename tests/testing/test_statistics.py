"""Exact likelihood ratios are the ratios of the two densities; other statistics see what they are for."""

import numpy as np
import pytest
import scipy.stats
import torch

from tacita.accounting import FixedSizeLaw, FullBatchLaw, PoissonLaw, PoissonUnitLaw, ShuffledEpochsLaw
from tacita.testing.simulator import Trace
from tacita.testing.statistics import (
    STATISTICS,
    GivenTheOthers,
    LikelihoodRatio,
    LinearDiscriminant,
    Patterns,
    Pilot,
    QuadraticDiscriminant,
)

GRID = np.linspace(-6, 6, 25)
MOVED = 1.3


def trace(shift, drawn, residual=None, others=None):
    """One coordinate."""
    shift = torch.as_tensor(shift, dtype=torch.float32)
    residual = shift if residual is None else torch.as_tensor(residual, dtype=torch.float32)
    drawn = torch.as_tensor(drawn)
    others = torch.zeros_like(drawn) if others is None else torch.as_tensor(others)
    return Trace(residual.unsqueeze(-1), shift.unsqueeze(-1), drawn, others)


def pilot(law, *, copies=1, opposite=False, coins_known=False, remembers=False):
    """Half of the runs draw one row of the canary, in one query."""
    drawn = np.arange(40)[:, None] % 2
    return Pilot(
        present=trace(MOVED * drawn, drawn),
        absent=trace((-MOVED if opposite else 0.0) * drawn, drawn),
        law=law,
        copies=copies,
        coins_known=coins_known,
        remembers=remembers,
    )


def mixture(chances, step):
    """Log density of the mixture of N(j step, 1)."""
    return np.log(sum(c * scipy.stats.norm.pdf(GRID, j * step) for j, c in enumerate(chances)))


BINOMIAL = scipy.stats.binom.pmf(range(4), 3, 0.2)
RATIOS = {
    "poisson": (pilot(PoissonLaw(0.2)), mixture([0.8, 0.2], MOVED) - mixture([1.0], 0)),
    "replace-one": (pilot(PoissonLaw(0.2), opposite=True), mixture([0.8, 0.2], MOVED) - mixture([0.8, 0.2], -MOVED)),
    "fixed-size": (pilot(FixedSizeLaw(2, 10)), mixture([0.8, 0.2], MOVED) - mixture([1.0], 0)),
    "units": (pilot(PoissonUnitLaw(0.2, 3), copies=3), mixture(BINOMIAL, MOVED) - mixture([1.0], 0)),
    "full-batch": (pilot(FullBatchLaw(), coins_known=True), mixture([0, 1.0], MOVED) - mixture([1.0], 0)),
}


def test_batches_by_own_coins_give_one_mixture_an_epoch():
    """Two epochs of 3 batches, of which the last is not released in full."""
    x = np.random.default_rng(0).normal(size=(20, 5))
    score = LikelihoodRatio().fit(pilot(ShuffledEpochsLaw(3, own_coin=True)))
    ratios = np.exp(MOVED * np.pad(x, ((0, 0), (0, 1))) - MOVED**2 / 2)
    ratios[:, 5] = 1.0  # the record may be in the batch to come
    exact = np.log(ratios.reshape(20, 2, 3).mean(axis=2)).sum(axis=1)
    assert score(trace(0 * x, np.ones(x.shape, int), residual=x)) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize(("fitted", "exact"), RATIOS.values(), ids=RATIOS)
def test_exact_ratios_are_those_of_the_densities(fitted, exact):
    score = LikelihoodRatio().fit(fitted)
    runs = trace(np.zeros((25, 1)), np.ones((25, 1), int), residual=GRID[:, None])
    assert score(runs) == pytest.approx(exact, abs=1e-5)


def test_queries_add_up():
    score = LikelihoodRatio().fit(pilot(PoissonLaw(0.2)))
    one = score(trace(np.zeros((25, 1)), np.ones((25, 1), int), residual=GRID[:, None]))
    both = score(trace(np.zeros((25, 2)), np.ones((25, 2), int), residual=np.stack([GRID, GRID[::-1]], 1)))
    assert both == pytest.approx(one + one[::-1], abs=1e-5)


def test_no_exact_ratio_is_claimed_where_something_is_remembered_or_unknown():
    assert LikelihoodRatio().fit(pilot(PoissonLaw(0.2), remembers=True)) is None
    assert LikelihoodRatio().fit(pilot(None)) is None
    assert Patterns().fit(pilot(PoissonLaw(0.2))) is None


def test_what_is_remembered_is_averaged_over_runs():
    """Half of the runs shift by MOVED in the first query, and keep it: two patterns."""
    first = np.arange(256)[:, None] % 2 * np.ones((1, 2))
    known = Pilot(trace(MOVED * first, first > 0), trace(0 * first, first > 0), PoissonLaw(0.5), 1, False, True)
    x = np.array([[0.3, -1.0], [2.0, 1.5]])
    exact = np.log(0.5 + 0.5 * np.exp(MOVED * x.sum(1) - MOVED**2))
    assert Patterns().fit(known)(trace(0 * x, x > 0, residual=x)) == pytest.approx(exact, abs=1e-5)


def test_others_that_give_the_canary_away_are_listened_to():
    """The canary is in where one other is not: batches of a fixed size, claimed to be Poisson."""
    drawn = np.arange(40)[:, None] % 2
    fitted = Pilot(
        trace(MOVED * drawn, drawn, others=3 - drawn),
        trace(0.0 * drawn, drawn, others=3 - drawn),
        PoissonLaw(0.5),
        1,
        False,
        False,
    )
    score = GivenTheOthers().fit(fitted)
    runs = trace(np.zeros((2, 1)), np.ones((2, 1), int), residual=[[1.0], [1.0]], others=[[2], [3]])
    assert score(runs) == pytest.approx([MOVED - MOVED**2 / 2, 0.0], abs=1e-5)


@pytest.mark.parametrize("statistic", [LinearDiscriminant(), QuadraticDiscriminant()], ids=lambda s: s.name)
def test_noise_that_cancels_between_queries_is_seen(statistic):
    """The same noise in both queries; the canary is in the first alone."""
    rng = np.random.default_rng(0)

    def runs(shift, count):
        noise = rng.normal(size=(count, 1)).repeat(2, 1)
        return trace(np.zeros((count, 2)), np.ones((count, 2), int), residual=noise + np.array([shift, 0.0]))

    score = statistic.fit(Pilot(runs(0.1, 200), runs(0.0, 200), None, 1, False, True))
    assert score(runs(0.1, 500)).min() > score(runs(0.0, 500)).max()


def test_every_statistic_takes_what_is_not_finite():
    bad = np.array([[np.nan, 1.0], [np.inf, 0.0], [1e30, -np.inf]] * 20)
    traces = trace(bad, np.ones(bad.shape, int))
    for statistic in STATISTICS:
        score = statistic.fit(Pilot(traces, traces, None, 1, False, True))
        if score is not None:
            assert score(traces).shape == (60,)
