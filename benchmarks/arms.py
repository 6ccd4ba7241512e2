"""The methods of the accuracy table: how each trains a network at a given (epsilon, delta).

Below the line all do the same: SGD with momentum, and an average of the second half of the iterates beside the last.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

import tacita

MOMENTUM, BATCH = 0.9, 1024  # BATCH is the expected size
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """What is tuned. Feedback and residual are relative to the clipping threshold, the step is lr x threshold."""

    max_grad_norm: float
    step: float
    feedback: float = 0.0
    residual: float = 0.0

    @property
    def lr(self) -> float:
        return self.step / self.max_grad_norm

    def words(self) -> str:
        parts = [f"C {self.max_grad_norm:g}", f"step {self.step:g}"]
        parts += [f"{letter} {value:g}" for letter, value in (("E", self.feedback), ("R", self.residual)) if value]
        return " ".join(parts)


@dataclass(frozen=True)
class Run:
    """One training: everything public, and the rows."""

    model: nn.Module
    rows: Rows
    setting: Setting
    epsilon: float
    delta: float
    epochs: float

    @property
    def sample_rate(self) -> float:
        return BATCH / len(self.rows[0])

    @property
    def queries(self) -> int:
        return math.ceil(self.epochs / self.sample_rate)

    @property
    def sampler(self) -> tacita.PoissonSampler:
        return tacita.PoissonSampler(sample_rate=self.sample_rate, num_records=len(self.rows[0]))

    @property
    def max_feedback_norm(self) -> float:
        return self.setting.feedback * self.setting.max_grad_norm

    @property
    def max_residual_norm(self) -> float:
        return self.setting.residual * self.setting.max_grad_norm

    @property
    def clipper(self) -> tacita.FlatClipper:
        return tacita.FlatClipper(max_grad_norm=self.setting.max_grad_norm)


@dataclass(frozen=True)
class Arm:
    """A method.

    Attributes:
        name: In the table.
        settings: The steps of a task -> the settings it is tuned over, six at most.
        stepper: A run and its optimizer -> a function that makes one step.
        tuned_as: The method whose settings it takes over, being the same algorithm.
    """

    name: str
    settings: Callable[[tuple[float, ...]], tuple[Setting, ...]]
    stepper: Callable[[Run, torch.optim.Optimizer], Callable[[], None]]
    tuned_as: str | None = None


def trained(arm: Arm, run: Run) -> dict[str, nn.Module]:
    """The last iterate and the average of the second half."""
    model = run.model
    optimizer = torch.optim.SGD(model.parameters(), lr=run.setting.lr, momentum=MOMENTUM)
    params = dict(model.named_parameters())
    average = tacita.SuffixAverage(params, skip=run.queries // 2)
    last, averaged = copy.deepcopy(model), copy.deepcopy(model)  # before a method hangs its hooks on the model
    step = arm.stepper(run, optimizer)
    for _ in range(run.queries):
        step()
        average.update(params)
    last.load_state_dict(params)
    average.copy_to(dict(averaged.named_parameters()))
    return {"last": last, "averaged": averaged}


def losses(model: nn.Module, batch: Rows) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def dp_sgd(run: Run, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    return _asking(_oracle(run, tacita.ClippedGradientOracle), optimizer)


def with_feedback(make: Callable[[Run], object]) -> Callable[[Run, torch.optim.Optimizer], Callable[[], None]]:
    def stepper(run: Run, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        return _asking(_oracle(run, tacita.ErrorFeedbackOracle, feedback=make(run)), optimizer)

    return stepper


def _oracle(run: Run, kind: Callable, **more: object):
    return kind(
        run.model, losses, run.rows,
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one image"),
        sampler=run.sampler, clipper=run.clipper, planned_queries=run.queries,
        mechanism=tacita.CalibratedGaussian(target_epsilon=run.epsilon, target_delta=run.delta), **more,
    )  # fmt: skip


def _asking(oracle: tacita.GradientOracle, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        oracle.backward()
        optimizer.step()

    return step


def opacus(run: Run, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Opacus's per-sample gradients, clipping and noise; batches and noise multiplier are ours, so epsilon is equal."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    noise_multiplier = _oracle(run, tacita.ClippedGradientOracle).noise_multiplier  # before Opacus hooks the model
    wrapped = GradSampleModule(run.model, loss_reduction="sum")
    private = DPOptimizer(
        optimizer,
        noise_multiplier=noise_multiplier,
        max_grad_norm=run.setting.max_grad_norm,
        expected_batch_size=run.sampler.expected_batch_size,
        loss_reduction="mean",  # divides the noisy sum by the expected batch size
    )
    coins = np.random.default_rng()

    def step() -> None:
        batch = torch.from_numpy(np.flatnonzero(coins.random(len(run.rows[0])) < run.sample_rate))
        private.zero_grad()
        losses(wrapped, (run.rows[0][batch], run.rows[1][batch])).sum().backward()
        private.step()

    return step


def _grid(steps: tuple[float, ...], thresholds=(0.1,), feedback=(0.0,), residual=(0.0,)) -> tuple[Setting, ...]:
    return tuple(Setting(*one) for one in product(thresholds, steps, feedback, residual))


def _clipped(steps: tuple[float, ...]) -> tuple[Setting, ...]:
    return _grid(steps, thresholds=(0.1, 1.0))


ARMS = (
    Arm("DP-SGD, tacita", _clipped, dp_sgd),
    Arm("DP-SGD, Opacus", _clipped, opacus, tuned_as="DP-SGD, tacita"),
    Arm(
        "DiceSGD, private error",
        lambda steps: _grid(steps, feedback=(1.0, 0.0001)),
        with_feedback(lambda run: tacita.PrivateFeedback(max_feedback_norm=run.max_feedback_norm)),
    ),
    Arm(
        "DiceSGD, bounded residuals",
        lambda steps: _grid(steps, feedback=(1.0,), residual=(0.1, 1.0)),
        with_feedback(
            lambda run: tacita.BoundedFeedback(
                max_feedback_norm=run.max_feedback_norm, max_residual_norm=run.max_residual_norm
            )
        ),
    ),
    Arm(
        "DiceSGD, released residuals",
        lambda steps: _grid(steps, feedback=(1.0,), residual=(0.3, 1.0)),
        with_feedback(
            lambda run: tacita.ReleasedFeedback(
                max_feedback_norm=run.max_feedback_norm, max_residual_norm=run.max_residual_norm
            )
        ),
    ),
)
