"""Bounds on rounding errors, which make a computed norm an upper bound. Proof: docs/derivations/ghost_norms.md.

A rule measures: it returns norms as they were computed, with the constants of their margins (:class:`RowNorms`), and
how squares follow from them (:class:`Squares`). The margins of all calls of a pass are added at once, in a few
operations on tensors (calls, rows), whatever the number of layers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

LONGEST_ROW = 2**14  # at most so many squares are summed in the row's own dtype; of more, parts, or in float64
LARGEST_SQUARE = 2.0**126  # a longer float32 row counts as infinite: it would make much of a factor that underflows


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff u of ``dtype``: an operation rounded to nearest has a relative error of at most u."""
    return torch.finfo(dtype).eps / 2


def gamma(terms: float, dtype: torch.dtype) -> float:
    r"""Return Higham's :math:`\gamma_n = n u / (1 - n u)` for n = ``terms``; ``inf`` if there is no bound.

    It bounds the relative rounding error of a sum of n products in any order.
    """
    product = terms * torch.finfo(dtype).eps / 2
    return product / (1 - product) if product < 1 else float("inf")


class RowNorms(NamedTuple):
    """Norms of rows as they were computed, and what makes their squares upper bounds.

    Attributes:
        values: Shape (rows,).
        factor: The exact square is at most ``factor`` times the square of the value,
        added: and this more.
        limit: Such a square counts as infinite.
    """

    values: Tensor
    factor: float
    added: float
    limit: float


def measure(rows: Tensor) -> RowNorms:
    r"""Measure the norm of each row, over all axes but the first.

    The sum of n squares and the root in ``rows.dtype`` have a relative error of at most :math:`\gamma_{n + 4}` on the
    square. A square that underflows loses at most the smallest normal number, which ``added`` pays for. Six more units
    cover the roundings of a contribution (weight times output gradient times activation) in the weighted sum. A long
    row is cut along its axes: the norms of the parts are a row again.
    A weighted factor that is subnormal is off by up to :math:`2^{-150}` whatever its size, and the other factor
    multiplies that: so a float32 row of norm :math:`2^{63}` or more counts as infinite.
    """
    dtype, count = rows.dtype, len(rows)
    terms, vanished = 10, rows.shape[1:].numel()
    while (length := rows.shape[1:].numel()) > LONGEST_ROW and rows.shape[-1] <= LONGEST_ROW:
        axis = next(k for k in range(1, rows.ndim) if rows.shape[k:].numel() <= LONGEST_ROW)
        parts = rows.flatten(axis)
        rows, terms = torch.linalg.vector_norm(parts, dim=-1), terms + parts.shape[-1] + 4
        vanished += 2 * rows.shape[1:].numel()
    flat = rows.reshape(count, length)
    wider = torch.float64 if length > LONGEST_ROW else None
    values = torch.linalg.vector_norm(flat, dim=1, dtype=wider)
    margin = 1 + gamma(terms + (0 if wider and dtype != wider else length), dtype)
    limit = math.inf if dtype == torch.float64 else LARGEST_SQUARE
    return RowNorms(values, margin, vanished * torch.finfo(dtype).tiny, limit)


class Squares(ABC):
    """The squared norms of one gradient in each row, until margins are added.

    Attributes:
        norms: What they follow from; each class has a number of its own.
    """

    norms: tuple[RowNorms, ...]

    @classmethod
    @abstractmethod
    def combined(cls, calls: Sequence[Any], norms: Sequence[Tensor], *, rounding_margin: bool) -> Tensor:
        """Return the squares of several calls, (calls, rows), float64.

        Args:
            calls: Objects of this class.
            norms: For each of :attr:`norms`, bounds of the squares of all calls, (calls, rows).
            rounding_margin: Whether they are to be upper bounds.
        """


@dataclass(frozen=True, eq=False)
class HeldSquares(Squares):
    """Squares of a gradient that was measured itself."""

    norms: tuple[RowNorms]

    @classmethod
    def combined(cls, calls: Sequence[Any], norms: Sequence[Tensor], *, rounding_margin: bool) -> Tensor:
        return norms[0]


