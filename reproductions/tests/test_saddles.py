"""Saddles: the paths are the library's, the figures come out, the checks can fail."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

import tacita
from tacita.accounting import FullBatchLaw, GaussianSumEvent, calibrate, gaussian_delta, gaussian_mu
from tacita.oracles import trainable
from tacita.second_order.noisy_sgd import paper_mean_noise_std
from tacita.second_order.stationarity import public_stationarity
from tacita_reproductions import find, saddles

FALSE_ALARM = 1e-6
FULL = os.environ.get("TACITA_AUDIT") == "1"


# -- the landscapes


def functions():
    spectrum = torch.from_numpy(saddles.SPECTRUM)
    return [
        (
            saddles.double_well(),
            lambda p: (p["x"][0] ** 2 - 1) ** 2 / 4 + p["x"][1:].square().sum() / 2,
        ),
        (
            saddles.principal_component(),
            lambda p: -(p["x"].square() * spectrum).sum() / 2 + p["x"].square().sum().square() / 4,
        ),
    ]


@pytest.mark.parametrize(("landscape", "function"), functions(), ids=["double well", "principal component"])
def test_gradient_and_curvature_are_those_of_autograd(landscape, function):
    points = np.random.default_rng(0).standard_normal((20, 10)) * 0.7
    points[0] = 0.0
    for x in points:
        point = {"x": torch.from_numpy(x)}
        found = public_stationarity(
            function, point, alpha=landscape.alpha, hessian_lipschitz=landscape.hessian_lipschitz
        )
        assert found.gradient_norm == pytest.approx(np.linalg.norm(landscape.gradient(x)), abs=1e-9)
        assert found.eigenvalue == pytest.approx(float(landscape.curvature(x[None])[0]), abs=1e-8)
        assert bool(landscape.stationary(x[None])[0]) == found.is_second_order
        assert landscape.value(x) == pytest.approx(float(function(point)))


class Point(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(10, dtype=torch.float64))


def component(model, batch):
    (a,) = batch
    return -(a @ model.x).square() / 2 + model.x.square().sum().square() / 4 + 0 * a[:, 0]


def private_oracle(copies, **changes):
    """The library's oracle on records whose mean a a^T is exactly the spectrum's."""
    counts = np.round(saddles.SPECTRUM * 40).astype(int) * copies
    data = torch.eye(10, dtype=torch.float64)[np.repeat(np.arange(10), counts)]
    settings = dict(
        ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row"),
        sampler=tacita.FullBatchSampler(num_records=len(data)),
        clipper=tacita.FlatClipper(max_grad_norm=3.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=0.0),
        planned_queries=500,
    )
    return tacita.ClippedGradientOracle(Point(), component, (data,), **{**settings, **changes})


def test_the_gradient_is_the_oracle_s():
    oracle = private_oracle(1)
    for x in np.random.default_rng(1).standard_normal((5, 10)) * 0.2:
        found = oracle.query({"x": torch.from_numpy(x)}).gradient["x"]
        assert found.numpy() == pytest.approx(saddles.principal_component().gradient(x), abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.125, 1.0, 8.0])
def test_the_noise_is_the_oracle_s(epsilon):
    target = tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=1e-5)
    oracle = private_oracle(500, mechanism=target)
    stated = saddles.full_batch_noise(epsilon, steps=500, max_grad_norm=3.0, num_records=20_000)
    assert oracle.noise_std["all"] / oracle.divisor == pytest.approx(stated, rel=2e-3)


def test_a_private_run_of_the_library_leaves_the_saddle():
    """Training itself, with the random iterate: epsilon 8, 40 records' worth of noise scaled to 20 000."""
    oracle = private_oracle(
        500,
        mechanism=tacita.CalibratedGaussian(target_epsilon=8.0, target_delta=1e-5),
        randomness=tacita.Randomness.insecure(0),
    )
    model, landscape = oracle.source.model, saddles.principal_component()
    chosen = tacita.RandomIterate(trainable(model), num_steps=500)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    good = []
    for _ in range(250 if not FULL else 500):
        good.append(bool(landscape.stationary(model.x.detach().numpy()[None])[0]))
        oracle.backward()
        optimizer.step()
        chosen.update(trainable(model))
    assert good[0] is False
    assert landscape.value(model.x.detach().numpy()) < -0.02
    if FULL:
        assert np.mean(good) > 0.5
        chosen.copy_to(trainable(model))


