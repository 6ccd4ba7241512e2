"""A round of the shuffle model: encoder, shuffler, analyzer, the bytes between them, and what is refused."""

import itertools
import math
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import binom

from tacita.accounting import Spend, delta, epsilon
from tacita.convex import Analyzer, Shuffler, ShuffleRound, UserEncoder
from tacita.convex.shuffle_calibration import NoiseBits
from tacita.convex.shuffle_round import _HEADER, bounded, in_steps, uniforms
from tacita.random import Key

V17 = np.array([0.0, 0.25, 0.31, 0.5, 0.77, 1.0, 0.123, 0.999])


def shared(**settings):
    bits = settings.pop("bits", NoiseBits(grid=5, noise_bits=40, bit_prob=0.25))
    return ShuffleRound(
        **{"name": "round 1", "users": 8, "dim": 1, "half_range": 0.5, "l2_bounded": False, "bits": bits, **settings}
    )


def run(vectors, these, seed=0):
    """All three parts; every user's key follows from the seed."""
    shuffler = Shuffler(these, Key.insecure(10**6 + seed))
    for user, vector in enumerate(vectors):
        shuffler.add(UserEncoder(these, Key.insecure(1000 * seed + user)).message(vector), sender=user)
    return shuffler.shuffled()


# Values (V17).


def test_v17_rounding_has_the_stated_variance_and_no_bias():
    exact = V17 * 5  # in steps, of numbers in [0, 1]
    fractions = exact - np.floor(exact)
    assert (fractions * (1 - fractions)).sum() == pytest.approx(1.05425, abs=1e-5)
    assert NoiseBits(grid=5, noise_bits=40, bit_prob=0.25).variance(8) == pytest.approx(2.4, abs=1e-12)
    grid = (np.arange(10_000) + 0.5) / 10_000  # coins, evenly: the mean over them is exact but for 1e-4 of a step
    steps = in_steps(np.repeat(V17[None] - 0.5, 10_000, axis=0), 0.5, 5, np.repeat(grid[:, None], 8, axis=1))
    assert steps.mean(axis=0) == pytest.approx(exact, abs=2e-4)
    assert steps.var(axis=0).sum() == pytest.approx(1.05425, abs=2e-3)
    assert (steps[:, 5] == 5).all()  # the end of the range is the last step, with certainty


def test_v17_monte_carlo_of_the_three_parts():
    """The mean of 300 rounds is within 4.5 standard errors of the sum, and so is the variance of its law."""
    these = shared()
    found = np.array([Analyzer(these).sums(run(V17[:, None] - 0.5, these, seed))[0] for seed in range(300)])
    assert these.length == 45
    assert found.mean() == pytest.approx(3.952 - 4.0, abs=4.5 * math.sqrt(2.44217 / 300))
    assert found.var() == pytest.approx(2.44217, rel=4.5 * math.sqrt(2 / 300))


def test_the_count_has_the_law_of_the_steps_and_all_noise_bits():
    """The exact law for two users, against 2000 rounds (chi-square, false alarm 1e-4), and a law that is refuted."""
    these = shared(users=2, bits=NoiseBits(grid=2, noise_bits=3, bit_prob=0.5))
    vectors = np.array([[0.5], [0.0]])  # 2 steps; 1 step
    counts = [int(Analyzer(these).counts(run(vectors, these, seed))[0]) for seed in range(2000)]
    found = np.bincount(counts, minlength=11)[3:10]

    def statistic(trials):
        expected = binom.pmf(np.arange(7), trials, 0.5) * 2000
        return ((found - expected) ** 2 / np.maximum(expected, 1e-9)).sum()

    assert found.sum() == 2000
    assert statistic(6) < 27.9  # chi-square with 6 degrees of freedom, 1e-4
    assert statistic(5) > 100


# Messages.


def test_a_message_has_one_length_and_as_many_ones_as_steps_and_noise():
    these = shared(users=3, dim=2)
    messages = [
        UserEncoder(these, Key.insecure(7)).message(np.array(v)) for v in ([0.5, -0.5], [np.nan, 1], [1e300, -1e300])
    ]
    assert len({len(message) for message in messages}) == 1
    ones = [these._payload(message, 1)[0].sum(axis=1) for message in messages]
    assert (ones[0] == ones[2]).all()  # clamped: the same steps and, with this key, the same noise
    assert ones[0][0] - ones[0][1] >= -40


def test_the_shuffler_forgets_who_sent_what():
    """Its output is a function of the counts and its own key: users may be exchanged, and only totals are left."""
    these = shared(users=3, bits=NoiseBits(grid=2, noise_bits=4, bit_prob=0.5))
    one, other = Shuffler(these, Key.insecure(5)), Shuffler(these, Key.insecure(6))
    messages = [UserEncoder(these, Key.insecure(user)).message(np.array([0.1])) for user in range(3)]
    for user, message in enumerate(messages):
        one.add(message, sender=user)
    for user, message in enumerate(reversed(messages)):
        other.add(message, sender=user)
    first, second = one.shuffled(), other.shuffled()
    assert Analyzer(these).counts(first) == Analyzer(these).counts(second)
    assert first != second


