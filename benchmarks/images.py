"""Images for the accuracy table: MNIST and CIFAR-10, and fixed features of the latter.

The data folder is TACITA_DATA, or ../shared/data beside the repository.
"""

import gzip
import hashlib
import io
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from results import DATA
from torch import Tensor, nn

ORIENTATIONS, SCALES = 8, (7, 13)  # of the filters; a scale is the width of a filter in pixels
POOLED = 8  # each response is averaged down to 8 x 8
FEATURES = 3 * (1 + ORIENTATIONS * len(SCALES)) * POOLED**2


@dataclass(frozen=True)
class Images:
    """Inputs and labels; the test rows are never used but for the last figure."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


@dataclass(frozen=True)
class Task:
    """A data set and a network.

    Attributes:
        name: In the table.
        load: Reads the data.
        model: Makes the network.
        steps: Learning rates times the clipping threshold that are tried.
    """

    name: str
    load: Callable[[], Images]
    model: Callable[[], nn.Module]
    steps: tuple[float, ...]


def mnist() -> Images:
    parts = []
    for part in ("train", "t10k"):
        images = gzip.decompress((DATA / f"mnist/{part}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((DATA / f"mnist/{part}-labels-idx1-ubyte.gz").read_bytes())
        pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28).astype(np.float32)
        parts += [
            (torch.from_numpy(pixels) / 255 - 0.1307) / 0.3081,
            torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)),
        ]
    return Images(*parts)


def cifar_features() -> Images:
    """Fixed features of all 60,000 CIFAR-10 images (the lossy JPEG copy); no pixel of another image enters one."""
    source = DATA / "cifar10_jpeg_full.npz"
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    kept = Path(tempfile.gettempdir()) / f"tacita-cifar-{version}.npz"
    if not kept.exists():
        with np.load(source) as file:
            found = {f"x_{part}": features(_jpegs(file, part)).numpy() for part in ("train", "test")}
            found |= {f"y_{part}": file[f"y_{part}"].astype(np.int64) for part in ("train", "test")}
        partial = kept.with_suffix(f".{os.getpid()}.npz")  # other workers make theirs
        np.savez(partial, **found)
        partial.replace(kept)
    with np.load(kept) as file:
        return Images(*(torch.from_numpy(file[name]) for name in ("x_train", "y_train", "x_test", "y_test")))


def _jpegs(file, part: str) -> Tensor:
    from PIL import Image

    data, at = file[f"jpeg_{part}"].tobytes(), file[f"offset_{part}"]
    pixels = [np.asarray(Image.open(io.BytesIO(data[i:j]))) for i, j in pairwise(at)]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


def features(pixels: Tensor) -> Tensor:
    """First-order scattering: modulus of oriented wavelets at two scales, beside the image itself, averaged to 8 x 8.

    Each channel is scaled to mean 0 and variance 1 over its positions and orientations within the image: nothing is
    learnt, and images do not mix.

    Args:
        pixels: uint8, shape (images, 3, height, width).

    Returns:
        float32, shape (images, features).
    """
    found = []
    with torch.no_grad():
        for chunk in pixels.split(500):
            image = chunk.float() / 255
            flat = image.reshape(-1, 1, *image.shape[-2:])
            parts = [image]
            for width in SCALES:
                waves = _wavelets(width)
                both = nn.functional.conv2d(flat, waves, padding=width // 2)
                modulus = both[:, :ORIENTATIONS].square().add(both[:, ORIENTATIONS:].square()).sqrt()
                parts.append(modulus.view(len(chunk), -1, *modulus.shape[-2:]))
            pooled = [nn.functional.adaptive_avg_pool2d(part, POOLED) for part in parts]
            found.append(torch.cat([_standardised(part).flatten(1) for part in pooled], dim=1))
    return torch.cat(found)


def _wavelets(width: int) -> Tensor:
    """Morlet wavelets of ORIENTATIONS directions, mean zero; real parts, then imaginary parts."""
    half = width // 2
    row, column = torch.meshgrid(*(torch.arange(-half, half + 1.0),) * 2, indexing="ij")
    envelope = torch.exp(-(row.square() + column.square()) / (2 * (width / 5) ** 2))
    waves = []
    for k in range(ORIENTATIONS):
        angle = math.pi * k / ORIENTATIONS
        phase = (row * math.sin(angle) + column * math.cos(angle)) * (5 * math.pi / (2 * width))
        wave = torch.exp(1j * phase)
        waves.append(envelope * (wave - (envelope * wave).sum() / envelope.sum()))
    stacked = torch.stack(waves)
    stacked = stacked / stacked.abs().sum(dim=(1, 2), keepdim=True)
    return torch.cat([stacked.real, stacked.imag])[:, None].float()


def _standardised(part: Tensor) -> Tensor:
    groups = part.view(len(part), 3, -1)
    return (groups - groups.mean(2, keepdim=True)) / groups.std(2, keepdim=True).clamp(min=1e-3)


def convolutional() -> nn.Module:
    """The small network that private image classification is usually measured with: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def linear(features: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(features, 10))
        nn.init.zeros_(model[1].weight)
        nn.init.zeros_(model[1].bias)
        return model

    return make


TASKS = (
    Task("MNIST, CNN", mnist, convolutional, (0.1, 0.3, 0.6)),
    Task("MNIST, linear", mnist, linear(784), (0.1, 0.3, 1.0)),
    Task("CIFAR-10, linear on fixed features", cifar_features, linear(FEATURES), (0.03, 0.1, 0.3)),
)
