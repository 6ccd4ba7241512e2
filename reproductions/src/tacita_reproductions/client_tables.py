r"""Tables on four clients, for the experiments on Clip21-SGDM: rows of unit norm, and noisy gradients of a loss.

The loss is a logistic regression with a regulariser that is not convex. All data are public.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita_reproductions.runner import needed_files

CLIENTS, LAMBDA = 4, 1e-3


@dataclass(frozen=True)
class ClientTable:
    """Rows of unit norm on four clients, and the two gradient noises of the paper.

    Attributes:
        name: What the table is called.
        features: (clients, rows, d).
        labels: -1 or 1, (clients, rows).
        noise: Standard deviation of the Gaussian gradient noise, per coordinate. (The paper says "variance sigma".)
        share: Share of a client's rows in a minibatch.
    """

    name: str
    features: Tensor
    labels: Tensor
    noise: float
    share: float

    @classmethod
    def of(cls, name: str, features: np.ndarray, labels: np.ndarray, noise: float, share: float) -> "ClientTable":
        """Normalise the rows and deal them to the clients in a fixed random order; what does not divide is left out."""
        rows = len(features) // CLIENTS * CLIENTS
        order = np.random.default_rng(0).permutation(len(features))[:rows]
        unit = features[order] / np.linalg.norm(features[order], axis=1, keepdims=True)
        signs = np.where(labels[order] > 0, 1.0, -1.0)
        dealt = torch.from_numpy(unit).float().reshape(CLIENTS, -1, features.shape[1])
        return cls(name, dealt, torch.from_numpy(signs).float().reshape(CLIENTS, -1), noise, share)

    @property
    def dim(self) -> int:
        return self.features.shape[2]

    def gradients(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the clients' gradients (clients, cells, d) at points (cells, d); ``weights`` are those of the rows."""
        margins = self.labels.unsqueeze(1) * torch.matmul(x, self.features.mT)  # (clients, cells, rows)
        pulls = -weights * self.labels.unsqueeze(1) * torch.sigmoid(-margins)
        regulariser = 2 * LAMBDA * x / (1 + x.square()).square()
        return torch.baddbmm(regulariser.expand(len(pulls), -1, -1), pulls, self.features)

    def full(self, x: Tensor) -> Tensor:
        """Return the gradient of f, (cells, d)."""
        weights = torch.full((CLIENTS, 1, 1), 1 / self.labels.shape[1])
        return self.gradients(x, weights).mean(dim=0)


def stochastic(table: ClientTable, kind: str, seeds: int, seed: int) -> Any:
    """Return noisy gradients: ``"minibatch"`` of a share of the rows, ``"Gaussian"`` noise, or ``"exact"``."""
    rows = table.labels.shape[1]
    generators = [torch.Generator().manual_seed(1000 * seed + one) for one in range(seeds)]
    whole = torch.full((CLIENTS, 1, 1), 1 / rows)
    taken = max(1, round(table.share * rows))

    def minibatch() -> Tensor:
        ranks = torch.stack([torch.rand(CLIENTS, rows, generator=one).argsort(dim=1) for one in generators], dim=1)
        return (ranks < taken).float() / taken  # (clients, seeds, rows)

    def gradients(x: Tensor, of_seed: Tensor) -> Tensor:
        found = table.gradients(x, whole if kind != "minibatch" else minibatch()[:, of_seed])
        if kind == "Gaussian":
            noises = torch.stack([torch.randn(CLIENTS, table.dim, generator=one) for one in generators], dim=1)
            found = found.add_(noises[:, of_seed], alpha=table.noise)
        return found

    return gradients


def tables(data: Path | None) -> list[ClientTable]:
    """Return Duke and Leukemia from a folder; without one, a synthetic table of 44 rows and 200 features."""
    if data is None:
        rng = np.random.default_rng(0)
        return [ClientTable.of("synthetic", rng.standard_normal((44, 200)), rng.standard_normal(44), 0.05, 0.5)]
    needed_files(data, ("duke.npz", "leukemia.npz"))
    with np.load(data / "duke.npz") as duke, np.load(data / "leukemia.npz") as leukemia:
        return [
            ClientTable.of("Duke", duke["x"], duke["y"], 0.05, 0.5),
            ClientTable.of("Leukemia", leukemia["x_train"], leukemia["y_train"], 0.1, 0.25),
        ]
