"""One run of a network by noisy SGD: without noise, with the paper's noise and no clipping, or clipped and accounted.

Source: "Noise is All You Need: Private Second-Order Convergence of Noisy SGD", Algorithms 1 and 2 and section 4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum, Estimator
from tacita.estimators.clipped_sum import clipped_gradient_sum
from tacita.gradients import NetworkSource
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import GradientOracle
from tacita.random import Randomness
from tacita.sampling import PoissonSampler
from tacita_reproductions.figures import SHARES
from tacita_reproductions.kept import data_hash
from tacita_reproductions.noisy_sgd_data import LabelledData
from tacita_reproductions.noisy_sgd_noise import (
    DELTA,
    formula_multiplier,
    needed_multiplier,
)
from tacita_reproductions.unclipped_sum import UnclippedSum

SGD, PAPER_NOISE, EXACT = "SGD", "the paper's noise, not clipped", "clipped, exact noise"
PROBED = 256  # training records whose gradients are measured
AT_ONCE = 500  # test records
MEASURED = 1000  # training records whose accuracy is measured


@dataclass(frozen=True, kw_only=True)
class NoisySGDTask:
    """A figure's task.

    Attributes:
        build: Makes the network.
        data: The records.
        max_grad_norm: The paper's C.
        lr, batch_size, epochs: Of SGD; a batch is a Poisson sample.
        most_rows: Rows in memory at once.
    """

    build: Callable[[], nn.Module]
    data: LabelledData
    max_grad_norm: float
    lr: float
    batch_size: int
    epochs: int
    most_rows: int | None = None

    @cached_property
    def settings(self) -> str:
        """What decides the result of a run: the network, the data, with their hash, and the settings of SGD."""
        hashed = data_hash([*self.data.train, *self.data.test])
        parts = (self.build(), self.data.name, hashed, self.max_grad_norm, self.lr, self.batch_size, self.epochs)
        return " ".join(" ".join(map(str, parts)).split())

    @property
    def records(self) -> int:
        """The number of training records."""
        return len(self.data.train[0])

    @property
    def sample_rate(self) -> float:
        """The chance of a record to be in a batch."""
        return self.batch_size / self.records

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.epochs * self.records // self.batch_size


def losses(model: Callable[[Tensor], Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    """Return the cross-entropy of each record."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def multiplier_of(task: NoisySGDTask, method: str, nominal: float) -> float:
    """Return the noise multiplier of a method at a nominal epsilon and the paper's delta."""
    find = formula_multiplier if method == PAPER_NOISE else needed_multiplier
    return find(epsilon=nominal, delta=DELTA, sample_rate=task.sample_rate, steps=task.steps)


def one_run(task: NoisySGDTask, method: str, nominal: float | None, seed: int) -> dict[str, float]:
    """Train once; return accuracies and the training gradients that are longer than C, along the run."""
    torch.manual_seed(seed)
    model = task.build()
    step = _plain_steps(task, model, seed) if nominal is None else _oracle_steps(task, model, method, nominal, seed)
    marks = {max(1, round(share * task.steps)): share for share in SHARES}
    found, norms = dict[str, float](), [gradient_norms(task, model)]
    for t in range(1, task.steps + 1):
        step()
        if t in marks:
            found[f"test after {marks[t]:.0%}"] = accuracy(model, task.data.test)
            found[f"train after {marks[t]:.0%}"] = accuracy(
                model, (task.data.train[0][:MEASURED], task.data.train[1][:MEASURED])
            )
            norms.append(gradient_norms(task, model))
    longer = torch.cat(norms) > task.max_grad_norm
    return {**found, "largest gradient": float(torch.cat(norms).max()), "longer than C": float(longer.double().mean())}


def accuracy(model: nn.Module, records: tuple[Tensor, Tensor]) -> float:
    """Return the share of records that are classified as labelled."""
    with torch.no_grad():
        right = [
            (model(x).argmax(1) == y).sum() for x, y in zip(*(part.split(AT_ONCE) for part in records), strict=True)
        ]
    return float(torch.stack(right).sum()) / len(records[0])


def _plain_steps(task: NoisySGDTask, model: nn.Module, seed: int) -> Callable[[], None]:
    """Return a step of SGD on a Poisson batch, without noise."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
    x, y = task.data.train

    def step() -> None:
        rows = (torch.rand(task.records, generator=generator) < task.sample_rate).nonzero()[:, 0]
        optimizer.zero_grad()
        for some in rows.split(AT_ONCE):
            (losses(model, (x[some], y[some])).sum() / task.batch_size).backward()
        if len(rows):
            optimizer.step()

    return step


def _oracle_steps(task: NoisySGDTask, model: nn.Module, method: str, nominal: float, seed: int) -> Callable[[], None]:
    """Return a step on the releases of an oracle."""
    oracle = oracle_of(task, model, method, nominal, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)

    def step() -> None:
        oracle.backward()
        optimizer.step()

    return step


def oracle_of(task: NoisySGDTask, model: nn.Module, method: str, nominal: float, seed: int) -> GradientOracle:
    """Return the oracle of a method; its ledger charges what is proved, whatever the paper claims for the noise."""
    if method == EXACT:
        estimator: Estimator = ClippedSum(FlatClipper(max_grad_norm=task.max_grad_norm))
    else:
        estimator = UnclippedSum(
            declared_max_grad_norm=task.max_grad_norm, failure_probability=DELTA, because="the paper says so"
        )
    return GradientOracle(
        NetworkSource(model, losses, task.data.train, max_physical_batch_size=task.most_rows),
        estimator=estimator,
        ledger=Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=PoissonSampler(sample_rate=task.sample_rate, num_records=task.records),
        mechanism=GaussianMechanism(noise_multiplier=multiplier_of(task, method, nominal)),
        planned_queries=task.steps,
        randomness=Randomness.insecure(seed),
    )


def gradient_norms(task: NoisySGDTask, model: nn.Module) -> Tensor:
    """Return the gradient norms of the first training records, which are public; infinite if not a number."""
    batch = tuple(part[:PROBED] for part in task.data.train)
    clipper = FlatClipper(max_grad_norm=task.max_grad_norm)
    found = clipped_gradient_sum(model, losses, batch, clipper, max_physical_batch_size=task.most_rows)
    return found.norms[:, 0].nan_to_num(nan=torch.inf)
