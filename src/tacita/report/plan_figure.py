"""The figure of a plan: the error against the threshold, and against epsilon."""

from typing import Any

import numpy as np

from tacita.clipped_sgd.planner import ClippedSGDPlan, error_by_epsilon, theorem_bound
from tacita.clipped_sgd.rule_of_thumb import error_parts
from tacita.report.style import FAINT, INK, PALETTE, heading, new_figure, plain_log, styled

NAMES = {
    "bias": "bias of clipping",
    "dp": "privacy noise",
    "stat": "gradient noise",
    "jump": "largest step",
    "smooth": "too few steps",
}
COLORS = dict(zip(NAMES, PALETTE, strict=False))
POINTS = 241
AROUND = 30.0  # the axis goes from a thirtieth of the plan's epsilon to thirty times it


@styled
def plan_figure(plan: ClippedSGDPlan) -> Any:
    """Draw the error against the threshold and against epsilon, by the rule of thumb and, where proved, the theorem.

    Returns:
        A ``matplotlib`` figure, neither shown nor saved.

    Raises:
        TacitaError: matplotlib is not installed.
    """
    figure, (left, right) = new_figure(1, 2, size=(11.4, 4.8))
    _by_threshold(left, plan)
    _by_epsilon(right, plan)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower left", ncols=7, columnspacing=1.4, handlelength=1.5
    )
    setting = plan.setting
    heading(
        figure,
        f"ε = {setting.epsilon:g}, δ = {setting.delta:g}, {setting.num_records:,} records, "
        f"{setting.steps:,} steps of {setting.batch_size:,}: the theorem {theorem_status(plan)}",
    )
    return figure


def theorem_status(plan: ClippedSGDPlan) -> str:
    """Return the words that follow "the theorem": whether it is proved for the plan, and vacuous."""
    if plan.theorem is None:
        return "is not proved here"
    return "says nothing here" if plan.theorem.is_vacuous else "says something here"


def _by_threshold(axes: Any, plan: ClippedSGDPlan) -> None:
    setting, problem = plan.setting, plan.setting.problem
    best = [] if plan.theorem is None else [plan.theorem.best.max_grad_norm]
    ends = sorted((*best, plan.thumb.max_grad_norm))
    c = np.geomspace(ends[0] / 20, ends[-1] * 20, POINTS)
    parts = error_parts(
        problem, max_grad_norm=c, steps=setting.steps, noise_ratio=plan.noise_ratio, batch_size=setting.batch_size
    )
    rough = plan.thumb.terms["smooth"] + float(problem.error_scale) * np.sum(list(parts.values()), axis=0)
    top = _theorem_lines(axes, plan, c) if plan.theorem is not None else 20 * float(rough.min())
    axes.loglog(c, rough, color=INK, lw=1.6, ls="--", label="rule of thumb")
    _dot(axes, plan.thumb.max_grad_norm, float(np.interp(plan.thumb.max_grad_norm, c, rough)))
    trivial = float(problem.trivial_value)
    axes.set_ylim(max(rough.min() / 10, 1e-9 * trivial), max(1e3 * trivial, top))
    axes.set(title="error against threshold", xlabel="clipping threshold C (gradient units)", ylabel=problem.metric)
    _finish(axes, trivial)


def _theorem_lines(axes: Any, plan: ClippedSGDPlan, c: np.ndarray) -> float:
    """Draw the theorem's bound and its terms; return the height that the axis needs for them."""
    assert plan.theorem is not None
    bound = theorem_bound(plan.setting, plan.noise_ratio, c)
    axes.loglog(c, bound.value, color=INK, lw=2.6, label="theorem: largest of")
    for name, words in NAMES.items():
        axes.loglog(c, np.broadcast_to(bound.terms[name], c.shape), color=COLORS[name], lw=1.3, label=words)
    least = float(plan.theorem.best.bound.value)
    _dot(axes, plan.theorem.best.max_grad_norm, least)
    return 20 * least


def _by_epsilon(axes: Any, plan: ClippedSGDPlan) -> None:
    setting, problem = plan.setting, plan.setting.problem
    epsilons = np.geomspace(setting.epsilon / AROUND, setting.epsilon * AROUND, 25).tolist()
    bounds, rough = zip(*error_by_epsilon(plan, epsilons), strict=True)
    if plan.theorem is not None:
        axes.loglog(epsilons, bounds, color=INK, lw=2.6)
        _dot(axes, setting.epsilon, float(plan.theorem.best.bound.value))
    axes.loglog(epsilons, rough, color=INK, lw=1.6, ls="--")
    axes.axvline(setting.epsilon, color=PALETTE[1], lw=1.2)
    _dot(axes, setting.epsilon, plan.thumb.estimate)
    axes.annotate(
        f"ε = {setting.epsilon:g}",
        (setting.epsilon, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -10),
        textcoords="offset points",
        color=PALETTE[1],
        fontsize=9,
    )
    axes.set(title="error against epsilon", xlabel="ε at the same δ")
    _finish(axes, float(problem.trivial_value))


def _finish(axes: Any, trivial: float) -> None:
    axes.axhline(trivial, color=FAINT, lw=1, ls=":")
    axes.annotate(
        "before the first step",
        (0.01, trivial),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        color=FAINT,
        fontsize=9,
    )
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)


def _dot(axes: Any, x: float, y: float) -> None:
    axes.plot(x, y, "o", color=INK, ms=7, mec="white", mew=1.3, zorder=5)
