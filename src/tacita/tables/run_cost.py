r"""The cost of one run of a selection: declared before the first run, and checked against the ledger of each run.

The price of a selection follows from the Rényi curve of one run, so this curve is declared, calibrated and compared.
Proofs: docs/derivations/selection.md.

The price of a selection follows from the Rényi curve of a run and from its privacy profile. A smaller curve does not
imply a smaller profile, so comparing curves does not suffice and the mechanisms are compared.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

import numpy as np

from tacita.accounting import Event, NeighboringRelation, Spend, calibrate
from tacita.accounting.events.gaussian_sums import NoisySumEvent
from tacita.accounting.parts import record_classes
from tacita.accounting.renyi_curve import ORDERS
from tacita.errors import LedgerError, UnsupportedEventError
from tacita.ledger import Ledger
from tacita.tables.number_of_runs import NumberOfRuns
from tacita.tables.selection_events import ComposedEvent, RepeatAndSelectEvent, WorstOfEvent

SCORE_SHARE = 0.1  # Rényi cost of a score over that of the training, if it uses records of the training
SLACK = 1e-9  # relative tolerance of a curve, a mu or a ratio, for rounding


def one_of(spends: Sequence[Spend]) -> Event:
    """Return the event of a run that spends one of ``spends``; which one is public or depends on the record's part."""
    distinct = list(dict.fromkeys(spends))
    return _several(WorstOfEvent, distinct)


def all_of(spends: Sequence[Spend]) -> Event:
    """Return the event of a run that spends all of ``spends``, one after the other."""
    return _several(ComposedEvent, list(spends))


def largest_mu(event: Event, queries: int = 1) -> float:
    r"""Return the largest :math:`\mu` of a Gaussian query whose Rényi curve is nowhere above that of ``event``.

    The query's curve is :math:`\lambda \mu^2 / 2`. The result is 0 if ``event`` has no noise or no curve.
    """
    spent = event.guarantee(queries)
    if spent.rdp is None or not spent.private:
        return 0.0
    curve = spent.rdp(ORDERS)
    known = np.isfinite(curve) & (ORDERS > 1)
    return math.sqrt(2 * float((curve[known] / ORDERS[known]).min())) if known.any() else 0.0


def free_noise_multiplier(event: Event, queries: int = 1, share: float = 1.0) -> float:
    r"""Return the least noise multiplier of a Gaussian query whose Rényi curve is nowhere above a share of the event's.

    A score with this noise beside the training, on other records, costs nothing more. The result is 1 if ``event`` has
    no noise or no curve.
    """
    mu = math.sqrt(share) * largest_mu(event, queries)
    return (1 + SLACK) / mu if mu > 0 else 1.0


def selection_event(inner: Event, runs: NumberOfRuns) -> RepeatAndSelectEvent:
    """Return the event of the whole selection, given that of one run."""
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
    """Return the least noise multiplier of a run at which the whole selection is within ``target`` (epsilon, delta)."""
    with _quiet():
        return calibrate(lambda noise: selection_event(inner_at(noise), runs), relation, *target, alongside)


def check_ledger(ledger: Ledger, inner: Event) -> None:
    """Raise unless the plan of a run's ledger spends at most ``inner``, the declared event.

    The plan is compared with the declared curve at every order and for every class of records. If the price of the
    selection follows from a privacy profile, the plan is also compared with the declared mechanisms, one by one. The
    plan depends on settings alone, and so does the outcome of this check.

    Raises:
        LedgerError: The plan spends more, or holds a session that has no Rényi curve or adds to delta.
        UnsupportedEventError: ``inner`` has no Rényi curve.
    """
    declared = inner.guarantee(1)
    if declared.rdp is None:
        raise UnsupportedEventError(
            f"a run needs an event with a Rényi curve, which {type(inner).__name__} does not have."
        )
    if set(ledger.conditions) - set((inner.condition or "").split("; ")):
        raise LedgerError("a run rests on a condition that was not declared for it.")
    spent = worst_curve(ledger)
    if spent is None:
        raise LedgerError(
            "a run planned a session that no selection can contain: it has no Rényi curve, or adds to delta."
        )
    by_profile = declared.private and declared.pairs is not None  # a smaller curve is not always a smaller profile
    allowed = declared.rdp(ORDERS)
    if not np.all(spent <= np.asarray(allowed) * (1 + SLACK)) or (by_profile and not _covered(ledger, inner)):
        raise LedgerError(
            "a run planned more than was declared for it: build its oracles with the declared noise multiplier, "
            "sampler and number of queries."
        )


