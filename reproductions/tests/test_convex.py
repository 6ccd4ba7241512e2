"""Experiments on heavy-tailed convex learning: their claims hold and can fail, and their problems are what they say."""

import json
import math

import numpy as np
import pytest
import torch

from tacita.clipping import FlatClipper
from tacita.convex.heavy_tailed import HeavyTailedSetting, accelerated_bound
from tacita.gradients.given import GivenSource
from tacita_reproductions import convex_one_pass, convex_rates, convex_structured, find
from tacita_reproductions.convex_problems import (
    AbsoluteLoss,
    AbsoluteRegression,
    LeastSquares,
    LogNormalLogistic,
    SparseLeastSquares,
    student,
)
from tacita_reproductions.convex_rates import CountedOracle, HardInstance
from tacita_reproductions.convex_runs import Steps, averaged, mean_and_error, one_pass_oracle, slope, with_threshold
from tacita_reproductions.result_files import as_json, as_record

NAMES = ("rates", "shuffle", "clipping", "moments", "acceleration", "localized", "lasso")


@pytest.mark.parametrize("name", NAMES)
def test_its_claims_hold(name, tmp_path):
    experiment = find(f"heavy-tailed-{name}")
    result = experiment()
    assert [check.says for check in result.checks if not check.held] == []
    assert len(result.checks) >= 2
    json.loads(as_json(as_record(experiment, result, full=False, seed=0)))
    pytest.importorskip("matplotlib")
    assert result.draw is not None
    result.draw().savefig(tmp_path / "figure.png")


# -- The claims can fail


def test_clipping_fails_where_the_plan_has_the_largest_gradient_as_threshold(monkeypatch):
    setting = HeavyTailedSetting(num_records=2**14, dim=10, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 6.0})
    largest = with_threshold(setting, 6, convex_one_pass.LARGEST_SQUARED, 2)
    monkeypatch.setattr(convex_one_pass, "planned", lambda plan: largest)
    checks = find("heavy-tailed-clipping")().checks
    assert [check.held for check in checks] == [True, False, False]


def test_rates_fail_where_the_threshold_does_not_grow(monkeypatch):
    whole = CountedOracle.__init__

    def fixed(self, instance, batch_size, _, *others):
        whole(self, instance, batch_size, 20.0, *others)

    monkeypatch.setattr(CountedOracle, "__init__", fixed)
    held = [check.held for check in find("heavy-tailed-rates")().checks]
    assert held.count(False) >= 4


def test_the_lasso_keeps_no_zeros_without_its_proximal_step(monkeypatch):
    whole = convex_structured.lasso_run
    monkeypatch.setattr(
        convex_structured, "lasso_run", lambda *run, proximal, **more: whole(*run, proximal=False, **more)
    )
    monkeypatch.setattr(convex_structured, "repeated", _fewer(convex_structured.repeated))
    assert not find("heavy-tailed-lasso")().checks[0].held


def _fewer(repeated):
    return lambda problem, records, repeats, seed, run: repeated(problem, records // 16, 2, seed, run)


# -- The problems


def test_features_have_variance_one():
    """The fourth moment of Student's t with 5 degrees of freedom is 9: 5 standard errors of a million draws."""
    found = student(np.random.default_rng(0), (10**6,))
    assert found.mean() == pytest.approx(0, abs=5e-3)
    assert np.square(found).mean() == pytest.approx(1, abs=5 * math.sqrt(8e-6))


@pytest.mark.parametrize(
    ("problem", "at_start"),
    [
        (LeastSquares(10, 1.0, convex_one_pass.even(10, 0.5)), 0.125),
        (LeastSquares(30, 10.0, (0.0,) * 3 + (9 / math.sqrt(27),) * 27, (1.0,) * 3 + (0.02,) * 27), 0.81),
        (SparseLeastSquares(50, 3.0, (1.0, -1.0, 0.8, -0.8, 0.6) + (0.0,) * 45), 1.425),
        (LogNormalLogistic(10, 2.0, convex_one_pass.even(10, 1.8)), 0.411),
        (AbsoluteRegression(5, 1.0, convex_one_pass.even(5, 0.6)), 0.256),
    ],
    ids=["least squares", "ill-conditioned", "lasso", "logistic", "absolute"],
)
def test_the_excess_is_known_at_the_start_and_nothing_at_the_optimum(problem, at_start):
    assert problem.excess(np.zeros(problem.dim)) == pytest.approx(at_start, abs=0.003)
    best = problem.solution if isinstance(problem, SparseLeastSquares) else np.array(problem.optimum)
    assert problem.excess(best) == pytest.approx(0, abs=1e-12)
    nearby = best + 0.1 * np.random.default_rng(1).standard_normal(problem.dim)
    assert problem.excess(nearby) > 0


@pytest.mark.parametrize("kind", [LogNormalLogistic, AbsoluteRegression])
def test_the_loss_that_is_learned_is_the_one_that_is_scored(kind):
    problem = kind(4, 1.0, (0.3,) * 4)
    outputs, targets = torch.linspace(-2, 2, 9).double().unsqueeze(1), torch.tensor([0.0, 1.0] * 5)[:9].double()
    at = outputs.clone() + 0.01
    step = 1e-6
    risen, fallen = (
        torch.from_numpy(problem.losses((at.squeeze(1) + sign * step).numpy(), targets.numpy())) for sign in (1, -1)
    )
    slopes = problem.loss.derivative(at.clone(), targets).squeeze(1)
    assert torch.allclose(slopes, (risen - fallen) / (2 * step), atol=1e-6)


def test_the_absolute_loss_is_flat_where_it_is_least():
    assert AbsoluteLoss().derivative(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0])).tolist() == [[0.0], [-1.0]]


