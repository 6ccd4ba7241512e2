r"""What one run of a selection may spend: declared before the first, and held against the ledger of each.

Place: accounting -> [selection.inner] -> best_of. The price of a selection follows from the Rényi curve of one run, so
that is what is declared, calibrated and compared. Proofs: docs/derivations/selection.md.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tacita.accounting import (
    ComposedEvent,
    Event,
    Ledger,
    NeighboringRelation,
    RepeatAndSelectEvent,
    Spend,
    WorstOfEvent,
    calibrate,
)
from tacita.accounting.accountant import ORDERS
from tacita.accounting.parts import record_classes
from tacita.errors import LedgerError, UnsupportedEventError
from tacita.selection.number_of_runs import NumberOfRuns

SCORE_SHARE = 0.1  # of what the training may spend, for a score on the records that the training saw
SLACK = 1e-9  # of a curve, for rounding


def one_of(spends: Sequence[Spend]) -> Event:
    """What a run spends that is one of ``spends``: which, is public, or the record's own place says."""
    distinct = list(dict.fromkeys(spends))
    return _several(WorstOfEvent, distinct)


def all_of(spends: Sequence[Spend]) -> Event:
    """What a run spends that is all of ``spends``, one after the other."""
    return _several(ComposedEvent, list(spends))


def largest_mu(event: Event, queries: int = 1) -> float:
    r"""The largest :math:`\mu` of a Gaussian query whose Rényi curve :math:`\lambda \mu^2 / 2` is under ``event``'s.

    0 if that says nothing: an event without noise, or without a curve.
    """
    curve = event.rdp(queries, ORDERS) if event.is_private() else None
    if curve is None:
        return 0.0
    known = np.isfinite(curve) & (ORDERS > 1)
    return math.sqrt(2 * float((curve[known] / ORDERS[known]).min())) if known.any() else 0.0


def selection_event(inner: Event, runs: NumberOfRuns) -> RepeatAndSelectEvent:
    """The event of the whole selection."""
    return RepeatAndSelectEvent(
        relation=inner.relation, inner=inner, inner_queries=1, mean=runs.mean_runs, shape=runs.shape
    )


def calibrated(
    inner_at: Callable[[float], Event],
    runs: NumberOfRuns,
    relation: NeighboringRelation,
    target: tuple[float, float],
    alongside: Sequence[Spend] = (),
) -> float:
    """The least noise multiplier of a run at which the whole selection is within ``target``, (epsilon, delta)."""
    with _quiet():
        return calibrate(lambda noise: selection_event(inner_at(noise), runs), relation, *target, alongside)


def check_ledger(ledger: Ledger, inner: Event) -> None:
    """Refuse a run that may have spent more than ``inner``.

    Its plan is held against the declared curve, order by order and for every class of records. What is planned depends
    on settings alone, and so does this verdict.

    Raises:
        LedgerError: It spends more, or something that has no Rényi curve or adds to delta.
    """
    allowed = inner.rdp(1, ORDERS)
    if allowed is None:
        raise UnsupportedEventError(f"a run needs an event with a Rényi curve, which {type(inner).__name__} is not.")
    if set(ledger.conditions) - set((inner.condition or "").split("; ")):
        raise LedgerError("a run rests on a condition that was not declared for it.")
    spent = worst_curve(ledger)
    if spent is None:
        raise LedgerError(
            "a run planned a session that no selection can contain: it has no Rényi curve, or adds to delta."
        )
    if not np.all(spent <= np.asarray(allowed) * (1 + SLACK)):
        raise LedgerError(
            "a run planned more than was declared for it: build its oracles with the noise multiplier, the sampler and "
            "the number of queries that were declared."
        )


def worst_curve(ledger: Ledger) -> np.ndarray | None:
    """The largest Rényi curve over classes of records, order by order; ``None`` if a session has none."""
    sessions = [session for session in ledger.sessions if session.counts_in_plan]
    curves = []
    for session in sessions:
        event, queries = session.event, session.planned_queries
        curve = event.rdp(queries, ORDERS) if event.is_private() else np.full(len(ORDERS), np.inf)
        if curve is None or event.additive_delta(queries) > 0 or event.coupling_gap(queries) > 0:
            return None
        curves.append(np.asarray(curve, dtype=float))
    if ledger.shares:
        return None
    classes = record_classes([session.part for session in sessions])
    sums = [np.sum([curves[i] for i in members], axis=0) for members in classes if members]
    return np.max(sums, axis=0) if sums else np.zeros(len(ORDERS))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without dp_accounting's remarks on orders that it leaves out while too little noise is tried."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _several(kind: type[ComposedEvent] | type[WorstOfEvent], spends: list[Spend]) -> Event:
    return kind(
        relation=spends[0].event.relation,
        parts=tuple(spend.event for spend in spends),
        part_queries=tuple(spend.queries for spend in spends),
    )