def test_every_order_of_the_bits_is_equally_likely():
    these = shared(users=1, bits=NoiseBits(grid=1, noise_bits=3, bit_prob=0.5))
    seen = {}
    for seed in range(1500):
        data = run([np.array([0.5])], these, seed)
        bits = tuple(these._payload(data, 2)[0][0].tolist())
        seen[bits] = seen.get(bits, 0) + 1
    for ones in range(1, 4):
        orders = [seen.get(bits, 0) for bits in itertools.product((0, 1), repeat=4) if sum(bits) == ones]
        expected = sum(orders) / len(orders)
        assert sum((n - expected) ** 2 / expected for n in orders) < 28  # 1e-4 with 5 degrees of freedom is 25.7


def test_coordinates_are_shuffled_apart():
    """One order for all of them would keep a user's bits together, and show more than the counts."""
    these = shared(users=1, dim=2, bits=NoiseBits(grid=5, noise_bits=395, bit_prob=0.5))
    row = np.packbits(np.arange(400) % 2 == 0)  # 200 ones, in both coordinates
    shuffler = Shuffler(these)
    shuffler.add(these._header(1, 1) + np.stack([row, row]).tobytes(), sender=0)
    first, second = these._payload(shuffler.shuffled(), 2)[0]
    assert first.sum() == second.sum() == 200
    assert (first != second).any()


@pytest.mark.skipif(not os.environ.get("TACITA_AUDIT"), reason="starting Python takes long")
def test_parts_in_processes_of_their_own():
    """Nothing but bytes goes from one to the next."""
    setup = (
        "import sys, numpy as np\n"
        "from tacita.convex import Analyzer, Shuffler, ShuffleRound, UserEncoder\n"
        "from tacita.convex.shuffle_calibration import NoiseBits\n"
        "these = ShuffleRound(name='r', users=2, dim=2, half_range=1.0, l2_bounded=True,\n"
        "    bits=NoiseBits(grid=4, noise_bits=2000, bit_prob=0.5))\n"
    )
    relay = setup + (
        "shuffler = Shuffler(these)\n"
        "for user, line in enumerate(sys.stdin.read().split()): shuffler.add(bytes.fromhex(line), sender=user)\n"
        "print(shuffler.shuffled().hex())\n"
    )
    these = shared(
        name="r", users=2, dim=2, half_range=1.0, l2_bounded=True, bits=NoiseBits(grid=4, noise_bits=2000, bit_prob=0.5)
    )
    sent = [UserEncoder(these).message(np.array(v)) for v in ([1.0, 0.0], [0.0, 1.0])]
    ran = subprocess.run(
        [sys.executable, "-c", relay],
        input="\n".join(x.hex() for x in sent),
        capture_output=True,
        text=True,
        check=True,
    )
    sums = Analyzer(these).sums(bytes.fromhex(ran.stdout.strip()))
    assert abs(sums - 1.0).max() < 6 * 0.5 * math.sqrt(1000)


# What is refused.


def test_bytes_that_do_not_belong_are_refused():
    these, other = shared(users=2), shared(users=2, name="round 2")
    message = UserEncoder(other).message(np.array([0.0]))
    for wrong in (b"", message[:-1], message, b"x" * len(message), UserEncoder(these).message(np.array([0.0])) + b"0"):
        with pytest.raises(ValueError, match="is not from round 'round 1'"):
            Shuffler(these).add(wrong, sender=0)
    for change in ({"half_range": 2.0}, {"l2_bounded": True}, {"users": 3}):  # a round of the same name and length
        with pytest.raises(ValueError, match="is not from round 'round 1'"):
            Shuffler(these).add(UserEncoder(shared(**{"users": 2, **change})).message(np.array([0.0])), sender=0)
    with pytest.raises(ValueError, match="not from the expected side"):
        Analyzer(these).counts(UserEncoder(these).message(np.array([0.0])))
    shuffled = run(np.zeros((2, 1)), these)
    few = bytearray(shuffled)
    struct.pack_into("<I", few, _HEADER.size - 4, 1)
    with pytest.raises(ValueError, match="not from the expected side"):
        Analyzer(these).counts(bytes(few))


def test_a_round_with_too_few_messages_is_aborted():
    these = shared(users=4)
    shuffler = Shuffler(these)
    for user in range(3):
        shuffler.add(UserEncoder(these).message(np.array([0.0])), sender=user)
    with pytest.raises(RuntimeError, match="fewer than 4 messages: it is aborted"):
        shuffler.shuffled()


