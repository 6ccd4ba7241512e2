"""DiceSGD against the numbers of its reference runs: traces, fixed points, wind-up, variants."""

import math
import os

import pytest
import torch

from tacita.clipping import AutomaticClipper, FlatClipper
from tacita.error_feedback import BoundedFeedback, PrivateFeedback, ReleasedFeedback
from tacita.gradients.given import GivenEngine
from tests.error_feedback.dice import LINE, PLANE, UNIT, close, distances, made, plain, run

SIX_DIGITS = 5e-6


def private(max_feedback_norm, **more):
    return PrivateFeedback(max_feedback_norm=max_feedback_norm, **more)


# --- traces ----------------------------------------------------------------------------------------------------------


def test_trace_on_the_line():
    found = run(made(private(2.0), LINE), LINE, 6, lr=0.5)
    close(found.updates, [0, -1.5, -1.5, -0.75, 0, 0.375])
    close(found.errors, [-1.5, -1.5, -0.75, 0, 0.375, 0.375])
    close(found.points, [0, 0.75, 1.5, 1.875, 1.875, 1.6875])


def test_the_error_never_contains_the_noise():
    noise = torch.tensor([[0.5], [-0.25], [0.125]], dtype=torch.float64)
    found = run(made(private(2.0), LINE), LINE, 3, lr=0.5, noise=noise)
    close(found.updates, [0, -1.625, -1.625])
    close(found.errors, [-1.5, -1.625, -0.8125])
    close(found.points, [-0.25, 0.6875, 1.4375])


@pytest.mark.parametrize("normalised", [False, True])
def test_trace_in_the_plane(normalised):
    """Every clipped error is longer than 1 there, so the automatic variant is the same."""
    found = run(made(private(1.0, normalised=normalised), PLANE), PLANE, 5, lr=0.5)
    updates = [(-0.5, 0.5), (-1.28568, 1.01939), (-1.14802, 0.876623), (-1.00553, 0.668498), (-0.892055, 0.445898)]
    errors = [(-1.5, 1), (-1.96433, 1.23061), (-1.92347, 1.09430), (-1.45109, 0.727793), (-0.589420, 0.249641)]
    points = [(0.25, -0.25), (0.892838, -0.759694), (1.46685, -1.19801), (1.96961, -1.53225), (2.41564, -1.75520)]
    close(found.updates, updates, SIX_DIGITS)
    close(found.errors, errors, SIX_DIGITS)
    close(found.points, points, SIX_DIGITS)


class TorchRun:
    """Any torch optimizer below the line."""

    def __init__(self, estimator, samples, make_optimizer):
        self.point = torch.nn.Parameter(torch.zeros(samples.shape[1], dtype=torch.float64))
        self.optimizer = make_optimizer([self.point])
        self.state = estimator.initial_state({"theta": self.point.shape})
        self._estimator, self._samples = estimator, samples

    def step(self):
        values, self.state = self._estimator(GivenEngine(distances(self.point.detach(), self._samples)), self.state)
        self.point.grad = self._estimator.gradient(values, len(self._samples))["theta"]
        self.optimizer.step()
        return self.point.detach().clone()


def test_adam_below_the_line():
    adam = TorchRun(made(private(1.0), PLANE), PLANE, lambda p: torch.optim.Adam(p, lr=0.1, eps=1e-8))
    close(adam.step(), (0.1, -0.1), 1e-6)
    close(adam.step(), (0.193367, -0.196076), 1e-6)
    close(adam.state["error"]["theta"] / 2, (-2.08535, 1.35841), SIX_DIGITS)
    moments = adam.optimizer.state[adam.point]
    close(moments["exp_avg"], (-0.176465, 0.149159), SIX_DIGITS)
    close(moments["exp_avg_sq"], (0.00197807, 0.00133465), SIX_DIGITS)


def test_adam_without_memory_steps_by_the_sign():
    adam = TorchRun(made(private(1.0), PLANE), PLANE, lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.0), eps=1e-3))
    sgd = TorchRun(made(private(1.0), PLANE), PLANE, lambda p: torch.optim.SGD(p, lr=0.0))
    sgd.step()
    update = sgd.point.grad
    close(adam.step(), -0.1 * update / (update.abs() + 1e-3))


