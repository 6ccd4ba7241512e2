r"""Clipped SGD on a synthetic problem, many runs at once, for experiments and tests of theory.

Each step clips the gradient of one sample and adds noise. This is not the private oracle: the data are synthetic, and
the noise comes from the caller's public generator.
Source: "Differentially Private Clipped-SGD", Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacita_reproductions.heavy_tails import Array, NoisyQuadratic


def clip(vectors: Array, threshold: Array | float) -> Array:
    r"""Scale each vector along the last axis to a norm of at most ``threshold``: :math:`\min(1, C/\lVert g\rVert) g`.

    ``threshold`` broadcasts against the other axes. An infinite threshold clips nothing, and a zero vector stays zero.

    Example:
        >>> clip(np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 2.5)
        array([[1.5, 2. ],
               [0.3, 0.4],
               [0. , 0. ]])
    """
    norms = np.sqrt(np.square(vectors).sum(axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(norms > threshold, threshold / norms, 1.0)
    return factor[..., None] * vectors


@dataclass(frozen=True, kw_only=True)
class RunGaps:
    """The gaps f(x) - f* of all runs, arrays of shape (*settings, runs).

    Attributes:
        last: The gap at the last iterate.
        average: The gap at the mean of the iterates after the first ``skip``.
        best: The smallest gap of any iterate.
    """

    last: Array
    average: Array
    best: Array


def run(
    problem: NoisyQuadratic,
    *,
    max_grad_norm: Array | float,
    lr: Array | float,
    steps: int,
    runs: int,
    generator: np.random.Generator,
    noise_std: Array | float = 0.0,
    skip: int = 0,
    on_progress: Callable[[float], None] = lambda share: None,
) -> RunGaps:
    """Run clipped SGD ``runs`` times for every setting, from the problem's start.

    Args:
        problem: The synthetic problem.
        max_grad_norm, lr, noise_std: The settings: numbers, or arrays that broadcast.
        steps: Number of updates.
        runs: Number of independent runs of each setting.
        generator: Public generator; in each run all settings use the same samples and noise.
        skip: Number of first iterates left out of the average (the start counts as one).
        on_progress: Called from time to time with the share that is done.
    """
    threshold, step, std = (x[..., None] for x in np.broadcast_arrays(*map(np.asarray, (max_grad_norm, lr, noise_std))))
    points = np.broadcast_to(np.asarray(problem.start), (*threshold.shape[:-1], runs, problem.dim)).copy()
    total, best = np.zeros_like(points), np.full(points.shape[:-1], np.inf)
    private = bool(np.any(std > 0))
    for t in range(steps):
        if t >= skip:
            total += points
        best = np.minimum(best, problem.gap(points))
        drawn = problem.noise.draw(generator, (runs,), problem.dim)
        moved = clip(problem.smoothness * points + drawn, threshold)
        if private:
            moved = moved + std[..., None] * generator.standard_normal((runs, problem.dim))
        points = points - step[..., None] * moved
        if t % 256 == 0:
            on_progress(t / steps)
    total += points
    average = total / (steps + 1 - skip)
    return RunGaps(last=problem.gap(points), average=problem.gap(average), best=np.minimum(best, problem.gap(points)))
