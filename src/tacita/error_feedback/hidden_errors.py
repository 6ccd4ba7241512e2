r"""Events of a hidden error: once a record has been used, it may change every later query, up to a bound.

A query releases a sum of contributions, each of norm at most C, plus a vector of norm at most D/2 that depends on all
batches so far. Neighbours differ in the first as in any clipped sum. They differ in the second by at most D, whether or
not the record is in the batch.
Proofs: docs/derivations/dicesgd.md, "Any batches" (O1) and "Poisson sampling" (O2).
"""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.events.event import NoiseSettings, over_noise
from tacita.accounting.events.gaussian_sums import Mixture, amplifies, mixture_guarantee, row_chances
from tacita.accounting.events.guarantee import Guarantee, gaussian
from tacita.accounting.events.sampled import Proof, SampledEvent, indexed
from tacita.accounting.relations import moved
from tacita.accounting.sampling_laws import (
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    PoissonUnitLaw,
    ShuffledEpochsLaw,
)

AMPLIFIED = ("add_or_remove_one", "zero_out_one")
EACH = "every query, no amplification"
MIXTURE = "the batch amplified, the error not"


@dataclass(frozen=True, kw_only=True)
class HiddenErrorEvent(SampledEvent):
    """A sum of bounded contributions and a hidden error, with Gaussian noise.

    Attributes:
        max_contribution: Largest L2 norm C that one row adds to the sum.
        max_error_change: Largest L2 norm D by which one unit changes the injected error: twice the error's bound.
        noise_std: Standard deviation of the noise on the sum; 0 is allowed and not private.
    """

    max_contribution: float
    max_error_change: float
    noise_std: float

    released = "a hidden error"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "max_contribution", "max_error_change", "noise_std")

    @property
    def per_query(self) -> bool:
        return True  # every query is charged alike, whatever batches the record was in before

    @property
    def sensitivity(self) -> float:
        """The most by which one unit moves one query (L2)."""
        rows = self.sampling.rows_per_unit
        return moved(self.relation) * rows * self.max_contribution + self.max_error_change

    @property
    def query_mu(self) -> float:
        """Sensitivity over noise standard deviation of one query."""
        return over_noise(self.sensitivity, self.noise_std)

    @property
    def private(self) -> bool:
        return math.isfinite(self.query_mu)

    @property
    def amplified(self) -> bool:
        """Whether the batch is amplified: by coins about which earlier releases say the same in both worlds."""
        return isinstance(self.sampling, PoissonLaw | PoissonUnitLaw) and self.relation in AMPLIFIED

    @property
    def sampler(self) -> str:
        return self.sampling.describe() if self.amplified else f"{self.sampling.words}, no amplification"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            *(self.sampling.assumptions(self.relation)[:1] if self.amplified else ()),
            "the divisor, and with it the bound on the error, is public",
            "batches do not depend on the records' values, and no record is twice in one batch",
            "the error itself is never released, logged or shared",
        )

    @property
    def noise_settings(self) -> NoiseSettings:
        return NoiseSettings((self.noise_std,), (self.max_contribution,), self.query_mu)

    def describe(self) -> str:
        return (
            f"{self.sampler}, hidden error, noise_std {self.noise_std:.6g} on a sum with max_contribution "
            f"{self.max_contribution:.6g} and an error that one unit changes by at most {self.max_error_change:.6g}"
        )


def _any_batches(event: HiddenErrorEvent, queries: int) -> Guarantee:
    """Charge batches that do not depend on the data: each query is Gaussian with sensitivity C + D (or 2C + D); O1."""
    return gaussian(event.query_mu * math.sqrt(queries) if queries else 0.0)


def _coins(event: HiddenErrorEvent, queries: int) -> Guarantee:
    r"""Charge rows that enter each query by their own coins: the batch is amplified, the error is not; O2.

    The dominating pair of one query, in each direction on its own, is
    :math:`\sum_j \mathrm{Binom}(k, q)(j)\, N(D + jC, s^2)` against :math:`N(0, s^2)`, with k = 1 if the unit is a row.
    Under replace_one, earlier releases may say different things about the record's coins in the two worlds, and the
    batch is not amplified.
    """
    law = event.sampling
    assert isinstance(law, PoissonLaw | PoissonUnitLaw)
    if not event.amplified:
        return _any_batches(event, queries)
    rows, chance = law.rows_per_unit, law.sample_rate

    def mixture() -> Mixture:
        each = (event.max_error_change + j * event.max_contribution for j in range(rows + 1))
        return tuple(shift / event.noise_std for shift in each), row_chances(rows, chance)

    return mixture_guarantee(mixture, event.query_mu, queries, amplified=amplifies(chance, event.query_mu))


HiddenErrorEvent.proofs = {
    PoissonLaw: Proof({"add_or_remove_one": MIXTURE, "replace_one": EACH, "zero_out_one": MIXTURE}, _coins),
    PoissonUnitLaw: Proof({"add_or_remove_one": MIXTURE}, _coins),
    **{law: indexed(EACH, _any_batches) for law in (FullBatchLaw, FixedSizeLaw, DisjointLaw, ShuffledEpochsLaw)},
}
