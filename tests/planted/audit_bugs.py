"""Bugs of audits: a bound that is none, an adversary who knows too much, or one who sees nothing."""

import numpy as np
import torch

from tacita.sampling import PoissonSampler
from tacita.testing import (
    arena,
    bounds,
    claims,
    fidelity,
    named_audits,
    result,
    sessions,
    simulator,
    statistics,
)
from tacita.testing import (
    oracle_contract as contract,
)
from tests.planted.plant import bug, put, swap

BOUNDS = "tests/testing/test_bounds.py::"
AUDIT = "tests/testing/test_audit.py::"
STATISTICS = "tests/testing/test_statistics.py::"
CONTRACT = "tests/testing/test_oracle_contract.py::"
MASKS = "tests/sampling/test_masks.py::"

LIMITS = BOUNDS + "test_limits_are_those_of_clopper_and_pearson"
GAUSSIAN = AUDIT + "test_a_plain_gaussian_query_is_measured_within_ten_per_cent"
HOLDS = CONTRACT + "test_every_oracle_keeps_its_claim"


@bug(45, caught_by=[LIMITS])
def audit_limits_are_estimates():
    """An audit's limits are the measured rates."""
    swap(bounds.clopper_pearson_lower, lambda hits, trials, error: np.asarray(hits) / trials)
    swap(bounds.clopper_pearson_upper, lambda hits, trials, error: np.maximum(np.asarray(hits), 0.5) / trials)


@bug(45, caught_by=[BOUNDS + "test_a_bound_of_ninety_per_cent_exceeds_the_truth_once_in_ten_at_most"])
def audit_judges_by_the_measured_rates():
    """An audit's bound takes the measured rates of the event for their limits."""
    put(
        bounds.ScoreEvent,
        "limits",
        lambda self, error: (self.hits / self.trials, max(self.false_hits, 0.5) / self.false_trials),
    )


@bug(49, caught_by=[BOUNDS + "test_both_directions_are_tried"])
def audit_in_one_direction():
    """An audit looks for the canary only, not for its absence."""
    whole = bounds._best_event

    def one_way(present, absent, gain, choice):
        threshold, direction = whole(present, absent, gain, choice)
        return threshold, "present" if direction else direction

    swap(whole, one_way)


@bug(25, caught_by=[BOUNDS + "test_not_a_number_counts_as_the_highest_score"])
def audit_takes_nan_for_nothing():
    """A release that is no number is no evidence."""
    whole = bounds.checked_scores
    swap(whole, lambda name, scores: whole(name, np.nan_to_num(np.asarray(scores, float))))


@bug(45, caught_by=[GAUSSIAN, STATISTICS + "test_exact_ratios_are_those_of_the_densities"])
def audit_blind():
    """What the canary moves is taken for nothing, so that an audit sees nothing."""
    whole = statistics._one_row
    swap(whole, lambda trace: 0 * whole(trace))


@bug(1, 45, caught_by=[HOLDS + "[poisson]"])
def audit_knows_the_canarys_coin():
    """An audit of Poisson sampling tells the adversary in which queries the canary was: true claims are refuted."""
    put(simulator.Parts, "coins_known", property(lambda self: True))


@bug(1, 45, caught_by=[AUDIT + "test_the_reference_does_not_know_the_canarys_coin"])
def audit_reference_with_the_replacement():
    """Under Poisson sampling the reference has the replaced record, and so shows the canary's own coin."""
    engine = simulator.Worlds.engine

    def shown(self, query, masks, present):
        object.__setattr__(self, "reference_has_replacement", True)
        return engine(self, query, masks, present)

    put(simulator.Worlds, "engine", shown)


@bug(20, 45, caught_by=[GAUSSIAN])
def audit_with_noise_of_its_own():
    """The simulation adds noise of its own beside the mechanism's."""
    whole = simulator._whitened

    def noisy(values, reference, noise_std):
        residual = whole(values, reference, noise_std)
        return residual + torch.randn(residual.shape)

    swap(whole, noisy)


@bug(46, caught_by=[AUDIT + "test_half_the_noise_is_refuted"])
def audit_never_refutes():
    """The verdict is always "consistent"."""
    put(result.AuditResult, "verdict", property(lambda self: "consistent"))


@bug(46, caught_by=[CONTRACT + "test_an_oracle_that_claims_nothing_is_none"])
def no_claim_is_kept():
    """A ledger that claims nothing is read as a claim of epsilon 100, which no audit refutes."""
    whole = claims.Claim.of

    def of(ledger, delta, multiples=claims.FEW):
        found = whole(ledger, delta, multiples)
        return found if found.points else claims.Claim(100.0, delta, ((100.0, delta),))

    put(claims.Claim, "of", staticmethod(of))


@bug(42, caught_by=[CONTRACT + "test_a_claim_that_depends_on_the_data_is_seen"])
def claims_of_two_worlds_not_compared():
    """An oracle whose claim depends on the data is taken at the word of one data set."""

    swap(arena.check_same_claim, lambda adversary, plan, other: None)


