"""What ``tacita plan`` computes and shows, from the options that :mod:`tacita.cli.plan_options` declares."""

import sys
from typing import Any

from rich.console import Console

from tacita.cli.outputs import say_written, write_json
from tacita.cli.plan_options import FederatedOptions, PlanGuarantee, PlanProblem, PlanTraining, SecondOrderOptions
from tacita.cli.working import Working
from tacita.clipped_sgd.plan_setting import PlanSetting
from tacita.clipped_sgd.planner import plan_dp_clipped_sgd
from tacita.clipped_sgd.problem import ConvexProblem, NonConvexProblem, Problem
from tacita.federated.clip21_plan import FederatedSetting, plan_clip21
from tacita.report.federated_plan import federated_figure, federated_record, show_federated
from tacita.report.plan_figure import plan_figure
from tacita.report.plan_text import as_record, show
from tacita.report.second_order_text import second_order_record, show_second_order
from tacita.report.style import image_kind
from tacita.second_order.noisy_sgd_plan import NoisySGDSetting, plan_noisy_sgd

DPI = 200
WIDTH = 100  # of the text when it is piped


def first_order(setting: PlanSetting, plot: str | None, json: str | None) -> None:
    """Show the plan of DP-Clipped-SGD, and write it to the files that are asked for."""
    with Working("computing the noise"):
        found = plan_dp_clipped_sgd(setting)
    show(found, _console())
    _write(json, as_record(found))
    if plot is not None:
        plan_figure(found).savefig(plot, format=image_kind(plot), dpi=DPI)
        say_written(plot)


def second_order(setting: NoisySGDSetting, json: str | None) -> None:
    """Show the plan of noisy SGD to a second-order point, and write it if a file is asked for."""
    with Working("computing epsilon"):
        found = plan_noisy_sgd(setting)
    show_second_order(found, _console())
    _write(json, second_order_record(found))


def federated(setting: FederatedSetting, plot: str | None, json: str | None) -> None:
    """Show the plan of a federation with Clip21-SGDM, and write it to the files that are asked for."""
    found = plan_clip21(setting)
    show_federated(found, _console())
    _write(json, federated_record(found))
    if plot is not None:
        federated_figure(found).savefig(plot, format=image_kind(plot), dpi=DPI)
        say_written(plot)


def first_order_setting(guarantee: PlanGuarantee, problem: PlanProblem, training: PlanTraining) -> PlanSetting:
    """Return what the options say to the first plan; raise ``ValueError`` where one is missing."""
    if training.steps is None:
        raise ValueError("steps is missing: give --steps (with --second-order it follows from the accuracy).")
    return PlanSetting(
        problem=_problem(problem),
        num_records=problem.num_records,
        batch_size=training.batch(problem.num_records),
        steps=training.steps,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        relation=guarantee.neighboring_relation,
        sampling=training.sampling,
        failure_probability=training.failure_probability,
    )


def second_order_setting(
    guarantee: PlanGuarantee, problem: PlanProblem, training: PlanTraining, second: SecondOrderOptions
) -> NoisySGDSetting:
    """Return what the options say to the second-order plan; raise ``ValueError`` where one is missing."""
    return NoisySGDSetting(
        num_records=problem.num_records,
        dim=problem.dim,
        batch_size=training.batch(problem.num_records),
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        relation=guarantee.neighboring_relation,
        smoothness=problem.smoothness,
        hessian_lipschitz=_needed("hessian_lipschitz", second.hessian_lipschitz),
        initial_gap=_needed("initial_gap", problem.initial_gap),
        gradient_noise=problem.moment_scale,
        accuracy=second.accuracy,
        gradient_bound=second.gradient_bound,
        concentrated=not second.no_concentration,
    )


def federated_setting(
    guarantee: PlanGuarantee, problem: PlanProblem, training: PlanTraining, clients: FederatedOptions
) -> FederatedSetting:
    """Return what the options say to the federated plan; raise ``ValueError`` where one is missing."""
    if training.steps is None:
        raise ValueError("steps is missing: --federated needs --steps, the number of rounds.")
    return FederatedSetting(
        num_clients=problem.num_records,
        rounds=training.steps,
        dim=problem.dim,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        smoothness=problem.smoothness,
        initial_gap=_needed("initial_gap", problem.initial_gap, "federated"),
        largest_grad=_needed("largest_grad", clients.largest_grad, "federated"),
        gradient_noise=problem.moment_scale,
        max_grad_norm=clients.max_grad_norm,
        failure_probability=training.failure_probability,
    )


def _needed(name: str, value: float | None, plan: str = "second-order") -> float:
    if value is None:
        raise ValueError(f"{name} is missing: --{plan} needs --{name.replace('_', '-')}.")
    return value


def _problem(declared: PlanProblem) -> Problem:
    """Return the theory's problem; raise ``ValueError`` unless exactly one of radius and gap is given."""
    shared: dict[str, Any] = {
        "smoothness": declared.smoothness,
        "moment_scale": declared.moment_scale,
        "moment_order": declared.moment_order,
        "dim": declared.dim,
    }
    if declared.radius is not None and declared.initial_gap is None:
        return ConvexProblem(radius=declared.radius, **shared)
    if declared.initial_gap is not None and declared.radius is None:
        return NonConvexProblem(initial_gap=declared.initial_gap, **shared)
    raise ValueError(
        "give --radius for a convex problem (distance from the start to a minimiser) or --initial-gap for a "
        "non-convex one (objective at the start minus its infimum), and not both."
    )


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=WIDTH, no_color=True)


def _write(json: str | None, record: dict[str, Any]) -> None:
    if json is not None:
        write_json(json, record)
        say_written(json)
