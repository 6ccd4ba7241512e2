r"""Check, mechanism by mechanism, that a run planned no more than what was declared for it.

The price of a selection follows from the Rényi curve of a run and from its privacy profile. A smaller curve does not
imply a smaller profile, so comparing curves does not suffice and the mechanisms are compared.
"""

import math
from collections.abc import Sequence
from dataclasses import fields

from tacita.accounting import Event, Spend
from tacita.accounting.events.gaussian_sums import NoisySumEvent
from tacita.tables.selection_events import ComposedEvent, WorstOfEvent

SLACK = 1e-9  # relative tolerance of a mu or a ratio, for rounding
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
