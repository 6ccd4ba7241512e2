"""Clip21-SGDM on small networks and MNIST, with private noise: Figure 6.

Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", section 4.2 and appendix
H.2. Every run is a :class:`~tacita.federated.Simulation` with local noise. MNIST comes from a folder; without one,
images of noise around ten patterns serve. The paper does not say how many clients and rounds there are. Everything is
public, and the settings are tuned on the training loss, as in the paper.
"""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tacita.accounting import gaussian_epsilon
from tacita.clipping import FlatClipper
from tacita.federated import Clip21SGDM, ClipSGD, FederatedAlgorithm, LocalPrivacy, NetworkClients, Simulation
from tacita.federated.clip21_noise import message_mu
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism
from tacita.random import Randomness
from tacita_reproductions import figures
from tacita_reproductions.federated_grid import CLIP21_SGD, CLIP21_SGDM, CLIP_SGD, METHODS, RECORD, record_ratio
from tacita_reproductions.runner import Check, Progress, Result, Row, needed_files

BATCH, DELTA = 64, 1e-5
RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0)
PATTERNS = 784_010  # a seed that no run has: with the same one a network would start as the patterns themselves
MOST_EPSILON = 300.0  # beyond it no noise is looked for that gives one record the same epsilon


def mlp() -> nn.Module:
    """Return the paper's network with one hidden layer of 256."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    """Return two convolutions of 16 channels and kernel 5, and one pooling; strides and head are not in the paper."""
    layers = [nn.Conv2d(1, 16, 5, stride=2), nn.Tanh(), nn.Conv2d(16, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * 4 * 4, 10))


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of a run, and the grid that is tuned."""

    rounds: int
    clients: int
    images: int
    lrs: Sequence[float]
    bounds: Sequence[float]
    weights: Sequence[float]
    ratios: Sequence[float]


FULL = Scale(
    rounds=1000, clients=10, images=60_000, lrs=(1e-3, 1e-2, 1e-1, 1.0), bounds=(1e-4, 1e-3, 1e-2, 1e-1),
    weights=(0.5, 0.1, 0.01), ratios=RATIOS,
)  # fmt: skip
REDUCED = Scale(
    rounds=100, clients=10, images=2000, lrs=(1e-2, 1e-1, 1.0), bounds=(1e-2, 1e-1), weights=(0.5, 0.1), ratios=RATIOS
)
SMALL = Scale(rounds=4, clients=2, images=96, lrs=(0.5,), bounds=(0.1,), weights=(0.5,), ratios=(0.1, 10.0))


def images_of(data: Path | None, count: int, part: str = "train") -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 28, 28) and labels: the first of MNIST's ``part``, or noise around ten patterns.

    Args:
        data: The folder with ``mnist/``; ``None`` for the patterns.
        count: Number of images.
        part: ``"train"``, or ``"t10k"`` for the test images.
    """
    if data is None:
        labels = torch.arange(count) % 10
        patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(PATTERNS))
        own = torch.Generator().manual_seed(PATTERNS + 1 + (part != "train"))
        noise = torch.randn(count, 1, 28, 28, generator=own)
        return patterns[labels] + 0.3 * noise, labels
    needed_files(data, [f"mnist/{part}-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1")])
    images, labels = (
        np.frombuffer(gzip.decompress((data / f"mnist/{part}-{name}-ubyte.gz").read_bytes()), np.uint8, offset=offset)
        for name, offset in (("images-idx3", 16), ("labels-idx1", 8))
    )
    scaled = torch.from_numpy(images.copy()).reshape(-1, 1, 28, 28)[:count].float() / 255
    return scaled, torch.from_numpy(labels.copy())[:count].long()


def losses(model: Callable[[Tensor], Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    """Return the cross-entropy of each image."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class RunSize(Protocol):
    """The size of a run."""

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        ...

    @property
    def clients(self) -> int:
        """Number of clients."""
        ...


def trained(
    network: nn.Module,
    data: tuple[Tensor, Tensor],
    algorithm: FederatedAlgorithm,
    *,
    ratio: float,
    scale: RunSize,
    batch: int,
    seed: int,
) -> Callable[[Tensor], Tensor]:
    """Return the network after a run with local noise of ``ratio`` times the threshold."""
    rows = len(data[0]) // scale.clients
    dealt = tuple(part[: rows * scale.clients].unflatten(0, (scale.clients, rows)) for part in data)
    simulation = Simulation(
        NetworkClients(network, losses, dealt, batch_size=batch),
        algorithm,
        privacy=LocalPrivacy(mechanism=GaussianMechanism(noise_multiplier=ratio / 2)),
        ledger=Ledger(neighboring_relation="replace_one", privacy_unit="all images of one client"),
        rounds=scale.rounds,
        params={name: p.detach() for name, p in network.named_parameters()},
        randomness=Randomness.insecure(seed),
    )
    params = simulation.run()
    return lambda x: torch.func.functional_call(network, dict(params), (x,))


