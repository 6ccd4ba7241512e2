"""How much noise: exact Gaussian numbers, the change between mean and sum, how far formulas of papers are off."""

import math

import numpy as np
import pytest
import torch

import tacita
from tacita.accounting import gaussian_epsilon, gaussian_mu
from tacita.clipped_sgd import (
    full_participation_noise,
    mean_noise_std,
    noise_multiplier_of,
    one_pass_noise,
    sum_noise_std,
)
from tacita.clipped_sgd.noise import advanced_composition_noise, theta_noise

DIGITS = 5e-6
DELTA = 1e-5


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [(1, 1e-5, 0.268051), (2, 1e-5, 0.501552), (8, 1e-5, 1.66603), (0.5, 1e-5, 0.142211), (1, 1e-6, 0.236704)],
)
def test_reference_mu(epsilon, delta, mu):
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=DIGITS)


@pytest.mark.parametrize(
    ("queries", "epsilon", "one", "two"),
    [(1000, 1, 117.973, 235.946), (1000, 8, 18.9809, 37.9618), (10_000, 1, 373.063, 746.126),
     (10_000, 8, 60.0229, 120.046)],
)  # fmt: skip
def test_full_participation(queries, epsilon, one, two):
    settings = {"epsilon": epsilon, "delta": DELTA, "max_grad_norm": 1.0, "queries": queries}
    found = [full_participation_noise(**settings, relation=r) for r in ("add_or_remove_one", "replace_one")]
    assert found == pytest.approx([one, two], rel=DIGITS)
    reached = gaussian_epsilon(math.sqrt(queries) / found[0], DELTA)
    assert epsilon * (1 - 1e-9) < reached <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize(("epsilon", "noise"), [(1, 3.73063), (8, 0.600229)])
def test_one_pass_has_no_factor_for_the_steps(epsilon, noise):
    settings = {"epsilon": epsilon, "delta": DELTA, "max_grad_norm": 1.0}
    assert one_pass_noise(**settings, relation="zero_out_one") == pytest.approx(noise, rel=DIGITS)
    assert one_pass_noise(**settings, relation="replace_one") == pytest.approx(2 * noise, rel=DIGITS)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_what_is_planned_is_what_the_ledger_charges(relation):
    """A plan at the level of the mean, handed to an oracle as a multiplier: the statement's epsilon is the plan's."""
    batch, queries, c = 50, 20, 2.5
    noise = full_participation_noise(epsilon=3, delta=DELTA, max_grad_norm=c, queries=queries, relation=relation)
    planned = mean_noise_std(noise, divisor=batch)
    multiplier = noise_multiplier_of(planned, divisor=batch, max_grad_norm=c, relation=relation)
    ledger = tacita.Ledger(neighboring_relation=relation, privacy_unit="one row")
    model, rows = torch.nn.Linear(2, 1), torch.zeros(batch, 2)
    oracle = tacita.ClippedGradientOracle(
        model,
        lambda model, batch: model(batch[0]).squeeze(1),
        (rows,),
        ledger=ledger,
        sampler=tacita.FullBatchSampler(num_records=batch),
        clipper=tacita.FlatClipper(max_grad_norm=c),
        mechanism=tacita.GaussianMechanism(noise_multiplier=multiplier),
        planned_queries=queries,
    )
    (std,) = oracle.noise_std.values()
    assert std == pytest.approx(sum_noise_std(planned, divisor=batch), rel=1e-12)
    assert ledger.epsilon(DELTA) == pytest.approx(3.0, rel=1e-6)


def test_mean_and_sum():
    assert sum_noise_std(0.02, divisor=500) == 10.0
    assert mean_noise_std(10.0, divisor=500) == 0.02
    assert noise_multiplier_of(0.02, divisor=500, max_grad_norm=2.0, relation="add_or_remove_one") == 5.0
    assert noise_multiplier_of(0.02, divisor=500, max_grad_norm=2.0, relation="replace_one") == 2.5


@pytest.mark.parametrize(
    ("steps", "epsilon", "noise"), [(999, 1, 460.274), (999, 8, 57.5343), (9999, 1, 1544.54), (9999, 8, 193.068)]
)
def test_the_theta_formula(steps, epsilon, noise):
    assert theta_noise(epsilon=epsilon, delta=DELTA, max_grad_norm=1, steps=steps) == pytest.approx(noise, rel=DIGITS)


@pytest.mark.parametrize(
    ("nominal", "sensitivity", "real"),
    [(1, 1, 0.226333), (1, 2, 0.481621), (8, 1, 2.21569), (8, 2, 4.88588)],
)
def test_what_the_theta_formula_delivers(nominal, sensitivity, real):
    noise = theta_noise(epsilon=nominal, delta=DELTA, max_grad_norm=1, steps=999)
    assert gaussian_epsilon(sensitivity * math.sqrt(1000) / noise, DELTA) == pytest.approx(real, rel=DIGITS)


def test_the_theta_formula_is_no_guarantee():
    """It falls like 1 / epsilon; what is needed falls like its root: for a large epsilon it is too little."""
    for sensitivity, nominal in ((2, 200.0), (1, 1000.0)):
        noise = theta_noise(epsilon=nominal, delta=DELTA, max_grad_norm=1, steps=999)
        assert gaussian_epsilon(sensitivity * math.sqrt(1000) / noise, DELTA) > 1.5 * nominal


def test_advanced_composition():
    """Nine times what is needed."""
    noise = advanced_composition_noise(epsilon=1, delta=DELTA, max_grad_norm=1, queries=1000)
    assert noise == pytest.approx(1010.06, rel=DIGITS)
    per_query = math.sqrt(2 * math.log(1.25 * 2000 / DELTA)) / noise
    assert per_query == pytest.approx(0.00615689, rel=DIGITS)
    assert noise > 8 * 117.973


def test_arrays_sweep():
    epsilon = np.array([1.0, 8.0])
    found = full_participation_noise(
        epsilon=epsilon, delta=DELTA, max_grad_norm=1.0, queries=np.array([[1000], [10_000]]), relation="replace_one"
    )
    assert found == pytest.approx(np.array([[235.946, 37.9618], [746.126, 120.046]]), rel=DIGITS)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: sum_noise_std(-1, divisor=2), "mean_noise_std must be finite and >= 0, got -1"),
        (lambda: mean_noise_std(1, divisor=0), "divisor must be finite and > 0, got 0"),
        (
            lambda: one_pass_noise(epsilon=0.5, delta=2, max_grad_norm=1, relation="replace_one"),
            "delta must be in",
        ),
        (
            lambda: one_pass_noise(epsilon=1, delta=0.1, max_grad_norm=1, relation="replace"),
            "neighboring_relation must be one of",
        ),
    ],
)
def test_settings_are_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()
