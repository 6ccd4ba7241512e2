"""One training run of the DiceSGD paper's comparison, repeated over seeds, and a verdict on a difference between two.

Every method is the library's own oracle, on the same batches for the same seed. Only :data:`CLAIMED` has the paper's
noise, which is not private as claimed; each run says what the ledger charges. The data are public.
Source: Zhang, Bu, Wu, Hong (DiceSGD), Algorithm 3 and appendix C.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor, nn

from tacita.clipping import FlatClipper
from tacita.error_feedback import ErrorFeedbackOracle, PrivateFeedback, ReleasedFeedback
from tacita.ledger import Ledger
from tacita.ledger.text_lines import rounded_up
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism
from tacita.oracles import ClippedGradientOracle, GradientOracle
from tacita.random import Randomness
from tacita.sampling import PoissonSampler
from tacita_reproductions.dicesgd_theory import paper_automatic, paper_theorem_3_7
from tacita_reproductions.kept import Kept, data_hash
from tacita_reproductions.runner import Check

PLAIN, CLIPPED, CLAIMED, RIGOROUS, RELEASED, EQUAL = METHODS = (
    "SGD",
    "DPSGD-GC",
    "DiceSGD, the paper's noise",
    "DiceSGD, rigorous noise",
    "released residuals",
    "DPSGD-GC, DiceSGD's real epsilon",
)
NO_CLIPPING = 1e12  # as a threshold: far above every gradient here, and without noise nothing is scaled by it
SURE = 0.95  # of an interval for a mean difference over seeds, outside which it counts
ROWS_SURE = 2.0  # standard errors of the test rows, beyond which a difference counts
JUDGED = (
    "a verdict counts mean differences of the same seeds beyond their 95 % interval (Student's t) and, for accuracies, "
    "beyond two standard errors of the test rows; else, or with one seed, it 'depends'"
)

Rows = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class DiceTask:
    """What is learned, and for which guarantee.

    Attributes:
        name: The data, in the table.
        build: Returns a new network, from torch's global generator.
        losses: (network, rows) -> the loss of each row.
        train: The rows that train.
        test: The rows that are measured.
        measures: (network, test rows) -> a number.
        larger_is_better: Whether a larger number is a better one.
        is_share: Whether the number is a share of the test rows: it has the standard error of such a share.
        steps: Number of queries T.
        sample_rate: Share q of the rows in a batch.
        epsilon: The nominal epsilon.
        delta: The delta of every epsilon.
        max_physical_batch_size: Rows in memory at once.
        scores: What else is measured at the end, by name.
        references: Texts that the scores compare with.
    """

    name: str
    build: Callable[[], nn.Module]
    losses: Callable[[Callable[..., Tensor], Rows], Tensor]
    train: Rows
    test: Rows
    measures: Callable[[nn.Module, Rows], float]
    larger_is_better: bool = True
    is_share: bool = False
    steps: int = 150
    sample_rate: float = 0.02
    epsilon: float = 2.0
    delta: float = 1e-5
    max_physical_batch_size: int | None = None
    scores: Callable[[nn.Module], dict[str, float]] | None = None
    references: Sequence[str] = ()

    @property
    def sign(self) -> int:
        """1 if a larger measure is better, else -1."""
        return 1 if self.larger_is_better else -1

    def better(self, first: Sequence[float], second: Sequence[float]) -> str:
        """Say whether the first runs are better than the second ones of the same seeds, as :func:`verdict` does.

        All seeds share the test rows, so more of them do not make the error of a share smaller. It is taken for that
        of two independent shares: two networks that often fail on the same row differ by less.
        """
        least = 0.0
        if self.is_share and first and second:
            spread_of = sum(share * (1 - share) for share in (fmean(first), fmean(second)))
            least = ROWS_SURE * math.sqrt(spread_of / len(self.test[0]))
        return verdict(*([self.sign * one for one in runs] for runs in (first, second)), least=least)

    @cached_property
    def key(self) -> str:
        """Everything public that a run's result follows from, but its setting and seed."""
        size = f"{len(self.train[0])} and {len(self.test[0])} rows"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            start = self.build().state_dict()
        hashed = data_hash([*self.train, *self.test, *start.values()], self.references)
        plan = f"{self.steps} steps of rate {self.sample_rate}, ({self.epsilon}, {self.delta})"
        return f"{self.name}, {size}, data and network {hashed}, {plan}"


@dataclass(frozen=True, kw_only=True)
class DiceSetting:
    """How it is learned.

    Attributes:
        method: One of :data:`METHODS`.
        optimizer: ``"Adam"`` (Algorithm 3; its weight decay is not in the paper, and is 0), or ``"SGD"``, whose step on
            the mean gradient is ``lr`` divided by the threshold: the paper's "effective step size" is ``lr``.
        lr: The step size.
        max_grad_norm: The threshold C1.
        feedback_ratio: C2 / C1.
        warm_up: Share of the steps over which the step size grows; then it falls to zero, both linearly. ``None``
            keeps it constant.
    """

    method: str
    optimizer: str = "Adam"
    lr: float
    max_grad_norm: float = 1.0
    feedback_ratio: float = 1.0
    warm_up: float | None = None


