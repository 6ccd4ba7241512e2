r"""Clip21-SGDM on a logistic regression with a regulariser that is not convex, four clients: Figures 2, 5 and 7.

Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", section 4.1 and appendix
H.1. The paper's data (Duke, Leukemia) come from a folder; without one, a synthetic problem of the same kind serves. All
of it is public, and the grids are tuned on the data themselves, as in the paper: no run here is private as a whole.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from tacita.accounting import gaussian_epsilon
from tacita.federated.clip21_noise import message_mu, message_noise_std
from tacita_reproductions import figures
from tacita_reproductions.client_tables import CLIENTS, LAMBDA, ClientTable, stochastic, tables
from tacita_reproductions.federated_grid import (
    CLIP21_SGD,
    CLIP21_SGDM,
    CLIP_SGD,
    METHODS,
    RECORD,
    Cell,
    best,
    cells,
    iterates,
    record_ratio,
)
from tacita_reproductions.runner import Check, Progress, Result, Row, span

LAST, DELTA = 100, 1e-5
CLOSE = 1.2  # "a similar gradient norm"
MOST = 30_000_000  # numbers in one tensor of clients' states
Asked = tuple[str, float, float]  # method, noise-clipping ratio, and where it is shown: the ratio, or epsilon


def gradient_norms(
    table: ClientTable, grid: Sequence[Cell], kind: str, *, rounds: int, seed: int, say: Callable[[float], object]
) -> list[dict[str, Any]]:
    """Run a grid, and return a row for each setting: the mean norm of grad f over the last 100 rounds and all seeds."""
    found: list[float] = []
    at_once = max(1, MOST // (CLIENTS * table.dim))
    for first in range(0, len(grid), at_once):
        part = grid[first : first + at_once]
        source = stochastic(table, kind, 1 + max(cell.seed for cell in part), seed)
        total = torch.zeros(len(part))
        for t, x in zip(range(rounds), iterates(part, source, table.dim, clients=CLIENTS, seed=seed), strict=False):
            if t >= rounds - LAST:
                total += table.full(x).norm(dim=1)
            if t % 20 == 0:
                say((first + len(part) * t / rounds) / len(grid))
        found += (total / min(LAST, rounds)).tolist()
    groups: dict[tuple, list[float]] = {}
    for cell, norm in zip(grid, found, strict=True):
        groups.setdefault((cell.method, cell.lr, cell.bound, cell.weight, cell.noise), []).append(norm)
    names = ("method", "lr", "threshold", "weight", "noise")
    return [{**dict(zip(names, key, strict=True)), "gradient norm": fmean(norms)} for key, norms in groups.items()]


# --- without noise: Figures 2 and 7


def thresholds(full: bool, seed: int, progress: Progress, data: Path | None) -> Result:
    """Reproduce Figures 2 and 7: the gradient norm against the threshold, each method with its best step size."""
    rounds, seeds = (10_000, 3) if full else (1000, 2) if data else (600, 1)
    lrs = [2.0**k for k in (range(-5, 6) if full else range(-3, 4) if data else (-2, 0, 2))]
    bounds = [10.0**k for k in range(-4, 1)] if full else [1e-3, 1e-2, 1e-1, 1.0]
    grid = cells(METHODS, lrs=lrs, bounds=bounds, weights=(0.1, 0.5, 0.9), seeds=seeds)
    settings = [(table, kind) for table in tables(data) for kind in ("minibatch", "Gaussian")]
    rows: list[Row] = []
    for place, (table, kind) in enumerate(settings):
        what = f"{table.name}, {kind} noise"
        found = gradient_norms(
            table,
            grid,
            kind,
            rounds=rounds,
            seed=seed,
            say=lambda share, at=place, what=what: progress((at + share) / len(settings), what),
        )
        tuned = best(found, "gradient norm", of=("method", "threshold"))
        kept = ("method", "threshold", "lr", "weight", "gradient norm")
        rows += [{"data": table.name, "gradient noise": kind, **{name: row[name] for name in kept}} for row in tuned]
    return Result(
        rows=rows,
        checks=[check for table, kind in settings for check in _without_noise(rows, table.name, kind)],
        notes=[
            f"{CLIENTS} clients, lambda {LAMBDA:g}, unit rows, {rounds:,} rounds, {seeds} seeds",
            f"gradient norm: mean of the last {LAST} rounds and of the seeds",
            "each method with the step size (and momentum weight) of the least gradient norm at that threshold",
            "Gaussian gradient noise: the paper's 'variance sigma' is taken as a standard deviation per coordinate",
        ],
        draw=partial(
            figures.tuned,
            rows,
            "gradient norm",
            "threshold",
            "threshold",
            reached="norm of the gradient",
            of=("data", "gradient noise"),
            width=3.6,
        ),
    )


def _without_noise(rows: Sequence[Row], name: str, kind: str) -> list[Check]:
    of = {
        method: {
            row["threshold"]: row["gradient norm"]
            for row in rows
            if (row["data"], row["gradient noise"], row["method"]) == (name, kind, method)
        }
        for method in METHODS
    }
    bounds, where = sorted(of[CLIP_SGD]), f"{name}, {kind}: "
    least = {bound: min(found[bound] for found in of.values()) for bound in bounds}
    small = bounds[0]
    others = min(of[CLIP_SGD][small], of[CLIP21_SGD][small])
    over = [of[CLIP21_SGDM][bound] / least[bound] for bound in bounds]
    apart = [of[CLIP21_SGD][bound] / of[CLIP21_SGDM][bound] for bound in bounds]
    return [
        Check(
            f"{where}Clip21-SGDM has the least gradient norm, or one at most {CLOSE:g} times that, at every threshold",
            all(of[CLIP21_SGDM][bound] <= CLOSE * least[bound] for bound in bounds),
            found=f"{span(over)} times the least",
        ),
        Check(
            f"{where}at the smallest threshold it is clearly the best",
            of[CLIP21_SGDM][small] < others / CLOSE,
            found=", ".join(f"{method} {of[method][small]:.3g}" for method in METHODS),
        ),
        Check(
            f"{where}Clip-SGD needs a large threshold",
            of[CLIP_SGD][small] > 2 * min(of[CLIP_SGD].values()),
            found=f"{of[CLIP_SGD][small]:.3g} at {small:g}, {min(of[CLIP_SGD].values()):.3g} at its best",
        ),
        Check(
            f"{where}Clip21-SGD stays at least {CLOSE:g} times above Clip21-SGDM",
            all(of[CLIP21_SGD][bound] > CLOSE * of[CLIP21_SGDM][bound] for bound in bounds),
            found=f"{span(apart)} times",
        ),
    ]


# --- with noise: Figure 5


def noise_ratios(full: bool, seed: int, progress: Progress, data: Path | None) -> Result:
    """Reproduce Figure 5: the best gradient norm at each noise-clipping ratio."""
    ratios = (0.1, 1.0, 10.0)
    rounds = _rounds(full, data)
    asked = [(method, ratio, ratio) for method in METHODS for ratio in ratios]
    found = _private(full, seed, progress, data, lambda table: asked)
    rows = [
        {
            "data": one["data"],
            "method": one["method"],
            "ratio": one["at"],
            "epsilon of a client": gaussian_epsilon(
                message_mu(max_grad_norm=1, noise_std=one["at"], messages=rounds), DELTA
            ),
            **{name: one[name] for name in ("lr", "threshold", "weight", "gradient norm")},
        }
        for one in found
    ]
    return Result(
        rows=rows,
        checks=[check for name in _names(rows) for check in _with_noise(rows, name, "ratio", ratios)],
        notes=_notes(rounds, full, data),
        draw=partial(figures.tuned, rows, "gradient norm", "ratio", "noise-clipping ratio"),
    )


def equal_epsilon(full: bool, seed: int, progress: Progress, data: Path | None) -> Result:
    """Run Figure 5's problem at equal epsilon: of a whole client, and, for Clip-SGD, of one record as well."""
    epsilons = (8.0, 32.0, 128.0)
    rounds = _rounds(full, data)

    def asked(table: ClientTable) -> list[Asked]:
        found: list[Asked] = []
        for epsilon in epsilons:
            ratio = message_noise_std(epsilon=epsilon, delta=DELTA, max_grad_norm=1, messages=rounds)
            found += [(method, ratio, epsilon) for method in METHODS]
            found.append((RECORD, record_ratio(epsilon, table.share, rounds, DELTA), epsilon))
        return found

    found = _private(full, seed, progress, data, asked)
    rows = [
        {"data": one["data"], "method": one["method"], "epsilon": one["at"]}
        | {name: one[name] for name in ("ratio", "lr", "threshold", "weight", "gradient norm")}
        for one in found
    ]
    return Result(
        rows=rows,
        checks=[check for name in _names(rows) for check in _with_noise(rows, name, "epsilon", epsilons)],
        notes=[
            *_notes(rounds, full, data),
            f"'{RECORD}': noise for the same epsilon of one record, were minibatches Poisson samples",
            "momentum and shift remember every record, so that the Clip21 methods have no such saving",
        ],
        draw=partial(figures.tuned, rows, "gradient norm", "epsilon", "epsilon"),
    )


