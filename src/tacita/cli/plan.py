"""``tacita plan``: what theory says of a training before any data are read, and where it says nothing.

Every number is declared by the user.
"""

from typing import Annotated

from cyclopts import Parameter

from tacita.cli.outputs import check_figure, check_file
from tacita.cli.plan_options import FederatedOptions, PlanGuarantee, PlanProblem, PlanTraining, SecondOrderOptions

FLAT = Parameter(name="*")  # an object's fields are options by their own names
OUTPUT = Parameter(group="Output", negative=())


def plan(
    *,
    guarantee: Annotated[PlanGuarantee, FLAT],
    problem: Annotated[PlanProblem, FLAT],
    training: Annotated[PlanTraining, FLAT] = PlanTraining(),  # noqa: B008 - frozen
    second: Annotated[SecondOrderOptions, FLAT] = SecondOrderOptions(),  # noqa: B008 - frozen
    clients: Annotated[FederatedOptions, FLAT] = FederatedOptions(),  # noqa: B008 - frozen
    plot: Annotated[str | None, OUTPUT] = None,
    json: Annotated[str | None, OUTPUT] = None,
) -> int:
    """Plan DP-SGD with a fixed threshold: threshold, noise, step size, expected error, and what would help.

    No data are read. The theory's constants are large. Where its bound is vacuous, or is not proved for the sampling,
    the plan says so and gives a measured rule of thumb. docs/theory.md explains every line.

    With --second-order, plan noisy SGD to a second-order stationary point: noise, step size and steps, which of the
    paper's conditions hold, and the accountant's epsilon beside the paper's. This needs --hessian-lipschitz and
    --initial-gap; --moment-scale is then the root mean squared distance of a sample's gradient from the mean.

    With --federated, plan Clip21-SGDM with local privacy: the noise of a client's message, and Theorems 2 to 4 of its
    paper. --num-records is the number of clients; --moment-scale is the scale of a client's gradient noise. This needs
    --initial-gap, --largest-grad and --steps.

    Example: tacita plan --epsilon 2 --delta 1e-6 --neighboring-relation add_or_remove_one --num-records 60000
    --dim 1000 --smoothness 1 --radius 3 --moment-scale 1 --batch-size 1200 --steps 500 --plot plan.png

    Args:
        plot: Write a figure to this file (PNG, SVG or PDF; needs the extra [report]); not with --second-order.
        json: Write the plan as JSON to this file.
    """
    from tacita.cli import planning

    check_file("json", json)
    check_figure("plot", plot)
    if clients.federated:
        _check_federated(problem, training, second)
        planning.federated(planning.federated_setting(guarantee, problem, training, clients), plot, json)
    elif clients != FederatedOptions():
        raise ValueError(
            "largest_grad and max_grad_norm can be given only with --federated: add it, or leave them out."
        )
    elif second.second_order:
        _check_second_order(problem, training, plot)
        planning.second_order(planning.second_order_setting(guarantee, problem, training, second), json)
    else:
        _check_first_order(second)
        planning.first_order(planning.first_order_setting(guarantee, problem, training), plot, json)
    return 0


def _check_federated(problem: PlanProblem, training: PlanTraining, second: SecondOrderOptions) -> None:
    """Raise ``ValueError`` for options of the other plans, which would have no effect here."""
    given = {"radius": problem.radius, "batch_size": training.batch_size}
    other = [name for name, value in given.items() if value is not None]
    other += ["moment_order"] * (problem.moment_order != 2.0) + ["sampling"] * (training.sampling != "poisson")
    other += ["second_order and its options"] * (second != SecondOrderOptions())
    if other:
        raise ValueError(f"{_listed(other)} cannot be given with --federated: leave out {_these(other)}.")


def _check_second_order(problem: PlanProblem, training: PlanTraining, plot: str | None) -> None:
    """Raise ``ValueError`` for options of the other plan, which would have no effect here."""
    given = {"steps": training.steps, "radius": problem.radius, "plot": plot}
    other = [name for name, value in given.items() if value is not None]
    other += ["moment_order"] * (problem.moment_order != 2.0) + ["sampling"] * (training.sampling != "poisson")
    if other:
        raise ValueError(f"{_listed(other)} cannot be given with --second-order: leave out {_these(other)}.")


def _check_first_order(second: SecondOrderOptions) -> None:
    """Raise ``ValueError`` for options of a second-order plan, which would have no effect here."""
    other = [name for name, value in vars(second).items() if value is not None and value is not False]
    if other:
        raise ValueError(
            f"{_listed(other)} can be given only with --second-order: add --second-order, or leave out {_these(other)}."
        )


def _listed(options: list[str]) -> str:
    *first, last = options
    return f"{', '.join(first)} and {last}" if first else last


def _these(options: list[str]) -> str:
    return "these options" if len(options) > 1 or "options" in options[0] else options[0]
