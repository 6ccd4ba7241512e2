r"""The experiment in which error feedback wins at equal epsilon: one pass, no secret sampling, ill-conditioned problem.

It uses the library's estimators, events and calibration on many runs at once; only the loop is its own. Measured first
for this library. The reason is in docs/derivations/dicesgd.md, "Bounded residuals": injecting a share :math:`\rho` of
the error in each query divides the noise by :math:`\sqrt{2/\rho}` at the same clipping bias.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita.accounting import Event
from tacita.clipping import FlatClipper
from tacita.error_feedback import BoundedFeedback
from tacita.estimators import ClippedSum, Estimator
from tacita.gradients.given import DEFAULT_NAME, GivenEngine
from tacita.mechanisms import CalibratedGaussian
from tacita.sampling import DisjointSampler, PoissonSampler, Sampler
from tacita_reproductions import figures
from tacita_reproductions.runner import Check, Progress, Result

RELATION, DELTA, TAIL = "zero_out_one", 1e-5, 1.8
PLAIN, POISSON = "plain, one pass", "plain, Poisson sampling"
SHARES = (1.0, 0.3, 0.1, 0.03)


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the experiment. Every method is tuned over the same batches, thresholds and learning rates."""

    records: int
    epsilons: tuple[float, ...]
    batches: tuple[int, ...]
    thresholds: tuple[float, ...]
    lrs: tuple[float, ...]
    tuning_runs: int
    runs: int


SMALL = Size(
    records=4000, epsilons=(1.0,), batches=(20, 100), thresholds=(1.0, 3.0), lrs=(0.1, 0.3, 1.0),
    tuning_runs=4, runs=20,
)  # fmt: skip
LARGE = Size(
    records=10_000, epsilons=(0.5, 1.0, 2.0, 4.0, 8.0), batches=(20, 100, 500), thresholds=(0.3, 1.0, 3.0, 10.0),
    lrs=(0.01, 0.03, 0.1, 0.3, 1.0), tuning_runs=8, runs=50,
)  # fmt: skip


