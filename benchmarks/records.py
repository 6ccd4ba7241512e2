"""How good can it be: private accuracy on MNIST and CIFAR-10 by fixed recipes, for docs/how-good.md.

    python benchmarks/records.py RECIPE... [--runs N] [--epsilon E] [--keep FILE] [--cache FOLDER]
    python benchmarks/records.py RECIPE... --ceiling [--keep FILE] [--cache FOLDER]

The first trains private models, the second the same model without privacy. A recipe's settings stand in RECIPES and are
fixed. Others tuned them (Tramèr and Boneh, 2021), or we did, on these data sets, and that is not charged. The epsilon
comes from the ledger. The data folder is TACITA_DATA, or ../shared/data beside the repository; CIFAR-10 is there as a
lossy JPEG copy. Features are computed once and kept in --cache. A line a run is printed and appended to the file of
--keep; records_figure.py draws benchmarks/records.jsonl.
"""

import argparse
import gzip
import io
import json
import math
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from results import DATA
from torch import Tensor, nn

import tacita
from tacita.tables import Scattering, scattering, typical_sizes
from tacita.tables.moments import FixedNormalization

DELTA = 1e-5
CLASSES = 10
WIDTH = 64  # channels of the small network
SLICE = 1000  # rows in memory at once outside the oracle


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model on scattering features, by DP-SGD with momentum.

    Attributes:
        data: "mnist" or "cifar".
        image: The shape of an image.
        groups: Normalise each record's features in so many groups; 0 normalises by private moments instead.
        mirrored: As in :class:`~tacita.tables.Scattering`.
        network: "linear", or "cnn" for the small convolutional network of the paper.
        batch: Expected batch size.
        lr, epochs, epsilon: As their names say; clipping at 0.1, momentum 0.9, as in the paper.
        mean_norm, square_norm: Thresholds of the private moments in units of sqrt(channels), over ``typical_sizes``.
        noise: The noise multiplier of the private moments.
        ceiling_lr, ceiling_epochs: Step size and epochs of the same model without privacy.
    """

    data: str
    image: tuple[int, ...]
    groups: int
    batch: int
    lr: float
    epochs: int
    epsilon: float
    mean_norm: float = 2.0
    square_norm: float = 2.0
    noise: float = 8.0
    mirrored: bool = False
    network: Literal["linear", "cnn"] = "linear"
    ceiling_lr: float = 3e-4
    ceiling_epochs: int = 15


MNIST = Recipe(data="mnist", image=(28, 28), groups=0, batch=4096, lr=8, epochs=40, epsilon=2.93, square_norm=4.0)
CIFAR = Recipe(data="cifar", image=(32, 32, 3), groups=0, batch=8192, lr=4, epochs=60, epsilon=3.0, ceiling_epochs=10)
RECIPES = {
    "mnist-moments": MNIST,
    "mnist-groups": replace(MNIST, groups=27),
    "cifar-moments": CIFAR,
    "cifar-groups": replace(CIFAR, groups=27),
    "cifar-mirrored": replace(CIFAR, mirrored=True),
    "cifar-cnn": replace(CIFAR, mirrored=True, network="cnn"),
}


class Head(nn.Module):
    """A linear layer on features, or a small network, with a layer before it that normalises them if there is one."""

    def __init__(self, shape: tuple[int, ...], normalization: nn.Module | None, network: str = "linear") -> None:
        super().__init__()
        self.normalization = normalization or nn.Identity()
        self.network = small_network(shape) if network == "cnn" else linear(shape)

    def forward(self, features: Tensor) -> Tensor:
        return self.network(self.normalization(features.float()))


def linear(shape: tuple[int, ...]) -> nn.Module:
    layer = nn.Linear(math.prod(shape), CLASSES)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def small_network(shape: tuple[int, ...]) -> nn.Module:
    """Return two convolutions of 64 channels and a linear layer: 187,000 parameters for CIFAR-10, as in the paper."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, WIDTH, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(WIDTH * (height // 2) * (width // 2), CLASSES),
    )


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    name = {"train": "train", "test": "t10k"}[part]
    images = gzip.decompress((DATA / f"mnist/{name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((DATA / f"mnist/{name}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    return pixels, np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)


def cifar(part: str) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    with np.load(DATA / "cifar10_jpeg_full.npz") as file:
        data, at = file[f"jpeg_{part}"].tobytes(), file[f"offset_{part}"]
        labels = file[f"y_{part}"].astype(np.int64)
    return np.stack([np.asarray(Image.open(io.BytesIO(data[i:j]))) for i, j in pairwise(at)]), labels


def load(recipe: Recipe, cache: Path, part: str) -> tuple[np.ndarray, Tensor]:
    """Return features and labels."""
    images, labels = (mnist if recipe.data == "mnist" else cifar)(part)
    groups = recipe.groups or None
    name = f"{'mirrored-' if recipe.mirrored else ''}{recipe.data}-{part}-{groups}.safetensors"
    features = scattering(images, groups=groups, mirrored=recipe.mirrored, cache=cache / name)
    return features, torch.from_numpy(labels)


def private(recipe: Recipe, features: np.ndarray, labels: Tensor, epsilon: float) -> tuple[Head, dict]:
    """Train one private model; return it with what the ledger says."""
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one image")
    moments = None
    if not recipe.groups:
        moments = tacita.MomentsOracle(
            features,
            ledger=ledger,
            num_records=len(labels),
            max_mean_norm=recipe.mean_norm * math.sqrt(features.shape[1]),
            max_square_norm=recipe.square_norm * math.sqrt(features.shape[1]),
            mechanism=tacita.GaussianMechanism(noise_multiplier=recipe.noise),
            scale=typical_sizes(Scattering(shape=recipe.image)),
            max_physical_batch_size=512,
        )
    model = Head(features.shape[1:], None if moments is None else moments.layer, recipe.network)
    sampler = tacita.PoissonSampler(expected_batch_size=recipe.batch, num_records=len(labels))
    oracle = tacita.ClippedGradientOracle(
        model,
        loss_fn,
        (features, labels),
        ledger=ledger,
        sampler=sampler,
        clipper=tacita.FlatClipper(max_grad_norm=0.1),
        mechanism=tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=DELTA),
        planned_queries=sampler.queries_for(recipe.epochs),
        max_physical_batch_size=512,
    )
    if moments is not None:
        moments.query()
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=0.9)
    ema = tacita.ExponentialAverage(dict(model.named_parameters()), decay=1 - 10 / oracle.planned_queries)
    for _ in range(oracle.planned_queries):
        oracle.backward()
        optimizer.step()
        ema.update(dict(model.named_parameters()))
    averaged = Head(features.shape[1:], None if moments is None else moments.layer, recipe.network)
    ema.copy_to(dict(averaged.named_parameters()))
    told = {"epsilon": ledger.epsilon(DELTA), "noise": oracle.noise_multiplier, "steps": oracle.planned_queries}
    return model, {**told, "averaged": averaged}


