"""``tacita plan``: what theory says of a training before any data are touched, and where it says nothing.

Place: cli.app -> [cli.plan] -> theory.planner, report. Nothing here reads data: every number is declared.
"""

import sys
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from tacita.accounting import NeighboringRelation
from tacita.cli.outputs import check_figure, check_file, say_written, write_json
from tacita.report.plan_figure import plan_figure
from tacita.report.plan_text import as_record, show
from tacita.report.style import image_kind
from tacita.theory.planner import PlanSetting, Sampling, plan_dp_clipped_sgd
from tacita.theory.problem import ConvexProblem, NonConvexProblem, Problem

PRIVACY = Parameter(group="The guarantee", negative=())
PROBLEM = Parameter(group="The problem (public, declared)", negative=())
TRAINING = Parameter(group="The training", negative=())
OUTPUT = Parameter(group="Output", negative=())
DPI = 200
WIDTH = 100  # of the text when it is piped


def plan(
    *,
    epsilon: Annotated[float, PRIVACY],
    delta: Annotated[float, PRIVACY],
    neighboring_relation: Annotated[NeighboringRelation, PRIVACY],
    num_records: Annotated[int, PROBLEM],
    dim: Annotated[int, PROBLEM],
    smoothness: Annotated[float, PROBLEM],
    moment_scale: Annotated[float, PROBLEM],
    moment_order: Annotated[float, PROBLEM] = 2.0,
    radius: Annotated[float | None, PROBLEM] = None,
    initial_gap: Annotated[float | None, PROBLEM] = None,
    batch_size: Annotated[int, TRAINING],
    steps: Annotated[int, TRAINING],
    sampling: Annotated[Sampling, TRAINING] = "poisson",
    failure_probability: Annotated[float, TRAINING] = 0.05,
    plot: Annotated[str | None, OUTPUT] = None,
    json: Annotated[str | None, OUTPUT] = None,
) -> int:
    """What error to expect from DP-SGD with a fixed threshold: threshold, noise, step size, and what would help.

    No data are read. The theory's constants are large: where its bound says nothing, the plan says so and gives a
    measured rule of thumb. docs/theory.md explains every line.

    Example: tacita plan --epsilon 2 --delta 1e-6 --neighboring-relation add_or_remove_one --num-records 60000
    --dim 1000 --smoothness 1 --radius 3 --moment-scale 1 --batch-size 1200 --steps 500 --plot plan.png

    Args:
        epsilon: Budget.
        delta: Budget; well below one over the number of records.
        neighboring_relation: add_or_remove_one, replace_one or zero_out_one.
        num_records: Public number of records.
        dim: Number of parameters.
        smoothness: L: the gradient changes by at most L times the distance.
        moment_scale: sigma: root of the moment of a sample's gradient about its mean.
        moment_order: alpha in (1, 2]; 2 is the variance, less is a heavier tail.
        radius: Convex problem: distance from the start to a minimiser, at most.
        initial_gap: Non-convex problem: objective at the start over its infimum, at most.
        batch_size: Expected records a step.
        steps: Steps, a private query each.
        sampling: poisson; full_batch; one_pass (disjoint batches, each record used once).
        failure_probability: Of the convergence statement; privacy holds surely.
        plot: PNG, SVG or PDF to write (needs the extra [report]).
        json: JSON to write.
    """
    check_file("json", json)
    check_figure("plot", plot)
    setting = PlanSetting(
        problem=_problem(
            radius,
            initial_gap,
            smoothness=smoothness,
            moment_scale=moment_scale,
            moment_order=moment_order,
            dim=dim,
        ),
        num_records=num_records,
        batch_size=batch_size,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        relation=neighboring_relation,
        sampling=sampling,
        failure_probability=failure_probability,
    )
    with Console(stderr=True).status("working out the noise ..."):
        found = plan_dp_clipped_sgd(setting)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH, no_color=True)
    show(found, console)
    if json is not None:
        write_json(json, as_record(found))
        say_written(json)
    if plot is not None:
        plan_figure(found).savefig(plot, format=image_kind(plot), dpi=DPI)
        say_written(plot)
    return 0


def _problem(radius: float | None, gap: float | None, **shared: float) -> Problem:
    if radius is not None and gap is None:
        return ConvexProblem(radius=radius, **shared)
    if gap is not None and radius is None:
        return NonConvexProblem(initial_gap=gap, **shared)
    raise ValueError(
        "give --radius for a convex problem (distance from the start to a minimiser) or --initial-gap for a non-convex "
        "one (objective at the start over its infimum), and not both."
    )
