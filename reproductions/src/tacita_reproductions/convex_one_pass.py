r"""One pass over heavy-tailed records: what clipping, the order of the moment and acceleration are worth.

Synthetic problems where the excess risk is known; the library's own oracles, solvers and planner. The paper has no
experiments, so these were designed and measured first for this library.
Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Algorithm 2
and Theorem 31. Its :math:`\epsilon` is the ratio :math:`\mu` of one Gaussian query here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tacita.convex.heavy_tailed import HeavyTailedSetting, accelerated_bound, plan_heavy_tailed
from tacita_reproductions import figures
from tacita_reproductions.convex_problems import LeastSquares, LogNormalLogistic
from tacita_reproductions.convex_runs import (
    NO_CLIPPING,
    Steps,
    accelerated,
    averaged,
    mean_and_error,
    of_theorem,
    planned,
    repeated,
    slope,
    with_threshold,
)
from tacita_reproductions.runner import Check, Progress, Result, Row

RISK, ERROR = "excess risk", "s.e."
CLIPPING = ("theorem", "planner", "C = L_f", "not private")
LARGEST_SQUARED, LARGEST_LOGISTIC = 1.658e7, 1e4  # largest gradients: of the truncated squared loss; taken for L_f


def even(dim: int, norm: float) -> tuple[float, ...]:
    """Return a vector of the given norm whose coordinates are all equal."""
    return (norm / math.sqrt(dim),) * dim


def measured(found: Sequence[dict], methods: Mapping[str, Steps], **setting: float) -> list[Row]:
    """Return one row a method: its settings, and mean and standard error of the excess risk."""
    rows = []
    for name, how in methods.items():
        mean, error = mean_and_error([one[name] for one in found])
        rows.append({**setting, "method": name, "T": how.steps, "C": how.max_grad_norm, RISK: mean, ERROR: error})
    return rows


def risk_of(rows: Sequence[Row], method: str, **setting: float) -> float:
    """Return the mean excess risk in the row of a method and a setting."""
    (found,) = [row for row in rows if row["method"] == method and all(row[k] == v for k, v in setting.items())]
    return found[RISK]


# -- Clipping against the largest gradient


def clipping(full: bool, seed: int, progress: Progress) -> Result:
    """Compare thresholds from a second moment with the largest gradient as the threshold, on linear regression."""
    problem = LeastSquares(10, 1.0, even(10, 0.5), truncated=1000.0)
    sizes, repeats = ((2**12, 2**14, 2**16, 2**18), 40) if full else ((2**12, 2**14), 16)
    rows: list[Row] = []
    for done, n in enumerate(sizes):
        progress(done / len(sizes), f"{n:,} records")
        setting = HeavyTailedSetting(num_records=n, dim=10, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 6.0})
        theorem, plan = of_theorem(setting, 2), planned(plan_heavy_tailed(setting))
        largest = with_threshold(setting, theorem.steps, LARGEST_SQUARED, 2)
        unclipped = Steps(plan.steps, NO_CLIPPING, plan.lr)
        methods: dict[str, Steps] = dict(zip(CLIPPING, (theorem, plan, largest, unclipped), strict=True))

        def run(source, key, methods=methods):
            mus = (1.0, 1.0, 1.0, None)
            pairs = zip(methods.items(), mus, strict=True)
            return {name: accelerated(problem, source, how, mu=mu, seed=key) for (name, how), mu in pairs}

        rows += measured(repeated(problem, n, repeats, [seed, 2, n], run), methods, n=n)
    start = problem.excess(np.zeros(10))
    largest = min(risk_of(rows, "C = L_f", n=n) for n in sizes)
    falls = slope(sizes, [risk_of(rows, "planner", n=n) for n in sizes])
    return Result(
        rows=rows,
        checks=[
            Check(
                f"with the largest gradient as threshold runs end worse than at their start, {start:.3g}",
                largest > start,
                found=f"{largest:.3g} or more",
            ),
            Check(
                "the planned run's excess falls at least like n^-0.5",
                falls <= (-0.5 if full else -0.4),
                found=f"slope {falls:.2f}",
            ),
            Check(
                "the planned run is better than the theorem's settings at every n",
                all(risk_of(rows, "planner", n=n) < risk_of(rows, "theorem", n=n) for n in sizes),
            ),
        ],
        notes=[
            "Squared loss, 10 Student-t features (5 degrees of freedom), ball of radius 1, mu 1, k = 2, declared r_2 = "
            f"6. Mean excess risk of {repeats} runs on fresh records, with its standard error; {start:.3g} at the "
            "start.",
            "The theorem's settings include the paper's step size, which is up to half of the sharp one.",
        ],
        draw=lambda: figures.against_records(
            rows, CLIPPING, "A threshold from a moment, and one for the largest gradient", start=start
        ),
    )


# -- The order of the moment


MOMENTS: dict[float, float] = {2: 8.60, 4: 13.4, 8: 34.1}


def moments(full: bool, seed: int, progress: Progress) -> Result:
    """Compare orders of the moment, and privacy levels, on logistic regression with log-normal features."""
    problem = LogNormalLogistic(10, 2.0, even(10, 1.8))
    sizes, repeats = ((2**12, 2**14, 2**16), 10) if full else ((2**12, 2**14), 3)
    ratios = (0.25, 0.5, 1.0, 2.0, 4.0) if full else (0.5, 1.0, 4.0)
    cells = [(n, 1.0) for n in sizes] + [(2**14, mu) for mu in ratios if mu != 1.0]
    rows, chosen = list[Row](), list[float]()
    for done, (n, mu) in enumerate(cells):
        progress(done / len(cells), f"{n:,} records, mu {mu:g}")
        setting = _logistic(n, mu, MOMENTS)
        methods: dict[str, Steps] = {}
        for order, bound in MOMENTS.items():
            alone = _logistic(n, mu, {2: MOMENTS[2], order: bound})
            methods[f"k = {order}, theorem"] = of_theorem(alone, order)
            methods[f"k = {order}, planner"] = planned(plan_heavy_tailed(_logistic(n, mu, {order: bound})))
        methods["C = L_f"] = with_threshold(setting, methods["k = 2, theorem"].steps, LARGEST_LOGISTIC, 2)

        def run(source, key, methods=methods, mu=mu):
            return {name: accelerated(problem, source, how, mu=mu, seed=key) for name, how in methods.items()}

        found = repeated(problem, n, repeats, [seed, 3, n, round(100 * mu)], run)
        rows += measured(found, methods, n=n, mu=mu)
        chosen.append(plan_heavy_tailed(setting).order)
    return Result(rows=rows, checks=_order_checks(rows, sizes, sorted(ratios), chosen, full), notes=[
        "Logistic loss, 10 log-normal features with random signs, ball of radius 2, declared r_2 = 8.60, r_4 = 13.4, "
        f"r_8 = 34.1. Mean excess risk of {repeats} runs on fresh records, estimated on 200,000 others; "
        f"{problem.excess(np.zeros(10)):.3g} at the start."
    ], draw=lambda: figures.against_records(
        [row for row in rows if row["mu"] == 1.0],
        [f"k = {order}, {how}" for order in MOMENTS for how in ("planner", "theorem")],
        "A larger order helps while its moment is not too large", shades=2,
    ))  # fmt: skip


def _logistic(n: int, mu: float, bounds: Mapping[float, float]) -> HeavyTailedSetting:
    return HeavyTailedSetting(num_records=n, dim=10, rho=mu**2 / 2, diameter=4, smoothness=1.93, moment_bounds=bounds)


def _order_checks(
    rows: list[Row], sizes: Sequence[int], ratios: Sequence[float], chosen: Sequence[float], full: bool
) -> list[Check]:
    by_size = {k: [risk_of(rows, f"k = {k}, planner", n=n, mu=1.0) for n in sizes] for k in MOMENTS}
    by_ratio = [risk_of(rows, "k = 4, planner", n=2**14, mu=mu) for mu in ratios]
    gain, wanted = by_size[2][-1] / by_size[4][-1], 3.0 if full else 1.5
    return [
        Check(f"at n = {sizes[-1]:,} order 4 beats order 2 by {wanted:g} times", gain >= wanted, found=f"{gain:.2f}"),
        Check(
            "and order 8, whose moment is large",
            by_size[4][-1] < by_size[8][-1],
            found=f"{by_size[4][-1]:.3g} against {by_size[8][-1]:.3g}",
        ),
        Check("the excess falls with n for every planned order", all(_falls(found) for found in by_size.values())),
        Check("and with mu, for order 4", _falls(by_ratio)),
        Check(
            "the planner takes order 4 or 8",
            set(chosen) <= {4.0, 8.0},
            found=" and ".join(f"{order:g}" for order in sorted(set(chosen))),
        ),
    ]


def _falls(values: Sequence[float]) -> bool:
    return all(later < earlier for earlier, later in pairwise(values))


# -- Acceleration


@dataclass(frozen=True)
class Tuning:
    """What both methods are tuned over: steps, and multiples of the step size that the bound names."""

    steps: tuple[int, ...]
    multiples: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)


def acceleration(full: bool, seed: int, progress: Progress) -> Result:
    """Compare accelerated with averaged SGD, tuned alike, on ill-conditioned least squares."""
    optimum = (0.0,) * 3 + (9 / math.sqrt(27),) * 27
    problem = LeastSquares(30, 10.0, optimum, variances=(1.0,) * 3 + (0.02,) * 27)
    n, repeats = 2**17, 10 if full else 1
    tuning = Tuning((4, 8, 16, 32, 64, 128)) if full else Tuning((4, 32), (0.5, 4.0))
    ratios = (2.0, 8.0) if full else (8.0,)
    rows: list[Row] = []
    cells = [(mu, steps) for mu in ratios for steps in tuning.steps]

    def run(source, key):
        found = {}
        for done, (mu, steps) in enumerate(cells):
            progress(done / len(cells), f"mu {mu:g}, {steps} steps")
            for multiple in tuning.multiples:
                fast, plain = _tuned(n, mu, steps, multiple)
                found["accelerated", mu, steps, multiple] = accelerated(problem, source, fast, mu=mu, seed=key)
                found["averaged", mu, steps, multiple] = averaged(problem, source, plain, mu=mu, seed=key)
        return found

    every = repeated(problem, n, repeats, [seed, 4], run)
    for mu, steps in cells:
        row: dict = {"mu": mu, "T": steps}
        for method in ("accelerated", "averaged"):
            found = {q: mean_and_error([one[method, mu, steps, q] for one in every]) for q in tuning.multiples}
            best = min(found, key=lambda q: found[q][0])
            row |= {method: found[best][0], f"{method}, s.e.": found[best][1], f"{method}, multiple": best}
        rows.append(row)
    return Result(rows=rows, checks=_acceleration_checks(rows, full), notes=[
        "Squared loss, 30 Student-t features with variances 1 (3) and 0.02 (27), the optimum 9 away in the flat ones, "
        f"ball of radius 10, {n:,} records, k = 2, r_2 = 4, the theorem's threshold for each T. Mean excess risk of "
        f"{repeats} runs at the best of {len(tuning.multiples)} step sizes, which are chosen on the same runs; 0.81 at "
        "the start.",
        "The band of 1.3 to 2 comes from 5 data sets of a prototype. On 120 data sets the ratio at mu 2 was 1.22: "
        "noise, which acceleration amplifies, is more than half of its excess there.",
    ], draw=lambda: figures.acceleration(rows))  # fmt: skip


def _tuned(n: int, mu: float, steps: int, multiple: float) -> tuple[Steps, Steps]:
    """Return accelerated and averaged SGD for T steps, with step sizes changed by one factor."""
    setting = HeavyTailedSetting(
        num_records=n, dim=30, rho=mu**2 / 2, diameter=20, smoothness=1, moment_bounds={2: 4.0}
    )
    threshold = 4 * math.sqrt(mu * n / math.sqrt(30 * steps))
    affine = HeavyTailedSetting(num_records=n, dim=30, rho=mu**2 / 2, diameter=20, moment_bounds={2: 4.0})
    uncapped = 1 / (2 * float(accelerated_bound(affine, steps=steps, max_grad_norm=threshold, order=2).lr))
    least = 2 * setting.smoothness
    eta = max(least, multiple * uncapped) if multiple < 1 else multiple * max(least, uncapped)
    plain = multiple / (2 * setting.smoothness)
    return Steps(steps, threshold, 1 / (2 * eta)), Steps(steps, threshold, plain)


def _acceleration_checks(rows: list[Row], full: bool) -> list[Check]:
    checks = []
    for mu in sorted({row["mu"] for row in rows}):
        here = {row["T"]: row for row in rows if row["mu"] == mu}
        at_32 = here[32]["averaged"] / here[32]["accelerated"]
        wanted = 3.0 if mu == 8 else 1.5
        checks += [
            Check(
                f"mu {mu:g}: acceleration wins by {wanted:g} times or more at T = 32",
                at_32 >= wanted,
                found=f"{at_32:.2f}",
            ),
            Check(
                f"mu {mu:g}: with 4 steps plain averaging is better",
                here[4]["averaged"] < here[4]["accelerated"],
                found=f"{here[4]['averaged']:.3g} against {here[4]['accelerated']:.3g}",
            ),
        ]
        if full:
            best = [min(row[method] for row in here.values()) for method in ("accelerated", "averaged")]
            gain = best[1] / best[0]
            says = f"mu {mu:g}: acceleration wins by 1.3 to 2 times at the best T"
            checks.append(Check(says, 1.3 <= gain <= 2.0, found=f"{gain:.2f}"))
    return checks
