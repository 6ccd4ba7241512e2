"""Descent for linear models, and regression from second moments: exact minima without noise, averages, resumption."""

import numpy as np
import pytest
import torch

from tacita.errors import ResumeError
from tacita.linear_model import MomentumDescent, PreconditionedDescent, adaptive_ridge
from tacita.oracles import Release


class Exact:
    """The exact gradient of the mean of (x w + b - y)^2 / 2, for each output, plus fixed noise."""

    def __init__(self, rows, targets, noise=0.0):
        self.rows, self.targets, self.noise, self.asked = rows, targets, noise, 0

    def query(self, params, /):
        self.asked += 1
        error = self.rows @ params["weight"].t() + params["bias"] - self.targets
        drawn = torch.Generator().manual_seed(self.asked)
        grads = {"weight": error.t() @ self.rows / len(error), "bias": error.mean(0)}
        noisy = {n: g + self.noise * torch.randn(g.shape, generator=drawn, dtype=g.dtype) for n, g in grads.items()}
        return Release(noisy, {}, 1.0, {}, "", self.asked)


def problem(outputs=2):
    drawn = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 3, generator=drawn, dtype=torch.float64) * torch.tensor([1.0, 0.1, 5.0])
    targets = torch.randn(200, outputs, generator=drawn, dtype=torch.float64)
    joint = torch.cat([rows, torch.ones(200, 1, dtype=torch.float64)], dim=1)
    start = {"weight": torch.zeros(outputs, 3, dtype=torch.float64), "bias": torch.zeros(outputs, dtype=torch.float64)}
    return rows, targets, joint, start


def least_squares(joint, targets, penalty=0.0):
    ridge = penalty * len(joint) * torch.diag(torch.tensor([1.0, 1, 1, 0], dtype=torch.float64))
    return torch.linalg.solve(joint.t() @ joint + ridge, joint.t() @ targets).t()


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_exact_moments_and_gradients_give_the_minimum(penalty):
    rows, targets, joint, start = problem()
    solver = PreconditionedDescent(
        Exact(rows, targets), start, steps=60, second_moment=joint.t() @ joint / 200, curvature=1.0, damping=1e-9,
        penalty=penalty,
    )  # fmt: skip
    found = solver.run()
    expected = least_squares(joint, targets, penalty)
    torch.testing.assert_close(found["weight"], expected[:, :3], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found["bias"], expected[:, 3], rtol=1e-6, atol=1e-8)


def test_the_first_step_is_the_inverse_times_the_gradient():
    rows, targets, joint, start = problem()
    matrix = joint.t() @ joint / 200 - 0.05 * torch.eye(4, dtype=torch.float64)  # the least eigenvalue is negative
    oracle = Exact(rows, targets)
    solver = PreconditionedDescent(oracle, start, steps=1, second_moment=matrix, curvature=0.5, damping=0.2)
    values, vectors = np.linalg.eigh(matrix.numpy())
    assert values.min() < 0
    inverse = np.linalg.inv(vectors @ np.diag(0.5 * np.maximum(values, 0) + 0.2) @ vectors.T)
    grads = oracle.query(start).gradient
    step = np.hstack([grads["weight"].numpy(), grads["bias"].numpy()[:, None]]) @ inverse
    found = solver.run()
    assert found["weight"].numpy() == pytest.approx(-step[:, :3])
    assert found["bias"].numpy() == pytest.approx(-step[:, 3])


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_with_momentum_the_gradient_is_that_ahead_of_the_iterate(penalty):
    """Five steps, each by hand; the answer is the mean of the last three iterates."""
    rows, targets, joint, start = problem(1)
    matrix, beta = joint.t() @ joint / 200, 0.6
    inverse = torch.linalg.inv(2.0 * matrix + (0.1 + penalty) * torch.eye(4, dtype=torch.float64))
    shrink = penalty * torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64))
    last = ahead = torch.zeros(4, 1, dtype=torch.float64)
    iterates = []
    for _ in range(5):
        gradient = joint.t() @ (joint @ ahead - targets) / 200 + shrink @ ahead
        found = ahead - inverse @ gradient
        last, ahead = found, found + beta * (found - last)
        iterates.append(found)
    solver = PreconditionedDescent(
        Exact(rows, targets), start, steps=5, second_moment=matrix, curvature=2.0, damping=0.1, penalty=penalty,
        momentum=beta,
    )  # fmt: skip
    answer = solver.run()
    expected = torch.stack(iterates[2:]).mean(0)
    torch.testing.assert_close(answer["weight"], expected[:3].t())
    torch.testing.assert_close(answer["bias"], expected[3])


def test_momentum_needs_fewer_steps_where_the_loss_is_flatter_than_its_bound():
    rows, targets, joint, start = problem()
    best = least_squares(joint, targets)

    def error(beta):
        solver = PreconditionedDescent(
            Exact(rows, targets), start, steps=16, second_moment=joint.t() @ joint / 200, curvature=4.0, damping=1e-9,
            momentum=beta,
        )  # fmt: skip
        found = solver.run()
        return float((torch.cat([found["weight"], found["bias"].unsqueeze(1)], dim=1) - best).norm())

    assert error(0.7) < 0.5 * error(0.0)
    with pytest.raises(ValueError, match="momentum must be in"):
        error(1.0)


