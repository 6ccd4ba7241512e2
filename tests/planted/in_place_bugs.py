"""Bugs of an error that changes in place: too early, by half, and under the eyes of who holds it."""

from tacita._stream import Noise
from tacita.error_feedback import HiddenErrorSum, ReleasedErrorSum, error
from tacita.error_feedback.feedback import HiddenFeedbackSum
from tacita.estimators import Estimator
from tacita.mechanisms.mechanism import Mechanism
from tacita.oracles import GradientOracle
from tacita.oracles.gate import ReleaseGate
from tests.planted.plant import bug, put, swap

PURE = "tests/error_feedback/test_error_in_place.py::"
STRETCHES = "tests/oracles/test_stretches.py::"
BOUNDS = "tests/error_feedback/test_guarantees.py::"
ORACLE = "tests/error_feedback/test_oracle_in_place.py::"


@bug(48, caught_by=[ORACLE + "test_a_query_that_fails_before_it_counts_leaves_everything_as_it_was"])
def remembered_before_it_counts():
    """The error changes before the ledger has the query, so that one made again adds its residuals twice."""
    commit = ReleaseGate.commit

    def hasty(self, query, values, update=None):
        estimator, self._estimator = self._estimator, None
        self._state = estimator.apply(self._state, update)
        try:
            state = self._state
            counted = commit(self, query, values)
            self._state = state
            return counted
        finally:
            self._estimator = estimator

    put(ReleaseGate, "commit", hasty)


@bug(48, caught_by=[ORACLE + "test_a_query_that_counts_is_remembered_though_its_noise_fails"])
def remembered_after_the_noise():
    """A query that has its line and no noise leaves no residuals, while its coins are used."""
    commit, noisy = ReleaseGate.commit, ReleaseGate.release
    waiting = []

    def late(self, dtypes=None):
        released = noisy(self, dtypes)
        estimator, state, update = waiting.pop()
        self._estimator, self._state = estimator, estimator.apply(state, update)
        return released

    def later(self, query, values, update=None):
        waiting.append((self._estimator, self._state, update))
        self._estimator = None
        counted = commit(self, query, values)
        self._estimator, self._state = waiting[-1][:2]
        return counted

    put(ReleaseGate, "commit", later)
    put(ReleaseGate, "release", late)


@bug(48, caught_by=[ORACLE + "test_nothing_is_built_on_half_a_change"])
def half_a_change_is_kept():
    """After an interruption the next query goes on from an error of which some parameters are changed."""
    commit = ReleaseGate.commit

    def unguarded(self, query, values, update=None):
        state = self.state
        try:
            return commit(self, query, values, update)
        except BaseException:
            self._state = state
            raise

    put(ReleaseGate, "commit", unguarded)


@bug(43, 48, caught_by=[ORACLE + "test_no_later_query_changes_what_was_saved_loaded_or_published"])
def checkpoint_shares_the_error():
    """A saved state is the oracle's own, which the next query changes."""
    whole = GradientOracle.state_dict

    def shared(self):
        return {**whole(self), "estimator_state": self.gate.state}

    put(GradientOracle, "state_dict", shared)


@bug(43, 48, caught_by=[ORACLE + "test_no_later_query_changes_what_was_saved_loaded_or_published"])
def loaded_state_shared():
    """A loaded state becomes the oracle's own, so that the next query changes what may be loaded again."""
    whole = GradientOracle.load_state_dict

    def load(self, state):
        whole(self, state)
        self.gate._state = state["estimator_state"]

    put(GradientOracle, "load_state_dict", load)


@bug(caught_by=[ORACLE + "test_noise_is_added_to_nothing_but_what_was_committed"])
def committed_one_released_another():
    """While a query that has its line waits for its noise, the next one is not written down."""
    commit = ReleaseGate.commit

    def trusting(self, query, values, update=None):
        if self._unreleased is None:
            return commit(self, query, values, update)
        self._unreleased = (query, dict(values))
        return True

    put(ReleaseGate, "commit", trusting)


@bug(48, 70, caught_by=[ORACLE + "test_a_query_that_counts_and_is_not_remembered_is_the_last"])
def a_step_of_the_error_left_out():
    """Interrupted between the ledger's line and the change of the error, the next query goes on from the old error."""
    commit = ReleaseGate.commit

    def forgiving(self, query, values, update=None):
        state = self.state
        try:
            return commit(self, query, values, update)
        except Exception:
            self._state = state
            raise

    put(ReleaseGate, "commit", forgiving)