@dataclass(frozen=True)
class Regression:
    """A least-squares problem with skewed, heavy-tailed noise, whose curvatures span two decades by default."""

    dim: int = 20
    condition: float = 100.0

    @property
    def curvature(self) -> Tensor:
        return torch.logspace(0, -math.log10(self.condition), self.dim)

    @property
    def optimum(self) -> Tensor:
        return torch.full((self.dim,), 3 / math.sqrt(self.dim))

    def draw(self, runs: int, records: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return rows of shape (runs, records, dim) and targets of shape (runs, records)."""
        x = torch.randn(runs, records, self.dim, generator=generator) * self.curvature.sqrt()
        pareto = (1 - torch.rand(runs, records, generator=generator)).pow(-1 / TAIL)
        return x, x @ self.optimum + pareto - TAIL / (TAIL - 1)

    def excess_risk(self, points: Tensor) -> Tensor:
        """Return the excess risk at each point; shapes (..., dim) -> (...)."""
        return ((points - self.optimum).square() * self.curvature).sum(-1) / 2


@dataclass(frozen=True)
class Method:
    """A method: plain clipping at C, or error feedback that gives back everything up to C, a share in each query."""

    name: str
    share: float | None = None
    poisson: bool = False

    def sampler(self, records: int, batch: int) -> Sampler:
        if self.poisson:
            return PoissonSampler(sample_rate=batch / records, num_records=records)
        return DisjointSampler(num_batches=records // batch, num_records=records)

    def estimator(self, threshold: float, divisor: float) -> Estimator:
        if self.share is None:
            return ClippedSum(FlatClipper(max_grad_norm=threshold))
        at_once = threshold * self.share / 2  # this split of the threshold needs the least noise
        feedback = BoundedFeedback(
            max_feedback_norm=math.inf, max_residual_norm=threshold - at_once, injected_share=self.share
        )
        return feedback.estimator(FlatClipper(max_grad_norm=at_once), divisor)


METHODS = (
    Method(PLAIN),
    *(Method(f"feedback, share {share:g}", share) for share in SHARES),
    Method(POISSON, poisson=True),
)


@dataclass(frozen=True)
class Setting:
    """The settings that a method is tuned over."""

    batch: int
    threshold: float
    lr: float


def noise_std(estimator: Estimator, sampler: Sampler, dim: int, epsilon: float, queries: int) -> float:
    """Return the standard deviation of the noise on each query's sum that meets the target for the whole session."""
    shapes = {DEFAULT_NAME: torch.Size([dim])}
    target = CalibratedGaussian(target_epsilon=epsilon, target_delta=DELTA)

    def event_at(noise_multiplier: float) -> Event:
        return estimator.session_event(target.at(noise_multiplier), sampler, RELATION, shapes)

    (only,) = estimator.noise_std(target.resolve(event_at, RELATION, queries), RELATION, shapes).values()
    return only


def excess_risks(
    method: Method, batch: int, threshold: float, lrs: Sequence[float], *, size: Size, epsilon: float, runs: int,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """Return the excess risk of the mean of the last half of the iterates, shape (learning rates, runs)."""
    problem, sampler = Regression(), method.sampler(size.records, batch)
    queries = size.records // batch
    estimator = method.estimator(threshold, sampler.expected_batch_size)
    std = noise_std(estimator, sampler, problem.dim, epsilon, queries)
    x, y = problem.draw(runs, size.records, generator)
    points = torch.zeros(len(lrs), runs, problem.dim)
    average, steps = torch.zeros_like(points), torch.tensor(lrs).view(-1, 1, 1)
    state = estimator.initial_state({DEFAULT_NAME: torch.Size([problem.dim])}, tuple(points.shape[:-1]))
    for query, (rows, present) in enumerate(_batches(method, runs, size.records, batch, generator)):
        xs, ys = x.gather(1, rows.unsqueeze(-1).expand(-1, -1, problem.dim)), y.gather(1, rows)
        errors = torch.einsum("rbd,lrd->lrb", xs, points) - ys
        engine = GivenEngine(errors.unsqueeze(-1) * xs, mask=present.expand(len(lrs), -1, -1))
        values, state = estimator(engine, state)
        (block,) = values
        noisy = values[block][DEFAULT_NAME] + std * torch.randn(points.shape, generator=generator)
        mean = estimator.gradient({block: {DEFAULT_NAME: noisy}}, sampler.expected_batch_size)[DEFAULT_NAME]
        points = points - steps * mean.to(points)
        if query >= queries // 2:
            average += points / (queries - queries // 2)
    return problem.excess_risk(average).nan_to_num(nan=math.inf)


def _batches(
    method: Method, runs: int, records: int, batch: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each query, each run's row numbers and whether each is in the batch, both of shape (runs, largest)."""
    for query in range(records // batch):
        if method.poisson:
            rate = torch.full((runs, 1), batch / records)
            counts = torch.binomial(torch.full_like(rate, records), rate, generator)
            rows = torch.rand(runs, records, generator=generator).topk(max(1, int(counts.max()))).indices
            yield rows, torch.arange(rows.shape[1]) < counts
        else:
            rows = torch.arange(query * batch, (query + 1) * batch).expand(runs, -1)
            yield rows, torch.ones(runs, batch, dtype=torch.bool)


def tuned(method: Method, epsilon: float, size: Size, seed: int) -> Setting:
    """Return the setting with the least mean excess risk, on data that the results do not use."""
    found: dict[Setting, float] = {}
    for batch in size.batches:
        for threshold in size.thresholds:
            generator = torch.Generator().manual_seed(2 * seed + 1)
            risks = excess_risks(
                method, batch, threshold, size.lrs, size=size, epsilon=epsilon, runs=size.tuning_runs,
                generator=generator,
            )  # fmt: skip
            found |= {Setting(batch, threshold, lr): float(r.mean()) for lr, r in zip(size.lrs, risks, strict=True)}
    return min(found, key=found.__getitem__)


def one_pass(full: bool, seed: int, progress: Progress) -> Result:
    """Compare feedback that gives back a small share at a time with plain clipping, in one pass at equal epsilon."""
    size, rows = LARGE if full else SMALL, []
    cells = [(epsilon, method) for epsilon in size.epsilons for method in METHODS]
    for done, (epsilon, method) in enumerate(cells):
        progress(done / len(cells), f"epsilon {epsilon:g}, {method.name}")
        best = tuned(method, epsilon, size, seed)
        generator = torch.Generator().manual_seed(2 * seed + 2)  # tuning uses odd seeds
        (risks,) = excess_risks(
            method, best.batch, best.threshold, [best.lr], size=size, epsilon=epsilon, runs=size.runs,
            generator=generator,
        )  # fmt: skip
        low, middle, high = risks.double().quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
        rows.append(
            {
                "epsilon": epsilon, "method": method.name, "median excess risk": middle,
                "lower quartile": low, "upper quartile": high,
                "batch": best.batch, "C": best.threshold, "lr": best.lr,
            }
        )  # fmt: skip
    return Result(rows=rows, checks=_checks(rows, size), notes=_notes(size), draw=lambda: figures.quartiles(rows))


def _checks(rows: list[dict], size: Size) -> list[Check]:
    risk = {(row["epsilon"], row["method"]): row["median excess risk"] for row in rows}
    feedback = [method.name for method in METHODS if method.share is not None]
    return [
        Check(
            f"epsilon {epsilon:g}: the best feedback has at most half of the excess risk of plain clipping in one pass",
            min(risk[epsilon, name] for name in feedback) <= risk[epsilon, PLAIN] / 2,
            found=f"{min(risk[epsilon, name] for name in feedback):.3g} against {risk[epsilon, PLAIN]:.3g}, "
            f"medians of {size.runs} runs",
        )
        for epsilon in size.epsilons if epsilon <= 1
    ]  # fmt: skip


def _notes(size: Size) -> list[str]:
    return [
        f"Least squares, 20 directions with curvatures from 1 to 1/100, centred Pareto noise of tail index {TAIL:g}; "
        f"{size.records:,} records, delta {DELTA:g}, {RELATION}. Each method makes as many queries as there are "
        "batches in the data.",
        f"Every method is tuned in the same way on separate data: batch in {size.batches}, threshold C in "
        f"{size.thresholds}, learning rate in {size.lrs}. All clip at C in the end. Median of {size.runs} runs, with "
        "quartiles.",
        f"'{POISSON}' needs secret sampling and is amplified by it; the other methods do not. Feedback here is another "
        "way to correlate the noise; a matrix mechanism (DP-FTRL) should do at least as well.",
    ]