# -- full-batch calibration, exact


@pytest.mark.parametrize(
    ("records", "steps", "bound", "epsilon", "added", "replaced", "formula"),
    [
        (20_000, 500, 3.0, 1.0, 0.0125129, 0.0250258, 0.0113807),
        (20_000, 500, 3.0, 8.0, 0.00201323, 0.00402646, 0.00142259),
        (1000, 100, 1.0, 2.0, 0.0199381, 0.0398762, 0.0169654),
    ],
)
def test_full_batch_calibration(records, steps, bound, epsilon, added, replaced, formula):  # noqa: PLR0917
    for relation, expected in (("add_or_remove_one", added), ("replace_one", replaced)):

        def event(multiplier, relation=relation):
            moved = 2 if relation == "replace_one" else 1
            return GaussianSumEvent(
                sampling=FullBatchLaw(),
                relation=relation,
                max_contribution=(bound,),
                noise_std=(moved * bound * multiplier,),
            )

        found = event(calibrate(event, relation, epsilon, 1e-5, queries=steps)).noise_std[0] / records
        assert found == pytest.approx(expected, rel=1e-3)
    exact = saddles.full_batch_noise(epsilon, steps=steps, max_grad_norm=bound, num_records=records)
    assert exact == pytest.approx(replaced, rel=1e-5)
    printed = paper_mean_noise_std(gradient_bound=bound, steps=steps, delta=1e-5, num_records=records, epsilon=epsilon)
    assert printed == pytest.approx(formula, rel=1e-5)
    assert printed < added


# -- growth along the descent direction


def growth(paths, seed):
    """x_{t+1} = (1 + 0.02) x_t - 0.02 * 0.1 xi, 200 steps from 0, and the mirrored path."""
    generator = np.random.default_rng(seed)
    x, mirrored = np.zeros(paths), np.zeros(paths)
    for _ in range(200):
        noise = 0.02 * 0.1 * generator.standard_normal(paths)
        x, mirrored = 1.02 * x - noise, 1.02 * mirrored + noise
    return x, mirrored


def in_law(draws, variance):
    """Whether their squares over ``variance`` are chi-square: the paths are exactly normal."""
    low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=len(draws))
    return low < np.square(draws).sum() / variance < high


def test_a_saddle_amplifies_the_noise_as_stated():
    x, mirrored = growth(200_000, seed=0)
    variance = (0.02 * 0.1) ** 2 * sum(1.02 ** (2 * step) for step in range(200))
    assert variance == pytest.approx(0.272640, rel=1e-5)
    assert math.sqrt(variance) == pytest.approx(0.522149, rel=1e-5)
    assert in_law(x, variance)
    assert in_law(x - mirrored, 1.09056)
    assert not in_law(x, 1.03 * variance)
    assert not in_law(x - mirrored, variance)


# -- the experiments


EXPERIMENTS = [find(f"noisy-sgd-{name}") for name in ("escape", "private", "large-noise", "exposed")]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_check_holds(experiment):
    result = experiment(full=FULL)
    assert result.holds, [check.says for check in result.checks if not check.held]
    assert len({tuple(row) for row in result.rows}) == 1


def table(name, full=FULL, seed=0):
    return find(f"noisy-sgd-{name}")(full=full, seed=seed).rows


