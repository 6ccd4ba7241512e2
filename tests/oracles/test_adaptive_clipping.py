"""A threshold that follows the norms: gradient and count in one ball, a state of releases alone, no cost in noise."""

import math

import pytest
import torch
from torch import nn

import tacita
from tacita.adaptive_clipping import BELOW, FARTHEST, ROOM, SUM, followed
from tacita.errors import UnsupportedEventError
from tacita.estimators import ClippedSum
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.testing import check_oracle
from tacita.training.chosen_settings import ChosenSettings, chosen_clipper
from tests.distributed.ranks import results, run_ranks
from tests.training.test_fit import SETTINGS, interrupted, problem

ADAPTIVE = tacita.AdaptiveClippedSum(divisor=20.0)
THRESHOLDS = [1.0, 0.03, 1e-6, 40.0, 1e6]


def at(threshold):
    return {"threshold": torch.tensor(threshold, dtype=torch.float64)}


def values(rows, threshold=1.0, estimator=ADAPTIVE):
    """The values of one batch as one vector, the count last."""
    found, _ = estimator(GivenEngine(rows), at(threshold))
    assert list(found) == [SUM]
    return torch.cat([x.double().reshape(-1) for x in found[SUM].values()])


def rows(count=6, seed=0):
    return 3 * torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_gradient_and_count_of_one_record_are_in_one_ball_and_fill_it(threshold, dtype):
    norms = threshold * torch.linspace(0, 3, 3001, dtype=torch.float64)
    found = [values((norm * torch.tensor([[0.6, 0.8]])).to(dtype), threshold).norm() for norm in norms[::10]]
    assert max(found) <= 1 + 1e-6
    share = torch.arange(10**5 + 1, dtype=torch.float64) / 10**5
    exact = (share.square() + (ROOM * (2 - 2 * share).clamp(max=1)).square()).sqrt()
    assert 0.9999 < float(exact[share == 0.5]) <= float(exact.max()) <= 1


@pytest.mark.parametrize("hostile", [0.0, 1e-30, 0.7, 1e30, torch.inf, torch.nan])
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_record_moves_the_values_by_at_most_one_and_by_two_if_it_is_replaced(threshold, hostile):
    plain = threshold * rows()
    without, changed = values(plain[1:], threshold), plain.clone()
    changed[0] = hostile
    assert float((values(changed, threshold) - without).norm()) <= 1 + 1e-9
    assert float((values(changed, threshold) - values(plain, threshold)).norm()) <= 2 + 1e-9
    assert ADAPTIVE.sensitivity("add_or_remove_one", {}) == {SUM: 1}
    assert ADAPTIVE.sensitivity("replace_one", {}) == {SUM: 2}


@pytest.mark.parametrize("hostile", [torch.inf, torch.nan])
def test_a_gradient_that_is_not_finite_is_absent_from_the_count_too(hostile):
    with_it = torch.cat([rows(), torch.full((1, 4), hostile, dtype=torch.float64)])
    assert torch.equal(values(with_it), values(rows()))


def test_rounding_of_the_norms_moves_the_count_no_more_than_the_sum():
    """All norms at the threshold, and all rounded to the other side: a count of whole records would move by all."""
    at_threshold = torch.eye(4, dtype=torch.float64).repeat(250, 1)
    moved = values(at_threshold * (1 - 1e-7)) - values(at_threshold * (1 + 1e-7))
    assert float(moved.norm()) <= 2 * 1000 * 2e-7


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_the_sum_is_that_of_flat_clipping_in_units_of_the_threshold(threshold):
    flat, _ = ClippedSum(tacita.FlatClipper(max_grad_norm=threshold))(GivenEngine(threshold * rows()), None)
    torch.testing.assert_close(values(threshold * rows(), threshold)[:-1], flat["all"]["theta"] / threshold)


def test_no_rows_are_zeros():
    assert not values(rows(0)).any()


def test_runs_on_a_leading_axis_are_runs_of_their_own():
    both = torch.stack([rows(seed=1), rows(seed=2)])
    found, _ = ADAPTIVE(GivenEngine(both), {"threshold": torch.tensor([1.0, 5.0], dtype=torch.float64)})
    for run, threshold in enumerate((1.0, 5.0)):
        one = torch.cat([x[run].reshape(-1) for x in found[SUM].values()])
        torch.testing.assert_close(one, values(both[run], threshold), rtol=1e-12, atol=1e-12)


def test_the_next_threshold_is_a_function_of_the_release():
    released = {SUM: {"theta": torch.zeros(4), BELOW: torch.tensor([20 * ROOM * 0.9])}}
    for data in (rows(seed=1), rows(seed=2)):
        _, state = ADAPTIVE(GivenEngine(data), at(3.0))
        after = ADAPTIVE.after(state, released)
        assert float(after["threshold"]) == pytest.approx(3.0 * math.exp(-0.2 * (0.9 - 0.5)), rel=1e-6)
    assert ADAPTIVE.shareable(after) == after


