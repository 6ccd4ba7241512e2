"""Clip21-SGDM on ResNet20 and VGG16 and CIFAR-10, without noise: Figures 3 and 4.

Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", section 4.1. Every run is a
:class:`~tacita.federated.Simulation` without noise. The paper does not say how many clients and epochs there are, nor
how the networks are normalised; here they have groups in place of batch statistics, which couple the rows of a client.
CIFAR-10 comes from a folder; without one, images of noise around ten patterns serve. Everything is public, and settings
are chosen by test accuracy, as in the paper.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tacita.clipping import FlatClipper, PerLayerClipper
from tacita.federated import Clip21SGDM, ClipSGD, FederatedAlgorithm
from tacita_reproductions import figures
from tacita_reproductions.clip21_networks import losses, trained
from tacita_reproductions.federated_grid import CLIP21_SGD, CLIP21_SGDM, CLIP_SGD, METHODS
from tacita_reproductions.runner import Check, Progress, Result, Row, needed_files

GLOBAL, LAYERS = CLIPPINGS = ("global clipping", "layer-wise clipping")
WHOLE = [
    *(f"cifar-10-batches-bin/data_batch_{part}.bin" for part in range(1, 6)),
    "cifar-10-batches-bin/test_batch.bin",
]
SUBSET = "cifar10_subset.npz"
STABLE = 0.05  # of test accuracy, that a method may lose between the largest and the smallest threshold
Images = tuple[Tensor, Tensor]  # (n, 3, side, side) in [-1, 1], labels


class ResNet20Block(nn.Module):
    """A block of ResNet-20: two convolutions, and what came in is added; the shortcut has no parameters."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.stride = 1 if inside == outside else 2
        self.grown = outside - inside
        self.layers = nn.Sequential(
            nn.Conv2d(inside, outside, 3, self.stride, 1, bias=False),
            nn.GroupNorm(min(4, outside), outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.GroupNorm(min(4, outside), outside),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, (..., channels, side, side)."""
        past = nn.functional.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.grown))
        return torch.relu(self.layers(x) + past)


def resnet20(share: float) -> nn.Module:
    """Return ResNet20 for CIFAR-10 (He et al. 2016) with a ``share`` of its channels, 16 in the first stage."""
    width = round(16 * share)
    sizes = [width] * 4 + [2 * width] * 3 + [4 * width] * 3
    blocks = [ResNet20Block(inside, outside) for inside, outside in pairwise(sizes)]
    first = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(min(4, width), width), nn.ReLU()]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def vgg16(share: float) -> nn.Module:
    """Return VGG16 with one linear layer, as for CIFAR-10, and a ``share`` of its channels, 64 in the first stage."""
    layers: list[nn.Module] = []
    inside, width = 3, round(64 * share)
    for factor, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(count):
            outside = factor * width
            layers += [nn.Conv2d(inside, outside, 3, 1, 1), nn.GroupNorm(min(4, outside), outside), nn.ReLU()]
            inside = outside
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


@dataclass(frozen=True, kw_only=True)
class ImageScale:
    """The size of a run, and the grid that is tuned at each threshold.

    Attributes:
        width: Share of the published number of channels.
        side: Pixels of an image's side.
        images, tested: Numbers of images for training and for the test.
        batch: Images of a client's minibatch.
    """

    rounds: int
    clients: int
    width: float
    side: int
    images: int
    tested: int
    batch: int
    lrs: Sequence[float]
    bounds: Sequence[float]
    weights: Sequence[float]


FULL = ImageScale(
    rounds=15_600, clients=10, width=1, side=32, images=50_000, tested=10_000, batch=32, lrs=(1e-3, 1e-2, 1e-1, 1.0),
    bounds=(1e-3, 1e-2, 1e-1, 1.0), weights=(0.1, 0.5, 0.9),
)  # fmt: skip
REDUCED = ImageScale(
    rounds=300, clients=4, width=0.25, side=16, images=1000, tested=1000, batch=32, lrs=(0.1, 1.0),
    bounds=(1e-2, 1.0), weights=(0.5,),
)  # fmt: skip
SMALL = ImageScale(
    rounds=2, clients=2, width=1 / 16, side=8, images=40, tested=20, batch=4, lrs=(0.5,), bounds=(1e-2, 1.0),
    weights=(0.5,),
)  # fmt: skip


def cifar(data: Path | None, scale: ImageScale, *, full: bool) -> tuple[Images, Images]:
    """Return images for training and for the test: CIFAR-10, or noise around ten patterns.

    Args:
        data: A folder with the binary version of CIFAR-10, or with ``cifar10_subset.npz`` (``x_train`` (n, 3, 32, 32),
            ``y_train``, ``x_test``, ``y_test``), which is too small for the full scale.
        scale: How many images, of which size.
        full: Whether the whole of CIFAR-10 is needed.
    """
    if data is None:
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(scale.images + scale.tested) % 10
        patterns = torch.rand(10, 3, scale.side, scale.side, generator=generator)
        made = 2 * patterns[labels] - 1 + 0.3 * torch.randn(len(labels), *patterns.shape[1:], generator=generator)
        return (made[: scale.images], labels[: scale.images]), (made[scale.images :], labels[scale.images :])
    if full or not (data / SUBSET).is_file():
        needed_files(data, WHOLE)
        parts = [np.fromfile(data / name, np.uint8).reshape(-1, 3073) for name in WHOLE]
        train, test = np.concatenate(parts[:-1]), parts[-1]
        pairs = [(part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0]) for part in (train, test)]
    else:
        with np.load(data / SUBSET, allow_pickle=False) as archive:
            pairs = [(archive[f"x_{part}"], archive[f"y_{part}"]) for part in ("train", "test")]
    (images, labels), (tested, test_labels) = pairs
    return _scaled(images, labels, scale.images, scale.side), _scaled(tested, test_labels, scale.tested, scale.side)


def _scaled(images: np.ndarray, labels: np.ndarray, count: int, side: int) -> Images:
    found = torch.from_numpy(images[:count].astype(np.float32)) / 127.5 - 1
    return nn.functional.adaptive_avg_pool2d(found, side), torch.from_numpy(labels[:count].astype(np.int64))


def clipper(clipping: str, bound: float, network: nn.Module) -> FlatClipper | PerLayerClipper:
    """Return the clipper of a threshold, which layer-wise clipping gives to every layer."""
    if clipping == GLOBAL:
        return FlatClipper(max_grad_norm=bound)
    layers = len(PerLayerClipper(max_grad_norm=1.0).groups({name: p.shape for name, p in network.named_parameters()}))
    return PerLayerClipper(max_grad_norm=bound * math.sqrt(layers))


def algorithm_of(method: str, bounded: FlatClipper | PerLayerClipper, lr: float, weight: float) -> FederatedAlgorithm:
    """Return the algorithm of a method's name."""
    if method == CLIP_SGD:
        return ClipSGD(clipper=bounded, lr=lr)
    return Clip21SGDM(clipper=bounded, lr=lr, momentum_weight=weight)


def accuracies(
    build: Callable[[float], nn.Module], full: bool, seed: int, progress: Progress, data: Path | None
) -> Result:
    """Reproduce Figures 3 and 4 for one network: the tuned test accuracy of each method at each threshold."""
    scale = FULL if full else REDUCED if data is not None else SMALL
    torch.manual_seed(seed)
    network, (given, tested) = build(scale.width), cifar(data, scale, full=full)
    rows: list[Row] = []
    work = list(product(CLIPPINGS, METHODS, scale.bounds))
    for place, (clipping, method, bound) in enumerate(work):
        progress(place / len(work), f"{method} at {bound:g}, {clipping}")
        weights = scale.weights if method == CLIP21_SGDM else (1.0,)
        found = []
        for lr, weight in product(scale.lrs, weights):
            algorithm = algorithm_of(method, clipper(clipping, bound, network), lr, weight)
            model = trained(network, given, algorithm, ratio=0.0, scale=scale, batch=scale.batch, seed=seed)
            with torch.no_grad():
                right = float((model(tested[0]).argmax(dim=1) == tested[1]).double().mean())
                loss = float(losses(model, given).mean())
            found.append((right, -loss if math.isfinite(loss) else -math.inf, lr, weight))
        accuracy, loss, lr, weight = max(found)
        row = {"data": clipping, "method": method, "threshold": bound, "lr": lr, "weight": weight}
        rows.append({**row, "test accuracy": accuracy, "training loss": -loss})
    return Result(
        rows=rows,
        checks=_checks(rows, scale.bounds),
        notes=[
            f"{scale.clients} clients, {len(given[0]):,} images of {scale.side} x {scale.side}, batches of "
            f"{scale.batch}, {scale.rounds:,} rounds, {scale.width:g} of the published channels, group normalisation",
            f"no noise; one seed; at every threshold the best, by test accuracy, of the step sizes {_list(scale.lrs)} "
            f"and momentum weights {_list(scale.weights)}",
            *([] if data is not None else ["synthetic images; --data FOLDER takes CIFAR-10"]),
        ],
        draw=partial(figures.tuned, rows, "test accuracy", "threshold", "threshold"),
    )


def _list(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _checks(rows: Sequence[Row], bounds: Sequence[float]) -> list[Check]:
    low, high = min(bounds), max(bounds)
    found = {(row["data"], row["method"], row["threshold"]): row["test accuracy"] for row in rows}
    lost = {key[:2]: found[(*key[:2], high)] - found[(*key[:2], low)] for key in found}
    return [
        check
        for clipping in CLIPPINGS
        for check in (
            Check(
                f"{clipping}: Clip-SGD deteriorates at the smallest threshold",
                lost[clipping, CLIP_SGD] > STABLE,
                found=f"{found[clipping, CLIP_SGD, high]:.3f} at {high:g}, "
                f"{found[clipping, CLIP_SGD, low]:.3f} at {low:g}; one seed",
            ),
            Check(
                f"{clipping}: Clip21-SGD and Clip21-SGDM lose less than Clip-SGD does",
                max(lost[clipping, CLIP21_SGD], lost[clipping, CLIP21_SGDM]) < lost[clipping, CLIP_SGD],
                found=", ".join(f"{method} loses {lost[clipping, method]:.3f}" for method in METHODS),
            ),
            Check(
                f"{clipping}: Clip21-SGDM is the best at the smallest threshold",
                found[clipping, CLIP21_SGDM, low] >= max(found[clipping, method, low] for method in METHODS),
                found=", ".join(f"{method} {found[clipping, method, low]:.3f}" for method in METHODS) + "; one seed",
            ),
        )
    ]


resnet20_accuracies, vgg16_accuracies = partial(accuracies, resnet20), partial(accuracies, vgg16)
