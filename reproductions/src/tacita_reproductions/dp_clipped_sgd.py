r"""Experiments with a fixed clipping threshold under heavy tails: floor, trade-off with privacy, quantiles, rate.

The paper has no experiments. These show what its theory says, and were measured for this library. The noise has a
skewed (one-sided Pareto) distribution, because under a symmetric one clipping has no bias at the optimum and leaves no
floor. They measure averages: in one dimension the path crosses the optimum, so the best iterate is a useless measure.
"""

import math

import numpy as np
from scipy.optimize import brentq

from tacita.accounting import gaussian_mu
from tacita.clipped_sgd import average_iterate_bound, convergence_bound
from tacita_reproductions import figures
from tacita_reproductions.clipped_sgd import run
from tacita_reproductions.dp_clipped_sgd_paper import growing_threshold
from tacita_reproductions.heavy_tails import AlphaStable, Array, NoisyQuadratic, OneSidedPareto, StudentT
from tacita_reproductions.runner import Check, Progress, Result, span

SKEW = OneSidedPareto(tail=1.5)
DELTA = 1e-5


def stationary(threshold: float) -> float:
    """Return the stationary point y of clipped SGD on x^2 / 2 with skewed noise, where E clip(y + xi, C) = 0.

    Example:
        >>> round(stationary(4.0), 6)
        0.803442
    """
    return float(brentq(lambda y: SKEW.clipped_mean(threshold, y), 0.0, 1.0, xtol=1e-14))  # type: ignore[arg-type]


def floor(full: bool, seed: int, progress: Progress) -> Result:
    """Compare the gap that a fixed threshold leaves with its prediction."""
    thresholds = [2.0, 4, 8, 16, 32, 64, 128] if full else [2.0, 4, 8, 16, 32]
    toy = NoisyQuadratic(noise=SKEW, start=(5.0,))
    found = run(
        toy,
        max_grad_norm=np.array(thresholds),
        lr=0.01,
        steps=20_000,
        runs=1600 if full else 400,
        generator=np.random.default_rng(seed),
        skip=10_000,
        on_progress=lambda share: progress(share, "steps"),
    )
    rows = [
        {"C": c, "rests at": (y := stationary(c)), "predicted gap": y**2 / 2, "median gap": float(np.median(gaps))}
        for c, gaps in zip(thresholds, found.average, strict=True)
    ]
    apart = max(abs(row["median gap"] / row["predicted gap"] - 1) for row in rows)
    return Result(
        rows=rows,
        checks=[
            Check("every measured gap is within 10 % of its prediction", apart < 0.1, found=f"within {apart:.1%}"),
        ],
        notes=["f(x) = x^2 / 2 from 5, lr 0.01, 20 000 steps, no privacy noise; gap of the average of the last half."],
        draw=lambda: figures.floor(rows),
    )


def trade_off(full: bool, seed: int, progress: Progress) -> Result:
    """Measure the gap against the threshold for several epsilons: a U whose bottom moves right as epsilon grows."""
    thresholds: Array = np.exp2(np.arange(-2.0, 7.0))
    epsilons = (None, 32.0, 8.0, 2.0, 1.0, 0.5)
    per_threshold: Array = np.array([0.0, *(_one_pass(e) for e in epsilons if e is not None)])
    toy = NoisyQuadratic(noise=SKEW, start=(5 / math.sqrt(10),) * 10)
    found = run(
        toy,
        max_grad_norm=thresholds[:, None],
        noise_std=thresholds[:, None] * per_threshold,
        lr=0.01,
        steps=4000,
        runs=200 if full else 60,
        generator=np.random.default_rng(seed),
        skip=2000,
        on_progress=lambda share: progress(share, "steps"),
    )
    gaps = np.median(found.average, axis=-1)
    names = ["no privacy" if e is None else f"epsilon {e:g}" for e in epsilons]
    rows = [
        {"C": float(c), **{name: float(x) for name, x in zip(names, line, strict=True)}}
        for c, line in zip(thresholds, gaps, strict=True)
    ]
    best = gaps.argmin(axis=0)  # from no privacy to epsilon 0.5
    right = [gaps[-1, j] / gaps[-2, j] for j in range(2, len(epsilons))]
    checks = [
        Check(
            "without privacy the gap falls with the threshold",
            bool(np.all(np.diff(gaps[:, 0]) < 0)),
            found=f"from {gaps[0, 0]:.3g} at C {thresholds[0]:g} to {gaps[-1, 0]:.3g} at C {thresholds[-1]:g}",
        ),
        Check(
            "for epsilon 2, 8 and 32 the best threshold is inside the range",
            all(0 < best[j] < len(thresholds) - 1 for j in (1, 2, 3)),
            found=", ".join(f"C {thresholds[best[j]]:g} for {names[j]}" for j in (3, 2, 1)),
        ),
        Check(
            "the best threshold does not fall as epsilon grows",
            bool(np.all(np.diff(best) <= 0)),
            found=", ".join(f"C {thresholds[j]:g}" for j in best[::-1]),
        ),
        Check(
            "right of the best, doubling the threshold costs about 4 times",
            all(3.4 < x < 4.6 for x in right),
            found=f"{span(right)} times",
        ),
    ]
    return Result(
        rows=rows,
        checks=checks,
        notes=[
            "f(x) = |x|^2 / 2 in 10 dimensions, lr 0.01, 4000 steps, one pass, replace-one, delta 1e-5; median gap of "
            "the average of the last half. Its value at the start is 12.5."
        ],
        draw=lambda: figures.trade_off(rows),
    )


