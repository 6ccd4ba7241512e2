"""Bugs of an error that changes in place: too early, by half, and under the eyes of who holds it."""

from tacita.estimators import Estimator
from tacita.mechanisms.mechanism import Mechanism
from tacita.oracles.gate import ReleaseGate
from tests.planted.plant import bug, put

STRETCHES = "tests/oracles/test_stretches.py::"
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


@bug(caught_by=[STRETCHES + "test_noise_of_another_law_comes_at_once_and_stays_on_its_grid"])
def every_release_rounded():
    """Sums on a grid are rounded to the dtype of the parameters as hidden sums are."""
    put(Estimator, "rounded_last", property(lambda self: True))


@bug(34, caught_by=[STRETCHES + "test_noise_of_another_law_comes_at_once_and_stays_on_its_grid"])
def integer_noise_in_stretches():
    """Noise that reads its stream from the beginning is asked for stretch by stretch."""
    put(Mechanism, "in_stretches", True)
