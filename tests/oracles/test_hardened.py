"""Oracles with hardened noise: which estimator, what is released, bits that nothing changes, the statement's words."""

import os
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import tacita
from tacita.accounting import hardening
from tacita.gradients import GivenSource, NetworkSource
from tacita.hardened import CappedSum, GridSum
from tacita.testing.oracle_contract import check_oracle
from tests.devices import on_each_device
from tests.oracles.conftest import squared_error, trainable

device = on_each_device

ROUNDED = tacita.RoundedGaussian(noise_multiplier=1.0)


@pytest.mark.parametrize(("method", "estimator"), [("loop", GridSum), ("program", CappedSum)])
def test_a_release_is_whole_steps_around_the_clipped_sum(make_oracle, problem, method, estimator):
    oracle = make_oracle(mechanism=ROUNDED, method=method)
    assert isinstance(oracle.estimator, estimator)
    model, loss_fn, (x, y) = problem
    release = oracle.backward()
    step = oracle.mechanism.steps["all"]
    noise = []
    rows = oracle.sampler.draw(0, oracle.gate.coins, 60)
    batch = torch.from_numpy(rows)
    clean = tacita.clipped_gradient_sum(
        model, loss_fn, (x[batch], y[batch]), tacita.FlatClipper(max_grad_norm=1.0), method="loop"
    )
    for name, noisy in release.released["all"].items():
        steps = noisy / step
        assert torch.equal(steps, steps.round())
        noise.append((noisy - clean.sum[name]).flatten())
    assert 0.1 < torch.cat(noise).norm() < 8  # 5 coordinates of N(0, 1)
    for name, p in trainable(model).items():
        torch.testing.assert_close(p.grad, release.gradient[name])
        torch.testing.assert_close(release.gradient[name] * release.divisor, release.released["all"][name])


@pytest.mark.parametrize("rows", [1, 7])
def test_the_physical_batch_does_not_show(make_oracle, rows):
    def released(**settings):
        oracle = make_oracle(mechanism=ROUNDED, method="loop", **settings)
        return [oracle.query(trainable(oracle.source.model)).released["all"] for _ in range(3)]

    for one, other in zip(released(), released(max_physical_batch_size=rows), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_order_of_the_records_does_not_show(problem, make_oracle):
    x, y = problem[2]
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    settings = dict(mechanism=ROUNDED, method="loop", sampler=tacita.FullBatchSampler(num_records=60))
    one, other = (make_oracle(dataset=data, **settings).backward() for data in ((x, y), (x[order], y[order])))
    assert all(torch.equal(one.gradient[name], other.gradient[name]) for name in one.gradient)


@pytest.mark.parametrize("method", ["loop", "program"])
def test_a_redone_query_is_the_identical_release(make_oracle, method):
    oracle = make_oracle(mechanism=ROUNDED, method=method)
    params = trainable(oracle.source.model)
    first = oracle.query(params)
    ledger, state = oracle.ledger, oracle.state_dict()
    again = make_oracle(
        mechanism=ROUNDED, method=method, ledger=ledger, session=oracle.session, randomness=oracle.randomness
    )
    again.load_state_dict({**state, "position": 0})
    redone = again.query(params)
    assert redone.query == 0
    assert all(torch.equal(first.released["all"][n], redone.released["all"][n]) for n in params)
    assert oracle.session.queries_made == 1


def test_blocks_have_grids_of_their_own(make_oracle):
    clipper = tacita.PerLayerClipper(max_grad_norm={"weight": 1.0, "bias": 0.01})
    oracle = make_oracle(mechanism=ROUNDED, method="loop", clipper=clipper)
    assert oracle.mechanism.steps["bias"] < oracle.mechanism.steps["weight"]
    release = oracle.backward()
    for block, step in oracle.mechanism.steps.items():
        (value,) = release.released[block].values()
        assert torch.equal(value / step, (value / step).round())


def test_calibration_keeps_the_target_and_the_rounding_of_the_ghost_costs_little(make_oracle):
    def multiplier(rows, form):
        mechanism = tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5, form=form)
        oracle = make_oracle(mechanism=mechanism, max_physical_batch_size=rows)
        assert oracle.ledger.epsilon(1e-5) <= 2.0
        return oracle.noise_std["all"]

    plain = multiplier(1, tacita.GaussianMechanism)
    assert multiplier(1, tacita.RoundedGaussian) == plain
    assert plain < multiplier(None, tacita.RoundedGaussian) < 1.002 * plain