@dataclass(frozen=True)
class DiceRun:
    """A run's measure at each mark, the last one at the end, and what its ledger charges.

    Attributes:
        measures: The task's measure, at equal distances.
        epsilon: The epsilon of the ledger at the task's delta.
        noise: Standard deviation of the noise on each coordinate of the mean gradient.
        scores: The task's scores at the end.
    """

    measures: list[float]
    epsilon: float
    noise: float
    scores: dict[str, float]


def run(task: DiceTask, setting: DiceSetting, seed: int, *, marks: int = 1) -> DiceRun:
    """Train a network, and return what was measured at ``marks`` equally distant queries and at the end."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = task.build()
    oracle = oracle_of(task, setting, network, seed)
    optimizer, schedule = _optimizer(setting, network, task.steps)
    found = []
    for query in range(1, task.steps + 1):
        oracle.backward()
        optimizer.step()
        schedule.step()
        if query * marks // task.steps > (query - 1) * marks // task.steps:
            with torch.no_grad():
                found.append(task.measures(network, task.test))
    noise = max(oracle.noise_std.values()) / oracle.divisor
    scores = {} if task.scores is None else task.scores(network)
    return DiceRun(found, oracle.ledger.epsilon(task.delta), noise, scores)


def oracle_of(task: DiceTask, setting: DiceSetting, network: nn.Module, seed: int) -> GradientOracle:
    """Return the oracle of a method."""
    method, ratio = setting.method, setting.feedback_ratio
    feedback_norm = ratio * setting.max_grad_norm
    if method == PLAIN:
        plain = GaussianMechanism(noise_multiplier=0.0)
        return ClippedGradientOracle(network, task.losses, task.train, **_options(task, NO_CLIPPING, plain, seed))
    target = task.epsilon
    if method == EQUAL:
        target = oracle_of(task, replace(setting, method=CLAIMED), network, seed).ledger.epsilon(task.delta)
    calibrated = CalibratedGaussian(target_epsilon=target, target_delta=task.delta)
    options = _options(task, setting.max_grad_norm, calibrated, seed)
    if method in (CLIPPED, EQUAL):
        return ClippedGradientOracle(network, task.losses, task.train, **options)
    feedback: Any = PrivateFeedback(max_feedback_norm=feedback_norm)
    if method == RELEASED:
        feedback = ReleasedFeedback(max_feedback_norm=feedback_norm, max_residual_norm=feedback_norm)
    oracle = ErrorFeedbackOracle(network, task.losses, task.train, feedback=feedback, **options)
    if method != CLAIMED:
        return oracle
    wanted = _paper_noise_std(task, setting.max_grad_norm, feedback_norm) * oracle.divisor
    noise = GaussianMechanism(noise_multiplier=oracle.noise_multiplier * wanted / max(oracle.noise_std.values()))
    options = _options(task, setting.max_grad_norm, noise, seed)
    return ErrorFeedbackOracle(network, task.losses, task.train, feedback=feedback, **options)


def _paper_noise_std(task: DiceTask, threshold: float, feedback_norm: float) -> float:
    """Return the noise on the mean that the paper prescribes. An oracle with it is charged what is proved."""
    records = len(task.train[0])
    common: dict[str, Any] = dict(
        num_records=records, steps=task.steps, epsilon=task.epsilon, delta=task.delta, max_grad_norm=threshold
    )
    if feedback_norm == threshold:
        return paper_automatic(**common)
    constant = records * task.sample_rate * feedback_norm
    return paper_theorem_3_7(**common, theorem_constant=constant, residual_bound=feedback_norm)


def _options(task: DiceTask, threshold: float, mechanism: Any, seed: int) -> dict[str, Any]:
    """Return the settings that all oracles of a task have in common."""
    return dict(
        ledger=Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=PoissonSampler(sample_rate=task.sample_rate, num_records=len(task.train[0])),
        clipper=FlatClipper(max_grad_norm=threshold),
        mechanism=mechanism,
        planned_queries=task.steps,
        max_physical_batch_size=task.max_physical_batch_size,
        randomness=Randomness.insecure(seed),
    )


def _optimizer(setting: DiceSetting, network: nn.Module, steps: int) -> tuple[Any, Any]:
    """Return the optimizer and the schedule of its step size."""
    if setting.optimizer == "Adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(network.parameters(), lr=setting.lr)
    else:
        scale = 1.0 if setting.method == PLAIN else setting.max_grad_norm
        optimizer = torch.optim.SGD(network.parameters(), lr=setting.lr / scale)
    warm_up = setting.warm_up

    def factor(step: int) -> float:
        if warm_up is None:
            return 1.0
        rising = max(1, round(warm_up * steps))
        return min((step + 1) / rising, (steps - step) / max(1, steps - rising), 1.0)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def repeated(
    task: DiceTask, setting: DiceSetting, seeds: Sequence[int], kept: Kept, *, marks: int = 1
) -> tuple[dict[str, Any], list[DiceRun]]:
    """Run a setting with each seed, or take kept runs; return the table's row, with mean and spread, and the runs."""

    def one(seed: int) -> DiceRun:
        key = f"{task.key}, {setting}, {marks} marks, seed {seed}"
        return DiceRun(**kept.result(key, lambda: asdict(run(task, setting, seed, marks=marks))))

    runs = [one(seed) for seed in seeds]
    ends = last(runs)
    row = {
        "data": task.name,
        "method": setting.method,
        "optimizer": setting.optimizer,
        "C1": None if setting.method == PLAIN else setting.max_grad_norm,
        "C2": None if setting.method in (PLAIN, CLIPPED, EQUAL) else setting.feedback_ratio * setting.max_grad_norm,
        "step": setting.lr,
        "mean": fmean(ends),
        "s.d.": stdev(ends) if len(ends) > 1 and all(map(math.isfinite, ends)) else None,
        "noise": runs[0].noise,
        "epsilon": runs[0].epsilon,
    }
    return row, runs


