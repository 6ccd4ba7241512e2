"""Bugs of audits in one run: bounds that are none, canaries that are something else, things left behind."""

import numpy as np
from scipy import special, stats

from tacita.ledger import Ledger
from tacita.runs import run_lifecycle
from tacita.tables import table_audit as pipeline
from tacita.testing.one_run import bound, canaries, training
from tests.planted.plant import bug, put, swap

BOUND = "tests/testing/one_run/test_bound.py::"
TRAINING = "tests/testing/one_run/test_training.py::"
TABLE = "tests/tables/test_table_audit.py::"

ITS_OWN = TABLE + "test_it_is_a_session_of_its_own_at_the_configurations_noise"


@bug(12, caught_by=[BOUND + "test_no_private_mechanism_exceeds_the_p_value"])
def audit_takes_delta_for_independent():
    """An audit charges delta by 2 m delta max_i (f(v - i) - f(v)) / i, which some mechanisms exceed."""

    def in_use(correct, guesses, canaries, *, epsilon, delta):
        q = special.expit(epsilon)
        below = np.cumsum(stats.binom.pmf(np.arange(correct)[::-1], guesses, q))
        worst = np.max(below / np.arange(1, correct + 1))
        return min(1.0, stats.binom.sf(correct - 1, guesses, q) + 2 * canaries * delta * worst)

    swap(bound.p_value, in_use)


@bug(42, caught_by=[TRAINING + "test_the_model_trains_as_it_would_without"])
def planted_canary_trains_the_model():
    """A planted canary's own record has a gradient in the model, too."""
    whole = canaries.planted_loss

    def leaking(loss_fn, canaries, *, like):
        loss = whole(loss_fn, canaries, like=like)

        def both(model, batch):
            *rest, _, weight = batch
            own = loss_fn(model.model, tuple(rest) if like is not None else rest[0])
            return loss(model, batch) + 1e4 * weight * own

        return both

    swap(canaries.planted_loss, leaking)


@bug(12, caught_by=[TRAINING + "test_a_true_claim_stands_and_much_of_it_is_found"])
def audit_compares_with_what_it_measured():
    """The claim that is tested is not that of the oracle's own session."""
    whole = training.epsilon
    put(training, "epsilon", lambda spends, delta: whole(spends, 0.5))


# -- of tables


@bug(11, caught_by=[ITS_OWN])
def audit_without_a_ledger_on_disk():
    """What an audit spends on the rows is written nowhere."""
    put(run_lifecycle, "Ledger", lambda path, **terms: Ledger(**terms))


@bug(45, caught_by=[ITS_OWN])
def audit_at_more_noise_than_the_configuration():
    """An audit retrains at a smaller epsilon than the configuration's, and finds that all is well."""
    whole = pipeline.TableTask

    def careful(settings, source, plan, *rest, **more):
        from dataclasses import replace

        purchases = replace(plan.purchases, epsilon=settings.epsilon / 2)
        quiet = replace(settings, epsilon=settings.epsilon / 2)
        return whole(quiet, source, replace(plan, purchases=purchases), *rest, **more)

    put(pipeline, "TableTask", careful)


@bug(34, caught_by=[TABLE + "test_no_key_is_ever_on_disk"])
def audit_keeps_its_key():
    """The key of an audit is written to disk."""
    whole = pipeline._Audit.run

    def keeping(self, **how):
        self.task.randomness.save(self.task.folder.path / "key.json")
        return whole(self, **how)

    put(pipeline._Audit, "run", keeping)


@bug(42, caught_by=[TABLE + "test_what_it_tells_is_a_function_of_its_releases"])
def audit_tells_the_number_of_rows():
    """An audit's result depends on the rows by another way than the releases."""
    trained, whole, rows = pipeline.train_with_canaries, pipeline.judged, []

    def training(oracle, *given):
        rows[:] = [oracle.source.num_rows]
        return trained(oracle, *given)

    def telling(*given, **how):
        found = whole(*given, **how)
        object.__setattr__(found, "ledger_epsilon", found.ledger_epsilon + rows[0])
        return found

    put(pipeline, "train_with_canaries", training)
    put(pipeline, "judged", telling)