# --- limits ----------------------------------------------------------------------------------------------------------


def test_without_feedback_it_is_plain_clipping():
    dice, clipped = run(made(private(0.0), PLANE), PLANE, 50, lr=0.1), run(plain(), PLANE, 50, lr=0.1)
    assert torch.equal(dice.points, clipped.points)


def test_without_clipping_it_is_sgd():
    found = run(made(private(1e30), PLANE, FlatClipper(max_grad_norm=1e30)), PLANE, 50, lr=0.1)
    point = torch.zeros(2, dtype=torch.float64)
    for step in range(50):
        point = point - 0.1 * distances(point, PLANE).mean(0)
        close(found.points[step], point)
    assert not found.errors.any()


def test_both_forms_of_the_error_agree():
    """With cancellation, e + mean gradient - v, and without."""
    found = run(made(private(1.0), PLANE), PLANE, 200, lr=0.1)
    points = torch.cat([torch.zeros(1, 2, dtype=torch.float64), found.points[:-1]])
    error = torch.zeros(2, dtype=torch.float64)
    for step in range(200):
        error = error + distances(points[step], PLANE).mean(0) - found.updates[step]
        close(found.errors[step], error)


# --- fixed points ----------------------------------------------------------------------------------------------------

THRESHOLDS = [0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0]
ROOTS = [-0.95, -0.75, -0.5, -0.5, -0.333333, -0.25, -0.0909091]
SLOPES = [-0.633333, -0.5, -0.333333, -0.375, -0.25, -0.2, -0.0833333]
LEAST_FEEDBACK = [0.0333333, 0.166667, 0.333333, 0.375, 0.25, 0.2, 0.0833333]


def asymmetric(threshold):
    """Records -1 (many) and ``height`` (one), with gradients limited to ``height``: clipping moves the minimum."""
    height = math.ceil(threshold) + 1
    samples = torch.tensor([[-1.0]] * height + [[float(height)]], dtype=torch.float64)
    return samples, lambda x, a: distances(x, a).clamp(-height, height)


@pytest.mark.parametrize(
    ("threshold", "root", "slope", "least"), list(zip(THRESHOLDS, ROOTS, SLOPES, LEAST_FEEDBACK, strict=True))
)
def test_asymmetric_problem(threshold, root, slope, least):
    samples, grads = asymmetric(threshold)
    clipped = run(plain(threshold), samples, 700, lr=0.2, start=2.0, grads=grads)
    close(clipped.points[-1], root, 5e-6)
    close(grads(clipped.points[-1], samples).mean(0), slope, 5e-6)
    clipper = FlatClipper(max_grad_norm=threshold)
    dice = run(made(private(threshold), samples, clipper), samples, 700, lr=0.2, start=2.0, grads=grads)
    assert abs(dice.points[-1].item()) < 1e-13
    close(dice.errors[-1], -least, 5e-6)
    assert dice.errors[-1].abs() <= threshold


def test_two_records_on_the_line():
    assert run(plain(), LINE, 300, lr=0.1).points[-1] == 0
    close(run(made(private(2.0), LINE), LINE, 300, lr=0.1).points[-1], 1.5)


def test_two_records_in_the_plane():
    close(run(made(private(1.0), PLANE), PLANE, 600, lr=0.1).points[-1], (2, -1.5))
    close(run(plain(), PLANE, 1200, lr=0.1).points[-1], (1.60175, -1.79869), SIX_DIGITS)


def test_automatic_variants_in_the_plane():
    """Both normalised: no fixed point. The error clipped as it should be: an exact one."""
    unit = AutomaticClipper(max_grad_norm=1.0, gamma=1e-15)
    chatters = run(made(private(1.0, normalised=True), PLANE, unit), PLANE, 2000, lr=0.1).points[-1000:]
    close(chatters.mean(0), (2.00001, -1.50000), 1e-4)
    close(chatters.std(0, correction=0), (0.0566, 0.0424), 1e-3)
    close(run(made(private(1.0), PLANE, unit), PLANE, 600, lr=0.1).points[-1], (2, -1.5))