@pytest.mark.parametrize(("method", "sums"), [("loop", "alone"), ("program", "capped")])
def test_the_statement_says_what_is_claimed(make_oracle, method, sums):
    oracle = make_oracle(mechanism=ROUNDED, method=method)
    assert hardening(oracle.event).sums == sums
    words = " ".join(tacita.statement(oracle.ledger, 1e-5).to_json()["caveats"])
    assert "The noise is hardened (rounded Gaussian)" in words
    assert ("Attacks on floating-point noise are closed." in words) == (method == "loop")
    assert ("weaker claim" in words) == (method != "loop")
    assert "out of scope" not in words or method != "loop"


def test_a_session_without_hardening_is_named(make_oracle):
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    make_oracle(mechanism=ROUNDED, method="loop", ledger=ledger)
    plain = make_oracle(ledger=ledger, seed=1)
    words = " ".join(tacita.statement(ledger, 1e-5).to_json()["caveats"])
    assert f"That does not cover {plain.session.id}" in words


def test_it_can_be_read_back(make_oracle, tmp_path):
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="zero_out_one", privacy_unit="one row")
    oracle = make_oracle(mechanism=ROUNDED, method="loop", ledger=ledger)
    epsilon = ledger.epsilon(1e-5)
    ledger.close()
    read = tacita.Ledger.load(tmp_path / "ledger.jsonl")
    assert read.epsilon(1e-5) == epsilon
    assert read.sessions[0].event == oracle.event


# -- what is refused


def test_noise_and_estimator_must_fit(problem):
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    settings = dict(ledger=ledger, sampler=tacita.FullBatchSampler(num_records=5), planned_queries=2)
    source, clipper = GivenSource(torch.zeros(5, 3)), tacita.FlatClipper(max_grad_norm=1.0)
    with pytest.raises(ValueError, match="Use GridSum or CappedSum"):
        tacita.GradientOracle(source, estimator=tacita.ClippedSum(clipper), mechanism=ROUNDED, **settings)
    plain = tacita.GaussianMechanism(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="use RoundedGaussian"):
        tacita.GradientOracle(source, estimator=GridSum(clipper), mechanism=plain, **settings)
    assert not ledger.sessions


@pytest.mark.parametrize("refused", [True, False])
def test_records_that_are_computed_together_are_not_claimed_to_be_alone(problem, refused):
    model, loss_fn, data = problem
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    source = NetworkSource(model, loss_fn, data, max_physical_batch_size=None if refused else 1)
    with pytest.raises(ValueError, match="computed together") if refused else nullcontext():
        tacita.GradientOracle(
            source,
            estimator=GridSum(tacita.FlatClipper(max_grad_norm=1.0), together=False),
            mechanism=ROUNDED,
            ledger=ledger,
            sampler=tacita.FullBatchSampler(num_records=60),
            planned_queries=2,
        )
    assert bool(ledger.sessions) is not refused


def test_a_batch_that_could_overflow_is_refused_by_public_numbers(problem):
    sampler = tacita.PoissonSampler(sample_rate=0.5, num_records=2**20)
    with pytest.raises(ValueError, match="expected_batch_size must be at most half of max_records"):
        tacita.ClippedGradientOracle(
            problem[0],
            squared_error,
            problem[2],
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
            sampler=sampler,
            clipper=tacita.FlatClipper(max_grad_norm=1.0),
            mechanism=ROUNDED,
            planned_queries=2,
            method="program",
        )


def test_noise_beyond_the_sampler_is_refused_when_built(make_oracle):
    with pytest.raises(ValueError, match=r"at most 2\^36 steps"):
        make_oracle(mechanism=tacita.RoundedGaussian(noise_multiplier=2.0**30), method="loop")


# -- the audit


def maker(mechanism, method):
    def make_oracle(rows, ledger):
        known = len(rows) if ledger.neighboring_relation != "add_or_remove_one" else 10
        settings = dict(ledger=ledger, sampler=tacita.FullBatchSampler(num_records=known), planned_queries=2)
        clipper = tacita.FlatClipper(max_grad_norm=1.0)
        if method == "given":
            estimator = GridSum(clipper, together=False)
            return tacita.GradientOracle(GivenSource(rows), estimator=estimator, mechanism=mechanism, **settings)
        model = nn.Linear(rows.shape[1], 1, bias=False)
        return tacita.ClippedGradientOracle(
            model,
            lambda model, batch: model(batch[0]).squeeze(1),
            (rows,),
            clipper=clipper,
            mechanism=mechanism,
            method=method,
            **settings,
        )

    return make_oracle


@pytest.mark.skipif(not os.environ.get("TACITA_AUDIT"), reason="a minute or two: set TACITA_AUDIT=1 (make audit)")
@pytest.mark.parametrize("method", ["given", "loop", "program"])
def test_the_claim_survives_every_adversary_with_every_engine(method):
    check_oracle(maker(tacita.RoundedGaussian(noise_multiplier=2.0), method))