def quantiles(full: bool, seed: int, progress: Progress) -> Result:
    """Measure quantiles of the gap: clipping removes the tail that plain SGD has."""
    runs, levels = (20_000 if full else 10_000), (0.5, 0.9, 0.99, 0.999, 0.9999)
    rows: list[dict] = []
    laws = (1.5, 2.5) if full else (1.5,)
    for i, tail in enumerate(laws):
        found = run(
            NoisyQuadratic(noise=StudentT(tail=tail, size=0.5), start=(1.0, 0, 0, 0, 0)),
            max_grad_norm=np.array([math.inf, 10.0, 4.0]),
            lr=0.02,
            steps=1000,
            runs=runs,
            generator=np.random.default_rng(seed),
            on_progress=lambda share, i=i: progress((i + share) / len(laws), "steps"),
        )
        for gaps, kind in ((found.last, "last"), (found.average, "average"), (found.best, "best")):
            for line, method in zip(gaps, ("not clipped", "C = 10", "C = 4"), strict=True):
                values = np.quantile(line, levels)
                named = {f"{level * 100:g} %": float(v) for level, v in zip(levels, values, strict=True)}
                ratio = float(values[3] / values[0])
                rows.append({"degrees": tail, "iterate": kind, "method": method, **named, "99.9 % / median": ratio})
    ratios = {(row["degrees"], row["iterate"], row["method"]): row["99.9 % / median"] for row in rows}
    checks = [
        Check(
            "unclipped SGD: the 99.9 % quantile is over 100 medians",
            ratios[1.5, "last", "not clipped"] > 100,
            found=f"{ratios[1.5, 'last', 'not clipped']:.3g} medians",
        ),
        Check(
            "clipped SGD: the 99.9 % quantile is under 15 medians",
            max(ratios[1.5, "last", f"C = {c}"] for c in (10, 4)) < 15,
            found=f"{span(ratios[1.5, 'last', f'C = {c}'] for c in (10, 4))} medians",
        ),
        Check(
            "the best iterate hides the tail: under 15 medians for unclipped SGD too",
            ratios[1.5, "best", "not clipped"] < 15,
            found=f"{ratios[1.5, 'best', 'not clipped']:.3g} medians",
        ),
    ]
    return Result(
        rows=rows,
        checks=checks,
        notes=[
            "f(x) = |x|^2 / 2 in 5 dimensions, multivariate Student t noise times 1/2, lr 0.02, 1000 steps, "
            f"{runs:,} runs, no privacy noise."
        ],
        draw=lambda: figures.quantiles(rows),
    )


def rate(full: bool, seed: int, progress: Progress) -> Result:
    """Measure the gap against the number of steps, for a fixed threshold and for one that grows with the steps.

    With a fixed threshold the gap falls to its floor like 1 / sqrt(steps). A growing threshold has no floor, but with
    privacy its noise grows.
    """
    all_steps = [100, 300, 1000, 3000, 10_000, *([30_000, 100_000] if full else [])]
    problem = NoisyQuadratic(noise=OneSidedPareto(tail=1.5), start=(5.0,)).problem(1.4)
    rows = [_after(steps, 400 if full else 1000, seed, progress) for steps in all_steps]
    return Result(
        rows=rows,
        checks=_rate_checks(rows),
        notes=[
            "f(x) = x^2 / 2 from 5, lr 1 / sqrt(steps), gap of the average of the last half. Growing C is "
            "(K / ln(K / 0.05))^(1 / 1.4). Privacy: one pass, replace-one, delta 1e-5. "
            f"Moment of order 1.4: {problem.scale:.4f}."
        ],
        draw=lambda: figures.rate(rows),
    )