def _private(
    full: bool, seed: int, progress: Progress, data: Path | None, asked: Callable[[ClientTable], Sequence[Asked]]
) -> list[dict[str, Any]]:
    """Run what is asked of each table, with minibatches; return the tuned rows."""
    lrs = [2.0**k for k in (range(-10, 1) if full else range(-10, 1, 2) if data else (-6, -3, 0))]
    bounds = [10.0**k for k in range(-4, 1)] if full or data else [1e-3, 1e-1]
    weights = (0.1, 0.5, 0.9) if full or data else (0.1, 0.9)
    seeds = 3 if full else 1
    work, found = [(table, one) for table in tables(data) for one in asked(table)], []
    for place, (table, (name, ratio, at)) in enumerate(work):
        method = name.split(",", maxsplit=1)[0]
        grid = cells([method], lrs=lrs, bounds=bounds, weights=weights, ratios=(ratio,), seeds=seeds)
        what = f"{table.name}, {name} at {at:g}"
        rows = gradient_norms(
            table, grid, "minibatch", rounds=_rounds(full, data), seed=seed,
            say=lambda share, place=place, what=what: progress((place + share) / len(work), what),
        )  # fmt: skip
        tuned = min(rows, key=lambda row: row["gradient norm"])
        found.append({**tuned, "data": table.name, "method": name, "ratio": ratio, "at": at})
    return found


