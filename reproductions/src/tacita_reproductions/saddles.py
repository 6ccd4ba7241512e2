r"""Experiments on saddles: noise leaves them, private noise too; and where the paper's argument without clipping fails.

Measured first for this library, at sizes where everything is known exactly. Algorithm 1 with a threshold that no
gradient reaches is noisy gradient descent, so the paths are computed in NumPy, many runs at once; a test shows that
they are the library's own paths. As in the paper, noise is on the mean gradient.
Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need: Private Second-Order Convergence of Noisy SGD".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tacita.accounting import gaussian_delta, gaussian_mu
from tacita.second_order.noisy_sgd import gradient_norm_bound, paper_mean_noise_std
from tacita_reproductions import figures
from tacita_reproductions.runner import Check, Progress, Result, span

Array = np.ndarray
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """A function with a saddle at 0, and the criterion for its second-order stationary points.

    Attributes:
        dim: Number of coordinates.
        value, gradient: The function and its gradient; shapes (..., dim) -> (...) and (..., dim).
        curvature: The smallest eigenvalue of the Hessian; shapes (..., dim) -> (...).
        alpha, hessian_lipschitz: A point is stationary if its gradient is below alpha and its curvature above
            -sqrt(hessian_lipschitz x alpha).
    """

    dim: int
    value: Callable[[Array], Array]
    gradient: Callable[[Array], Array]
    curvature: Callable[[Array], Array]
    alpha: float
    hessian_lipschitz: float

    def stationary(self, points: Array) -> Array:
        """Return whether each point is alpha-second-order stationary."""
        limit = math.sqrt(self.hessian_lipschitz * self.alpha)
        flat = np.linalg.norm(self.gradient(points), axis=-1) < self.alpha
        good = np.zeros(flat.shape, bool)
        good[flat] = self.curvature(points[flat]) > -limit
        return good


def double_well() -> Landscape:
    r"""Return :math:`(x_1^2 - 1)^2/4 + \frac12 \sum_{i \ge 2} x_i^2`, whose curvature at the saddle is -1."""

    def gradient(x: Array) -> Array:
        first = x[..., :1]
        return np.concatenate([first**3 - first, x[..., 1:]], axis=-1)

    return Landscape(
        dim=10,
        value=lambda x: (x[..., 0] ** 2 - 1) ** 2 / 4 + np.square(x[..., 1:]).sum(-1) / 2,
        gradient=gradient,
        curvature=lambda x: np.minimum(3 * x[..., 0] ** 2 - 1, 1.0),
        alpha=0.1,
        hessian_lipschitz=9.0,  # valid for |x_1| <= 1.5
    )


SPECTRUM = np.array([0.5, 0.3] + [0.025] * 8)  # eigenvalues of the mean of a a^T over unit vectors a


def principal_component() -> Landscape:
    r"""Return :math:`-\frac12 x^T \Sigma x + \frac14 \lVert x \rVert^4`.

    Its minimum is -0.0625, at :math:`\pm\sqrt{0.5}\,e_1`.
    """

    def hessian(x: Array) -> Array:
        norm = np.square(x).sum(-1)[..., None, None]
        return -np.diag(SPECTRUM) + norm * np.eye(10) + 2 * x[..., :, None] * x[..., None, :]

    return Landscape(
        dim=10,
        value=lambda x: -(np.square(x) @ SPECTRUM) / 2 + np.square(np.square(x).sum(-1)) / 4,
        gradient=lambda x: -SPECTRUM * x + np.square(x).sum(-1, keepdims=True) * x,
        curvature=lambda x: np.linalg.eigvalsh(hessian(x))[..., 0],
        alpha=0.03,
        hessian_lipschitz=6.0,
    )


def walk(
    landscape: Landscape, *, noise_std: float, lr: float, steps: int, runs: int, generator: np.random.Generator
) -> Array:
    """Return the iterates x_0, ..., x_T of noisy gradient descent from 0, shape (steps + 1, runs, dim)."""
    path = np.zeros((steps + 1, runs, landscape.dim))
    for t in range(steps):
        noise = noise_std * generator.standard_normal((runs, landscape.dim)) if noise_std else 0.0
        path[t + 1] = path[t] - lr * (landscape.gradient(path[t]) + noise)
    return path


def escape(full: bool, seed: int, progress: Progress) -> Result:
    """Show that noise leaves a strict saddle, while gradient descent without noise stays there."""
    well, lr, steps = double_well(), 0.02, 2000
    rows = []
    for i, (std, runs) in enumerate(((0.0, 1), (1e-6, 50), (0.1, 200 if full else 50))):
        progress(i / 3, f"noise {std:g}")
        path = walk(well, noise_std=std, lr=lr, steps=steps, runs=runs, generator=np.random.default_rng([seed, i]))
        share = well.stationary(path[:-1]).mean(axis=0)
        out = np.abs(path[..., 0]) > 0.5
        left = out.argmax(axis=0) if out.any(axis=0).all() else None
        rows.append(
            {
                "noise": std,
                "runs": runs,
                "share of stationary iterates, median": float(np.median(share)),
                "min": float(share.min()),
                "max": float(share.max()),
                "left the saddle at step, median": None if left is None else float(np.median(left)),
                "latest": None if left is None else int(left.max()),
            }
        )
    checks = [
        Check("without noise no iterate is stationary", rows[0]["max"] == 0, found=f"a share of {rows[0]['max']:g}"),
        Check(
            "with noise 0.1 at least half of the iterates of every run are stationary",
            rows[2]["min"] >= 0.5,
            found=f"shares of {rows[2]['min']:.3g} to {rows[2]['max']:.3g}",
        ),
        Check(
            "tiny noise leaves the saddle too, later",
            rows[1]["min"] > 0.4 and rows[1]["latest"] > rows[2]["latest"],
            found=f"at step {rows[1]['latest']} at the latest, with noise 0.1 at step {rows[2]['latest']}",
        ),
    ]
    notes = ["(x1^2 - 1)^2 / 4 + |x2..10|^2 / 2 from the saddle 0; lr 0.02, 2000 steps, alpha 0.1, rho 9."]
    return Result(rows=rows, checks=checks, notes=notes)


def private(full: bool, seed: int, progress: Progress) -> Result:
    """Measure private descent: its noise leaves the saddle, and the points are worse for smaller epsilon."""
    pca, lr, steps, n, threshold = principal_component(), 0.1, 500, 20_000, 3.0
    runs = 200 if full else 40
    rows, largest = [], 0.0
    epsilons = (None, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
    for i, epsilon in enumerate(epsilons):
        progress(i / len(epsilons), "no noise" if epsilon is None else f"epsilon {epsilon:g}")
        std = 0.0 if epsilon is None else full_batch_noise(epsilon, steps=steps, max_grad_norm=threshold, num_records=n)
        path = walk(pca, noise_std=std, lr=lr, steps=steps, runs=runs, generator=np.random.default_rng([seed, i]))
        length = np.linalg.norm(path, axis=-1)
        largest = max(largest, float((length + length**3).max()))  # bounds any record's gradient, since |a| = 1
        last = path[-1]
        rows.append(
            {
                "epsilon": epsilon,
                "noise": std,
                "share of stationary iterates": float(np.median(pca.stationary(path[:-1]).mean(axis=0))),
                "mean gradient norm": float(np.median(np.linalg.norm(pca.gradient(path[:-1]), axis=-1).mean(axis=0))),
                "f(last)": float(np.median(pca.value(last))),
                "alignment": float(np.median(np.abs(last[:, 0]) / np.maximum(length[-1], 1e-300))),
            }
        )
    noisy = rows[1:]
    norms, values = ([row[name] for row in noisy] for name in ("mean gradient norm", "f(last)"))
    enough = [row["share of stationary iterates"] for row in noisy if row["epsilon"] >= 0.5]
    checks = [
        Check(
            "without noise no iterate is stationary",
            rows[0]["share of stationary iterates"] == 0,
            found=f"a share of {rows[0]['share of stationary iterates']:g}",
        ),
        Check(
            "the mean gradient norm falls with epsilon",
            all(a > b for a, b in pairwise(norms)),
            found=f"from {norms[0]:.3g} to {norms[-1]:.3g}",
        ),
        Check(
            "f at the end does not rise with epsilon",
            all(a >= b - 5e-5 for a, b in pairwise(values)),
            found=f"from {values[0]:.4g} to {values[-1]:.4g}",
        ),
        Check(
            "from epsilon 1/2 on at least half of the iterates are stationary",
            min(enough) >= 0.5,
            found=f"shares of {span(enough)}",
        ),
        Check(
            "no record's gradient comes near the threshold",
            largest < threshold,
            found=f"at most {largest:.3g}, the threshold is {threshold:g}",
        ),
    ]
    notes = [
        "-x^T S x / 2 + |x|^4 / 4 from the saddle 0, S the mean of 20 000 records; full batch, replace-one, delta "
        "1e-5; lr 0.1, 500 steps, alpha 0.03, rho 6; medians over runs.",
        "The share is not monotone in epsilon, because less noise leaves the saddle later.",
        f"Bound on any record's gradient along the paths: {largest:.2f}; threshold {threshold:g}.",
    ]
    return Result(rows=rows, checks=checks, notes=notes, draw=lambda: figures.descent(rows))


def full_batch_noise(epsilon: float, *, steps: int, max_grad_norm: float, num_records: int) -> float:
    """Return the exact noise of the mean gradient for full batches under replace-one.

    Example:
        >>> round(full_batch_noise(1.0, steps=500, max_grad_norm=3.0, num_records=20_000), 7)
        0.0250258
    """
    return 2 * max_grad_norm * math.sqrt(steps) / (num_records * gaussian_mu(epsilon, DELTA))


def large_noise(full: bool, seed: int, progress: Progress) -> Result:
    """Show that large noise breaks the bound on gradients in one step, because the bound leaves the noise out."""
    dim, n, steps, epsilon = (10**6 if full else 10**5), 1000, 2, 1.0
    bound = gradient_norm_bound(
        smoothness=1.0, initial_gap=0.5, gradient_noise=0.1, num_records=n, steps=steps, delta=DELTA
    )
    std = paper_mean_noise_std(gradient_bound=bound, steps=steps, delta=DELTA, num_records=n, epsilon=epsilon)
    found = float(np.linalg.norm(std * np.random.default_rng(seed).standard_normal(dim)))  # |x_1| for a step size of 1
    rows = [
        {
            "dim": dim,
            "bound C": bound,
            "noise": std,
            "expected gradient": std * math.sqrt(dim),
            "simulated gradient": found,
            "over C": found / bound,
        }
    ]
    sure = abs(found / (std * math.sqrt(dim)) - 1) < 6 / math.sqrt(2 * dim)
    checks = [
        Check(
            "after one step every record's gradient is longer than the bound",
            found > bound,
            found=f"{found:.3g}, {found / bound:.3g} times the bound",
        ),
        Check("its length is that of the noise", sure, found=f"{found:.4g}, expected {std * math.sqrt(dim):.4g}"),
    ]
    notes = ["f_i = |x|^2 / 2 for all i, from its minimum 0, step 1 / L = 1, epsilon 1, delta 1e-5, constants 1."]
    return Result(rows=rows, checks=checks, notes=notes)


def exposed(full: bool, seed: int, progress: Progress) -> Result:
    """Compute the exact delta of one full-batch step: without clipping one record's gradient is exposed."""
    n, bound = 100, 1.0
    std = paper_mean_noise_std(gradient_bound=bound, steps=1, delta=DELTA, num_records=n, epsilon=1.0)
    exact = bound / (n * gaussian_mu(1.0, DELTA))
    rows = [
        {
            "gradient": length,
            "delta at epsilon 1": gaussian_delta(length / (n * std), 1.0),
            "total variation": gaussian_delta(length / (n * std), 0.0),
            "clipped, exact noise": gaussian_delta(min(length, bound) / (n * exact), 1.0),
        }
        for length in (1.0, 10.0, 1000.0)
    ]
    checks = [
        Check(
            "with constant 1 the paper's noise is too small for a gradient of length 1",
            rows[0]["delta at epsilon 1"] > DELTA,
            found=f"delta {rows[0]['delta at epsilon 1']:.3g} at epsilon 1, claimed {DELTA:g}",
        ),
        Check(
            "a gradient of 1000 is exposed",
            rows[2]["delta at epsilon 1"] > 1 - 1e-12,
            found=f"delta {rows[2]['delta at epsilon 1']:.3g} at epsilon 1",
        ),
        Check(
            "with clipping and exact noise no gradient is exposed",
            all(row["clipped, exact noise"] <= DELTA * (1 + 1e-9) for row in rows),
            found=f"delta {span(row['clipped, exact noise'] for row in rows)} at epsilon 1",
        ),
    ]
    notes = [f"One query on 100 records, claimed (1, 1e-5); noise {std:.7f} by the paper's formula, {exact:.7f} exact."]
    return Result(rows=rows, checks=checks, notes=notes)
