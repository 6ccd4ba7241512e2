"""Composition: the guarantee of several sessions for the record that they cost most.

Sessions that can see the same record compose in sequence; sessions that cannot compose in parallel.
Proofs: docs/derivations/composition.md.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tacita.accounting import accountant
from tacita.accounting.accountant import Bound
from tacita.accounting.curve import PrivacyCurve, privacy_curve, worst_curve
from tacita.accounting.events import Spend
from tacita.accounting.parts import Part, record_classes

if TYPE_CHECKING:
    from tacita.accounting.gaussian_filter import GaussianFilter
    from tacita.accounting.renyi_filter import RenyiFilter

    Filter = RenyiFilter | GaussianFilter

Charge = tuple[Part | None, Spend]  # which records are charged, and what


def worst_bound(charges: Sequence[Charge], delta: float) -> Bound:
    """Return the largest bound over the classes of records."""
    return max((accountant.epsilon(spends, delta) for spends in _classes(charges)), key=lambda bound: bound.epsilon)


def worst_delta(charges: Sequence[Charge], epsilon: float) -> float:
    """Return the largest delta over the classes of records."""
    return max(accountant.delta(spends, epsilon).delta for spends in _classes(charges))


def worst_privacy_curve(charges: Sequence[Charge]) -> PrivacyCurve:
    """Return the largest delta over the classes of records, at every epsilon."""
    return worst_curve([privacy_curve(spends) for spends in _classes(charges)])


def worst_divergence(charges: Sequence[Charge], rule: "Filter") -> float:
    """Return the largest divergence, as ``rule`` counts it, over the classes of records."""
    return max(rule.divergence(spends) for spends in _classes(charges))


def _classes(charges: Sequence[Charge]) -> list[tuple[Spend, ...]]:
    """Return what is charged to each class of records, without repetitions."""
    classes = record_classes([part for part, _ in charges])
    return list(dict.fromkeys(tuple(charges[i][1] for i in members) for members in classes))