def _rounds(full: bool, data: Path | None) -> int:
    return 10_000 if full else 1000 if data else 300


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["data"] for row in rows))


def _notes(rounds: int, full: bool, data: Path | None) -> list[str]:
    return [
        f"{CLIENTS} clients, minibatches, {rounds:,} rounds, {'3 seeds' if full else 'one seed'}",
        f"gradient norm: mean of the last {LAST} rounds",
        "every method with its best threshold, step size and momentum weight: that tuning is not charged",
        f"epsilon at delta {DELTA:g}, local: each client against the server",
        *([] if data else ["synthetic table; --data FOLDER takes duke.npz and leukemia.npz"]),
    ]


def _with_noise(rows: Sequence[Row], name: str, column: str, values: Sequence[float]) -> list[Check]:
    norms = {(row["method"], row[column]): row["gradient norm"] for row in rows if row["data"] == name}
    least_noise = values[0] if column == "ratio" else values[-1]
    return [
        *(
            Check(
                f"{name}: Clip21-SGDM beats Clip-SGD at {column} {value:g}",
                norms[CLIP21_SGDM, value] < norms[CLIP_SGD, value],
                found=f"{norms[CLIP21_SGDM, value]:.3g} against {norms[CLIP_SGD, value]:.3g}",
            )
            for value in values
        ),
        Check(
            f"{name}: Clip21-SGD stays {CLOSE:g} times above Clip21-SGDM even with the least noise",
            norms[CLIP21_SGD, least_noise] > CLOSE * norms[CLIP21_SGDM, least_noise],
            found=f"{norms[CLIP21_SGD, least_noise]:.3g} against {norms[CLIP21_SGDM, least_noise]:.3g}",
        ),
    ]