def momentum(oracle, start, steps, **more):
    return MomentumDescent(oracle, start, steps=steps, lr=0.05, momentum=0.9, **more)


def test_momentum_finds_the_minimum():
    rows, targets, joint, start = problem()
    rows[:, 1] *= 10
    joint[:, 1] *= 10
    found = momentum(Exact(rows, targets), start, 2000, penalty=0.1).run()
    expected = least_squares(joint, targets, 0.1)
    torch.testing.assert_close(found["weight"], expected[:, :3], rtol=1e-5, atol=1e-7)


def test_momentum_is_that_of_torch():
    rows, targets, _, start = problem()
    solver = momentum(Exact(rows, targets), start, 5)
    weight = start["weight"].clone().requires_grad_()
    bias = start["bias"].clone().requires_grad_()
    optimizer = torch.optim.SGD([weight, bias], lr=0.05, momentum=0.9)
    oracle, seen = Exact(rows, targets), []
    for _ in range(5):
        grads = oracle.query({"weight": weight.detach(), "bias": bias.detach()}).gradient
        weight.grad, bias.grad = grads["weight"], grads["bias"]
        optimizer.step()
        seen.append(weight.detach().clone())
    torch.testing.assert_close(solver.run()["weight"], torch.stack(seen[2:]).mean(0))  # of 5, those after the first 2


@pytest.mark.parametrize(("kind", "beta"), [(momentum, 0.9), (None, 0.0), (None, 0.6)])
def test_a_resumed_run_equals_the_whole_one(kind, beta):
    rows, targets, joint, start = problem()

    def solver(oracle, steps=7):
        if kind:
            return kind(oracle, start, steps)
        moments = joint.t() @ joint / 200
        return PreconditionedDescent(
            oracle, start, steps=steps, second_moment=moments, curvature=1.0, damping=0.1, momentum=beta
        )

    whole = solver(Exact(rows, targets, 0.1)).run()
    oracle = Exact(rows, targets, 0.1)
    first = solver(oracle)
    for _ in range(5):
        first.step()
    second = solver(oracle)
    second.load_state_dict(first.state_dict())
    for name, found in second.run().items():
        assert torch.equal(found, whole[name])
    with pytest.raises(ResumeError, match="steps must be as in the run"):
        solver(oracle, 8).load_state_dict(first.state_dict())


# -- adaptive ridge


def moments(rows, targets):
    joint = torch.cat([rows, targets], dim=1)
    return joint.t() @ joint / len(joint)


def test_without_noise_it_is_least_squares():
    _, targets, joint, _ = problem(1)
    found = adaptive_ridge(moments(joint, targets), noise_std=0.0)
    torch.testing.assert_close(found, least_squares(joint, targets)[0], rtol=1e-8, atol=1e-10)
    diagonal = torch.tensor([0.3, 0.3, 0.3, 0.0])
    ridged = adaptive_ridge(moments(joint, targets), noise_std=0.0, penalty=diagonal)
    torch.testing.assert_close(ridged, least_squares(joint, targets, 0.3)[0], rtol=1e-6, atol=1e-8)


def test_the_ridge_fills_up_to_what_the_noise_needs():
    """The formula of the paper, with the noise of an entry off the diagonal, by NumPy."""
    _, targets, joint, _ = problem(1)
    matrix = moments(joint, targets)
    least = float(torch.linalg.eigvalsh(matrix[:4, :4]).min())
    for noise_std in (1e-4, 0.1, 3.0):
        needed = noise_std / np.sqrt(2) * np.sqrt(4 * np.log(2 * 16 / 0.05))
        ridge = max(0.0, needed - least)
        expected = np.linalg.solve(matrix[:4, :4].numpy() + ridge * np.eye(4), matrix[:4, 4].numpy())
        assert adaptive_ridge(matrix, noise_std=noise_std).numpy() == pytest.approx(expected)
        assert (ridge > 0) == (noise_std > 0.01)


def test_columns_of_zeros_and_matrices_of_noise_alone():
    assert not adaptive_ridge(torch.zeros(4, 4), noise_std=0.0).any()
    noise = torch.randn(6, 6)
    assert adaptive_ridge(noise + noise.t(), noise_std=1.0).norm() < 2


def test_wrong_settings():
    rows, targets, _, start = problem()
    with pytest.raises(ValueError, match=r"second_moment must have shape \(4, 4\), got \(3, 3\)"):
        PreconditionedDescent(
            Exact(rows, targets), start, steps=1, second_moment=torch.eye(3), curvature=1.0, damping=1.0
        )
    with pytest.raises(ValueError, match=r"params must be a weight .* got \['theta'\]"):
        PreconditionedDescent(
            Exact(rows, targets), {"theta": torch.zeros(2)}, steps=1, second_moment=torch.eye(2), curvature=1.0,
            damping=1.0,
        )  # fmt: skip
    with pytest.raises(ValueError, match="damping must be"):
        PreconditionedDescent(
            Exact(rows, targets), start, steps=1, second_moment=torch.eye(4), curvature=1.0, damping=0.0
        )
    with pytest.raises(ValueError, match="second_moment must be"):
        adaptive_ridge(torch.zeros(2, 3), noise_std=0.0)
