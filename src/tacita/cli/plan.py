"""``tacita plan``: what theory says of a training before any data are read, and where it says nothing.

Every number is declared by the user.
"""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from tacita._choices import NeighboringRelation, PlannedSampling
from tacita.cli.outputs import check_figure, check_file, check_page
from tacita.cli.whole_numbers import WHOLE

FLAT = Parameter(name="*")  # an object's fields are options by their own names
GUARANTEE = Parameter(group="The guarantee", negative=())
PROBLEM = Parameter(group="The problem (public, declared)", negative=())
TRAINING = Parameter(group="The training", negative=())
SECOND = Parameter(group="Second-order points (--second-order)", negative=())
FEDERATED = Parameter(group="Federated clients (--federated)", negative=())
OUTPUT = Parameter(group="Output", negative=())


@dataclass(frozen=True, kw_only=True)
class PlanGuarantee:
    """The guarantee that is planned for.

    Attributes:
        epsilon: Epsilon of the whole training.
        delta: Delta of the whole training; well below one over the number of records.
        neighboring_relation: add_or_remove_one, replace_one or zero_out_one.
    """

    epsilon: Annotated[float, GUARANTEE]
    delta: Annotated[float, GUARANTEE]
    neighboring_relation: Annotated[NeighboringRelation, GUARANTEE]


@dataclass(frozen=True, kw_only=True)
class PlanProblem:
    """The problem, as declared from public knowledge.

    Attributes:
        num_records: Public number of records; with --federated, of clients.
        dim: Number of parameters.
        smoothness: L; the gradient changes by at most L times the distance.
        moment_scale: sigma; the root of the moment of a sample's gradient about its mean.
        moment_order: alpha in (1, 2]; 2 is the variance, less is a heavier tail.
        radius: For a convex problem, an upper bound on the distance from the start to a minimiser.
        initial_gap: For a non-convex problem, an upper bound on the objective at the start minus its infimum.
    """

    num_records: Annotated[int, PROBLEM, WHOLE]
    dim: Annotated[int, PROBLEM, WHOLE]
    smoothness: Annotated[float, PROBLEM]
    moment_scale: Annotated[float, PROBLEM]
    moment_order: Annotated[float, PROBLEM] = 2.0
    radius: Annotated[float | None, PROBLEM] = None
    initial_gap: Annotated[float | None, PROBLEM] = None


@dataclass(frozen=True, kw_only=True)
class PlanTraining:
    """The training.

    Attributes:
        batch_size: Expected number of records per step; leave it out with --sampling full_batch, where it is all.
        steps: Number of steps, each with one private query; with --second-order it follows from the accuracy.
        sampling: poisson; full_batch; one_pass (disjoint batches, each record used once).
        failure_probability: Probability with which the convergence statement may fail; the privacy guarantee does not
            depend on it.
    """

    batch_size: Annotated[int | None, TRAINING, WHOLE] = None
    steps: Annotated[int | None, TRAINING, WHOLE] = None
    sampling: Annotated[PlannedSampling, TRAINING] = "poisson"
    failure_probability: Annotated[float, TRAINING] = 0.05

    def batch(self, num_records: int) -> int:
        """Return the batch size; raise ``ValueError`` if it is missing, or is not the one that the sampling has."""
        if self.sampling != "full_batch":
            if self.batch_size is None:
                raise ValueError(
                    "batch_size is missing: give --batch-size, the expected number of records per step, or --sampling "
                    "full_batch."
                )
            return self.batch_size
        if self.batch_size not in (None, num_records):
            raise ValueError(
                f"batch_size must be left out with --sampling full_batch, where every batch is all {num_records} "
                f"records, got {self.batch_size}."
            )
        return num_records


@dataclass(frozen=True, kw_only=True)
class SecondOrderOptions:
    """The options of a plan for a second-order stationary point.

    Attributes:
        second_order: Plan noisy SGD to a second-order stationary point.
        hessian_lipschitz: rho; the Hessian changes by at most rho times the distance.
        accuracy: alpha; the point has a gradient below alpha and no curvature below minus the root of rho alpha. If
            not given, the least possible.
        gradient_bound: Clipping threshold C. If not given, the paper's formula for the largest gradient.
        no_concentration: Do not assume that gradients concentrate about their mean; needs much larger noise.
    """

    second_order: Annotated[bool, SECOND] = False
    hessian_lipschitz: Annotated[float | None, SECOND] = None
    accuracy: Annotated[float | None, SECOND] = None
    gradient_bound: Annotated[float | None, SECOND] = None
    no_concentration: Annotated[bool, SECOND] = False


@dataclass(frozen=True, kw_only=True)
class FederatedOptions:
    """The options of a plan for federated clients.

    Attributes:
        federated: Plan Clip21-SGDM, whose clients send clipped and noisy messages; steps are rounds.
        largest_grad: An upper bound on the norm of a client's gradient at the start.
        max_grad_norm: Threshold C of a message. If not given, the largest gradient over the number of rounds.
    """

    federated: Annotated[bool, FEDERATED] = False
    largest_grad: Annotated[float | None, FEDERATED] = None
    max_grad_norm: Annotated[float | None, FEDERATED] = None


def plan(
    *,
    guarantee: Annotated[PlanGuarantee, FLAT],
    problem: Annotated[PlanProblem, FLAT],
    training: Annotated[PlanTraining, FLAT] = PlanTraining(),
    second: Annotated[SecondOrderOptions, FLAT] = SecondOrderOptions(),
    clients: Annotated[FederatedOptions, FLAT] = FederatedOptions(),
    plot: Annotated[str | None, OUTPUT] = None,
    json: Annotated[str | None, OUTPUT] = None,
    html: Annotated[str | None, OUTPUT] = None,
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
        html: Write a page to this file on which epsilon, steps, batch and threshold can be moved; not
            with --second-order or --federated.
    """
    from tacita.cli import planning

    check_file("json", json)
    check_page("html", html)
    check_figure("plot", plot)
    if clients.federated:
        _check_federated(problem, training, second, html)
        planning.federated(planning.federated_setting(guarantee, problem, training, clients), plot, json)
    elif clients != FederatedOptions():
        raise ValueError(
            "largest_grad and max_grad_norm can be given only with --federated: add it, or leave them out."
        )
    elif second.second_order:
        _check_second_order(problem, training, plot, html)
        planning.second_order(planning.second_order_setting(guarantee, problem, training, second), json)
    else:
        _check_first_order(second)
        planning.first_order(planning.first_order_setting(guarantee, problem, training), plot, json, html)
    return 0


def _check_federated(
    problem: PlanProblem, training: PlanTraining, second: SecondOrderOptions, html: str | None
) -> None:
    """Raise ``ValueError`` for options of the other plans, which would have no effect here."""
    given = {"radius": problem.radius, "batch_size": training.batch_size, "html": html}
    other = [name for name, value in given.items() if value is not None]
    other += ["moment_order"] * (problem.moment_order != 2.0) + ["sampling"] * (training.sampling != "poisson")
    other += ["second_order and its options"] * (second != SecondOrderOptions())
    if other:
        raise ValueError(f"{_listed(other)} cannot be given with --federated: leave out {_these(other)}.")


def _check_second_order(problem: PlanProblem, training: PlanTraining, plot: str | None, html: str | None) -> None:
    """Raise ``ValueError`` for options of the other plan, which would have no effect here."""
    given = {"steps": training.steps, "radius": problem.radius, "plot": plot, "html": html}
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
