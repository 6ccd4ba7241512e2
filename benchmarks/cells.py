"""The models that are timed: each a model, one fixed batch, and the physical facts the tables print."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Cell:
    """A model and a batch size.

    Attributes:
        words: For the table.
        model: Makes the model.
        features: Shape of one sample.
        classes: Number of classes.
        batch: Samples in the batch.
    """

    words: str
    model: Callable[[], nn.Module]
    features: tuple[int, ...]
    classes: int
    batch: int

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """``count`` random samples with labels."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(count, *self.features, generator=generator)
        return x, torch.randint(self.classes, (count,), generator=generator)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def logistic() -> nn.Module:
    return nn.Linear(1000, 2)


CELLS = {
    "a": Cell("MLP 784-256-10, batch 256", mlp, (784,), 10, 256),
    "b": Cell("CNN, two conv layers of 16 channels, 28x28, batch 256", cnn, (1, 28, 28), 10, 256),
    "g": Cell("logistic regression, 1000 features, batch 4096", logistic, (1000,), 2, 4096),
}


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss a sample."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