@bug(42, caught_by=[CONTRACT + "test_a_divisor_that_depends_on_the_data_is_seen"])
def public_promises_not_compared():
    """Nobody looks whether the divisor is the same in both worlds."""
    swap(sessions.promises, lambda release: None)


@bug(11, caught_by=[CONTRACT + "test_a_query_without_a_record_in_the_ledger_is_seen"])
def lines_not_counted():
    """Nobody looks whether each query of an audit stands in the ledger."""
    put(sessions.Asking, "__call__", lambda self, oracle, ledger, query: oracle.query(self._point(oracle)))


@bug(34, caught_by=["tests/testing/test_fidelity.py::test_noise_used_twice_is_seen"])
def noise_pairs_not_compared():
    """Nobody looks whether two queries have the same noise."""
    swap(fidelity._pairs, lambda noise: [])


@bug(15, caught_by=[AUDIT + "test_persons_are_not_charged_as_rows"])
def person_with_one_row():
    """The audit of persons plants one row of the person, however many there are."""
    object.__setattr__(named_audits.READY["units"].adversaries[0], "copies", 1)


@bug(1, caught_by=[MASKS + "test_masks_have_exactly_the_stated_law"])
def masks_drawn_more_often():
    """Audits draw records five per cent more often than oracles do."""
    put(
        PoissonSampler,
        "masks",
        lambda self, query, coins, rows, runs: (
            coins.for_query(query).bernoulli(runs * rows, 1.05 * self.sample_rate).reshape(runs, rows)
        ),
    )


CHANGED = CONTRACT + "test_an_oracle_that_was_changed_after_it_was_built_is_seen"
MORE = CONTRACT + "test_a_subclass_that_releases_more_than_its_parts_is_refuted"


@bug(42, caught_by=[MORE + "[RealisedBatch]"])
def own_releases_not_looked_at():
    """Nobody looks whether an oracle's gradient is its released values over the public divisor."""
    swap(sessions.check_own_release, lambda oracle, release: None)


@bug(42, caught_by=[MORE + "[RowsInTheSession]"])
def sessions_of_releases_not_looked_at():
    """Nobody looks at the session and the number that a release names."""
    swap(sessions.check_paid, lambda release, ledger: None)


@bug(42, caught_by=[MORE + "[NoiselessLater]"])
def later_queries_not_asked():
    """Nobody asks a session to its end."""
    swap(contract._check_whole_sessions, lambda arena, false_alarm: None)


@bug(42, caught_by=[CONTRACT + "test_plain_is_who_overrides_nothing"])
def subclasses_taken_for_their_parts():
    """An oracle that overrides query is taken for one that does what its parts do."""
    swap(sessions.is_plain, sessions.has_parts)


@bug(45, caught_by=[CHANGED + "[quieter]", CONTRACT + "test_whoever_changes_a_method_of_gate_or_parts_is_not_plain"])
def lines_taken_for_their_class():
    """An oracle whose line was changed on the instance is rebuilt of its parts, which hold nothing of the change."""
    put(sessions, "_line_as_built", lambda oracle: True)


@bug(45, caught_by=[CHANGED + "[quiet_everywhere]", CHANGED + "[every_record_by_another_sampler]"])
def oracles_changed_after_registration():
    """Nobody looks whether an oracle is still the one that its session was registered for."""
    swap(sessions.check_as_charged, lambda oracle, ledger: None)


@bug(1, 45, caught_by=[CONTRACT + "test_runs_are_drawn_by_a_draw_that_was_put_on_the_sampler"])
def masks_of_another_law():
    """Simulated runs follow the law that a sampler states, not the way it draws."""
    swap(simulator.masks_of, lambda sampler: sampler.masks)


@bug(42, caught_by=[CONTRACT + "test_what_backward_does_is_looked_at"])
def backward_not_asked():
    """Nobody looks at what backward leaves in the parameters."""
    swap(
        sessions.backward,
        lambda oracle: oracle.query({n: p.detach() for n, p in oracle.source.model.named_parameters()}),
    )


@bug(34, caught_by=["tests/testing/test_fidelity.py::test_one_query_of_many_with_other_noise_is_seen"])
def every_query_not_looked_at():
    """Nobody looks at each query of a whole session."""
    swap(fidelity.check_every_query, lambda noise, false_alarm: None)


@bug(34, caught_by=[CONTRACT + "test_a_later_query_of_a_third_party_that_has_no_noise_is_seen"])
def repeated_releases_not_looked_at():
    """Nobody looks whether a third party's later queries have any noise."""
    swap(fidelity.check_fresh, lambda released: None)


@bug(45, caught_by=[CHANGED + "[one_batch_for_all]", CHANGED + "[known_key]", CHANGED + "[redone_for_free]"])
def streams_of_an_oracle_not_looked_at():
    """Batches, noise or redone queries of other streams than the session's own, which no run can tell."""
    swap(sessions._check_streams, lambda oracle: None)
