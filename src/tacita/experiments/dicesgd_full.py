"""The paper's own networks: a pretrained ViT-small for images and GPT-2 for text, from weights in a folder.

Nothing is downloaded. Without the packages, the weights or the whole data sets, a run at full size is refused.
Source: Zhang, Bu, Wu, Hong (DiceSGD), section 4.
"""

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tacita.experiments.clip21_networks import losses
from tacita.experiments.dicesgd_images import accuracy, image_rows
from tacita.experiments.dicesgd_runs import DiceTask
from tacita.experiments.runner import needed_files

VIT = "vit_small_patch16_224"
VISION = (("CIFAR-10", "cifar10.npz", 10), ("CIFAR-100", "cifar100.npz", 100))
AT_ONCE = 50  # images in memory at once


def given(data: Path | None) -> Path:
    """Return the folder; raise ``ValueError`` without one."""
    if data is None:
        raise ValueError("data must be a folder with the paper's data and pretrained weights for --full, got none.")
    return data


def package(name: str) -> Any:
    """Import an optional package; raise ``ValueError`` with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"--full needs the package {name} here: run pip install {name}.") from error


def vit(weights: Path, classes: int) -> nn.Module:
    """Return timm's ViT-small with pretrained weights and a new head, for images of 32 x 32 that it enlarges."""
    import safetensors.torch

    network = package("timm").create_model(VIT, pretrained=False, num_classes=classes)
    found = safetensors.torch.load_file(weights)
    kept = {name: value for name, value in found.items() if not name.startswith("head.")}
    missing = set(network.state_dict()) - set(kept)
    if missing != {"head.weight", "head.bias"}:
        raise ValueError(f"{weights.name} must hold the weights of timm's {VIT}; it lacks {min(missing)}.")
    network.load_state_dict(kept, strict=False)
    return nn.Sequential(nn.Upsample(size=(224, 224), mode="bilinear"), network)


def vision(data: Path | None, *, epochs: int) -> list[DiceTask]:
    """Return the paper's tasks on the whole of CIFAR-10 and CIFAR-100: batches of 1,000 on average.

    Args:
        data: A folder with ``cifar10.npz`` and ``cifar100.npz`` (arrays x_train, y_train, x_test, y_test, images in
            bytes, channels first) and ``vit_small_patch16_224.safetensors``.
        epochs: 3 in Table 2, 2 in Figures 2 and 3.

    Raises:
        ValueError: Something of it is missing, or timm is.
    """
    folder, weights = given(data), f"{VIT}.safetensors"
    needed_files(folder, [weights, *(file for _, file, _ in VISION)])
    package("timm")
    found = []
    for name, file, classes in VISION:
        with np.load(folder / file) as arrays:
            train, test = (image_rows(arrays, part) for part in ("train", "test"))
        rate = 1000 / len(train[0])
        found.append(
            DiceTask(
                name=f"{name}, ViT-small",
                build=partial(vit, folder / weights, classes),
                losses=losses,
                train=train,
                test=test,
                measures=accuracy,
                sample_rate=rate,
                steps=round(epochs / rate),
                max_physical_batch_size=AT_ONCE,
            )
        )
    return found