def exact_moments(features: np.ndarray) -> FixedNormalization:
    """The layer that MomentsOracle sets, from the data themselves: not private."""
    first = second = torch.zeros(features.shape[1], dtype=torch.float64)
    for start in range(0, len(features), SLICE):
        part = torch.from_numpy(features[start : start + SLICE].astype(np.float32)).flatten(2)
        first = first + part.mean(2).double().sum(0) / len(features)
        second = second + part.square().mean(2).double().sum(0) / len(features)
    layer = FixedNormalization(features.shape[1])
    layer.set(first.float(), (second - first.square()).clamp(min=1e-12).sqrt().float())
    return layer


def without_privacy(recipe: Recipe, features: np.ndarray, labels: Tensor) -> Head:
    """Train the same model without privacy, by Adam with a step size that falls to 0."""
    model = Head(features.shape[1:], None if recipe.groups else exact_moments(features), recipe.network)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.ceiling_lr)
    steps = recipe.ceiling_epochs * -(-len(labels) // SLICE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(recipe.ceiling_epochs):
        for rows in torch.randperm(len(labels)).split(SLICE):
            batch = torch.from_numpy(features[rows.numpy()]), labels[rows]
            optimizer.zero_grad()
            loss_fn(model, batch).mean().backward()
            optimizer.step()
            falling.step()
    return model


def accuracy(model: nn.Module, features: np.ndarray, labels: Tensor) -> float:
    right = 0
    with torch.no_grad():
        for first in range(0, len(labels), SLICE):
            rows = slice(first, first + SLICE)
            right += int((model(torch.from_numpy(np.array(features[rows]))).argmax(1) == labels[rows]).sum())
    return right / len(labels)


def run(recipe: Recipe, cache: Path, epsilon: float | None) -> dict:
    """Train once, privately or without privacy (``None``), and say what came out."""
    started, cpu = time.perf_counter(), time.process_time()
    data, test = load(recipe, cache, "train"), load(recipe, cache, "test")
    loaded, loaded_cpu = time.perf_counter(), time.process_time()
    told: dict = {"epsilon": None}
    if epsilon is None:
        model = without_privacy(recipe, *data)
    else:
        model, told = private(recipe, *data, epsilon)
        told["test_accuracy_ema"] = accuracy(told.pop("averaged"), *test)
    seconds = time.perf_counter() - loaded, time.process_time() - loaded_cpu
    return {
        "test_accuracy": accuracy(model, *test),
        **told,
        "features_seconds": round(loaded - started),
        "features_cpu": round(loaded_cpu - cpu),
        "training_seconds": round(seconds[0]),
        "training_cpu": round(seconds[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", choices=RECIPES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--ceiling", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "tacita-records")
    given = parser.parse_args()
    given.cache.mkdir(mode=0o700, exist_ok=True)
    for name in given.recipes:
        recipe = RECIPES[name]
        for _ in range(1 if given.ceiling else given.runs):
            found = run(recipe, given.cache, None if given.ceiling else given.epsilon or recipe.epsilon)
            line = json.dumps({"recipe": name, **found})
            print(line, flush=True)
            if given.keep:
                with given.keep.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
