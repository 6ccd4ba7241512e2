"""Metrics of membership inference: against closed forms, and with limits that cover."""

import numpy as np
import pytest
from scipy import stats

from tacita.testing.membership import auc_interval, membership

FALSE_ALARM = 1e-6


def gaussian(mu: float, seed: int, candidates: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    members = rng.random(candidates) < 0.5
    return rng.normal(mu * members), members


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_gaussian_scores_have_the_known_curve(mu):
    found = membership(*gaussian(mu, 0), confidence=1 - FALSE_ALARM, false_positive_rates=(0.01, 0.1))
    assert found.auc.low < stats.norm.cdf(mu / np.sqrt(2)) < found.auc.high
    assert abs(found.auc.value - stats.norm.cdf(mu / np.sqrt(2))) < 0.05
    for rate, tpr in found.tpr.items():
        true = stats.norm.sf(stats.norm.isf(rate) - mu)
        assert abs(tpr.value - true) < 0.1  # the threshold is itself measured
        assert tpr.low <= tpr.value <= tpr.high
    assert found.members + found.others == 4000


def auc_missed(runs: int, shift: float) -> int:
    """How many of ``runs`` intervals leave out the true AUC, moved by ``shift``."""
    true, missed = stats.norm.cdf(1 / np.sqrt(2)) + shift, 0
    for seed in range(runs):
        auc = membership(*gaussian(1.0, seed, 400), confidence=0.9).auc
        missed += not auc.low <= true <= auc.high
    return missed


def test_the_limits_of_the_auc_cover():
    assert auc_missed(300, 0.0) <= stats.binom.isf(FALSE_ALARM, 300, 0.1)


def test_a_wrong_auc_would_be_seen():
    assert auc_missed(300, 0.08) > stats.binom.isf(FALSE_ALARM, 300, 0.1)


def test_perfect_scores_leave_room_for_doubt():
    found = auc_interval(1.0, 50, 0.05)
    assert found.high == 1.0
    assert 0.9 < found.low < 1.0
    assert auc_interval(0.0, 50, 0.05).low == 0.0


def test_members_and_others_are_not_exchanged():
    found = membership(np.array([2.0, 3.0, 0.0, 1.0]), np.array([True, True, False, False]))
    assert (found.auc.value, found.tpr[0.01].value) == (1.0, 1.0)
    assert membership(np.array([2.0, 3.0, 0.0, 1.0]), np.array([False, False, True, True])).auc.value == 0.0


@pytest.mark.parametrize(
    ("scores", "members", "says"),
    [
        (np.zeros(3), np.ones(3, dtype=bool), "both True and False"),
        (np.zeros(3), np.zeros(3, dtype=bool), "both True and False"),
        (np.zeros(3), np.ones(3), "bool"),
        (np.zeros(3), np.ones(2, dtype=bool), "the same shape"),
    ],
)
def test_what_is_no_pair_of_scores_and_members_is_refused(scores, members, says):
    with pytest.raises(ValueError, match=says):
        membership(scores, members)
