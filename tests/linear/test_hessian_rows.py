"""Rows of Hessians: quadratics above the losses, second moments at a point, hostile rows, an audit."""

import math

import numpy as np
import pytest
import scipy.sparse
import torch

import tacita
from tacita.linear import (
    HuberLoss,
    LogisticLoss,
    MultinomialLoss,
    MultipliedLoss,
    QuantileLoss,
    SecondMoment,
    SquaredHingeLoss,
    SquaredLoss,
    hessian_rows,
    symmetric_matrix,
)
from tacita.oracles import GradientOracle
from tacita.testing.adversaries import CONSTANT
from tacita.testing.audit import audit_oracle

LOSSES = [
    LogisticLoss(),
    SquaredLoss(),
    HuberLoss(0.7),
    QuantileLoss(0.2, 0.5),
    SquaredHingeLoss(),
    MultipliedLoss(HuberLoss(0.7), 3.0),
]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_the_quadratic_touches_the_loss_and_is_nowhere_below_it(loss, target):
    """With the loss as the integral of its derivative, by trapezoids that are exact for kinks on the grid."""
    grid = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    slope = derivative(loss, grid, target)
    value = torch.cat([torch.zeros(1), torch.cumsum((slope[1:] + slope[:-1]) / 2 * 1e-3, 0)])
    touching = grid[::500]
    curvature = loss.majorant(touching.unsqueeze(1).clone(), torch.full_like(touching, target))
    assert (curvature <= loss.curvature * (1 + 1e-12)).all()
    for k, c in enumerate(curvature.tolist()):
        away = grid - touching[k]
        above = value[500 * k] + slope[500 * k] * away + c / 2 * away.square()
        assert (value <= above + 1e-6).all()


def derivative(loss, outputs, target):
    return loss.derivative(outputs.unsqueeze(1).clone(), torch.full_like(outputs, target))[:, 0]


