"""The options of ``tacita plan``, in the groups that its help shows. Every number is declared by the user."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from tacita._choices import NeighboringRelation, PlannedSampling
from tacita._whole_numbers import WHOLE

GUARANTEE = Parameter(group="The guarantee", negative=())
PROBLEM = Parameter(group="The problem (public, declared)", negative=())
TRAINING = Parameter(group="The training", negative=())
SECOND = Parameter(group="Second-order points (--second-order)", negative=())
FEDERATED = Parameter(group="Federated clients (--federated)", negative=())


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