# -- The runs


def test_a_run_has_the_noise_that_its_ratio_asks_for():
    source = GivenSource(torch.zeros(103, 2, dtype=torch.float64))
    oracle = one_pass_oracle(source, queries=10, max_grad_norm=3.0, mu=0.5, seed=0)
    assert oracle.noise_std["all"] / oracle.divisor == pytest.approx(2 * 3.0 / (10 * 0.5))
    assert (oracle.sampler.num_records, oracle.divisor) == (100, 10)
    assert one_pass_oracle(source, queries=1, max_grad_norm=1e12, mu=None, seed=0).noise_std["all"] == 0


def test_averaged_sgd_averages_the_points_that_it_asks_at():
    problem = LeastSquares(2, 5.0, (1.0, 1.0))
    source = problem.source(100, np.random.default_rng(0))
    start = problem.excess(np.zeros(2))
    assert averaged(problem, source, Steps(1, 1e12, 0.5), mu=None, seed=0) == start
    assert averaged(problem, source, Steps(4, 1e12, 0.5), mu=None, seed=0) < start / 2


def test_the_counted_oracle_is_the_clipped_mean_of_such_records():
    """The mean of its answers is the clipped mean, its noise that of a query: within 5 standard errors."""
    instance = HardInstance(num_records=1000, dim=4, order=2, mu=0.5)
    assert instance.share * float(instance.record.norm()) ** 2 == pytest.approx(1)
    clip, w = 0.7, torch.tensor([0.1, 0.2, -0.3, 0.4], dtype=torch.float64)
    generator = np.random.default_rng(2)
    oracle = CountedOracle(instance, 500, clip, lambda w: (w, w - instance.record), generator)
    answers = torch.stack([oracle.query({"w": w}).gradient["w"] for _ in range(4000)])
    both = torch.stack([w, w - instance.record])
    weights = FlatClipper(max_grad_norm=clip).weights(both.norm(dim=1, keepdim=True))
    expected = torch.tensor([1 - instance.share, instance.share]).double() @ (weights * both)
    std = 2 * clip / (500 * 0.5)
    assert torch.allclose(answers.mean(dim=0), expected, atol=5 * 1.1 * std / math.sqrt(4000))
    assert answers.std(dim=0).min() >= std * (1 - 5 / math.sqrt(8000))


def test_one_pass_settings_are_the_best_of_their_bound():
    setting = HeavyTailedSetting(num_records=4096, dim=5, rho=2.0, diameter=2, moment_bounds={2: 2.3})
    best = convex_structured.one_pass_settings(setting)
    assert best.max_grad_norm == pytest.approx(14, rel=0.05)

    def bound(steps, c):
        size = 2.3**2 + 5 * (2 * c * steps / (2 * 4096)) ** 2
        return 2 * (math.sqrt(size / steps) + 0.25 * 2.3**2 / c)

    at = bound(best.steps, best.max_grad_norm)
    for steps in (best.steps // 2, best.steps * 2):
        for c in (best.max_grad_norm / 1.5, best.max_grad_norm, best.max_grad_norm * 1.5):
            assert bound(steps, c) > at


def test_the_theorem_s_settings_have_the_paper_s_step_size():
    setting = HeavyTailedSetting(num_records=4096, dim=10, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 6.0})
    paper = with_threshold(setting, 4, 152.7, 2).lr
    sharp = accelerated_bound(setting, steps=4, max_grad_norm=152.7, order=2).lr
    assert 0.4 < paper / sharp < 0.6  # so that the excess is smaller than with the sharp step size


def test_means_slopes_and_errors():
    assert mean_and_error([1.0, 3.0]) == (2.0, pytest.approx(1.0))
    assert slope([1, 10, 100], [5, 0.5, 0.05]) == pytest.approx(-1)


def test_noise_of_the_shuffle_model_is_what_the_settings_say():
    rows = torch.full((5 * 1024, convex_rates.COORDINATES), 0.5, dtype=torch.float64)
    oracles = convex_rates._oracles(rows, 0)
    assert list(oracles) == ["central", *convex_rates.CALIBRATIONS.values()]
    for oracle in oracles.values():
        assert oracle.ledger.epsilon(convex_rates.DELTA) <= convex_rates.EPSILON * (1 + 1e-9)
