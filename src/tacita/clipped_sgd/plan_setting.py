"""The inputs of a plan (problem, records, sampling, budget), and whether the theorem is proved for them.

Every input is public and declared before any data are read.
"""

from dataclasses import dataclass
from typing import get_args

from tacita import _validate
from tacita._choices import PlannedSampling
from tacita.accounting import NeighboringRelation, check_relation
from tacita.clipped_sgd.problem import Problem

SAMPLINGS: tuple[PlannedSampling, ...] = get_args(PlannedSampling)

NO_FIXED_SIZE = (
    "The theorem's proof needs every step to average a fixed number of fresh, independent records; {why}. The mean of "
    "such a batch does not have the variance and the largest norm that the proof uses."
)
POISSON = "Poisson batches have a random size and contain the same records again"
COINS = (
    "under add_or_remove_one each record draws its batch at random, so batch sizes are random. Where the number of "
    "records is public (replace_one, zero_out_one), batches of one pass have a fixed size"
)


@dataclass(frozen=True, kw_only=True)
class PlanSetting:
    """The inputs of a plan, all known before any data are read.

    Attributes:
        problem: The objective, convex or not, and its constants.
        num_records: The number of records n, which is public.
        batch_size: Expected number of records per step, the divisor; at most ``num_records``.
        steps: Number of updates, each with one private query; at least 2.
        epsilon, delta: The budget.
        relation: Neighboring relation.
        sampling: ``"poisson"``; ``"full_batch"``, where every batch is all records; or ``"one_pass"``, with disjoint
            batches and each record in at most one (steps times batch size is at most n).
        failure_probability: Probability with which the convergence statement may fail. The privacy guarantee does not
            depend on it.
    """

    problem: Problem
    num_records: int
    batch_size: int
    steps: int
    epsilon: float
    delta: float
    relation: NeighboringRelation
    sampling: PlannedSampling = "poisson"
    failure_probability: float = 0.05

    def __post_init__(self) -> None:
        self.problem.check_single()
        _validate.count("num_records", self.num_records)
        _validate.count("batch_size", self.batch_size)
        _validate.count("steps", self.steps, at_least=2)
        _validate.positive("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)
        _validate.probability("failure_probability", self.failure_probability)
        check_relation(self.relation)
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {self.sampling!r}.")
        if self.batch_size > self.num_records:
            raise ValueError(f"batch_size must be at most num_records={self.num_records}, got {self.batch_size}.")
        if self.sampling == "full_batch" and self.batch_size != self.num_records:
            raise ValueError(
                f"batch_size must be num_records={self.num_records} for sampling='full_batch', got {self.batch_size}."
            )
        if self.sampling == "one_pass" and self.batch_size * self.steps > self.num_records:
            raise ValueError(
                f"steps x batch_size must be at most num_records={self.num_records} for sampling='one_pass', got "
                f"{self.steps * self.batch_size}. Use fewer steps, a smaller batch, or sampling='poisson'."
            )

    @property
    def sample_rate(self) -> float:
        """The batch size over the number of records."""
        return self.batch_size / self.num_records


def no_theorem(setting: PlanSetting) -> str:
    """Return the reason why the theorem is not proved for a setting; the empty string where it is proved.

    It is proved for independent samples in batches of a fixed size (one pass by index), and for full batches, where it
    is about the mean loss of these records.

    Example:
        >>> from dataclasses import replace
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> problem = ConvexProblem(smoothness=1, radius=5, moment_scale=1)
        >>> setting = PlanSetting(problem=problem, num_records=4000, batch_size=1, steps=4000, epsilon=8, delta=1e-5,
        ...     relation="replace_one", sampling="one_pass")
        >>> no_theorem(setting), no_theorem(replace(setting, sampling="poisson"))[:36]
        ('', "The theorem's proof needs every step")
    """
    if setting.sampling == "poisson":
        return NO_FIXED_SIZE.format(why=POISSON)
    if setting.sampling == "one_pass" and setting.relation == "add_or_remove_one":
        return NO_FIXED_SIZE.format(why=COINS)
    return ""