def test_users_may_drop_out_where_their_noise_is_not_counted_on():
    """The estimate is that of the users who are left, and the event counts on the honest ones alone."""
    these = shared(users=10, honest_fraction=0.7, bits=NoiseBits(grid=5, noise_bits=400, bit_prob=0.5))
    assert these.min_messages == 7
    data = run(np.full((7, 1), 0.5), these)
    assert Analyzer(these).sums(data)[0] == pytest.approx(3.5, abs=6 * 0.2 * math.sqrt(700))
    assert these.event("replace_one").inner.noise_trials == 7 * 400
    with pytest.raises(RuntimeError, match="fewer than 7"):
        run(np.full((6, 1), 0.5), these)


def test_no_sender_twice_no_message_twice_no_round_twice():
    these = shared(users=2)
    shuffler, encoder = Shuffler(these), UserEncoder(these)
    shuffler.add(encoder.message(np.array([0.0])), sender="a")
    with pytest.raises(RuntimeError, match="one message"):
        encoder.message(np.array([0.5]))
    with pytest.raises(ValueError, match="no further message"):
        shuffler.add(UserEncoder(these).message(np.array([0.0])), sender="a")
    shuffler.add(UserEncoder(these).message(np.array([0.0])), sender="b")
    with pytest.raises(ValueError, match="no further message"):
        shuffler.add(UserEncoder(these).message(np.array([0.0])), sender="c")
    shuffler.shuffled()
    with pytest.raises(RuntimeError, match="is over"):
        shuffler.shuffled()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"users": 0}, "users must be"),
        ({"dim": 0}, "coordinates must be"),
        ({"half_range": -1.0}, "half_range must be"),
        ({"name": 3}, "name must be a text"),
        ({"bits": NoiseBits(grid=2, noise_bits=3, bit_prob=0.9)}, "bit_prob must be"),
    ],
)
def test_wrong_settings_are_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        shared(**wrong)


def test_a_vector_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"vector must have shape \(1,\)"):
        UserEncoder(shared()).message(np.zeros(2))


# Bounds.


@pytest.mark.parametrize("seed", range(3))
def test_no_vector_moves_farther_than_the_radius(seed):
    """Under the same coins, replacing a row moves its steps by at most g + sqrt(d), and by nearly that much."""
    rng = np.random.default_rng(seed)
    these = shared(dim=3, half_range=2.0, l2_bounded=True, bits=NoiseBits(grid=16, noise_bits=9, bit_prob=0.5))
    radius = these.event("replace_one").inner.radius
    pairs = rng.standard_normal((20_000, 2, 3)) * np.exp(rng.uniform(-3, 9, (20_000, 1, 1)))
    pairs[:6] = np.array([np.nan, np.inf, 1e300, -1e300, 1e-300, 0.0])[:, None, None]
    pairs[1000:2000, 1] = -pairs[1000:2000, 0]
    coins = rng.random((20_000, 1, 3)).repeat(2, axis=1)
    rows = bounded(pairs, 2.0, l2=True)
    assert (np.linalg.norm(rows, axis=-1) <= 2.0).all()
    steps = in_steps(rows, 2.0, 16, coins)
    assert ((steps >= 0) & (steps <= 16)).all()
    moved = np.linalg.norm(steps[:, 0] - steps[:, 1], axis=-1)
    assert 0.9 * 16 < moved.max() <= radius


def test_rows_that_are_not_finite_count_as_zero():
    rows = np.array([[np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0], [1e-320, 0.0]])
    assert (np.abs(bounded(rows, 1.0, l2=True)) < 1e-300).all()
    assert (np.abs(bounded(rows, 1.0, l2=False)) < 1e-300).all()


def test_coins_are_below_one():
    assert uniforms(np.array([2**64 - 1], np.uint64))[0] == 1 - 2.0**-53


# What a message alone tells.


def test_a_message_alone_has_its_own_guarantee():
    """Towards a dishonest shuffler: exact for one coordinate, and none where noise bits do not cover the grid."""
    these = shared(bits=NoiseBits(grid=2, noise_bits=60, bit_prob=0.5))
    masses = binom.pmf(np.arange(63), 60, 0.5)
    moved = binom.pmf(np.arange(63) - 2, 60, 0.5)
    event = these.message_event("replace_one")
    assert event.noise_trials == 60
    for at in (0.5, 1.0, 2.0):
        exact = np.maximum(0.0, masses - math.exp(at) * moved).sum()
        assert exact <= delta([Spend(event, 1)], at).delta <= 1.05 * exact + 1e-6
    bare = shared(bits=NoiseBits(grid=64, noise_bits=20, bit_prob=0.5)).message_event("replace_one")
    assert delta([Spend(bare, 1)], 20.0).delta > 0.99


def test_a_round_between_strangers_is_conditional():
    event = shared(users=1000).event("replace_one")
    assert "run the encoder as it stands" in (event.condition or "")
    assert epsilon([Spend(event, 1)], 1e-6).epsilon < 1