def worst_curve(ledger: Ledger) -> np.ndarray | None:
    """Return the largest Rényi curve over classes of records, order by order; ``None`` if a session has no curve.

    A session that adds to delta, or a share of another mechanism, gives ``None`` too.
    """
    sessions = [session for session in ledger.sessions if session.counts_in_plan]
    curves = []
    for session in sessions:
        planned = session.event.guarantee(session.planned_queries)
        if planned.rdp is None or planned.additive_delta > 0 or planned.coupling_gap > 0:
            return None
        curve = planned.rdp(ORDERS) if planned.private else np.full(len(ORDERS), np.inf)
        curves.append(np.asarray(curve, dtype=float))
    if ledger.shares:
        return None
    classes = record_classes([session.part for session in sessions])
    sums = [np.sum([curves[i] for i in members], axis=0) for members in classes if members]
    return np.max(sums, axis=0) if sums else np.zeros(len(ORDERS))


def _covered(ledger: Ledger, inner: Event) -> bool:
    """Return whether ``inner`` dominates, mechanism by mechanism, the sessions of every class of records."""
    sessions = [session for session in ledger.sessions if session.counts_in_plan]
    spends = [Spend(session.event, session.planned_queries) for session in sessions]
    classes = record_classes([session.part for session in sessions])
    return all(covers(inner, 1, [spends[i] for i in members]) for members in classes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence dp_accounting's warnings about orders that it leaves out when too little noise is tried."""
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


RATIO_FIELDS = {"max_contribution", "noise_std"}


def covers(declared: Event, queries: int, spends: Sequence[Spend]) -> bool:
    """Return whether ``queries`` of ``declared`` dominate all of ``spends`` together; ``False`` if that is unknown."""
    mus = [spend.guarantee.mu for spend in spends]
    known, most = [mu for mu in mus if mu is not None], declared.guarantee(queries).mu
    if most is not None and len(known) == len(mus):
        return math.hypot(*known) <= most * (1 + SLACK)
    if isinstance(declared, WorstOfEvent):
        parts = zip(declared.parts, declared.part_queries, strict=True)
        return any(covers(part, made * queries, spends) for part, made in parts)
    if isinstance(declared, ComposedEvent):
        return _composed_covers(declared, queries, list(spends))
    if not all(_no_more(spend.event, declared) for spend in spends):
        return False
    return sum(spend.queries for spend in spends) <= queries and (declared.per_query or len(spends) <= 1)


def _composed_covers(declared: ComposedEvent, queries: int, rest: list[Spend]) -> bool:
    """Assign spends to the parts of ``declared``, each to the first part that still covers it; all must fit."""
    for part, made in zip(declared.parts, declared.part_queries, strict=True):
        taken: list[Spend] = []
        for spend in rest:
            if covers(part, made * queries, [*taken, spend]):
                taken.append(spend)
        rest = [spend for spend in rest if not any(spend is one for one in taken)]
    return not rest


def _no_more(event: Event, declared: Event) -> bool:
    """Return whether one query of ``event`` is the mechanism of ``declared`` with at least as much noise."""
    if event == declared:
        return True
    if type(event) is not type(declared) or not isinstance(event, NoisySumEvent):
        return False
    assert isinstance(declared, NoisySumEvent)
    rest = [field.name for field in fields(event) if field.name not in RATIO_FIELDS]
    alike = all(getattr(event, name) == getattr(declared, name) for name in rest)
    return alike and event.ratio <= declared.ratio * (1 + SLACK)
