"""Bugs of the shuffle model: noise that is not there, shifts that are forgotten, messages that tell too much."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from tacita import _binomials
from tacita.convex import (
    ShuffledSumEvent,
    ShuffleMeanOracle1,
    Shuffler,
    ShuffleRound,
    UserEncoder,
    shuffle_calibration,
    shuffle_round,
)
from tacita.convex import shuffled_sum_event as shuffled
from tacita.convex.shuffled_sums import ShuffledSums, UserNoise
from tests.planted.plant import bug, put, swap

EVENT = "tests/convex/test_shuffled_sum_event.py::"
NUMBERS = "tests/convex/test_shuffle_calibration.py::"
ROUND = "tests/convex/test_shuffle_round.py::"
ORACLE = "tests/convex/test_shuffle_oracles.py::"


@bug(20, caught_by=[EVENT + "test_rounding_lengthens_a_vector_and_is_paid_for",
                    ROUND + "test_no_vector_moves_farther_than_the_radius"])  # fmt: skip
def rounding_does_not_lengthen():
    """The radius of a user's vector is that before it is rounded to the grid."""
    put(ShuffledSumEvent, "radius", property(lambda self: self.grid * (1 if self.relation == "replace_one" else 0.5)))


@bug(2, caught_by=[EVENT + "test_no_record_moves_the_counts_farther_than_claimed",
                   EVENT + "test_a_number_costs_exactly_what_is_claimed",
                   NUMBERS + "test_a_sum_of_numbers_costs_what_its_exact_calibration_says"])  # fmt: skip
def a_replaced_user_moves_half_the_range():
    """A record that is replaced is charged as one that is zeroed out."""
    put(ShuffledSumEvent, "shift", property(lambda self: math.ceil(self.grid / 2)))


@bug(14, caught_by=[EVENT + "test_no_record_moves_the_counts_farther_than_claimed",
                    ROUND + "test_users_may_drop_out_where_their_noise_is_not_counted_on"])  # fmt: skip
def noise_of_dishonest_users_counts():
    """The guarantee counts on the noise bits of all users, honest or not."""
    put(ShuffledSumEvent, "noise_trials", property(lambda self: self.users * self.noise_bits))


@bug(12, caught_by=[EVENT + "test_failures_are_added_to_delta"])
def counts_left_out_for_free():
    """The counts that a Renyi bound leaves out are not added to delta."""
    before = shuffled._seen_in_some_queries
    swap_proofs(lambda event, queries: replace(before(event, queries), additive_delta=0.0))


def swap_proofs(guarantee):
    proofs = {law: replace(proof, guarantee=guarantee) for law, proof in ShuffledSumEvent.proofs.items()}
    put(ShuffledSumEvent, "proofs", proofs)


@bug(1, caught_by=[EVENT + "test_one_pass_costs_one_query_and_full_batches_cost_all"])
def full_batches_of_users_cost_one_query():
    """Users who are asked again and again are charged for one query."""
    before = shuffled._seen_in_some_queries
    swap_proofs(lambda event, queries: before(event, min(queries, 1)))


@bug(1, caught_by=[EVENT + "test_what_is_not_proved_is_refused", ORACLE + "test_what_is_not_proved_is_refused"])
def shuffled_batches_of_random_size():
    """Batches that users join by a coin of their own are accepted, though their number of noise bits is random."""
    proofs = {
        law: replace(proof, charges=proof.if_absence_moves or proof.charges, if_absence_moves=None)
        for law, proof in ShuffledSumEvent.proofs.items()
    }
    put(ShuffledSumEvent, "proofs", proofs)


@bug(20, caught_by=[EVENT + "test_a_bit_of_another_chance_is_a_masked_fair_bit"])
def biased_bits_taken_for_fair():
    """A noise bit that is rarely one counts as a whole fair bit."""
    put(ShuffledSumEvent, "fair_bits", lambda self: (self.noise_trials, 0.0))


@bug(12, caught_by=[NUMBERS + "test_v20_the_split_for_medians_and_what_it_refuses"])
def the_papers_split_is_believed():
    """The split of Algorithm 13 is used wherever the paper claims it, without adding up what its counts spend."""
    swap(shuffle_calibration.median_epsilon, lambda scalar_epsilon, scalar_delta, dim: 0.0)


@bug(36, caught_by=[ORACLE + "test_the_release_is_the_clipped_mean_and_the_stated_noise"])
def one_user_adds_noise():
    """The oracle draws the noise bits of one user in place of all."""
    before = UserNoise.__call__

    def call(self, values, noise_std, noise):
        self._sums = replace(self._sums, users=1)
        return before(self, values, noise_std, noise)

    put(UserNoise, "__call__", call)