@dataclass(frozen=True, eq=False)
class OuterSquares(Squares):
    """Squares of an outer product: the product of both factors' squares."""

    norms: tuple[RowNorms, RowNorms]

    @classmethod
    def combined(cls, calls: Sequence[Any], norms: Sequence[Tensor], *, rounding_margin: bool) -> Tensor:
        return norms[0] * norms[1]


def held(rows: Tensor) -> HeldSquares:
    """Return the squares of gradients that are held, (rows, *param)."""
    return HeldSquares((measure(rows),))


def totals(groups: Sequence[Sequence[Squares | Tensor]], *, rounding_margin: bool = True) -> list[Tensor]:
    """Return the sum of the squares of each group, (rows,), float64: upper bounds unless ``rounding_margin`` is off.

    Args:
        groups: At least one of squares each; a tensor (rows,) is taken as it is.
        rounding_margin: Off to compare computations.
    """
    kinds: dict[type, list[int]] = {}
    parts: list[Any] = [part for group in groups for part in group]
    for k, part in enumerate(parts):
        kinds.setdefault(Tensor if isinstance(part, Tensor) else type(part), []).append(k)
    calls = {kind: [parts[k] for k in places] for kind, places in kinds.items() if kind is not Tensor}
    columns = [[*zip(*(one.norms for one in some), strict=True)] for some in calls.values()]
    norms = [one for of_kind in columns for column in of_kind for one in column]
    bounds = iter(
        _bounds(norms, rounding_margin).split([len(c) for of_kind in columns for c in of_kind]) if norms else ()
    )
    found: list[Tensor] = []
    for (kind, some), of_kind in zip(calls.items(), columns, strict=True):
        found.append(kind.combined(some, [next(bounds) for _ in of_kind], rounding_margin=rounding_margin))
    found += [parts[k].unsqueeze(0) for k in kinds.get(Tensor, ())]
    joined = torch.cat(found) if len(found) > 1 else found[0]
    if len(groups) == 1:
        return [joined.sum(dim=0) if len(joined) > 1 else joined[0]]
    rows = dict(zip((k for kind in [*calls, Tensor] for k in kinds.get(kind, ())), joined.unbind(0), strict=True))
    at = iter(range(len(parts)))
    chosen = [[rows[next(at)] for _ in group] for group in groups]
    return [torch.stack(some).sum(dim=0) if len(some) > 1 else some[0] for some in chosen]


def squared_row_norms(rows: Tensor, *, rounding_margin: bool = True) -> Tensor:
    """Return squared norms over the last axis, float64; upper bounds unless ``rounding_margin`` is off."""
    flat = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1])
    return totals([[held(flat)]], rounding_margin=rounding_margin)[0].view(rows.shape[:-1])


def add_radius(squares: Tensor, radius: Tensor) -> Tensor:
    """Return ``(sqrt(squares) + radius) ** 2``: an upper bound of the square of a norm known up to ``radius``."""
    return squares.sqrt().add_(radius).square_()


def column(values: Iterable[float], device: torch.device) -> Tensor:
    """Return one constant a call, (calls, 1), float64, made once and kept on the device. Nobody may write it."""
    return _column(tuple(values), device)


@lru_cache(maxsize=1024)
def _column(values: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False):
        return torch.tensor(values, dtype=torch.float64, device=device).unsqueeze(1)


def _bounds(norms: Sequence[RowNorms], rounding_margin: bool) -> Tensor:
    """Return upper bounds of the squares, (norms, rows), float64."""
    values = norms[0].values.unsqueeze(0)
    if len(norms) > 1:
        values = torch.cat([one.values for one in norms]).view(len(norms), -1)
    if not rounding_margin:
        return values.double().square()
    device = values.device
    roots = values * column([_root(one.factor) for one in norms], device)
    squares = torch.addcmul(column([one.added for one in norms], device), roots, roots)
    limits = {one.limit for one in norms}
    if limits == {math.inf}:
        return squares
    limit = limits.pop() if len(limits) == 1 else column([one.limit for one in norms], device)
    return squares.masked_fill_(squares >= limit, torch.inf)


@cache
def _root(factor: float) -> float:
    return math.sqrt(factor) * (1 + 2.0**-48)  # and what float64 rounds