@bug(
    26,
    69,
    caught_by=[
        BOUNDS + "test_the_sum_of_a_hidden_error_is_rounded_after_the_noise",
        BOUNDS + "test_float32_gradients_move_no_more_than_is_charged",
    ],
)
def hidden_sum_in_float32():
    """The sum with a hidden error is rounded to float32, in every query otherwise in either world."""
    whole = HiddenFeedbackSum.shifted

    def narrow(self, clipped, state, share):
        values = whole(self, clipped, state, share)
        return {block: {name: x.float() for name, x in part.items()} for block, part in values.items()}

    put(HiddenFeedbackSum, "shifted", narrow)


@bug(caught_by=[PURE + "test_looking_changes_nothing", BOUNDS + "test_a_query_changes_no_state_that_it_was_given"])
def looking_injects_for_good():
    """What is injected is taken off the error while the query may still fail."""
    whole = error.injected

    def taking(sums, held, share):
        given = whole(sums, held, share)
        for part in held.values():
            part.mul_(0.5)
        return given

    swap(whole, taking)


@bug(caught_by=[PURE + "test_remembering_takes_no_memory_and_frees_the_residuals"])
def error_copied_by_every_query():
    """The oracle makes a second error beside the first."""
    whole = HiddenFeedbackSum.apply
    put(HiddenFeedbackSum, "apply", lambda self, state, update: whole(self, error.copied(state), update))


@bug(26, caught_by=[PURE + "test_pieces_are_the_whole"])
def first_piece_alone():
    """Of a parameter that is worked on in pieces the first is."""
    whole = error._pieces
    swap(whole, lambda lead, *tensors: [next(whole(lead, *tensors))])


@bug(26, caught_by=[PURE + "test_a_sum_is_rounded_once_with_an_error_in_float64"])
def error_narrowed_before_the_sum():
    """An error in float64 is rounded to float32 before it is added to the sum."""
    whole = error.injected
    swap(whole, lambda sums, held, share: whole(sums, {name: e.float() for name, e in held.items()}, share.float()))


@bug(41, caught_by=[PURE + "test_a_query_without_residuals_makes_no_zeros"])
def noise_remembered_without_residuals():
    """In queries that ask for no residuals the noisy sum passes for them."""
    after = ReleasedErrorSum.after
    put(
        ReleasedErrorSum,
        "after",
        lambda self, state, released: after(self, state, {"residual": released["gradient"], **released}),
    )


@bug(
    34,
    caught_by=[
        STRETCHES + "test_normals_of_a_query_are_never_given_twice",
        STRETCHES + "test_stretches_have_the_noise_of_the_whole_bit_for_bit",
    ],
)
def same_noise_in_every_stretch():
    """The stream of a block starts anew for each stretch of parameters."""
    whole = Noise.__call__

    def anew(self, block, like):
        self._next.clear()
        return whole(self, block, like)

    put(Noise, "__call__", anew)


@bug(caught_by=[STRETCHES + "test_noise_of_another_law_comes_at_once_and_stays_on_its_grid"])
def every_release_rounded():
    """Sums on a grid are rounded to the dtype of the parameters as hidden sums are."""
    put(Estimator, "rounded_last", property(lambda self: True))


@bug(34, caught_by=[STRETCHES + "test_noise_of_another_law_comes_at_once_and_stays_on_its_grid"])
def integer_noise_in_stretches():
    """Noise that reads its stream from the beginning is asked for stretch by stretch."""
    put(Mechanism, "in_stretches", True)


@bug(26, caught_by=[BOUNDS + "test_the_sum_of_a_hidden_error_is_rounded_after_the_noise"])
def little_feedback_in_float32():
    """The sum is rounded before the noise though the error is charged with less than a record."""
    put(HiddenErrorSum, "rounded_last", property(lambda self: False))


@bug(26, caught_by=[STRETCHES + "test_hidden_sums_are_rounded_once_the_noise_is_in_them"])
def hidden_sums_rounded_by_nobody():
    """A hidden sum's release stays in float64, twice the memory of the parameters."""
    put(GradientOracle, "_dtypes", lambda self, params: {})