def algorithms(method: str, scale: Scale) -> list[tuple[float, float, float, FederatedAlgorithm]]:
    """Return all settings of a method: step size, threshold, momentum weight, algorithm."""
    weights = scale.weights if method == CLIP21_SGDM else (1.0,)
    return [
        (
            lr,
            bound,
            weight,
            ClipSGD(clipper=FlatClipper(max_grad_norm=bound), lr=lr)
            if method.startswith(CLIP_SGD)
            else Clip21SGDM(clipper=FlatClipper(max_grad_norm=bound), lr=lr, momentum_weight=weight),
        )
        for lr, bound, weight in product(scale.lrs, scale.bounds, weights)
    ]


def asked(scale: Scale) -> list[tuple[str, float, float, float]]:
    """Return method, noise-clipping ratio, the ratio that it is shown at, and epsilon of a client."""
    found = []
    for ratio in scale.ratios:
        epsilon = gaussian_epsilon(message_mu(max_grad_norm=1, noise_std=ratio, messages=scale.rounds), DELTA)
        found += [(method, ratio, ratio, epsilon) for method in METHODS]
        if epsilon < MOST_EPSILON:
            share = min(1.0, BATCH * scale.clients / scale.images)
            found.append((RECORD, record_ratio(epsilon, share, scale.rounds, DELTA), ratio, epsilon))
    return found


def noise_ratios(
    build: Callable[[], nn.Module], full: bool, seed: int, progress: Progress, data: Path | None
) -> Result:
    """Reproduce Figure 6 for one network: the tuned training loss of each method at each noise-clipping ratio."""
    scale = FULL if full else REDUCED if data is not None else SMALL
    torch.manual_seed(seed)
    network, given = build(), images_of(data, scale.images)
    rows: list[Row] = []
    work = asked(scale)
    for place, (method, ratio, shown, epsilon) in enumerate(work):
        progress(place / len(work), f"{method} at {shown:g}")
        found = [
            (float(losses(model, given).detach().mean()), lr, bound, weight)
            for lr, bound, weight, algorithm in algorithms(method, scale)
            for model in [trained(network, given, algorithm, ratio=ratio, scale=scale, batch=BATCH, seed=seed)]
        ]
        loss, lr, bound, weight = min(found)
        row = {"data": build.__name__.upper(), "method": method, "ratio": shown, "epsilon": epsilon}
        rows.append({**row, "lr": lr, "threshold": bound, "weight": weight, "training loss": loss})
    return Result(
        rows=rows,
        checks=_checks(rows, scale.ratios),
        notes=[
            f"{scale.clients} clients, {scale.images:,} images, batches of {BATCH}, {scale.rounds:,} rounds, one seed",
            f"epsilon of all images of a client against the server, at delta {DELTA:g}: the same for three methods",
            f"'{RECORD}': at a smaller ratio, with that same epsilon for one record, were its batches Poisson samples",
            "every method with its best threshold, step size and momentum weight: that tuning is not charged",
            *([] if data is not None else ["synthetic images; --data FOLDER takes the files of mnist/"]),
        ],
        draw=partial(figures.tuned, rows, "training loss", "ratio", "noise-clipping ratio"),
    )


def _checks(rows: Sequence[Row], ratios: Sequence[float]) -> list[Check]:
    loss = {(row["method"], row["ratio"]): row["training loss"] for row in rows}
    ends = {
        ratio: f"Clip-SGD {loss[CLIP_SGD, ratio]:.4g}, Clip21-SGDM {loss[CLIP21_SGDM, ratio]:.4g}; one seed"
        for ratio in (ratios[0], ratios[-1])
    }
    beaten = [r for r in ratios if max(loss[CLIP_SGD, r], loss[CLIP21_SGDM, r]) < loss[CLIP21_SGD, r]]
    return [
        Check(
            f"at ratio {ratios[-1]:g} Clip-SGD has the smaller loss of the two",
            loss[CLIP_SGD, ratios[-1]] < loss[CLIP21_SGDM, ratios[-1]],
            found=ends[ratios[-1]],
        ),
        Check(
            f"at ratio {ratios[0]:g} Clip21-SGDM has the smaller loss of the two",
            loss[CLIP21_SGDM, ratios[0]] < loss[CLIP_SGD, ratios[0]],
            found=ends[ratios[0]],
        ),
        Check(
            "both beat Clip21-SGD at every ratio",
            beaten == list(ratios),
            found=f"at the ratios {', '.join(f'{r:g}' for r in beaten)}" if beaten else "at none",
        ),
    ]


mlp_losses, cnn_losses = partial(noise_ratios, mlp), partial(noise_ratios, cnn)
