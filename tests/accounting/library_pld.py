"""A guarantee as dp_accounting's privacy loss distribution, to hold our pairs against its own.

dp_accounting takes a bare standard deviation and a relation, and means different things by them: under ``REPLACE_ONE``
its Poisson pair is ((1-q) N(0) + q N(1), (1-q) N(0) + q N(-1)), so the standard deviation it wants there is noise over
*max_contribution*, not noise over the replace-one sensitivity.
"""

from functools import reduce

from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library

from tacita.accounting.dominating_pairs import DominatingPair
from tacita.accounting.events.guarantee import Guarantee

PrivacyLossDistribution = library.PrivacyLossDistribution
TAIL_MASS = 1e-15  # cut from a composition and counted as infinite loss
QUERY_TAIL = 1e-20  # of one query


def library_pld(guarantee: Guarantee, interval: float = 2.0**-13) -> PrivacyLossDistribution | None:
    """The composition of a guarantee's pairs as dp_accounting has it, discretised pessimistically."""
    parts = None if guarantee.pairs is None else guarantee.pairs()
    if not parts:
        return None
    each = [_one(pair, interval) for pair, _ in parts]
    whole = [
        one if queries == 1 else one.self_compose(queries, tail_mass_truncation=TAIL_MASS)
        for one, (_, queries) in zip(each, parts, strict=True)
    ]
    return reduce(lambda left, right: left.compose(right, tail_mass_truncation=TAIL_MASS), whole)


def _one(pair: DominatingPair, interval: float) -> PrivacyLossDistribution:
    directions = (False,) if pair.symmetric else (False, True)
    laws = [pair.law(interval, pair.reach(QUERY_TAIL, swapped=swapped), swapped=swapped) for swapped in directions]
    pmfs = [pld_pmf.DensePLDPmf(interval, law.first, law.masses, law.infinity, True) for law in laws]
    return PrivacyLossDistribution(*pmfs)
