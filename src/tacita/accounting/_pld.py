"""Adapter to dp_accounting's privacy loss distributions: the one place where its conventions are spelled out.

dp_accounting takes a bare standard deviation and a relation, and means different things by them: under ``REPLACE_ONE``
its Poisson pair is ((1-q) N(0) + q N(1), (1-q) N(0) + q N(-1)), so the standard deviation it wants there is noise over
*max_contribution*, not noise over the replace-one sensitivity. ``ratio`` is always max_contribution over noise_std.
Every distribution is pessimistic ("connect the dots": the discretised pair dominates the true one).
"""

import math
from functools import lru_cache

from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.privacy_accountant import NeighboringRelation as LibraryRelation

from tacita.accounting._mixture import mixture_distribution
from tacita.accounting.relations import NeighboringRelation

PrivacyLossDistribution = library.PrivacyLossDistribution
LIBRARY_RELATION = {
    "add_or_remove_one": LibraryRelation.ADD_OR_REMOVE_ONE,
    "replace_one": LibraryRelation.REPLACE_ONE,
    "zero_out_one": LibraryRelation.REPLACE_SPECIAL,
}
STAGED_FROM = 200_000
TAIL_MASS = 1e-15  # cut from a composition and counted as infinite loss; the accountant's slack covers it too


@lru_cache(maxsize=8)
def poisson_pld(
    sampling_probability: float, ratio: float, relation: NeighboringRelation, queries: int, interval: float
) -> PrivacyLossDistribution:
    """Poisson-sampled Gaussian sum, ``queries`` times; all three relations."""
    one = library.from_gaussian_mechanism(
        1 / ratio,
        sampling_prob=sampling_probability,
        value_discretization_interval=interval,
        use_connect_dots=True,
        neighboring_relation=LIBRARY_RELATION[relation],
    )
    return self_composed(one, queries)


@lru_cache(maxsize=8)
def gaussian_pld(mu: float, interval: float) -> PrivacyLossDistribution:
    """One Gaussian query of sensitivity ``mu`` and noise 1; symmetric, so that the relation no longer matters."""
    return library.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval, use_connect_dots=True)


@lru_cache(maxsize=8)
def mixture_pld(
    shifts: tuple[float, ...], chances: tuple[float, ...], queries: int, interval: float
) -> PrivacyLossDistribution:
    """A unit Gaussian whose shift is random, against the one without, ``queries`` times."""
    return self_composed(mixture_distribution(shifts, chances, interval), queries)


@lru_cache(maxsize=8)
def laplace_pld(scale_over_sensitivity: float, queries: int, interval: float) -> PrivacyLossDistribution:
    """Laplace noise, ``queries`` times; symmetric."""
    one = library.from_laplace_mechanism(
        scale_over_sensitivity, value_discretization_interval=interval, use_connect_dots=True
    )
    return self_composed(one, queries)


def pure_pld(epsilon: float, interval: float) -> PrivacyLossDistribution:
    """The pair that dominates everything (``epsilon``, 0)-private: randomised response."""
    return library.from_privacy_parameters(common.DifferentialPrivacyParameters(epsilon, 0.0), interval)


def self_composed(one: PrivacyLossDistribution, queries: int) -> PrivacyLossDistribution:
    """``one``, ``queries`` times; in two stages where there are many, which keeps the library's tail bounds short."""
    if queries == 1:
        return one
    if queries < STAGED_FROM:
        return one.self_compose(queries, tail_mass_truncation=TAIL_MASS)
    group = math.isqrt(queries)
    whole = self_composed(self_composed(one, group), queries // group)
    return whole if queries % group == 0 else whole.compose(self_composed(one, queries % group), TAIL_MASS)
