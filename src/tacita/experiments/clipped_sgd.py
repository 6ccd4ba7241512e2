r"""Clipped SGD on a toy problem, many runs at once: the algorithm line by line, for experiments and tests of theory.

Place: experiments.heavy_tails -> [experiments.clipped_sgd]. One sample a step, noise on the clipped gradient. It is not
the private oracle: the data are synthetic, the noise comes from the caller's public generator.
Source: "Differentially Private Clipped-SGD", Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacita.experiments.heavy_tails import Array, NoisyQuadratic


def clip(vectors: Array, threshold: Array | float) -> Array:
    r"""Each vector along the last axis, scaled to a norm of at most ``threshold``: :math:`\min(1, C/\lVert g\rVert) g`.

    ``threshold`` broadcasts against the other axes; infinity clips nothing; zero stays zero.

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
class Runs:
    """What is kept of the runs; arrays (*settings, runs).

    Attributes:
        last: f(x) - f* at the last iterate.
        average: At the mean of the iterates after the first ``skip``.
        best: The least on the way.
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
    told: Callable[[float], None] = lambda share: None,
) -> Runs:
    """Run every setting ``runs`` times from the problem's start; settings share their samples and noise.

    Args:
        problem: The toy.
        max_grad_norm, lr, noise_std: Numbers or arrays that broadcast: the settings.
        steps: Updates.
        runs: Independent runs of each setting.
        generator: Public; the settings of one run see the same draws.
        skip: Iterates left out of the average (the start counts as one).
        told: Told the share done now and then.
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
            told(t / steps)
    total += points
    average = total / (steps + 1 - skip)
    return Runs(last=problem.gap(points), average=problem.gap(average), best=np.minimum(best, problem.gap(points)))
