r"""The event of bounded sums with correlated Gaussian noise, where a record rests between its queries.

A session is one Gaussian query of ``query_mu`` times the sensitivity of the noise's column. It costs less where each
record's own secret coin draws its group: the likelihood ratio is a mean of log-normals whose covariance is that of the
groups' movements. The attacker is told the group modulo a number of *classes*, so that movements of one class hardly
overlap. What still overlaps is charged as a Gaussian query of its own, and the rest as random allocation.
Proofs: docs/derivations/correlated-noise.md.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from tacita.accounting.aim import expected_epsilon
from tacita.accounting.allocation_pair import LARGEST_RATIO, AllocationPair
from tacita.accounting.dominating_pairs import Part
from tacita.accounting.events.event import NoiseSettings
from tacita.accounting.events.gaussian_sums import GaussianSumEvent
from tacita.accounting.events.guarantee import Guarantee, gaussian, no_guarantee
from tacita.accounting.events.wrapped import OuterEvent
from tacita.accounting.line_pairs import GaussianPair
from tacita.accounting.pld_accountant import epsilon_of
from tacita.accounting.sampling_laws import CyclicPoissonLaw
from tacita.correlated.strategy import Factorization, coefficients, movement, sensitivity
from tacita.errors import UnsupportedEventError

PLANNED_DELTA = 1e-5  # the number of classes is chosen for this delta; every number of classes is valid at every delta
RISEN, NEAR = 1.3, 1.03  # an estimate of epsilon that ends the search; one that may be the least, over the least
AN_OCTAVE = 16  # of ratios has so many for which the number of classes is chosen
ROUNDED_UP = 1e-9


@dataclass(frozen=True, kw_only=True)
class CorrelatedEvent(OuterEvent):
    r"""A bounded sum whose noise in query t is :math:`s \sum_{j < p} r_j z_{t-j}`, in place of independent noise.

    Attributes:
        inner: The same session with independent noise of standard deviation s; its batches are disjoint or cyclic.
        bands: p >= 1, the number of draws in the noise of a query.
        power: The coefficients r are those of :math:`(1 - x)^\text{power}`; in (0, 1).
        banded_matrix: Whether the matrix has so many bands, and not its inverse (BandMF): the noise is then
            :math:`w_t = z_t - \sum_{0 < j < p} c_j w_{t-j}` with the coefficients c of :math:`(1 - x)^{-\text{power}}`.
            Batches may then be drawn by cyclic Poisson sampling of p groups or more.
    """

    bands: int
    power: float
    banded_matrix: bool = False

    costs_by_prefix: ClassVar[bool] = True  # type: ignore[override]

    def __post_init__(self) -> None:
        super().__post_init__()
        coefficients(self.bands, self.power)
        if type(self.inner) is not GaussianSumEvent:
            raise UnsupportedEventError(
                f"{type(self.inner).__name__}: no guarantee is proved with correlated noise; there is one for clipped "
                "sums of records with Gaussian noise that is not hardened."
            )
        law = self.inner.sampling
        if isinstance(law, CyclicPoissonLaw) and not (self.banded_matrix and self.bands <= law.batches_per_cycle):
            raise UnsupportedEventError(
                f"{law.words}: no guarantee is proved with correlated noise, because two turns of a record overlap; "
                f"there is one with a banded matrix of at most {law.batches_per_cycle} bands, one a group."
            )
        if law.separation(1) is None:
            raise UnsupportedEventError(
                f"{law.words}: no guarantee is proved with correlated noise, because a record may be "
                "in two queries in a row; there is one with CyclicSampler and DisjointSampler."
            )

    @property
    def factorization(self) -> Factorization:
        """Of the noise that is paid for."""
        return Factorization(self.bands, self.power, self.banded_matrix)

    @property
    def per_query(self) -> bool:
        return False

    @property
    def noise_settings(self) -> NoiseSettings | None:
        settings = self.inner.noise_settings  # of which the ratio of one query says nothing: later ones take noise back
        return None if settings is None else replace(settings, query_mu=None)

    def describe(self) -> str:
        return f"{self.inner.describe()}; correlated: {self.factorization.words}"

    def _guarantee(self, queries: int) -> Guarantee:
        inner = self.inner
        assert isinstance(inner, GaussianSumEvent)
        law = inner.sampling
        if queries == 0 or inner.query_mu == 0 or not inner.private:
            return gaussian(0.0) if inner.private else no_guarantee()
        shown, most_draws = self.factorization.column(queries), law.most_draws(queries)
        if isinstance(law, CyclicPoissonLaw):  # whose turns do not overlap: each is a query of the column's norm
            whole = sensitivity(shown, queries, 1)
            return replace(inner, max_contribution=tuple(whole * x for x in inner.max_contribution)).guarantee(queries)
        separation = law.separation(queries)
        assert separation is not None
        known = gaussian(inner.query_mu * sensitivity(shown, separation, most_draws))
        strategy = (self.factorization, queries, separation, most_draws)
        groups = law.secret_batches(self.relation)
        secret = secret_groups(*strategy, groups=groups, ratio=inner.ratio) if groups > 1 else None
        return known if secret is None else replace(known, mu=None, delta=None, pairs=lambda: secret)


def secret_groups(
    factors: Factorization, queries: int, separation: int, most_draws: int, *, groups: int, ratio: float
) -> tuple[Part, ...] | None:
    """Return the pairs of a session whose records drew their groups in secret; ``None`` if their losses are too large.

    Args:
        factors: The matrix of the noise.
        queries: Number of queries.
        separation, most_draws: Queries from one turn of a group to the next, and the largest number of its turns.
        groups: Number of groups.
        ratio: Largest contribution of a record, over the noise.
    """
    overlaps = overlaps_of(factors, queries, separation, most_draws)
    rounded = 2 ** (round(math.log2(ratio) * AN_OCTAVE) / AN_OCTAVE)  # so that a calibration seldom chooses anew
    classes = _least_classes(factors, queries, separation, most_draws, groups=groups, ratio=rounded)
    return None if classes is None else parts_of_classes(classes, overlaps, groups, queries, ratio)


@lru_cache(maxsize=256)
def _least_classes(
    factors: Factorization, queries: int, separation: int, most_draws: int, *, groups: int, ratio: float
) -> int | None:
    """Return the number of classes with the least epsilon; ``None`` if losses are too large with any."""
    overlaps = overlaps_of(factors, queries, separation, most_draws)
    tried = estimates(classes_of(overlaps, groups), overlaps, groups=groups, queries=queries, ratio=ratio)
    best = min((about for _, about, _ in tried), default=math.inf)
    near = {classes: parts for classes, about, parts in tried if about <= NEAR * best}
    if len(near) < 2:
        return next(iter(near), None)
    return min(near, key=lambda classes: epsilon_of(near[classes], PLANNED_DELTA).value)


def estimates(
    numbers: Iterable[int],
    overlaps: np.ndarray,
    *,
    groups: int,
    queries: int,
    ratio: float,
    delta: float = PLANNED_DELTA,
) -> list[tuple[int, float, tuple[Part, ...]]]:
    """Return ``numbers`` of classes, with about their epsilon at ``delta`` and their pairs, until epsilon has risen."""
    tried: list[tuple[int, float, tuple[Part, ...]]] = []
    for classes in numbers:
        parts = parts_of_classes(classes, overlaps, groups, queries, ratio)
        if parts is None:
            continue
        tried.append((classes, expected_epsilon(parts, delta, swapped=False), parts))
        if tried[-1][1] > RISEN * min(about for _, about, _ in tried):
            break  # from here on, smaller classes hide less than they no longer overlap
    return tried


@lru_cache(maxsize=64)
def overlaps_of(factors: Factorization, queries: int, separation: int, most_draws: int) -> np.ndarray:
    """Return the inner products of the first group's movement with that of the group d later, for d = 0, 1, ..."""
    moved = movement(factors.column(queries), separation, most_draws)
    return np.array([moved[later:] @ moved[: queries - later] for later in range(separation)])


