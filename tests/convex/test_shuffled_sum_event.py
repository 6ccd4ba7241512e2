"""What shuffled sums spend, by their exact law: small domains are enumerated, and false claims are refuted.

The worlds of one query are products of shifted binomial counts. Their hockey-stick divergence is a finite sum, so the
event's delta is compared with the truth, and not with an estimate.
"""

import itertools
import math
import os
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import binom

from tacita import accounting as acc
from tacita import convex
from tacita.accounting import Spend, delta, epsilon
from tacita.convex import ShuffledSumEvent
from tacita.errors import UnsupportedEventError

AUDIT = bool(os.environ.get("TACITA_AUDIT"))
ONE_PASS = acc.DisjointLaw(own_coin=False)
EPSILONS = (0.3, 1.0, 2.0) if not AUDIT else (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)


def shuffled(**settings):
    return ShuffledSumEvent(
        **{
            "relation": "replace_one",
            "sampling": ONE_PASS,
            "users": 20,
            "coordinates": 2,
            "grid": 4,
            "noise_bits": 20,
            "bit_prob": 0.5,
            "l2_bounded": True,
            **settings,
        }
    )


def world(trials, p, shifts, longest):
    """The law of the counts of one user's world: an outer product, flat."""
    masses = [binom.pmf(np.arange(trials + longest + 1) - shift, trials, p) for shift in shifts]
    return reduce(np.multiply.outer, masses).ravel()


def divergence(upper, lower, at):
    return float(np.maximum(0.0, upper - math.exp(at) * lower).sum())


def worst(case, at):
    """The largest delta over all vectors of whole steps that one record may move, by the numbers of the case."""
    still = world(case.trials, case.p, (0,) * case.dim, case.most)
    vectors = itertools.product(range(case.most + 1), repeat=case.dim)
    moved = [world(case.trials, case.p, v, case.most) for v in vectors if math.hypot(*v) <= case.radius + 1e-9]
    return max(max(divergence(still, other, at), divergence(other, still, at)) for other in moved)


class Case(NamedTuple):
    """A claim, and what it must be about, worked out by hand: no number of the event's own."""

    event: ShuffledSumEvent
    trials: int
    most: int
    radius: float
    dim: int = 2
    p: float = 0.5


