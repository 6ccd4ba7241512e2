"""Lemmas C.1 and F.1: inequalities that hold on every path, whatever the noise and the threshold."""

import numpy as np
import pytest

from tests.theory.clipping import clip

CASES = 300
STEPS = 60


def run(gradient, start, rng, lr_most):
    """A path of clipped SGD with Student or Gaussian sample noise and privacy noise: x, clipped gradients, noise, C."""
    d = len(start)
    c, lr = np.exp(rng.uniform(-3, 3)), lr_most * rng.uniform(0.05, 1)
    heavy, size, privacy = rng.random() < 0.5, np.exp(rng.uniform(-3, 2)), np.exp(rng.uniform(-4, 1))
    xs, hats, omegas = [start], [], []
    for _ in range(STEPS):
        noise = rng.standard_t(1.5, d) if heavy else rng.standard_normal(d)
        hats.append(clip(gradient(xs[-1]) + size * noise, c))
        omegas.append(privacy * rng.standard_normal(d))
        xs.append(xs[-1] - lr * (hats[-1] + omegas[-1]))
    return np.array(xs), np.array(hats), np.array(omegas), c, lr


def parts(gradient, xs, hats, c):
    grads = np.array([gradient(x) for x in xs[:-1]])
    norms = np.linalg.norm(grads, axis=1)
    factor = np.minimum(1, c / np.maximum(2 * norms, 1e-300))
    return grads, factor, hats - factor[:, None] * grads


@pytest.mark.parametrize("seed", range(3))
def test_lemma_c_1(seed):
    """Random convex quadratics, L the largest eigenvalue, lr at most 1 / (8 L)."""
    rng = np.random.default_rng(seed)
    for _ in range(CASES // 3):
        d = rng.integers(1, 6)
        root = rng.standard_normal((d, d))
        h = root @ root.T
        gradient = lambda x, h=h: h @ x  # noqa: E731
        top = np.linalg.eigvalsh(h)[-1]
        xs, hats, omegas, c, lr = run(gradient, 3 * rng.standard_normal(d), rng, 1 / (8 * top))
        _, factor, theta = parts(gradient, xs, hats, c)
        gaps = 0.5 * np.einsum("ti,ij,tj->t", xs[:-1], h, xs[:-1])
        left = lr * (factor * gaps).sum()
        right = (
            xs[0] @ xs[0]
            - xs[-1] @ xs[-1]
            - 2 * lr * np.einsum("ti,ti->", xs[:-1], theta + omegas)
            + 2 * lr**2 * np.square(theta).sum()
            + 4 * lr**2 * np.square(omegas).sum()
        )
        assert left <= right + 1e-9 * (abs(right) + 1)


@pytest.mark.parametrize("seed", range(3))
def test_lemma_f_1(seed):
    """f = sum cos(a_i x_i), L = max a_i^2, lr at most 1 / (4 L)."""
    rng = np.random.default_rng(100 + seed)
    for _ in range(CASES // 3):
        d = rng.integers(1, 6)
        a = np.exp(rng.uniform(-1, 1, d))
        gradient = lambda x, a=a: -a * np.sin(a * x)  # noqa: E731
        value = lambda x, a=a: np.cos(a * x).sum()  # noqa: E731
        top = (a**2).max()
        xs, hats, omegas, c, lr = run(gradient, 3 * rng.standard_normal(d), rng, 1 / (4 * top))
        grads, factor, theta = parts(gradient, xs, hats, c)
        left = lr / 2 * (factor * np.square(grads).sum(axis=1)).sum()
        right = (
            value(xs[0])
            - value(xs[-1])
            - lr * np.einsum("ti,ti->", grads, theta + omegas)
            + 2 * top * lr**2 * np.square(theta).sum()
            + top * lr**2 * np.square(omegas).sum()
        )
        assert left <= right + 1e-9 * (abs(right) + 1)


def test_the_check_can_fail():
    """Twice the allowed step size, no noise, a stiff start: the first inequality is broken."""
    broken = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        xs, hats, _, c, lr = run(lambda x: x, np.array([3.0]), rng, 2.0)
        _, factor, theta = parts(lambda x: x, xs, hats, c)
        left = lr * (factor * xs[:-1, 0] ** 2 / 2).sum()
        broken += left > xs[0, 0] ** 2 - xs[-1, 0] ** 2 - 2 * lr * (xs[:-1] * theta).sum()
    assert broken > 10


def test_noise_adds_its_energy():
    """E|g~|^2 = E|g^|^2 + d sigma^2, to 5 standard deviations."""
    rng = np.random.default_rng(0)
    hats = clip(rng.standard_t(1.5, (200_000, 4)), 1.0)
    noisy = np.square(hats + 0.7 * rng.standard_normal(hats.shape)).sum(axis=1)
    expected = np.square(hats).sum(axis=1).mean() + 4 * 0.49
    assert abs(noisy.mean() - expected) < 5 * noisy.std() / len(noisy) ** 0.5
