"""Bugs of audits in one run: bounds that are none, canaries that are something else, things left behind."""

import numpy as np
from scipy import special, stats

from tacita.ledger import Ledger
from tacita.random import Randomness
from tacita.runs import run_lifecycle
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.tables import table_audit as pipeline
from tacita.testing.one_run import attacks, bound, canaries, report, training
from tests.planted.plant import bug, put, swap

BOUND = "tests/testing/one_run/test_bound.py::"
TRAINING = "tests/testing/one_run/test_training.py::"
TABLE = "tests/tables/test_table_audit.py::"
MEMBERSHIP = "tests/testing/test_membership.py::"

LEAVES = TABLE + "test_it_leaves_ledger_statement_and_result_and_nothing_else"
ITS_OWN = TABLE + "test_it_is_a_session_of_its_own_at_the_configurations_noise"


@bug(12, caught_by=[BOUND + "test_no_private_mechanism_exceeds_the_p_value"])
def audit_p_value_above_instead_of_at_least():
    """An audit's p-value is the chance of more right guesses than were seen, in place of at least as many."""
    whole = bound.p_value
    swap(bound.p_value, lambda correct, *a, **k: whole(min(correct + 1, a[0]), *a, **k) if correct < a[0] else 0.0)


@bug(12, caught_by=[BOUND + "test_no_private_mechanism_exceeds_the_p_value"])
def audit_forgets_delta():
    """An audit refutes epsilon as if delta were 0."""
    swap(bound._weights, lambda canaries, guesses, delta: np.zeros(guesses))


@bug(12, caught_by=[BOUND + "test_no_private_mechanism_exceeds_the_p_value"])
def audit_takes_delta_for_independent():
    """An audit charges delta by 2 m delta max_i (f(v - i) - f(v)) / i, which some mechanisms exceed."""

    def in_use(correct, guesses, canaries, *, epsilon, delta):
        q = special.expit(epsilon)
        below = np.cumsum(stats.binom.pmf(np.arange(correct)[::-1], guesses, q))
        worst = np.max(below / np.arange(1, correct + 1))
        return min(1.0, stats.binom.sf(correct - 1, guesses, q) + 2 * canaries * delta * worst)

    swap(bound.p_value, in_use)


@bug(12, caught_by=[BOUND + "test_weights_against_the_definition"])
def audit_charges_delta_once():
    """An audit charges delta once, however many canaries there are."""
    whole = bound._weights
    swap(bound._weights, lambda canaries, guesses, delta: whole(canaries, guesses, delta) / canaries)


@bug(16, caught_by=[BOUND + "test_trying_six_numbers_costs_no_confidence"])
def audit_chooses_its_guesses_for_nothing():
    """An audit tries six numbers of guesses, each at the full error, and reports the best."""
    whole = bound.lower_bound

    def bold(*a, delta, confidence):
        return whole(*a, delta=delta, confidence=1 - min(0.9, 6 * (1 - confidence)))

    swap(bound.lower_bound, bold)


@bug(caught_by=[TRAINING + "test_coins_are_fair_and_of_their_own_stream"])
def audit_coins_are_not_fair():
    """More than half of the canaries are in, which the guesses then know beforehand."""

    def biased(canaries, randomness):
        return randomness.session_key("canaries").stream("coins").words(canaries) > np.uint64(2**62)

    swap(canaries.fair_coins, biased)


@bug(34, caught_by=[TRAINING + "test_coins_are_fair_and_of_their_own_stream"])
def audit_coins_are_known():
    """The canaries' coins are those of a fixed seed, the same in every audit."""
    whole = canaries.fair_coins
    swap(canaries.fair_coins, lambda canaries, randomness: whole(canaries, Randomness.insecure(0)))


@bug(21, caught_by=[TRAINING + "test_a_planted_canary_moves_its_own_parameter_by_the_threshold"])
def canary_in_the_data_twice():
    """A canary is two records, so that an audit refutes what is true."""
    whole = canaries._with_rows
    swap(
        canaries._with_rows,
        lambda records, dataset, canaries: whole(records, dataset, np.repeat(canaries, 2)),
    )


@bug(2, caught_by=[TRAINING + "test_a_planted_canary_moves_its_own_parameter_by_the_threshold"])
def replaced_canary_is_taken_away():
    """Under replace-one a canary that is left out leaves nothing in its place: only half the distance is audited."""
    whole = canaries._weights
    swap(canaries._weights, lambda included, relation: whole(included, relation).clamp(min=0))


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


@bug(45, caught_by=[TRAINING + "test_noise_ten_times_too_small_refutes_the_claim"])
def audit_that_looks_at_nothing():
    """An audit's scores do not depend on what was released: it never refutes."""
    put(attacks.OwnParameter, "see", lambda self, params, release: None)


@bug(45, caught_by=[TRAINING + "test_noise_ten_times_too_small_refutes_the_claim"])
def audit_always_consistent():
    """The verdict is that all is well, whatever was measured."""
    put(report.OneRunAudit, "verdict", property(lambda self: "consistent"))


@bug(45, caught_by=[TRAINING + "test_a_bound_a_little_above_a_true_claim_refutes_nothing"])
def audit_verdict_at_the_bounds_confidence():
    """The verdict goes by the bound that is exceeded in one audit of 20."""
    verdict = property(lambda self: "refuted" if self.bound.epsilon > self.epsilon_claimed else "consistent")
    put(report.OneRunAudit, "verdict", verdict)


@bug(12, caught_by=[TRAINING + "test_a_true_claim_stands_and_much_of_it_is_found"])
def audit_compares_with_what_it_measured():
    """The claim that is tested is not that of the oracle's own session."""
    whole = training.epsilon
    put(training, "epsilon", lambda spends, delta: whole(spends, 0.5))


@bug(45, caught_by=[MEMBERSHIP + "test_the_limits_of_the_auc_cover"])
def auc_limits_too_narrow():
    """The limits of the AUC are those of so many pairs as if they were independent."""
    from tacita.testing import membership

    whole = membership.auc_interval
    swap(membership.auc_interval, lambda value, smaller, error: whole(value, smaller**2, error))


# -- of tables


@bug(41, caught_by=[LEAVES])
def audit_leaves_its_working_folder():
    """The private folder of an audit stays."""
    put(RunLifecycle, "finish", lambda self: None)


@bug(42, caught_by=[LEAVES])
def audit_exports_its_model():
    """An audit writes down the model that it trained, canaries and all."""
    whole = pipeline._Audit.statement

    def exporting(self, result):
        (self.task.folder.path.parent / "model.safetensors").write_bytes(b"weights")
        return whole(self, result)

    put(pipeline._Audit, "statement", exporting)


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
    whole = pipeline.judged

    def telling(trial, oracle, attack, **how):
        found = whole(trial, oracle, attack, **how)
        object.__setattr__(found, "ledger_epsilon", found.ledger_epsilon + len(trial.records.rows))
        return found

    put(pipeline, "judged", telling)