def test_escape_as_measured():
    """Medians of 200 runs were 0.849 and 222, of 50 runs with tiny noise 0.560 and 800."""
    still, tiny, large = table("escape")
    share, step = "share of stationary iterates, median", "left the saddle at step, median"
    assert (still[share], still[step]) == (0, None)
    assert tiny[share] == pytest.approx(0.560, abs=0.02)
    assert tiny[step] == pytest.approx(800, rel=0.05)
    assert large[share] == pytest.approx(0.849, abs=0.015)
    assert large[step] == pytest.approx(222, rel=0.08)


MEASURED = {  # epsilon: noise, share of stationary iterates, mean gradient norm, f(last), alignment
    None: (0.0, 0.0, 0.0, 0.0, 0.0),
    1 / 8: (0.168223, 0.000, 0.0817, -0.0547, 0.967),
    1 / 4: (0.0891220, 0.054, 0.0493, -0.0603, 0.991),
    1 / 2: (0.0471709, 0.634, 0.0326, -0.0619, 0.998),
    1.0: (0.0250258, 0.736, 0.0239, -0.0623, 0.999),
    2.0: (0.0133749, 0.720, 0.0193, -0.0625, 1.000),
    4.0: (0.00725265, 0.697, 0.0170, -0.0625, 1.000),
    8.0: (0.00402646, 0.674, 0.0158, -0.0625, 1.000),
}


def test_private_as_measured():
    for row in table("private"):
        noise, share, norm, last, alignment = MEASURED[row["epsilon"]]
        assert row["noise"] == pytest.approx(noise, rel=1e-5)
        assert row["share of stationary iterates"] == pytest.approx(share, abs=0.04)
        assert row["mean gradient norm"] == pytest.approx(norm, rel=0.04)
        assert row["f(last)"] == pytest.approx(last, abs=0.002)
        assert row["alignment"] == pytest.approx(alignment, abs=0.008)


def test_large_noise_as_measured():
    (row,) = table("large-noise", full=True)
    assert row["bound C"] == pytest.approx(6.25661, rel=1e-5)
    assert row["noise"] == pytest.approx(0.0300225, rel=1e-5)
    assert row["expected gradient"] == pytest.approx(30.0225, rel=1e-5)
    assert row["expected gradient"] / row["bound C"] == pytest.approx(4.79853, rel=1e-5)
    assert row["simulated gradient"] == pytest.approx(30.02, abs=0.11)


def test_the_noise_of_the_convolutional_net_at_epsilon_8():
    settings = dict(gradient_bound=2.5, steps=2328, delta=0.01, num_records=50_000, epsilon=8.0)
    length = paper_mean_noise_std(**settings) * math.sqrt(2_274_880)
    assert length == pytest.approx(0.976053, rel=1e-5)
    draws = np.random.default_rng(0).standard_normal(2_274_880) * paper_mean_noise_std(**settings)
    assert np.linalg.norm(draws) == pytest.approx(length, rel=6 / math.sqrt(2 * 2_274_880))


def test_exposed_as_measured():
    rows = table("exposed")
    assert [row["delta at epsilon 1"] for row in rows] == pytest.approx([4.28436e-5, 0.776730, 1.0], rel=1e-5)
    assert rows[1]["total variation"] == pytest.approx(0.859408, rel=1e-5)
    assert 1 / (100 * gaussian_mu(1.0, 1e-5)) == pytest.approx(0.0373063, rel=1e-5)
    assert gaussian_delta(1 / (100 * 0.0373063), 1.0) == pytest.approx(1e-5, rel=1e-4)


def test_the_checks_can_fail(monkeypatch):
    """A threshold of alpha that is too strict, noise that is left out."""
    well = saddles.double_well()
    monkeypatch.setattr(saddles, "double_well", lambda: replace(well, alpha=0.001))
    escape = find("noisy-sgd-escape")
    assert not escape().holds
    monkeypatch.setattr(saddles, "full_batch_noise", lambda *args, **settings: 0.0)
    private = find("noisy-sgd-private")
    assert not private().holds


def test_the_figure_is_drawn():
    pytest.importorskip("matplotlib")
    private = find("noisy-sgd-private")
    figure = private().draw()
    assert len(figure.axes) == 2
