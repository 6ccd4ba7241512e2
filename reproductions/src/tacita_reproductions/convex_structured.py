r"""Private learning where the risk is not smooth, or has a penalty: the localized method and the lasso.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Algorithms 4
and 8. The paper has no experiments, so these were designed and measured first for this library.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tacita.clipping import FlatClipper
from tacita.convex import L1, Ball, LocalizedSubgradient, ProximalSGD
from tacita.convex.heavy_tailed import (
    HeavyTailedSetting,
    LocalizedPhase,
    LocalizedPlan,
    bias_constant,
    plan_heavy_tailed,
    plan_localized,
    proximal_theorem,
)
from tacita.convex.proximal_operators import ProximalOperator
from tacita.estimators import ClippedSum
from tacita.gradients.engine import GradientSource
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import GradientOracle, Queryable, Records, Release
from tacita.random import Randomness
from tacita.sampling import FullBatchSampler
from tacita.splitting import split
from tacita_reproductions import figures
from tacita_reproductions.convex_one_pass import ERROR, RISK, even, measured, risk_of
from tacita_reproductions.convex_problems import AbsoluteRegression, LinearProblem, SparseLeastSquares, as_point, start
from tacita_reproductions.convex_runs import (
    NO_CLIPPING,
    Steps,
    averaged,
    mean_and_error,
    one_pass_oracle,
    planned,
    repeated,
)
from tacita_reproductions.runner import Check, Progress, Result, Row

# -- Not smooth

LOCALIZED, ONE_PASS, LARGEST = "localized", "one pass, averaged", "one pass, C = L_f"


def one_pass_settings(
    setting: HeavyTailedSetting, *, max_grad_norm: float | None = None, steps: int | None = None
) -> Steps:
    r"""Return settings for averaged projected SGD on a risk that need not be smooth, the best by its own bound.

    The bound is :math:`D\sqrt{r_2^2/T + 4 d C^2 T/(\mu n)^2} + b_k r_k^k D / C^{k-1}`, at
    :math:`\eta = D / \sqrt{T (r_2^2 + d\sigma^2)}`: it follows from the usual inequality
    :math:`D^2/(2\eta T) + \eta\,E\lVert g\rVert^2/2`.
    """
    n, d, (order,) = setting.num_records, setting.dim, setting.orders
    second, moment = setting.second_moment(order), setting.moment(order)
    best: tuple[float, Steps] | None = None
    thresholds = np.geomspace(moment, 1e4 * moment, 200).tolist() if max_grad_norm is None else [max_grad_norm]
    for c in thresholds:
        best_steps = max(1, min(n, round(second * setting.mu * n / (2 * c * math.sqrt(d)))))
        t = steps or best_steps
        size = second**2 + d * (2 * c * t / (setting.mu * n)) ** 2
        bias = float(bias_constant(order)) * moment * (moment / c) ** (order - 1)
        bound = setting.diameter * (math.sqrt(size / t) + bias)
        if best is None or bound < best[0]:
            best = bound, Steps(t, c, setting.diameter / math.sqrt(t * size))
    assert best is not None
    return best[1]


def localized(problem: LinearProblem, source: GradientSource, plan: LocalizedPlan, *, seed: int) -> float:
    """Run Algorithm 4 on one split of the records and return the excess risk."""
    ledger = Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    key = Randomness.insecure(seed)

    def make_oracle(part: Records, phase: LocalizedPhase) -> Queryable:
        return GradientOracle(
            source,
            estimator=ClippedSum(FlatClipper(max_grad_norm=phase.max_grad_norm)),
            mechanism=GaussianMechanism(noise_multiplier=phase.noise_multiplier),
            sampler=FullBatchSampler(num_records=phase.num_records),
            ledger=ledger,
            planned_queries=phase.steps,
            rows=part.rows,
            part=part.part,
            randomness=key,
        )

    places = (torch.zeros(source.num_rows, 1),)  # what is split: one place a record
    parts = split(places, plan.sizes, randomness=key)[: len(plan.phases)]
    ball = Ball(radius=problem.radius)
    return problem.excess(
        as_point(LocalizedSubgradient(make_oracle, parts, plan.phases, start(problem), domain=ball).run())
    )


def not_smooth(full: bool, seed: int, progress: Progress) -> Result:
    """Compare the localized method with one pass of averaged SGD, on absolute regression."""
    problem = AbsoluteRegression(5, 1.0, even(5, 0.6))
    sizes, repeats = ((2**10, 2**12, 2**14), 12) if full else ((2**8, 2**10), 3)
    rows: list[Row] = []
    for done, n in enumerate(sizes):
        progress(done / len(sizes), f"{n:,} records")
        setting = HeavyTailedSetting(
            num_records=n, dim=5, rho=2.0, diameter=2, moment_bounds={2: 2.3}, uniform_moment_bounds={2: 2.3, 4: 2.9}
        )
        economy = plan_localized(setting, schedule="economy")
        theory = plan_localized(setting, schedule="theory").gradient_evaluations / n
        best = one_pass_settings(setting)
        once = {ONE_PASS: best, LARGEST: one_pass_settings(setting, max_grad_norm=1000.0, steps=best.steps)}

        def run(source, key, economy=economy, once=once):
            found = {name: averaged(problem, source, how, mu=2.0, seed=key) for name, how in once.items()}
            return found | {LOCALIZED: localized(problem, source, economy, seed=key)}

        found = repeated(problem, n, repeats, [seed, 5, n], run)
        mean, error = mean_and_error([one[LOCALIZED] for one in found])
        line = {"n": n, "method": LOCALIZED, "T": economy.num_queries, "C": None, RISK: mean, ERROR: error}
        passes = {"passes": economy.gradient_evaluations / n, "passes by the theorem": theory}
        rows += [line | passes]
        rows += [dict(row) | {"passes": 1.0, "passes by the theorem": None} for row in measured(found, once, n=n)]
    last = sizes[-1]
    local, once_risk, largest = (risk_of(rows, name, n=last) for name in (LOCALIZED, ONE_PASS, LARGEST))
    wanted = (1.3, 100.0) if full else (3.0, 5.0)
    return Result(
        rows=rows,
        checks=[
            Check(
                f"at n = {last:,} the localized method is within {wanted[0]:g} times of one pass",
                local <= wanted[0] * once_risk,
                found=f"{local / once_risk:.2f} times",
            ),
            Check(
                f"and {wanted[1]:g} times better than one pass with the largest gradient as threshold",
                largest >= wanted[1] * local,
                found=f"{largest / local:.0f} times",
            ),
        ],
        notes=[
            "Absolute loss, 5 Student-t features, noise 0.3 t(2.5), ball of radius 1, mu 2, k = 2, declared r_2 = 2.3 "
            f"and r_4 = 2.9. Mean excess risk of {repeats} runs, estimated on 200,000 other records; 0.256 at the "
            "start. The localized method has the economy schedule. With C = L_f = 1000 the one pass has the same "
            "number of steps, and its best step size by the bound.",
            "On this friendly problem, whose risk is locally quadratic, one pass that is tuned by its own bound does "
            "as well with far fewer gradients. The advantage of the localized method is in the worst case, which does "
            "not show here.",
        ],
        draw=lambda: figures.against_records(
            rows, (LOCALIZED, ONE_PASS, LARGEST), "Not smooth: phases against one pass", start=0.256
        ),
    )


# -- A penalty

LASSO = ("theorem", "planner", "subgradient of the penalty", "C = 100,000", "not private")


class WithPenalty:
    """An oracle whose releases have the subgradient of an L1 penalty added to them, below the line."""

    def __init__(self, oracle: Queryable, weight: float) -> None:
        self._oracle, self._weight = oracle, weight

    def query(self, params: Mapping[str, Tensor], /) -> Release:
        release = self._oracle.query(params)
        pull = {name: g + self._weight * params[name].sign() for name, g in release.gradient.items()}
        return Release(**{**vars(release), "gradient": pull})


def lasso_run(
    problem: SparseLeastSquares, source: GradientSource, how: Steps, *, mu: float | None, seed: int, proximal: bool
) -> Tensor:
    """Run Algorithm 8, or the same steps with a subgradient of the penalty, and return the coefficients."""
    oracle: Queryable = one_pass_oracle(source, queries=how.steps, max_grad_norm=how.max_grad_norm, mu=mu, seed=seed)
    penalty: ProximalOperator = Ball(radius=problem.radius)
    if proximal:
        penalty = L1(weight=problem.penalty) + penalty
    else:
        oracle = WithPenalty(oracle, problem.penalty)
    return ProximalSGD(oracle, start(problem), steps=how.steps, lr=how.lr, penalty=penalty).run()["weight"][0]


def lasso(full: bool, seed: int, progress: Progress) -> Result:
    """Learn a lasso with exact zeros; compare with clipping without a proximal step, and with almost no clipping."""
    optimum = (1.0, -1.0, 0.8, -0.8, 0.6) + (0.0,) * 45
    problem = SparseLeastSquares(50, 3.0, optimum)
    sizes, repeats = ((2**14, 2**16, 2**18), 12) if full else ((2**14, 2**15), 3)
    rows: list[Row] = []
    for done, n in enumerate(sizes):
        progress(done / len(sizes), f"{n:,} records")
        setting = HeavyTailedSetting(
            num_records=n, dim=50, rho=2.0, diameter=6, smoothness=1, strong_convexity=1, initial_gap=1.425,
            moment_bounds={2: 13.5},
        )  # fmt: skip
        theorem, plan = proximal_theorem(setting, order=2), planned(plan_heavy_tailed(setting, method="proximal"))
        settings = (
            Steps(theorem.steps, theorem.max_grad_norm, plan.lr), plan, plan, Steps(plan.steps, 1e5, plan.lr),
            Steps(plan.steps, NO_CLIPPING, plan.lr),
        )  # fmt: skip
        methods: dict[str, Steps] = dict(zip(LASSO, settings, strict=True))

        def run(source, key, methods=methods):
            found: dict = {}
            for name, how in methods.items():
                mu, proximal = None if name == "not private" else 2.0, name != LASSO[2]
                point = lasso_run(problem, source, how, mu=mu, seed=key, proximal=proximal)
                found[name] = problem.excess(point.numpy())
                found[name, "zeros"] = float((point[5:] == 0).double().mean())
            return found

        found = repeated(problem, n, repeats, [seed, 6, n], run)
        zeros = {name: float(np.mean([one[name, "zeros"] for one in found])) for name in methods}
        rows += [dict(row) | {"zeros kept": zeros[row["method"]]} for row in measured(found, methods, n=n)]
    return Result(
        rows=rows,
        checks=_lasso_checks(rows, sizes, 100 if full else 10),
        notes=[
            "Squared loss with the penalty 0.1 |w|_1, 50 Student-t features of which 5 matter, ball of radius 3, mu 2, "
            f"k = 2, declared r_2 = 13.5. Mean excess risk of {repeats} runs; {problem.excess(np.zeros(50)):.3g} at "
            "the start. 'zeros kept': of the 45 coefficients that are zero, the share that is exactly zero.",
        ],
        draw=lambda: figures.against_records(
            rows, LASSO, "A proximal step keeps zeros; a subgradient never does", start=problem.excess(np.zeros(50))
        ),
    )


def _lasso_checks(rows: list[Row], sizes: tuple[int, ...], wanted: int) -> list[Check]:
    kept = {(row["method"], row["n"]): row["zeros kept"] for row in rows}
    plan, sub = ([risk_of(rows, name, n=n) for n in sizes] for name in ("planner", LASSO[2]))
    least = min(kept["planner", n] for n in sizes)
    return [
        Check("the proximal step keeps at least 95 % of the zeros", least >= 0.95, found=f"{100 * least:.1f} %"),
        Check("the subgradient step keeps none", max(kept[LASSO[2], n] for n in sizes) == 0),
        Check(
            "and stalls near 0.2",
            all(0.1 <= found <= 0.3 for found in sub),
            found=f"at {min(sub):.3f} to {max(sub):.3f}",
        ),
        Check(
            f"at the largest n the planned run is {wanted} times better",
            sub[-1] >= wanted * plan[-1],
            found=f"{sub[-1] / plan[-1]:.0f} times",
        ),
        Check(
            "with C = 100,000 the run ends worse than at its start",
            all(risk_of(rows, LASSO[3], n=n) > 1.425 for n in sizes),
        ),
    ]