def classes_of(overlaps: np.ndarray, groups: int) -> Iterator[int]:
    """Yield numbers of classes worth trying: the least overlap for each size of a class, while it falls."""
    least = math.inf
    sizes = sorted({groups // classes for classes in range(1, groups // 2 + 1)}, reverse=True)
    for size in sizes:
        of_size = range(groups // (size + 1) + 1, groups // size + 1)
        best = min(of_size, key=lambda classes: _within(overlaps, classes))
        if _within(overlaps, best) < least:
            least = _within(overlaps, best)
            yield best
        if least == 0:
            return


def parts_of_classes(
    classes: int, overlaps: np.ndarray, groups: int, queries: int, ratio: float
) -> tuple[Part, ...] | None:
    """Return the pairs that dominate the session, whatever the number of classes; ``None`` if losses are too large."""
    whole, common = float(overlaps[0]) * (1 + 2 * ROUNDED_UP), _within(overlaps, classes) * (1 + ROUNDED_UP)
    own = ratio * math.sqrt(whole - common)
    if own > LARGEST_RATIO:
        return None
    each = groups // classes
    allocation = AllocationPair(each, own, min(each, -(-queries // classes)))
    shared = ((GaussianPair(ratio * math.sqrt(common)), 1),) if common > 0 else ()
    return (*shared, (allocation, 1))


def _within(overlaps: np.ndarray, classes: int) -> float:
    """Return the largest overlap of two groups of one class; groups that have no turn overlap with none."""
    return float(overlaps[classes::classes].max(initial=0.0))