def test_normalised_error_is_a_sigma_delta_modulator():
    """e <- e - sign(e) + 0.3; the mean of the signs is the input, to one part in the number of steps."""
    estimator = private(1.0, normalised=True).estimator(FlatClipper(max_grad_norm=1e-9), 1.0)
    engine = GivenEngine(torch.tensor([[0.3]], dtype=torch.float64))
    state, signs = estimator.initial_state({"theta": torch.Size([1])}), []
    for _ in range(1000):
        values, state = estimator(engine, state)
        signs.append(values["gradient"]["theta"])
    close(torch.stack(signs).mean(), 0.299, 1e-8)


# --- wind-up ---------------------------------------------------------------------------------------------------------

ZERO = torch.zeros(1, 1, dtype=torch.float64)


@pytest.mark.skipif(not os.environ.get("TACITA_AUDIT"), reason="24,620 queries: make audit; the next one has 3,000")
def test_wind_up():
    found = run(made(private(1.0), ZERO), ZERO, 24_620, lr=0.1, start=100.0)
    assert abs(found.errors).max() == pytest.approx(24109, abs=0.5)
    assert int(abs(found.errors).argmax()) in (490, 491)
    resting = (found.points.squeeze() + 1).abs() < 1e-6
    assert 24_600 <= int(resting.nonzero().max()) <= 24_610
    assert abs(found.points[-1]) < 0.99


def test_wind_up_with_more_feedback():
    found = run(made(private(3.0), ZERO), ZERO, 3000, lr=0.1, start=100.0)
    assert found.points.min().item() == pytest.approx(-66.43, abs=0.005)
    assert abs(found.errors).max().item() == pytest.approx(11643, abs=0.5)
    assert 1390 <= int((found.points.squeeze().abs() > 0.5).nonzero().max()) <= 1420


def test_anti_windup_settles_at_once():
    found = run(made(private(1.0, anti_windup=20.0), ZERO), ZERO, 1200, lr=0.1, start=100.0)
    assert abs(found.errors).max() <= 20.0
    assert abs(found.points[-1]) < 1e-6


def test_leak_forgets_what_is_left():
    found = run(made(private(1.0, leak=0.25), ZERO), ZERO, 5, lr=0.1, start=100.0)
    error, point = 0.0, 100.0
    for step in range(5):
        share = max(-1.0, min(1.0, error))
        update = max(-1.0, min(1.0, point)) + share
        error = 0.75 * (error - share) + point - max(-1.0, min(1.0, point))
        point -= 0.1 * update
        close(found.errors[step], error)
        close(found.points[step], point)


def test_every_third_query_injects_all_that_was_kept():
    found = run(made(private(1e6, every=3), ZERO), ZERO, 6, lr=0.0, start=3.0)
    close(found.updates, [1, 1, 1 + 4, 1, 1, 1 + 6])  # residual 2 a step; injected: those of the steps before
    close(found.errors, [2, 4, 2, 4, 6, 2])


# --- against the bias, under sampling and noise ----------------------------------------------------------------------


def sampled(estimator, rate=0.1, steps=2000, lead=3):
    """The asymmetric problem with 100 copies, Poisson batches, noise 0.1 on the mean: means of the last half."""
    samples, grads = asymmetric(1.0)
    samples = samples.repeat(100, 1)
    generator = torch.Generator().manual_seed(0)

    def mask(t):
        return torch.rand(lead, len(samples), generator=generator) < rate

    noise = 0.1 * torch.randn(steps, lead, 1, generator=generator, dtype=torch.float64)
    found = run(estimator, samples, steps, lr=0.05, start=2.0, noise=noise, mask=mask, grads=grads, lead=(lead,))
    return found.points[-1000:].squeeze(-1).mean(0)


@pytest.mark.parametrize(
    ("feedback", "expected"),
    [
        (private(1.0), 0.0),
        (private(0.0), -0.5),
        (BoundedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0), 0.0),
        (BoundedFeedback(max_feedback_norm=1.0, max_residual_norm=0.5), -0.25),
        (ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0), 0.0),
    ],
    ids=repr,
)
def test_bias_under_sampling_and_noise(feedback, expected):
    """Bounded residuals of 0.5 leave the bias of a threshold of 1.5."""
    assert (sampled(feedback.estimator(UNIT, 30.0)) - expected).abs().max() < 0.05
