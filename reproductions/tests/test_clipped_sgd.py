"""The toy runs: exact identities, and the same law as the library's own oracle."""

import math

import numpy as np
import pytest
import torch

import tacita
from tacita.estimators import ClippedSum
from tacita.gradients.given import GivenEngine
from tacita.random import Randomness
from tacita_reproductions.clipped_sgd import clip, run
from tacita_reproductions.dp_clipped_sgd import stationary
from tacita_reproductions.heavy_tails import NoisyQuadratic, OneSidedPareto, StudentT

SKEW = NoisyQuadratic(noise=OneSidedPareto(tail=1.5), start=(5.0,))
PLANE = NoisyQuadratic(noise=StudentT(tail=1.5), start=(1.0, -2.0), smoothness=0.5)
GENERATOR = np.random.default_rng(0)


def test_reference_values():
    g = np.array([3.0, 4.0])
    assert clip(g, 2.5) == pytest.approx([1.5, 2.0])
    assert np.array_equal(clip(g, 10), g)
    assert np.array_equal(clip(np.zeros(3), 1.0), np.zeros(3))
    a = np.array([-7.0, 24.0])
    assert np.linalg.norm(clip(a, 2.0) - clip(-a, 2.0)) == pytest.approx(4.0)  # 2 C, attained


def test_clipping_is_homogeneous_idempotent_and_does_not_expand():
    a, b = GENERATOR.standard_cauchy((2, 1000, 3))
    for c in (0.1, 1.0, 30.0):
        assert clip(7 * a, 7 * c) == pytest.approx(7 * clip(a, c))
        assert clip(clip(a, c), c) == pytest.approx(clip(a, c))
        moved = np.linalg.norm(clip(a, c) - clip(b, c), axis=-1)
        assert np.all(moved <= np.minimum(np.linalg.norm(a - b, axis=-1), 2 * c) * (1 + 1e-12))


def test_it_is_the_clip_of_the_library():
    """The estimator of DP-SGD on one record at a time."""
    rows = GENERATOR.standard_cauchy((50, 4))
    estimator = ClippedSum(tacita.FlatClipper(max_grad_norm=0.7))
    engine = GivenEngine(torch.tensor(rows)[:, None, :])
    values, _ = estimator(engine, estimator.initial_state(engine.shapes, lead=(50,)))
    assert values["all"]["theta"].numpy() == pytest.approx(clip(rows, 0.7), rel=1e-12)


def test_without_noise_and_clipping_it_is_sgd():
    found = run(PLANE, max_grad_norm=math.inf, lr=0.1, steps=50, runs=3, generator=np.random.default_rng(1))
    generator, x = np.random.default_rng(1), np.broadcast_to([1.0, -2.0], (3, 2))
    for _ in range(50):
        x = x - 0.1 * PLANE.gradients(x, generator)
    assert found.last == pytest.approx(PLANE.gap(x))


def test_zero_noise_is_clipped_sgd_bit_for_bit():
    settings = {"lr": 0.1, "steps": 40, "runs": 5, "max_grad_norm": 1.0}
    plain = run(PLANE, **settings, generator=np.random.default_rng(2))
    zero = run(PLANE, **settings, generator=np.random.default_rng(2), noise_std=0.0)
    assert np.array_equal(plain.last, zero.last)
    assert np.array_equal(plain.average, zero.average)


def test_a_step_without_noise_is_at_most_lr_times_threshold():
    one = run(PLANE, max_grad_norm=0.3, lr=0.1, steps=1, runs=1000, generator=np.random.default_rng(3))
    start = math.hypot(1, 2)
    low, high = (0.5 / 2 * (start + sign * 0.03) ** 2 for sign in (-1, 1))
    assert np.all((one.last >= low * (1 - 1e-12)) & (one.last <= high * (1 + 1e-12)))


def test_settings_share_their_coins_and_do_not_mix():
    both = run(PLANE, max_grad_norm=np.array([0.5, 2.0]), lr=0.1, steps=30, runs=4, generator=np.random.default_rng(4))
    for i, c in enumerate((0.5, 2.0)):
        alone = run(PLANE, max_grad_norm=c, lr=0.1, steps=30, runs=4, generator=np.random.default_rng(4))
        assert np.array_equal(both.average[i], alone.average)
        assert np.all(both.best[i] <= np.minimum(alone.last, PLANE.gap(np.array(PLANE.start))))


def test_where_clipped_sgd_rests_in_closed_form():
    """Noise 9 with probability 0.1 and -1 with 0.9: rests at 1 - C / 9."""
    for c, x, gap in ((2, 0.777778, 0.302469), (4, 0.555556, 0.154321), (9, 0.0, 0.0)):
        mean = 0.1 * clip(np.array([x + 9]), c) + 0.9 * clip(np.array([x - 1]), c)
        assert float(mean[0]) == pytest.approx(0.0, abs=1e-6)
        assert x**2 / 2 == pytest.approx(gap, abs=1e-6)
    sigma2, sigma15 = (0.1 * 9**2 + 0.9) ** 0.5, (0.1 * 9**1.5 + 0.9) ** (1 / 1.5)
    assert (sigma2, sigma15) == pytest.approx((3.0, 2.34892), rel=1e-5)


@pytest.mark.parametrize(("threshold", "y"), [(2, 1.0), (8, 0.620795), (32, 0.339714), (128, 0.174858)])
def test_the_skewed_law_rests_where_stated(threshold, y):
    assert stationary(threshold) == pytest.approx(y, rel=1e-5)
    assert y == pytest.approx(2 / math.sqrt(threshold - y + 3), rel=1e-5)


class Shift(torch.nn.Module):
    """Losses |w|^2 / 2 + <w, xi>: the gradient of one is w + xi."""

    def __init__(self, start):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, rows):
        return self.w.square().sum() / 2 + rows @ self.w


def test_the_oracle_comes_to_rest_where_the_toy_does():
    """One pass over 4000 records of skewed noise, ten a step, through the private oracle and torch's SGD.

    It must end near the resting point 0.80 of C = 4, not at the optimum 0. The tolerance is four standard deviations
    of the average (0.22), for clipped noise of variance below 9.
    """
    records = SKEW.records(4000, np.random.default_rng(5))
    model = Shift([2.0])
    oracle = tacita.ClippedGradientOracle(
        model,
        lambda model, batch: model(batch[0]),
        (torch.tensor(records),),
        ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one record"),
        sampler=tacita.DisjointSampler(num_batches=400, num_records=4000),
        clipper=tacita.FlatClipper(max_grad_norm=4.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=0.25),
        planned_queries=400,
        randomness=Randomness.insecure(0),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = tacita.SuffixAverage(dict(model.named_parameters()), skip=100)
    for _ in range(400):
        oracle.backward()
        optimizer.step()
        average.update(dict(model.named_parameters()))
    noise = 0.25 * 2 * 4.0 / 10
    spread = math.sqrt((noise**2 + 3**2 / 10) / 300)
    assert abs(float(average.mean["w"][0]) - stationary(4.0)) < 4 * spread