def best(task: DiceTask, found: Sequence[tuple[dict[str, Any], list[DiceRun]]]) -> tuple[dict[str, Any], list[DiceRun]]:
    """Return the row, with its runs, of the best mean: the paper's grid search, which no epsilon covers."""

    def value(one: tuple[dict[str, Any], list[DiceRun]]) -> float:
        mean = one[0]["mean"]
        return task.sign * mean if math.isfinite(mean) else -math.inf

    return max(found, key=value)


def last(runs: Sequence[DiceRun]) -> list[float]:
    """Return the last measure of each run."""
    return [one.measures[-1] for one in runs]


def verdict(first: Sequence[float], second: Sequence[float], *, least: float = 0.0) -> str:
    """Say whether the first numbers are larger than the second ones of the same seeds: holds, depends or does not.

    ``"depends"`` means that the 95 % interval of the mean difference, by Student's t, has zero in it, or that the
    difference is at most ``least``. Of two seeds the interval is 12.7 standard errors wide, on either side.
    """
    apart = [one - other for one, other in zip(first, second, strict=True)]
    if not all(map(math.isfinite, apart)) or len(apart) < 2:
        return "depends"
    quantile = float(student.ppf(0.5 + SURE / 2, len(apart) - 1))
    error = max(quantile * stdev(apart) / math.sqrt(len(apart)), least)
    mean = fmean(apart)
    return "holds" if mean > error else "does not" if mean < -error else "depends"


def spread(values: Sequence[float]) -> str:
    """Return a mean, and the standard deviation if there are several values, as words."""
    if not all(map(math.isfinite, values)):
        return "not finite"
    return f"{fmean(values):.4f}" + (f" +- {stdev(values):.4f}" if len(values) > 1 else "")


Compared = Sequence[tuple[str, Sequence[float], Sequence[float]]]  # where, and the last measures of two methods


def judged(task: DiceTask, claim: str, compared: Compared) -> Check:
    """Return a check with one verdict for all comparisons: "depends" unless they agree."""
    words = {task.better(one, other) for _, one, other in compared}
    found = words.pop() if len(words) == 1 else "depends"
    numbers = "; ".join(f"{where} {spread(one)} against {spread(other)}".strip() for where, one, other in compared)
    return Check(claim, found == "holds", undecided=found == "depends", found=numbers)


def headline_claims(task: DiceTask, where: str, ends: Callable[[str, str], Compared]) -> list[Check]:
    """Return the paper's claims that DiceSGD beats DPSGD-GC, with our verdicts.

    Args:
        task: The task.
        where: What the claims begin with.
        ends: Returns what decides between two methods.
    """
    pairs = (
        ("with the paper's noise DiceSGD beats DPSGD-GC", CLAIMED, CLIPPED),
        (f"at a rigorous epsilon of {task.epsilon:g} DiceSGD beats DPSGD-GC", RIGOROUS, CLIPPED),
        ("at the real epsilon of the paper's noise DiceSGD beats DPSGD-GC", CLAIMED, EQUAL),
    )
    return [judged(task, f"{where}{claim}", ends(one, other)) for claim, one, other in pairs]


def worth(task: DiceTask, where: str, real: float) -> Check:
    """Return the paper's claim about the epsilon of its noise, beside the one that is proved."""
    says = f"{where}the paper's noise is worth epsilon {task.epsilon:g}"
    return Check(says, real <= task.epsilon, found=f"{rounded_up(real)} is proved")
