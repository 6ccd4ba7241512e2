"""The images of the experiments on DiceSGD, and the small networks that learn them here.

Source: Zhang, Bu, Wu, Hong (DiceSGD), section 4. The paper trains a ViT-small on the whole of CIFAR-10 and CIFAR-100.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tacita_reproductions.clip21_networks import images_of, losses
from tacita_reproductions.dicesgd_runs import DiceTask, Rows
from tacita_reproductions.runner import needed_files

CIFAR = (("CIFAR-10", "cifar10_subset.npz", 10), ("CIFAR-100", "cifar100_subset.npz", 100))
AT_ONCE = 500  # images that are measured at once


def accuracy(network: nn.Module, rows: Rows) -> float:
    """Return the share of images whose largest output is at their label."""
    parts = zip(*(tensor.split(AT_ONCE) for tensor in rows), strict=True)
    return sum(int((network(x).argmax(dim=1) == y).sum()) for x, y in parts) / len(rows[0])


def linear(inputs: int, classes: int) -> nn.Module:
    """Return a linear model of pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def small_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """Return two convolutions of stride 2, an average over 2 x 2, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (side // 8) ** 2, classes),
    )


def mnist(data: Path | None, count: int, tested: int, **more: Any) -> DiceTask:
    """Return the linear model of MNIST, or of noise around ten patterns."""
    train, test = images_of(data, count), images_of(data, tested, "t10k")
    name = "MNIST, linear" if data is not None else "patterns, linear"
    build = partial(linear, 784, 10)
    return DiceTask(
        name=name, build=build, losses=losses, train=train, test=test, measures=accuracy, is_share=True, **more
    )


def cifar(data: Path | None, **more: Any) -> list[DiceTask]:
    """Return a small network's tasks on subsets of CIFAR-10 and CIFAR-100, or one on noise around ten patterns."""
    common: dict[str, Any] = dict(losses=losses, measures=accuracy, is_share=True, **more)
    if data is None:
        build = partial(small_cnn, 1, 28, 10)
        train, test = images_of(None, 300), images_of(None, 100, "t10k")
        return [DiceTask(name="patterns, CNN", build=build, train=train, test=test, **common)]
    needed_files(data, [file for _, file, _ in CIFAR])
    found = []
    for name, file, classes in CIFAR:
        with np.load(data / file) as arrays:
            train, test = (
                tuple(rows[:most] for rows in image_rows(arrays, part))
                for part, most in (("train", 5000), ("test", 1000))
            )
        build = partial(small_cnn, 3, 32, classes)
        found.append(DiceTask(name=f"{name}, CNN", build=build, train=train, test=test, **common))
    return found


def image_rows(arrays: Any, part: str) -> Rows:
    """Return images between -1 and 1, and labels, of an opened file of bytes."""
    images, labels = torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"].astype(np.int64))
    return images.float() / 127.5 - 1, labels
