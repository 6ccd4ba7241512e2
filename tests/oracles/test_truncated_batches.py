"""Oracles with a largest batch: the contract, the records left out, resumed runs, and what is refused."""

import math

import numpy as np
import pytest
import torch

import tacita
from tacita import accounting as acc
from tacita.errors import LedgerError, UnsupportedEventError
from tacita.gradients.given import GivenSource
from tacita.random import QueryCoins, Randomness
from tacita.testing import audit_oracle, check_oracle
from tacita.testing.claims import Claim

ROWS, RATE, SIZE = 12, 0.5, 5


def oracle_of(data, ledger, *, num_records=ROWS, max_batch_size=SIZE, **settings):
    return tacita.GradientOracle(
        GivenSource(data),
        estimator=tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=1.0)),
        mechanism=settings.pop("mechanism", tacita.GaussianMechanism(noise_multiplier=4.0)),
        sampler=tacita.PoissonSampler(sample_rate=RATE, num_records=num_records, max_batch_size=max_batch_size),
        ledger=ledger,
        planned_queries=3,
        **settings,
    )


def ledger_of(relation):
    return tacita.Ledger(neighboring_relation=relation, privacy_unit="one row")


def test_an_oracle_keeps_its_contract_where_its_guarantee_is_unconditional():
    def make_oracle(rows, ledger):
        if ledger.neighboring_relation == "add_or_remove_one":
            raise UnsupportedEventError("conditional")
        return oracle_of(rows, ledger, num_records=len(rows))

    check_oracle(make_oracle)


def test_an_audit_is_consistent_with_the_conditional_guarantee():
    def make_oracle(rows, ledger):
        return oracle_of(rows, ledger, num_records=20)

    ledger = ledger_of("add_or_remove_one")
    make_oracle(torch.eye(2), ledger)
    at = ledger.conditional_bound(1e-2)
    claim = Claim(at.epsilon, 1e-2, ((at.epsilon, 1e-2),))
    found = audit_oracle(make_oracle, relation="add_or_remove_one", delta=1e-2, runs=30_000, claim=claim)
    assert found.verdict == "consistent"
    assert 0 < found.epsilon_lower_bound < at.epsilon


def test_what_is_released_is_a_sum_of_the_rows_that_stay_and_the_divisor_does_not_tell():
    rows = torch.eye(ROWS)
    oracle = oracle_of(
        rows,
        ledger_of("zero_out_one"),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1e-6),
        randomness=Randomness.insecure(3),
    )
    coins, full = QueryCoins(Randomness.insecure(3), oracle.session.id), 0
    for query in range(3):
        release = oracle.query({"theta": torch.zeros(ROWS)})
        (block,) = release.released.values()
        (summed,) = block.values()
        words = coins.for_query(query).words(ROWS)
        stays = np.argsort(words)[:SIZE]
        expected = [row for row in stays if words[row] < np.uint64(2**63)]
        assert sorted(np.flatnonzero(summed.numpy() > 0.5).tolist()) == sorted(map(int, expected))
        assert release.divisor == RATE * ROWS
        full += len(expected) == SIZE
    assert full


def test_a_calibrated_session_reaches_its_target_and_another_limit_is_another_session():
    ledger = ledger_of("zero_out_one")
    oracle = oracle_of(
        torch.eye(ROWS), ledger, mechanism=tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-3)
    )
    assert 1.99 < ledger.epsilon(1e-3) <= 2.0
    with pytest.raises(LedgerError, match="registered for another event"):
        oracle_of(torch.eye(ROWS), ledger, mechanism=oracle.mechanism, session=oracle.session, max_batch_size=SIZE + 1)


def test_a_part_by_coin_is_refused_where_its_number_of_records_is_protected():
    parts = tacita.split((torch.eye(ROWS),), [0.5, 0.5], randomness=Randomness.insecure(0))
    of_part = {"rows": parts[0].rows, "part": parts[0].part}
    with pytest.raises(UnsupportedEventError, match="max_batch_size has no guarantee for a part by coin"):
        oracle_of(torch.eye(ROWS), ledger_of("add_or_remove_one"), **of_part)
    with pytest.raises(
        ValueError, match="num_records must be the number of records"
    ):  # the part's, which is public here
        oracle_of(torch.eye(ROWS), ledger_of("zero_out_one"), **of_part)


def test_units_of_several_rows_are_told_their_own_sampler():
    with pytest.raises(ValueError, match="Use UnitPoissonSampler"):
        oracle_of(torch.eye(ROWS), ledger_of("add_or_remove_one"), max_rows_per_unit=2)


def test_a_likelihood_ratio_test_refutes_the_charge_of_poisson_sampling_and_not_this_one():
    """The sampler's own masks, many runs; the attacker knows the other rows and their coins. All others are -C."""
    sampler, ratio, level = tacita.PoissonSampler(sample_rate=0.4, num_records=7, max_batch_size=2), 1.5, 20.0
    runs, rng = 400_000, np.random.default_rng(0)
    masks = sampler.masks(0, QueryCoins(Randomness.insecure(1), "audit-1"), 7, runs)
    words = QueryCoins(Randomness.insecure(1), "audit-1").for_query(0).words(runs * 7).reshape(runs, 7) / 2.0**64
    others = np.sort(np.where(words[:, :6] < 0.4, words[:, :6], np.inf), axis=1)
    full = np.isfinite(others[:, 1])
    chance, move = np.where(full, np.minimum(others[:, 1], 0.4), 0.4), np.where(full, 2 * ratio, ratio)
    expected = -ratio * np.minimum(np.isfinite(others).sum(axis=1), 2)  # of the others alone
    shift = masks @ np.array([-ratio] * 6 + [ratio]) - expected
    assert set(np.unique(np.round(shift[full], 9))) == {0.0, 2 * ratio}
    noise = rng.standard_normal((2, runs))

    def tail(x):
        likelihood = 1 - chance + chance * np.exp(move * x - move**2 / 2)
        return likelihood > level

    seen, missed = tail(shift + noise[0]).mean(), tail(noise[1]).mean()
    found = seen - level * missed
    slack = 6 * math.sqrt((seen + level**2 * missed) / runs)  # six standard errors
    charged = acc.GaussianSumEvent(
        relation="add_or_remove_one", sampling=sampler.law, max_contribution=(ratio,), noise_std=(1.0,)
    )
    plain = acc.GaussianSumEvent(
        relation="add_or_remove_one", sampling=acc.PoissonLaw(0.4), max_contribution=(ratio,), noise_std=(1.0,)
    )
    of_poisson, of_this = (acc.delta([acc.Spend(one, 1)], math.log(level)).delta for one in (plain, charged))
    assert of_poisson < found - slack
    assert found - slack < of_this
