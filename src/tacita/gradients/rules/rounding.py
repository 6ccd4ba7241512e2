"""Bounds on rounding errors, which make a computed norm an upper bound. Proof: docs/derivations/ghost_norms.md.

A rule measures: it returns norms as they were computed, with the constants of their margins (:class:`RowNorms`), and
how squares follow from them (:class:`SquaredNorms`). The margins of all calls of a pass are added at once, in a few
operations on tensors (calls, rows), whatever the number of layers.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
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
        root: The exact square is at most that of ``root`` times the value,
        added: and this more.
        limit: Such a square counts as infinite.
    """

    values: Tensor
    root: float
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
    root = math.sqrt(1 + gamma(terms + (0 if wider and dtype != wider else length), dtype))
    limit = math.inf if dtype == torch.float64 else LARGEST_SQUARE
    return RowNorms(values, root * (1 + 2.0**-48), vanished * torch.finfo(dtype).tiny, limit)


class SquaredNorms(NamedTuple):
    """The squared norms of one gradient in each row, until margins are added.

    Attributes:
        norms: What they follow from.
        combine: ``(calls, norms, rounding_margin) -> (calls, rows)``, float64: the squares of several calls that have
            this function, from bounds of the squares of each of ``norms``, (calls, rows).
        constants: What it reads of a call,
        given: and its tensors and functions.
    """

    norms: tuple[RowNorms, ...]
    combine: Callable[[Sequence["SquaredNorms"], Sequence[Tensor], bool], Tensor]
    constants: tuple[float, ...] = ()
    given: tuple[Any, ...] = ()


def held(rows: Tensor) -> SquaredNorms:
    """Return the squares of gradients that are held, (rows, *param)."""
    return of_norms(measure(rows))


def of_norms(norms: RowNorms) -> SquaredNorms:
    """Return the squares of norms that were measured."""
    return SquaredNorms((norms,), _unchanged)


def of_products(left: RowNorms, right: RowNorms) -> SquaredNorms:
    """Return the squares of outer products: the products of both factors' squares."""
    return SquaredNorms((left, right), _multiplied)


def _unchanged(calls: Sequence[SquaredNorms], norms: Sequence[Tensor], rounding_margin: bool) -> Tensor:
    return norms[0]


def _multiplied(calls: Sequence[SquaredNorms], norms: Sequence[Tensor], rounding_margin: bool) -> Tensor:
    return norms[0] * norms[1]


def totals(groups: Sequence[Sequence[SquaredNorms | Tensor]], *, rounding_margin: bool = True) -> list[Tensor]:
    """Return the sum of the squares of each group, (rows,), float64: upper bounds unless ``rounding_margin`` is off.

    Args:
        groups: At least one of squares each; a tensor (rows,) is taken as it is.
        rounding_margin: Off to compare computations.
    """
    parts: list[Any] = [part for group in groups for part in group]
    kinds: dict[Any, list[int]] = {}
    for k, part in enumerate(parts):
        kinds.setdefault(getattr(part, "combine", None), []).append(k)
    calls = {combine: [parts[k] for k in places] for combine, places in kinds.items()}
    columns = {kind: [*zip(*(one.norms for one in some), strict=True)] for kind, some in calls.items() if kind}
    listed = [column for of_kind in columns.values() for column in of_kind]
    bounds = iter(_bounds(listed, rounding_margin) if listed else ())
    found = []
    for combine, some in calls.items():
        norms = [next(bounds) for _ in columns.get(combine, ())]
        found.append(combine(some, norms, rounding_margin) if combine else torch.stack(some))
    joined = torch.cat(found) if len(found) > 1 else found[0]
    if len(groups) == 1:
        return [joined.sum(dim=0) if len(joined) > 1 else joined[0]]
    rows = dict(zip([k for places in kinds.values() for k in places], joined.unbind(0), strict=True))
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


def columns(calls: Iterable[tuple[float, ...]], device: torch.device) -> tuple[Tensor, ...]:
    """Return each constant of several calls as (calls, 1), float64, made once and kept there. Nobody may write it."""
    return _columns(tuple(calls), device)


@lru_cache(maxsize=1024)
def _columns(calls: tuple[tuple[float, ...], ...], device: torch.device) -> tuple[Tensor, ...]:
    with torch.inference_mode(mode=False):
        return torch.tensor(calls, dtype=torch.float64, device=device).T.unsqueeze(-1).unbind(0)


def _bounds(listed: Sequence[Sequence[RowNorms]], rounding_margin: bool) -> Sequence[Tensor]:
    """Return upper bounds of the squares, (norms, rows), float64, for each of several lists of norms."""
    norms = [one for some in listed for one in some]
    values = torch.cat([one.values for one in norms]) if len(norms) > 1 else norms[0].values
    values = values.view(len(norms), -1)
    if rounding_margin:
        roots, added, limits = columns([one[1:] for one in norms], values.device)
        values = values * roots
        squares = torch.addcmul(added, values, values)
        squares.masked_fill_(squares >= limits, torch.inf)
    else:
        squares = values.double().square()
    return squares.split([len(some) for some in listed])
