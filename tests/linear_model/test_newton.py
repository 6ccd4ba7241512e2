"""Newton steps: exact minima without noise, when Hessians are asked for, resumption."""

import itertools
from typing import Any

import pytest
import torch

from tacita.linear import HuberLoss, LinearSource, LogisticLoss, QuantileLoss, hessian_rows
from tacita.linear.losses import HessianRowLoss
from tacita.linear_model import NewtonDescent
from tacita.oracles import Release

LOSSES = {"logistic": LogisticLoss(), "huber": HuberLoss(0.3), "quantile": QuantileLoss(0.9, 0.2)}


class Exact:
    """Exact mean gradients, or mean Hessians, of a linear model, beside the points that they were asked at."""

    def __init__(self, source):
        self.source, self.asked = source, []

    def query(self, params, /):
        self.asked.append({name: p.clone() for name, p in params.items()})
        rows = self.source.num_rows
        parts = list(self.source.engine(params, torch.arange(rows).numpy()).materialise())
        if isinstance(self.source.loss, HessianRowLoss):
            shown = torch.cat([torch.cat([part["weight"][:, 0], part["bias"]], dim=1) for part in parts])
            return Release({"matrix": shown.t() @ shown / rows}, {}, 1.0, {}, "", 0)
        sums = {name: sum(part[name].sum(0) for part in parts) / rows for name in self.source.shapes}
        return Release(sums, {}, 1.0, {}, "", 0)


def problem(name):
    drawn = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 3, generator=drawn, dtype=torch.float64) * torch.tensor([1.0, 0.2, 4.0])
    scores = rows @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + torch.randn(300, generator=drawn)
    targets = (scores > 0).double() if name == "logistic" else scores
    start = {"weight": torch.zeros(1, 3, dtype=torch.float64), "bias": torch.zeros(1, dtype=torch.float64)}
    return rows, targets, start


def solver(name, steps, refresh=1, from_far=0.0, **more) -> Any:
    rows, targets, start = problem(name)
    start["weight"] += from_far
    gradients = Exact(LinearSource(rows, targets, LOSSES[name]))
    hessians = Exact(hessian_rows(rows, targets, LOSSES[name]))
    return NewtonDescent(
        gradients, start, steps=steps, hessians=hessians, refresh=refresh, curvature=LOSSES[name].curvature,
        damping=1e-9, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("refresh", [1, 10])
def test_exact_releases_lead_to_the_minimum(name, refresh):
    one = solver(name, 400, refresh)
    one.run()
    gradient = one.oracle.query(one._iterate).gradient
    assert max(float(g.abs().max()) for g in gradient.values()) < 1e-6


@pytest.mark.parametrize("name", LOSSES)
def test_no_exact_step_increases_the_risk(name):
    """A step to the minimum of a quadratic above the risk lowers the risk by at least g' H^-1 g / 2."""
    rows, targets, _ = problem(name)
    one, risks = solver(name, 12, from_far=3.0), []
    for _ in range(12):
        risks.append(risk(name, rows, targets, one._iterate))
        one.step()
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(risks))
    assert risks[-1] < risks[0]


def risk(name, rows, targets, params):
    z = (rows @ params["weight"].t())[:, 0] + params["bias"]
    if name == "logistic":
        return float((torch.nn.functional.softplus(z) - targets * z).mean())
    r = z - targets
    if name == "huber":
        return float(torch.nn.functional.huber_loss(z, targets, delta=0.3))
    h, q = 0.2, 0.9
    even = torch.where(r.abs() <= h, r.square() / (4 * h), r.abs() / 2 - h / 4)
    return float((even + (0.5 - q) * r).mean())


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_with_one_hessian_at_zero_it_steps_with_the_bound_on_the_curvature(penalty):
    """At zero the quadratic above the logistic loss has the curvature 1/4 everywhere, and that of the penalty more."""
    rows, _, start = problem("logistic")
    one = solver("logistic", 3, refresh=3, penalty=penalty)
    gradient = one.oracle.query(start).gradient
    one.step()
    joint = torch.cat([rows, torch.ones(300, 1, dtype=torch.float64)], dim=1)
    step = torch.cat([gradient["weight"], gradient["bias"].unsqueeze(1)], dim=1)
    added = (1e-9 + penalty) * torch.eye(4, dtype=torch.float64)
    expected = -step @ torch.linalg.inv(joint.t() @ joint / 1200 + added)
    torch.testing.assert_close(one._iterate["weight"], expected[:, :3], rtol=1e-9, atol=0)
    torch.testing.assert_close(one._iterate["bias"], expected[:, 3], rtol=1e-9, atol=0)


@pytest.mark.parametrize(("steps", "refresh", "asked"), [(1, 1, 1), (7, 3, 3), (6, 3, 2), (5, 9, 1)])
def test_hessians_are_asked_for_as_often_as_said(steps, refresh, asked):
    one = solver("logistic", steps, refresh)
    one.run()
    assert len(one.hessians.asked) == asked
    assert len(one.oracle.asked) == steps
    for k, point in enumerate(one.hessians.asked):  # at the point where the gradient is taken
        torch.testing.assert_close(point, one.oracle.asked[k * refresh])


@pytest.mark.parametrize("broken_off", [1, 3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(broken_off):
    whole = solver("huber", 8, 3, penalty=0.1)
    expected = whole.run()
    first, second = solver("huber", 8, 3, penalty=0.1), solver("huber", 8, 3, penalty=0.1)
    for _ in range(broken_off):
        first.step()
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.run(), expected, rtol=0, atol=0)
    assert len(first.hessians.asked) + len(second.hessians.asked) == len(whole.hessians.asked)


def test_wrong_settings():
    with pytest.raises(ValueError, match="refresh must be an integer >= 1"):
        solver("huber", 2, 0)
    one = solver("huber", 1)
    one.hessians.query = lambda params: Release({"matrix": torch.eye(3)}, {}, 1.0, {}, "", 0)
    with pytest.raises(ValueError, match=r"a Hessian must have shape \(4, 4\)"):
        one.run()