CASES = {
    "vectors": Case(shuffled(), 400, 4, 4 + 2**0.5),
    "zeroed": Case(shuffled(relation="zero_out_one"), 400, 2, 8**0.5),
    "odd": Case(shuffled(relation="zero_out_one", grid=5, l2_bounded=False), 400, 3, 18**0.5),
    "medians": Case(shuffled(l2_bounded=False), 400, 4, 32**0.5),
    "numbers": Case(shuffled(coordinates=1), 400, 4, 4.0, dim=1),
    "biased": Case(shuffled(bit_prob=0.45, failure_probability=1e-6), 400, 4, 4 + 2**0.5, p=0.45),
    "honest": Case(shuffled(users=40, honest_fraction=0.5), 400, 4, 4 + 2**0.5),
    **({"three": Case(shuffled(users=6, coordinates=3), 120, 4, 4 + 3**0.5, dim=3)} if AUDIT else {}),
    "few bits": Case(shuffled(users=2, noise_bits=8), 16, 4, 4 + 2**0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_no_record_moves_the_counts_farther_than_claimed(name):
    case = CASES[name]
    for at in EPSILONS:
        assert worst(case, at) <= delta([Spend(case.event, 1)], at).delta


@pytest.mark.parametrize("name", ["vectors", "medians", "numbers", "biased"])
def test_a_claim_on_twice_the_noise_is_refuted(name):
    """The twin: the same comparison finds an event that counts on noise bits which are not there."""
    case = CASES[name]
    claimed = replace(case.event, users=2 * case.event.users)
    assert any(worst(case, at) > delta([Spend(claimed, 1)], at).delta for at in EPSILONS)


def rounded(steps, trials, most):
    """The law of one count where a user's number is rounded at random: a mixture of two shifts."""
    below = math.floor(steps)
    up = steps - below
    masses = [binom.pmf(np.arange(trials + most + 2) - below - more, trials, 0.5) for more in (0, 1)]
    return (1 - up) * masses[0] + up * masses[1]


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_vectors_themselves_from_end_to_end(relation):
    """Records of norm 1 in all directions, rounded to the grid at random: the exact law of what is seen."""
    event = shuffled(relation=relation)
    angles = np.linspace(0, 2 * math.pi, 240 if AUDIT else 12, endpoint=False) + 0.05
    found = 0.0
    for at in EPSILONS:
        claimed = delta([Spend(event, 1)], at).delta
        for angle in angles:
            record = np.array([math.cos(angle), math.sin(angle)])
            other = -record if relation == "replace_one" else 0 * record
            here, there = (np.outer(*(rounded(x, 400, 4) for x in (v + 1) * 2)) for v in (record, other))
            exact = max(divergence(here, there, at), divergence(there, here, at))
            found = max(found, exact / claimed)
            assert exact <= claimed
    assert found > 0.05


def test_a_number_costs_exactly_what_is_claimed():
    case = CASES["numbers"]
    for at in EPSILONS:
        claimed = delta([Spend(case.event, 1)], at).delta
        assert worst(case, at) <= claimed <= 1.01 * worst(case, at) + 1e-8


def test_rounding_lengthens_a_vector_and_is_paid_for():
    """Two coordinates of 2.1 steps may both be rounded to 3: a norm of 4.24 in place of 2.97 steps."""
    assert shuffled(grid=6, relation="zero_out_one").radius == pytest.approx(math.hypot(3, 3))  # each at most 3
    assert shuffled(grid=6, coordinates=9, relation="zero_out_one").radius == pytest.approx(3 + 3)
    assert shuffled(grid=6, coordinates=9).radius == pytest.approx(6 + 3)
    assert shuffled(coordinates=9, grid=6, l2_bounded=False).radius == 18.0


def test_the_renyi_bound_holds_at_every_order():
    """On the counts that are not left out, against sums over all counts, for every vector."""
    event = shuffled(users=100, noise_bits=6, failure_probability=1e-4)
    slope, excess, failure = event.renyi()
    trials, most = event.noise_trials, event.shift
    kept = np.arange(trials + most + 1) >= trials / 2 - math.sqrt(trials * math.log(1e4) / 2)
    still = binom.pmf(np.arange(trials + most + 1), trials, 0.5)
    assert still[~kept].sum() <= 1e-4
    for a in (1.5, 2.0, 8.0, 32.0):
        each = [0.0]
        for shift in range(1, most + 1):
            moved = binom.pmf(np.arange(trials + most + 1) - shift, trials, 0.5)
            held = kept & (still > 0)
            terms = a * np.log(still[held] / still[kept].sum()) + (1 - a) * np.log(moved[held])
            each.append(float(np.logaddexp.reduce(terms)) / (a - 1))
        for v in itertools.product(range(most + 1), repeat=2):
            if math.hypot(*v) <= event.radius:
                assert sum(each[h] for h in v) <= slope * a + excess + failure * a / (a - 1)


def test_it_is_about_the_gaussian_of_the_same_noise():
    event = convex.ShuffledSumEvent(
        relation="replace_one",
        sampling=ONE_PASS,
        users=4096,
        coordinates=5,
        grid=64,
        noise_bits=20,
        bit_prob=0.5,
        l2_bounded=True,
    )
    mu = 2 * (64 + math.sqrt(5)) / math.sqrt(4096 * 20)
    gaussian = acc.gaussian_epsilon(mu, 1e-5)
    assert gaussian < epsilon([Spend(event, 1)], 1e-5).epsilon < 1.15 * gaussian


def test_a_bit_of_another_chance_is_a_masked_fair_bit():
    event = shuffled(users=10_000, bit_prob=0.4, failure_probability=1e-9)
    bits, missing = event.fair_bits()
    assert missing == 1e-9
    assert binom.cdf(bits - 1, event.noise_trials, 0.8) <= 1e-9
    assert bits > 0.79 * event.noise_trials
    assert shuffled().fair_bits() == (400, 0.0)


def test_one_pass_costs_one_query_and_full_batches_cost_all():
    once, often = shuffled(users=2000), shuffled(users=2000, sampling=acc.FullBatchLaw())
    assert epsilon([Spend(once, 50)], 1e-5).epsilon == epsilon([Spend(once, 1)], 1e-5).epsilon
    assert epsilon([Spend(often, 50)], 1e-5).epsilon > 5 * epsilon([Spend(often, 1)], 1e-5).epsilon
    epochs = shuffled(users=2000, sampling=acc.ShuffledEpochsLaw(10, own_coin=False))
    assert epsilon([Spend(epochs, 50)], 1e-5).epsilon == epsilon([Spend(often, 5)], 1e-5).epsilon
    assert epsilon([Spend(once, 0)], 1e-5).epsilon == 0


def test_counts_of_several_queries_are_several_counts():
    """Where coordinates move over their whole range, four queries of one are one query of four."""
    one = shuffled(users=2000, sampling=acc.FullBatchLaw(), coordinates=1, l2_bounded=False)
    four = replace(one, coordinates=4, sampling=ONE_PASS)
    together = epsilon([Spend(one, 4)], 1e-5).epsilon
    assert together == pytest.approx(epsilon([Spend(four, 1)], 1e-5).epsilon)
    assert together > 1.5 * epsilon([Spend(one, 1)], 1e-5).epsilon


def test_few_bits_have_the_looser_pair():
    event = shuffled(users=2, noise_bits=8)
    with pytest.raises(UnsupportedEventError, match="do not cover a shift of 4 steps"):
        event.renyi()
    assert event.guarantee(1).rdp is None


def test_failures_are_added_to_delta():
    event = shuffled(users=2000, sampling=acc.FullBatchLaw(), failure_probability=1e-8)
    assert event.guarantee(50).additive_delta == pytest.approx(2 * 50 * 1e-8)
    assert delta([Spend(event, 50)], 50.0).delta >= 1e-6
    masked = shuffled(users=10_000, bit_prob=0.4, failure_probability=1e-8)  # there may be too few fair bits, besides
    assert masked.guarantee(1).additive_delta == pytest.approx(2 * 2 * 1e-8)


@pytest.mark.parametrize(
    "settings",
    [
        {"relation": "add_or_remove_one"},
        {"sampling": acc.PoissonLaw(0.1)},
        {"sampling": acc.DisjointLaw(own_coin=True)},
        {"sampling": acc.ShuffledEpochsLaw(4, own_coin=True)},
        {"sampling": acc.FixedSizeLaw(5, 10)},
    ],
)
def test_what_is_not_proved_is_refused(settings):
    with pytest.raises(UnsupportedEventError, match="no guarantee is proved for a sum in the shuffle model"):
        shuffled(**settings)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"bit_prob": 0.6}, r"bit_prob must be in \(0, 1/2\]"),
        ({"bit_prob": 0.0}, "bit_prob must be"),
        ({"grid": 0}, "grid must be"),
        ({"noise_bits": 0}, "noise_bits must be"),
        ({"honest_fraction": 0.01}, "must leave one user"),
        ({"l2_bounded": 1}, "l2_bounded must be a bool"),
    ],
)
def test_wrong_settings_are_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        shuffled(**wrong)


def test_the_statement_says_what_it_rests_on():
    event = shuffled(users=40, honest_fraction=0.5)
    assert "at least 20 of 40 users" in " ".join(event.assumptions)
    assert "before they are shuffled" in " ".join(event.assumptions)
    assert "20 of them honest" in event.describe()


def test_so_little_noise_that_hardly_a_loss_is_finite_is_no_guarantee():
    """The finite losses are below 1e-12, and what their grid may add is not: their circle would have 2^37 points."""
    event = shuffled(sampling=acc.FullBatchLaw(), users=2, coordinates=4, noise_bits=2, failure_probability=6.25e-7)
    with pytest.raises(ArithmeticError, match="no accountant gives"):
        epsilon([Spend(event, 2)], 1e-2)
