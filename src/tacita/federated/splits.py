"""Splits of one data set over clients that differ from one another: by label, by a Dirichlet law, by natural owner.

They stand for the clients of a simulation, and decide nothing about privacy.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacita import _validate

Split = list[np.ndarray]  # one array of row numbers a client


def split_evenly(num_rows: int, num_clients: int, rng: np.random.Generator) -> Split:
    """Deal rows at random to clients, whose sizes differ by at most one."""
    return [np.sort(part) for part in np.array_split(rng.permutation(num_rows), _clients(num_clients, num_rows))]


def split_by_label(labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, shards: int = 2) -> Split:
    """Sort rows by label, cut them into ``shards`` pieces a client, and deal the pieces at random.

    Source: McMahan et al. (2017), https://arxiv.org/abs/1602.05629, section 3.

    Example:
        >>> parts = split_by_label(np.array([0, 1, 0, 1]), 2, np.random.default_rng(0), shards=1)
        >>> sorted(part.tolist() for part in parts)
        [[0, 2], [1, 3]]
    """
    pieces = _clients(num_clients, len(labels)) * _validate.count("shards", shards)
    order = rng.permutation(len(labels))
    cut = np.array_split(order[np.argsort(labels[order], kind="stable")], pieces)
    dealt = rng.permutation(pieces).reshape(num_clients, shards)
    return [np.sort(np.concatenate([cut[piece] for piece in mine])) for mine in dealt]


def split_dirichlet(labels: np.ndarray, num_clients: int, rng: np.random.Generator, *, concentration: float) -> Split:
    """Deal the rows of each label in shares of a symmetric Dirichlet law; a small concentration gives unlike clients.

    Source: Hsu, Qi and Brown (2019), https://arxiv.org/abs/1909.06335. A client may get no row.
    """
    _validate.positive("concentration", concentration)
    parts: list[list[np.ndarray]] = [[] for _ in range(_clients(num_clients, len(labels)))]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_clients, concentration))
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def split_by_owner(owners: Sequence[object] | np.ndarray) -> Split:
    """Give every owner a client of its own, in the order of their first rows.

    Example:
        >>> [part.tolist() for part in split_by_owner(["ann", "bob", "ann"])]
        [[0, 2], [1]]
    """
    found: dict[object, list[int]] = {}
    for row, owner in enumerate(owners.tolist() if isinstance(owners, np.ndarray) else owners):
        found.setdefault(owner, []).append(row)
    return [np.array(rows) for rows in found.values()]


def stacked(data: Sequence[Tensor], split: Split) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return tensors (clients, rows, ...), padded to the largest client, and the weights (clients, rows) of a mean.

    A row weighs 1 over the number of its client's rows; a row that pads weighs 0 and is zero, so that no
    client's gradient sees a row of another one.
    """
    most = max([1, *(len(part) for part in split)])
    places = torch.zeros(len(split), most, dtype=torch.int64)
    weights = torch.zeros(len(split), most, dtype=torch.float64)
    for client, part in enumerate(split):
        places[client, : len(part)] = torch.from_numpy(np.asarray(part, dtype=np.int64))
        weights[client, : len(part)] = 1 / max(1, len(part))
    own = weights > 0
    return tuple(one[places].masked_fill(~own.reshape(*own.shape, *[1] * (one.ndim - 1)), 0) for one in data), weights


def _clients(num_clients: int, num_rows: int) -> int:
    if _validate.count("num_clients", num_clients) > num_rows:
        raise ValueError(f"num_clients must be at most the number of rows, {num_rows}, got {num_clients}.")
    return num_clients