@bug(20, caught_by=[ORACLE + "test_the_noise_is_that_of_every_bit"])
def users_noise_five_percent_too_small():
    """A tenth of the users' noise bits is replaced by its mean."""
    drawn = _binomials.binomials

    def fewer(stream, count, trials, probability):
        return drawn(stream, count, trials - trials // 10, probability) + round(trials // 10 * probability)

    swap(drawn, fewer)


@bug(34, caught_by=["tests/test_binomials.py::test_no_bit_is_used_twice"])
def the_same_bits_for_every_coordinate():
    """Every coordinate's noise is drawn from the beginning of the stream."""

    def binomials(stream, count, trials, probability):
        return np.array(
            [_binomials._binomial(_binomials._Bits(stream), trials, probability) for _ in range(count)], np.int64
        )

    swap(_binomials.binomials, binomials)


@bug(20, caught_by=[ROUND + "test_no_vector_moves_farther_than_the_radius",
                    ORACLE + "test_the_release_is_the_clipped_mean_and_the_stated_noise"])  # fmt: skip
def users_do_not_clip():
    """A user's vector is clamped coordinate by coordinate, and not scaled to its norm."""
    before = shuffle_round.bounded
    swap(before, lambda rows, half_range, *, l2: before(rows, half_range, l2=False))


@bug(25, caught_by=[ROUND + "test_rows_that_are_not_finite_count_as_zero"])
def a_row_of_nan_is_encoded():
    """A user's row that is not finite goes to the grid as it is."""
    swap(shuffle_round.bounded, lambda rows, half_range, *, l2: np.clip(rows, -half_range, half_range))


@bug(10, caught_by=[ROUND + "test_every_order_of_the_bits_is_equally_likely"])
def the_relay_does_not_shuffle():
    """The shuffler sends the bits on in the order of their users."""
    from tacita.random import Stream

    put(Stream, "permutation", lambda self, n, offset=0: np.arange(n))


@bug(32, caught_by=[ROUND + "test_a_round_with_too_few_messages_is_aborted"])
def a_round_of_few_users_is_shuffled():
    """A round is shuffled however few users sent a message, whose noise is then too small."""
    put(ShuffleRound, "min_messages", property(lambda self: 1))


@bug(34, caught_by=[ROUND + "test_no_sender_twice_no_message_twice_no_round_twice"])
def an_encoder_answers_twice():
    """An encoder sends two vectors with the same noise bits."""
    before = UserEncoder.message

    def message(self, vector):
        self._used = False
        return before(self, vector)

    put(UserEncoder, "message", message)


@bug(34, caught_by=[ROUND + "test_no_sender_twice_no_message_twice_no_round_twice"])
def a_sender_counts_twice():
    """The relay takes two messages of one user, and shuffles a round in which honest noise is missing."""
    before = Shuffler.add

    def add(self, message, *, sender):
        self._senders = set()
        return before(self, message, sender=sender)

    put(Shuffler, "add", add)


@bug(51, caught_by=[ORACLE + "test_groups_are_of_equal_size_and_their_median_is_taken"])
def every_user_is_in_every_group():
    """A user's steps enter every group, so that one record moves all of them."""

    def steps(self, engine, coins):
        whole = before(replace(self, num_groups=1, users=self.users * self.num_groups), engine, coins)
        return {name: value.expand(self.num_groups, *value.shape[1:]) for name, value in whole.items()}

    before = put(ShuffledSums, "steps", steps)


@bug(1, caught_by=[EVENT + "test_counts_of_several_queries_are_several_counts"])
def queries_of_medians_cost_one():
    """The exact pair of counts that move over their whole range is that of one query, however many are made."""
    before = shuffled._seen_in_some_queries

    def once(event, queries):
        found = before(event, queries)
        return found if found.pairs is None else replace(found, pairs=before(event, min(queries, 1)).pairs)

    swap_proofs(once)


@bug(12, caught_by=[EVENT + "test_failures_are_added_to_delta"])
def missing_fair_bits_for_free():
    """The chance of fewer fair bits than the bound counts on is not added to delta."""
    fair = ShuffledSumEvent.fair_bits
    put(ShuffledSumEvent, "fair_bits", lambda self: (fair(self)[0], 0.0))


@bug(20, caught_by=[EVENT + "test_no_record_moves_the_counts_farther_than_claimed"])
def half_of_an_odd_range_is_rounded_down():
    """A zeroed user of a grid of five steps is charged for two, and moves three."""
    whole = ShuffledSumEvent.shift.fget
    put(ShuffledSumEvent, "shift", property(lambda self: whole(self) if whole(self) == self.grid else self.grid // 2))


@bug(14, caught_by=[ROUND + "test_coordinates_are_shuffled_apart"])
def one_order_for_all_coordinates():
    """The bits of every coordinate are put into the same order, so that those of one user stay together."""
    init = Shuffler.__init__

    def forgetful(self, shared, key=None):
        init(self, shared, key)
        own = self._key
        self._key = SimpleNamespace(stream=lambda *labels: own.stream(*labels[:3]))

    put(Shuffler, "__init__", forgetful)


@bug(14, caught_by=[ROUND + "test_bytes_that_do_not_belong_are_refused"])
def a_round_is_known_by_its_name_alone():
    """A message that was encoded for other bounds is taken, if the round has the same name."""
    header = ShuffleRound._header

    def by_name(self, kind, messages):
        public = {"users": 1, "half_range": 1.0, "l2_bounded": False, "honest_fraction": 1.0}
        return header(replace(self, **public), kind, messages)

    put(ShuffleRound, "_header", by_name)


@bug(caught_by=[ORACLE + "test_a_cap_refuses_and_a_session_is_bound_to_its_settings"])
def a_session_of_other_bounds_goes_on():
    """A session that was registered for one clipping threshold may be continued with another."""
    settings = ShuffleMeanOracle1.settings.fget
    others = property(lambda self: {name: x for name, x in settings(self).items() if name != "sums"})
    put(ShuffleMeanOracle1, "settings", others)


@bug(20, caught_by=[ORACLE + "test_users_whose_noise_is_not_that_of_the_event_are_not_asked"])
def noise_bits_not_compared_with_the_event():
    """Users add whatever bits the oracle's sums name, whether or not the session's event promises more."""
    put(UserNoise, "check_paid", lambda self, *_: None)