@pytest.mark.parametrize("loss", [LogisticLoss(), HuberLoss(0.7), QuantileLoss(0.2, 0.5)], ids=repr)
def test_no_smaller_curvature_would_do(loss):
    """The quadratic touches the loss again, at the mirror image of the point."""
    centre, at = (0.0, 3.0) if isinstance(loss, LogisticLoss) else (1.0, 4.0)
    grid = torch.linspace(2 * centre - at, at, 60_001, dtype=torch.float64)
    slope = derivative(loss, grid, 1.0)
    fall = float(((slope[1:] + slope[:-1]) / 2).sum() * (grid[1] - grid[0]))
    c = float(loss.majorant(torch.tensor([[at]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)))
    gap = 2 * (at - centre)
    assert float(slope[-1]) * gap - c / 2 * gap**2 == pytest.approx(fall, abs=1e-6)


@pytest.mark.parametrize("z", [0.0, 1e-9, 9.99e-4, 1.01e-3, -1e-3, 50.0, -1e5, 1e300, math.inf])
def test_the_logistic_curvature_loses_no_digits(z):
    found = float(LogisticLoss().majorant(torch.tensor([[z]], dtype=torch.float64), torch.zeros(1).double()))
    exact = 0.25 if z == 0 else math.tanh(z / 2) / (2 * z)
    assert found == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("loss", [*LOSSES, MultinomialLoss(3)], ids=repr)
def test_a_target_that_is_missing_makes_its_row_absent(loss):
    source = hessian_rows(torch.ones(2, 1), torch.tensor([math.nan, 1.0]), loss, intercept=None)
    zero = {"weight": torch.zeros(loss.num_outputs(), 1)}
    (row,) = source.engine(zero, np.arange(2)).materialise()
    assert torch.isnan(row["weight"][0]).all()
    assert row["weight"][1].isfinite().all()
    assert moments(source, zero) == pytest.approx(row["weight"][1].square().numpy())


def moments(source, params):
    """Return the second moments of clipped vectors, without noise."""
    engine = source.engine(params, np.arange(source.num_rows))
    values, _ = SecondMoment(max_row_norm=1.0)(engine, None)
    return symmetric_matrix(values["second_moment"]["entries"]).numpy()


@pytest.mark.parametrize("convert", [lambda x: x, torch.from_numpy, scipy.sparse.csr_matrix])
def test_the_sum_is_the_hessian_of_the_quadratic(convert):
    rng = np.random.default_rng(0)
    x, y = 0.3 * rng.standard_normal((700, 4)), rng.integers(0, 2, 700).astype(float)
    w, b, scale, constant = rng.standard_normal((1, 4)), 0.3, np.array([1.0, 0.5, 2.0, 1.0]), 0.25
    wide = np.hstack([x * scale, np.full((700, 1), constant)])
    z = wide @ np.append(w, b)
    rows = wide * np.sqrt(4 * np.tanh(z / 2) / (2 * z))[:, None]
    rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    source = hessian_rows(
        convert(x), y, LogisticLoss(), scale=torch.from_numpy(scale), intercept=constant
    )  # fmt: skip
    found = moments(source, {"weight": torch.from_numpy(w), "bias": torch.tensor([b])})
    assert found == pytest.approx(rows.T @ rows, rel=1e-6)
    assert source.shapes == {"weight": torch.Size([1, 4]), "bias": torch.Size([1])}


@pytest.mark.parametrize("hostile", [0.0, 1e30, -1e200, 1e-300, math.inf, math.nan])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_one_record_moves_the_sum_by_at_most_one(loss, hostile):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((30, 3)), rng.integers(0, 2, 30).astype(float)
    spoiled, targets = x.copy(), y.copy()
    spoiled[4, 1] = hostile
    targets[4] = -hostile
    without = y.copy()
    without[4] = math.nan
    params = {"weight": torch.tensor([[5.0, -1e8, 0.1]]), "bias": torch.zeros(1)}
    base = moments(hessian_rows(x, without, loss), params)
    for table, answers in ((spoiled, y), (x, targets), (spoiled, targets)):
        moved = moments(hessian_rows(table, answers, loss), params) - base
        assert np.isfinite(moved).all()
        assert np.linalg.norm(moved) <= 1 + 1e-9


def test_an_empty_batch_is_zero_and_a_batch_has_its_rows_alone():
    source = hessian_rows(torch.eye(3), torch.zeros(3), SquaredLoss(), intercept=None)
    params = {"weight": torch.zeros(1, 3)}
    empty = source.engine(params, np.arange(0))
    assert list(empty.materialise()) == []
    assert not SecondMoment(max_row_norm=1.0)(empty, None)[0]["second_moment"]["entries"].any()
    (part,) = source.engine(params, np.array([2])).materialise()
    assert part["weight"].tolist() == [[[0.0, 0.0, 1.0]]]


def test_what_the_caller_does_later_to_targets_changes_nothing():
    targets = torch.zeros(3, dtype=torch.float64)
    source = hessian_rows(torch.ones(3, 1), targets, HuberLoss(0.1), intercept=None)
    before = moments(source, {"weight": torch.zeros(1, 1)})
    targets.fill_(100.0)
    assert moments(source, {"weight": torch.zeros(1, 1)}) == pytest.approx(before)


def test_wrong_targets():
    with pytest.raises(ValueError, match=r"targets must have shape \(3,\), got \(2,\)"):
        hessian_rows(torch.ones(3, 1), torch.zeros(2), SquaredLoss())


class AtZero:
    """An oracle of Hessians at the weight 0, whatever point is asked for: there its claim is reached."""

    def __init__(self, rows, ledger, noise_multiplier):
        known = len(rows) if ledger.neighboring_relation != "add_or_remove_one" else 10
        self.oracle = GradientOracle(
            hessian_rows(rows, torch.zeros(len(rows)), LogisticLoss(), intercept=None),
            estimator=SecondMoment(max_row_norm=1.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=noise_multiplier),
            sampler=tacita.FullBatchSampler(num_records=known),
            ledger=ledger,
            planned_queries=1,
        )
        self.columns = rows.shape[1]

    def query(self, params, /):
        return self.oracle.query({"weight": torch.zeros(1, self.columns)})


@pytest.mark.parametrize(("lost", "verdict"), [(1.0, "consistent"), (3.0, "refuted")])
def test_an_audit_of_whole_sessions(lost, verdict, monkeypatch):
    """With a third of the noise that the ledger says, the claim is refuted."""
    monkeypatch.setattr(
        tacita.GaussianMechanism, "__call__", with_less(tacita.GaussianMechanism.__call__, lost)
    )  # fmt: skip
    found = audit_oracle(
        lambda rows, ledger: AtZero(rows, ledger, 1.0), relation="add_or_remove_one", delta=1e-2, runs=400,
        adversaries=[CONSTANT], columns=2,
    )  # fmt: skip
    assert found.verdict == verdict


def with_less(call, lost):
    def released(self, values, noise_std, normals):
        return call(self, values, {block: std / lost for block, std in noise_std.items()}, normals)

    return released