@pytest.mark.parametrize("share", [-1e9, 1e9, torch.inf, -torch.inf])
def test_no_release_carries_the_threshold_farther_than_it_may(share):
    following = followed(torch.tensor(1.0).double(), torch.tensor(share).double(), quantile=0.5, lr=100.0, first=1.0)
    assert 1 / FARTHEST <= float(following) <= FARTHEST


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_the_threshold_finds_the_quantile_from_any_scale(scale, quantile):
    estimator = tacita.AdaptiveClippedSum(divisor=400.0, quantile=quantile)
    state, engine = at(1.0), GivenEngine(scale * rows(400))
    for _ in range(400):
        bounded, state = estimator(engine, state)
        state = estimator.after(state, bounded)
    assert float(bounded[SUM][BELOW]) / (ROOM * 400) == pytest.approx(quantile, abs=1e-3)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_it_costs_what_a_fixed_threshold_costs(relation):
    def oracle(clipper):
        return tacita.ClippedGradientOracle(
            nn.Linear(4, 1),
            lambda model, batch: model(batch[0]).squeeze(1),
            (rows(200).float(),),
            ledger=tacita.Ledger(neighboring_relation=relation, privacy_unit="one row"),
            sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=200),
            clipper=clipper,
            mechanism=tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-4),
            planned_queries=20,
        )

    adaptive, fixed = oracle(ADAPTIVE), oracle(tacita.FlatClipper(max_grad_norm=1.0))
    assert adaptive.noise_std == fixed.noise_std
    assert adaptive.event == fixed.event


def test_the_contract():
    def make_oracle(rows, ledger):
        count = 40 if ledger.neighboring_relation == "add_or_remove_one" else len(rows)
        return tacita.GradientOracle(
            GivenSource(rows),
            estimator=tacita.AdaptiveClippedSum(divisor=0.5 * count),
            mechanism=tacita.GaussianMechanism(noise_multiplier=2.0),
            sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=count),
            ledger=ledger,
            planned_queries=4,
        )

    check_oracle(make_oracle)


def test_ranks_and_physical_batches_count_what_one_process_counts():
    def asked(rank, group, size=None):
        torch.manual_seed(0)
        oracle = tacita.ClippedGradientOracle(
            nn.Linear(4, 1, bias=False).double(),
            lambda model, batch: model(batch[0]).squeeze(1),
            (0.1 * rows(40),),
            ledger=None if rank else tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
            sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=40),
            clipper=ADAPTIVE,
            mechanism=tacita.GaussianMechanism(noise_multiplier=0.1),
            planned_queries=4,
            process_group=group,
            max_physical_batch_size=size,
            randomness=tacita.Randomness.insecure(0),
        )
        params = dict(oracle.source.model.named_parameters())
        released = [oracle.query(params).gradient["weight"].detach() for _ in range(4)]
        return torch.cat(released), oracle.public_state["threshold"]

    alone = asked(0, None)
    assert float(alone[1]) != 1.0
    for found in (asked(0, None, 3), *results(run_ranks(2, asked))):
        torch.testing.assert_close(found, alone, rtol=1e-12, atol=1e-12)


ADAPTING = {**SETTINGS, "max_grad_norm": "adaptive"}


def test_fit_says_that_the_threshold_adapts_and_what_it_costs():
    words = " ".join(str(tacita.fit(*problem(), **ADAPTING).statement).split())
    assert "max_grad_norm = adaptive: it begins at 1" in words
    assert "the count of these costs no noise" in words


def test_a_resumed_run_goes_on_with_its_threshold(monkeypatch, tmp_path):
    whole = tacita.fit(*problem(), **ADAPTING, folder=tmp_path / "whole", randomness=tacita.Randomness.insecure(0))
    interrupted(monkeypatch, tmp_path / "run", 7, **ADAPTING)
    run = tacita.fit(*problem(), **ADAPTING, folder=tmp_path / "run")
    assert torch.equal(run.model.weight, whole.model.weight)


@pytest.mark.parametrize(
    "changes",
    [
        {"hardened": True},
        {"feedback": tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=0.5)},
        {"feedback": tacita.PrivateFeedback(max_feedback_norm=0.5)},
    ],
)
def test_what_needs_a_fixed_threshold_is_refused_in_words(changes):
    with pytest.raises(ValueError, match="max_grad_norm='adaptive' must go without feedback and hardened"):
        tacita.fit(*problem(), **{**ADAPTING, **changes})


def test_a_zeroed_record_and_another_divisor_are_refused_in_words():
    sampler = tacita.PoissonSampler(sample_rate=0.1, num_records=200)
    with pytest.raises(UnsupportedEventError, match="gradient of zero is counted"):
        ADAPTIVE.event(sampler, {SUM: 1.0}, "zero_out_one", {})
    with pytest.raises(ValueError, match="divisor must be the sampler's expected batch size, 10, got 20"):
        ADAPTIVE.event(tacita.PoissonSampler(sample_rate=0.1, num_records=100), {SUM: 1.0}, "replace_one", {})
    for wrong in ({"max_grad_norm": 1e-9}, {"max_grad_norm": 1e24}, {"quantile": 1.0}, {"threshold_lr": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            tacita.AdaptiveClippedSum(divisor=20.0, **wrong)


def test_a_misspelt_threshold_is_answered_with_the_word_that_is_meant():
    with pytest.raises(ValueError, match="must be a number > 0 or 'adaptive', got 'adaptiv'"):
        chosen_clipper(None, "adaptiv", 20.0, ChosenSettings())  # pyright: ignore[reportArgumentType]
