"""One private run on a convex problem with the library's own oracles and solvers, and means over many such runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tacita.clipping import FlatClipper
from tacita.convex import AcceleratedSGD, Ball, ProximalSGD
from tacita.convex.heavy_tailed import HeavyTailedPlan, HeavyTailedSetting, accelerated_bound, accelerated_theorem
from tacita.estimators import ClippedSum
from tacita.gradients.engine import GradientSource
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import GradientOracle
from tacita.random import Randomness
from tacita.sampling import DisjointSampler
from tacita_reproductions.convex_problems import LinearProblem, as_point, start

NO_CLIPPING = 1e12  # as a threshold: above every gradient here, and without privacy there is no noise to scale


@dataclass(frozen=True)
class Steps:
    """How a one-pass run is made: T steps on batches of their own, a threshold, and the step size of the first step."""

    steps: int
    max_grad_norm: float
    lr: float


def one_pass_oracle(
    source: GradientSource, *, queries: int, max_grad_norm: float, mu: float | None, seed: int
) -> GradientOracle:
    """Return an oracle whose queries read disjoint batches of the same size, each a Gaussian query of ratio ``mu``.

    Args:
        source: The records.
        queries: Number of batches.
        max_grad_norm: The clipping threshold; ``None`` for ``mu`` means that no noise is added.
        mu: The paper's epsilon: the run is as private as one Gaussian query with sensitivity over noise ``mu``.
        seed: Of the noise. The data are synthetic, so no key has to be secret.
    """
    used = source.num_rows // queries * queries
    return GradientOracle(
        source,
        estimator=ClippedSum(FlatClipper(max_grad_norm=max_grad_norm)),
        mechanism=GaussianMechanism(noise_multiplier=0.0 if mu is None else 1 / mu),
        sampler=DisjointSampler(num_batches=queries, num_records=used),
        ledger=Ledger(neighboring_relation="replace_one", privacy_unit="one row"),
        planned_queries=queries,
        rows=np.arange(used),
        randomness=Randomness.insecure(seed),
    )


def accelerated(problem: LinearProblem, source: GradientSource, how: Steps, *, mu: float | None, seed: int) -> float:
    """Run Algorithm 2 and return the excess risk."""
    oracle = one_pass_oracle(source, queries=how.steps, max_grad_norm=how.max_grad_norm, mu=mu, seed=seed)
    ball = Ball(radius=problem.radius)
    solver = AcceleratedSGD(oracle, start(problem), steps=how.steps, lr=how.lr, domain=ball)
    return problem.excess(as_point(solver.run()))


def averaged(problem: LinearProblem, source: GradientSource, how: Steps, *, mu: float | None, seed: int) -> float:
    """Run projected SGD with a constant step size, and return the excess risk of the mean of the points it asked at."""
    oracle = one_pass_oracle(source, queries=how.steps, max_grad_norm=how.max_grad_norm, mu=mu, seed=seed)
    solver = ProximalSGD(
        oracle, start(problem), steps=how.steps, lr=how.lr, penalty=Ball(radius=problem.radius)
    )  # whose solution is its last iterate
    asked = []
    for _ in range(how.steps):
        asked.append(as_point(solver.solution))
        solver.step()
    return problem.excess(np.mean(asked, axis=0))


def planned(plan: HeavyTailedPlan) -> Steps:
    """Return the settings of a plan."""
    return Steps(plan.steps, plan.max_grad_norm, plan.lr)


def of_theorem(setting: HeavyTailedSetting, order: float) -> Steps:
    """Return the settings of Theorem 31 as printed: its steps, its threshold, and the paper's step size."""
    theorem = accelerated_theorem(setting, order=order)
    return with_threshold(setting, theorem.steps, theorem.max_grad_norm, order)


def with_threshold(setting: HeavyTailedSetting, steps: int, max_grad_norm: float, order: float) -> Steps:
    """Return settings of Algorithm 2 with a given threshold, and the paper's step size for it."""
    bound = accelerated_bound(setting, steps=steps, max_grad_norm=max_grad_norm, order=order, constants="paper")
    return Steps(steps, max_grad_norm, float(bound.lr))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    found = np.asarray(values)
    return float(found.mean()), float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else math.nan


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def repeated(
    problem: LinearProblem, records: int, repeats: int, seed: Sequence[int], run: Callable[[GradientSource, int], dict]
) -> list[dict]:
    """Call ``run(source, seed)`` on fresh records ``repeats`` times and return what it returned."""
    found = []
    for repeat in range(repeats):
        generator = np.random.default_rng([*seed, repeat])
        found.append(run(problem.source(records, generator), int(generator.integers(2**62))))
    return found
