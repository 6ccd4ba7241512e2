"""Small problems whose per-sample gradients are known, and runs of error feedback on them."""

from dataclasses import dataclass

import torch

from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum
from tacita.gradients.given import GivenEngine

UNIT = FlatClipper(max_grad_norm=1.0)
PLANE = torch.tensor([[4.0, 0.0], [0.0, -3.0]], dtype=torch.float64)
LINE = torch.tensor([[4.0], [-1.0]], dtype=torch.float64)


@dataclass
class Run:
    """What a run was, at the level of the mean: noiseless updates, errors and points, each (steps, ..., d)."""

    updates: torch.Tensor
    errors: torch.Tensor
    points: torch.Tensor


def distances(point, samples):
    """Gradients of |x - a|^2 / 2 for every sample a: (..., batch, d)."""
    return point.unsqueeze(-2) - samples


def run(estimator, samples, steps, *, lr, start=0.0, noise=None, mask=None, grads=distances, lead=()):
    """SGD on the estimator's values; ``noise`` (steps, *lead, d) is of the mean, ``mask(t)`` says who is in."""
    size = samples.shape[-1]
    divisor = getattr(estimator, "divisor", None) or float(len(samples))
    point = torch.full((*lead, size), start, dtype=torch.float64)
    state = estimator.initial_state({"theta": torch.Size([size])}, lead=lead)
    kept = ([], [], [])
    for t in range(steps):
        values, state = estimator(GivenEngine(grads(point, samples), mask=None if mask is None else mask(t)), state)
        block = next(iter(values))
        update = values[block]["theta"].clone()
        if noise is not None:
            values[block]["theta"] += divisor * noise[t]
        state = estimator.after(state, values)
        point = point - lr * estimator.gradient(values, divisor)["theta"]
        error = state["error"]["theta"] if state else torch.zeros_like(point)
        for series, value in zip(kept, (update / divisor, error / divisor, point), strict=True):
            series.append(value)
    return Run(*(torch.stack(series) for series in kept))


def made(feedback, samples, clipper=UNIT):
    """The estimator of full batches of ``samples``."""
    return feedback.estimator(clipper, float(len(samples)))


def plain(threshold=1.0):
    """DP-SGD's estimator."""
    return ClippedSum(FlatClipper(max_grad_norm=threshold))


def close(found, expected, tolerance=1e-12):
    """Assert equality up to ``tolerance``, relative to 1."""
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64).squeeze(),
        torch.as_tensor(expected, dtype=torch.float64).squeeze(),
        rtol=tolerance,
        atol=tolerance,
    )
