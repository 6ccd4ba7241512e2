"""Adapter to dp_accounting's privacy loss distributions and its relations: its conventions stand here and nowhere else.

dp_accounting takes a bare standard deviation and a relation, and means different things by them: under ``REPLACE_ONE``
its Poisson pair is ((1-q) N(0) + q N(1), (1-q) N(0) + q N(-1)), so the standard deviation it wants there is noise over
*max_contribution*, not noise over the replace-one sensitivity. Tests hold our pairs against its own.
"""

from collections.abc import Sequence
from functools import reduce

from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.privacy_accountant import NeighboringRelation as LibraryRelation

from tacita.accounting._pairs import DominatingPair, Part

PrivacyLossDistribution = library.PrivacyLossDistribution
LIBRARY_RELATION = {
    "add_or_remove_one": LibraryRelation.ADD_OR_REMOVE_ONE,
    "replace_one": LibraryRelation.REPLACE_ONE,
    "zero_out_one": LibraryRelation.REPLACE_SPECIAL,
}
TAIL_MASS = 1e-15  # cut from a composition and counted as infinite loss
QUERY_TAIL = 1e-20  # of one query


def library_distribution(parts: Sequence[Part], interval: float) -> PrivacyLossDistribution:
    """The composition of pairs as dp_accounting has it, pessimistic, to be combined with others of its kind."""
    each = [_one(pair, interval) for pair, _ in parts]
    whole = [
        one if queries == 1 else one.self_compose(queries, tail_mass_truncation=TAIL_MASS)
        for one, (_, queries) in zip(each, parts, strict=True)
    ]
    return reduce(lambda left, right: left.compose(right, tail_mass_truncation=TAIL_MASS), whole)


def _one(pair: DominatingPair, interval: float) -> PrivacyLossDistribution:
    directions = (False,) if pair.symmetric else (False, True)
    laws = [pair.law(interval, QUERY_TAIL, swapped=swapped) for swapped in directions]
    pmfs = [pld_pmf.DensePLDPmf(interval, law.first, law.masses, law.infinity, True) for law in laws]
    return PrivacyLossDistribution(*pmfs)