def _after(steps: int, runs: int, seed: int, progress: Progress) -> dict[str, float]:
    """Return the row of :func:`rate` for a number of steps."""
    growing = _growing(steps)
    found = run(
        NoisyQuadratic(noise=SKEW, start=(5.0,)),
        max_grad_norm=np.array([4.0, 16.0, growing, 4.0, growing]),
        noise_std=np.array([0, 0, 0, 4.0, growing]) * _one_pass(8.0),
        lr=1 / math.sqrt(steps),
        steps=steps,
        runs=runs,
        generator=np.random.default_rng(seed),
        skip=steps // 2,
        on_progress=lambda share: progress(share, f"{steps} steps"),
    )
    low, high = np.median(found.average, axis=-1), np.quantile(found.average, 0.95, axis=-1)
    return {
        "steps": steps,
        "C = 4: median": float(low[0]),
        "C = 4: 95 % over floor": float(high[0]) - stationary(4.0) ** 2 / 2,
        "C = 16: 95 % over floor": float(high[1]) - stationary(16.0) ** 2 / 2,
        "growing C": growing,
        "growing C: median": float(low[2]),
        "C = 4, epsilon 8: 95 %": float(high[3]),
        "growing C, epsilon 8: 95 %": float(high[4]),
    }


def _rate_checks(rows: list[dict[str, float]]) -> list[Check]:
    slope = _slope([row["steps"] for row in rows], [row["C = 4: 95 % over floor"] for row in rows])
    medians, private = ([row[name] for row in rows] for name in ("growing C: median", "growing C, epsilon 8: 95 %"))
    fixed = [row["C = 4, epsilon 8: 95 %"] for row in rows]
    return [
        Check("fixed C: the excess falls like steps^-0.5, within 0.1", -0.6 < slope < -0.4, found=f"steps^{slope:.2f}"),
        Check(
            "growing C without privacy: the median falls with the steps",
            bool(np.all(np.diff(medians) < 0)),
            found=_ends(medians),
        ),
        Check(
            "growing C with privacy: the 95 % quantile grows from first to last",
            private[-1] > 2 * private[0],
            found=_ends(private),
        ),
        Check(
            "fixed C with privacy: the 95 % quantile falls from first to last",
            fixed[-1] < fixed[0] / 2,
            found=_ends(fixed),
        ),
    ]


def _ends(values: list[float]) -> str:
    return f"from {values[0]:.3g} to {values[-1]:.3g}"


def theorem(full: bool, seed: int, progress: Progress) -> Result:
    """Compare the exact theorem with runs of the easiest problem: it holds, it is not vacuous, and it is loose."""
    steps, dim, sigma = 99_999, 5, 0.001
    noise = AlphaStable(tail=2.0, size=sigma / math.sqrt(2 * dim))  # Gaussian of total variance sigma^2
    toy = NoisyQuadratic(noise=noise, start=(1.0, *(0.0,) * (dim - 1)))
    bound = convergence_bound(toy.problem(2.0), max_grad_norm=4.0, steps=steps, failure_probability=0.05)
    average = average_iterate_bound(toy.problem(2.0), lr=bound.lr, max_grad_norm=4.0, steps=steps)
    found = run(
        toy,
        max_grad_norm=4.0,
        lr=bound.lr,
        steps=steps,
        runs=200 if full else 20,
        generator=np.random.default_rng(seed),
        on_progress=lambda share: progress(share, "steps"),
    )
    rows = [
        {"iterate": "best", "worst gap of all runs": float(found.best.max()), "theorem": bound.value, "trivial": 0.5},
        {"iterate": "average", "worst gap of all runs": float(found.average.max()), "theorem": average, "trivial": 0.5},
    ]
    checks = [
        Check(
            "every run is within the theorem",
            all(row["worst gap of all runs"] < row["theorem"] for row in rows),
            found="; ".join(f"{row['worst gap of all runs']:.3g} within {row['theorem']:.3g}" for row in rows),
        ),
        Check(
            "the theorem is not vacuous: its value is below the trivial one",
            not bound.is_vacuous,
            found=f"{bound.value:.3g} below {rows[0]['trivial']:g}",
        ),
        Check(
            "the theorem is loose: its value is over 20 times the worst gap",
            all(row["theorem"] > 20 * row["worst gap of all runs"] for row in rows),
            found=f"{span(row['theorem'] / row['worst gap of all runs'] for row in rows)} times",
        ),
    ]
    notes = [
        f"Gaussian noise of total standard deviation 0.001, C = 4, lr {bound.lr:.4g} ({bound.binding_term} binds)."
    ]
    return Result(rows=rows, checks=checks, notes=notes)


def _one_pass(epsilon: float) -> float:
    """Return the noise for a threshold of one if each record is used once, under replace-one."""
    return 2 / gaussian_mu(epsilon, DELTA)


def _growing(steps: int) -> float:
    """Return the growing threshold of Table 1, row 1, for a moment scale of one and beta = 0.05."""
    from tacita.clipped_sgd import ConvexProblem

    unit = ConvexProblem(smoothness=1, radius=1, moment_scale=1, moment_order=1.4)
    return float(growing_threshold(unit, steps=steps, failure_probability=0.05))


def _slope(x: list[float], y: list[float]) -> float:
    """Return the slope of the line fitted to the logarithms."""
    lines: Array = np.polyfit(np.log(x), np.log(y), 1)
    return float(lines[0])
