"""Many runs of the federated algorithms at once, over a grid of step sizes, thresholds and momentum weights.

The noise is torch's, and nothing is charged: the data are public. The tests hold the recursion against the pure
functions of :mod:`tacita.federated`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from tacita.accounting import PoissonLaw, calibrate, gaussian_sum_event

CLIP_SGD, CLIP21_SGD, CLIP21_SGDM = METHODS = ("Clip-SGD", "Clip21-SGD", "Clip21-SGDM")
RECORD = f"{CLIP_SGD}, one record"  # with the noise that one record needs
Gradients = Callable[[Tensor, Tensor], Tensor]  # points (cells, d), seeds of the cells -> gradients (clients, cells, d)


@dataclass(frozen=True)
class Cell:
    """One run: a method, its settings, and the standard deviation of the noise of each client's message."""

    method: str
    lr: float
    bound: float
    weight: float
    noise: float
    seed: int


def cells(
    methods: Sequence[str],
    *,
    lrs: Sequence[float],
    bounds: Sequence[float],
    weights: Sequence[float],
    ratios: Sequence[float] = (0.0,),
    seeds: int,
) -> list[Cell]:
    """Return all cells of a grid; the noise is a ratio times the threshold, and only Clip21-SGDM has a weight < 1."""
    return [
        Cell(method, lr, bound, weight, ratio * bound, seed)
        for method in methods
        for weight in (weights if method == CLIP21_SGDM else (1.0,))
        for ratio, bound, lr, seed in product(ratios, bounds, lrs, range(seeds))
    ]


def iterates(grid: Sequence[Cell], gradients: Gradients, dim: int, *, clients: int, seed: int) -> Iterator[Tensor]:
    r"""Yield the broadcast models of each round, (cells, d), for ever; all start at zero.

    All methods are one recursion: :math:`v' = (1-\beta) v + \beta G`, :math:`u = \text{clip}_C(v' - k g)`,
    :math:`g' = k (g + u)` on the clients and :math:`\hat g' = k \hat g + \bar u + \bar\omega` on the server, with k = 1
    for Clip21 and k = 0 for Clip-SGD. Cells of the same seed have the same minibatches, and the same
    normals in units of their noise. The mean of the messages' noises is drawn as one normal of its variance.
    """
    keep = _column(grid, lambda cell: float(cell.method != CLIP_SGD)).unsqueeze(0)
    lr, noise = (_column(grid, lambda cell, name=name: getattr(cell, name)) for name in ("lr", "noise"))
    bound, weight = (
        _column(grid, lambda cell, name=name: getattr(cell, name)).unsqueeze(0) for name in ("bound", "weight")
    )
    seeds = torch.tensor([cell.seed for cell in grid])
    normals = [torch.Generator().manual_seed(2**32 * seed + one) for one in range(int(seeds.max()) + 1)]
    x, estimate = (torch.zeros(len(grid), dim) for _ in range(2))
    momentum, shift = (torch.zeros(clients, len(grid), dim) for _ in range(2))
    noisy = bool(noise.any())
    while True:
        x = x - lr * estimate
        yield x
        momentum = momentum.lerp_(gradients(x, seeds), weight)
        apart = torch.addcmul(momentum, shift, keep, value=-1)
        apart *= (bound / apart.norm(dim=-1, keepdim=True)).clamp_(max=1.0)
        shift = shift.add_(apart)
        estimate = keep[0] * estimate + apart.mean(dim=0)
        if noisy:
            draws = torch.stack([torch.randn(dim, generator=one) for one in normals])
            estimate = estimate.addcmul_(draws[seeds], noise, value=clients**-0.5)


def best(rows: Sequence[dict[str, Any]], column: str, *, of: Sequence[str]) -> list[dict[str, Any]]:
    """Return, for each combination of the columns ``of``, the row with the least ``column``: tuned settings."""
    groups: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in of)
        if key not in groups or row[column] < groups[key][column]:
            groups[key] = row
    return list(groups.values())


def record_ratio(epsilon: float, share: float, rounds: int, delta: float) -> float:
    """Return the ratio at which Clip-SGD's messages protect one record, which each draws with chance ``share``.

    A record moves the message by up to twice the threshold if it is drawn, and not at all else; there is no state that
    remembers it. Clip21 has one, so that no sampling helps there.
    """
    relation = "add_or_remove_one"
    return calibrate(
        lambda ratio: gaussian_sum_event(PoissonLaw(share), (2.0,), (ratio,), relation),
        relation,
        epsilon,
        delta,
        queries=rounds,
    )


def _column(grid: Sequence[Cell], value: Callable[[Cell], float]) -> Tensor:
    return torch.tensor([[value(cell)] for cell in grid])
