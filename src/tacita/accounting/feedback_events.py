r"""Events of a hidden error: what one record changed once keeps speaking, up to a bound, in every later query.

Place: [accounting.feedback_events] -> accountant.
Proofs: docs/derivations/dicesgd.md, "Any batches" (O1) and "Poisson sampling" (O2).

A query releases a sum of contributions, each of norm at most C, plus a vector of norm at most D/2 that depends on all
batches so far. Neighbours differ in the first by what they always do, and in the second by D, whether or not the record
is in the batch.
"""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.events import Event, over_noise
from tacita.accounting.gaussian_events import PoissonSampledEvent, known_mu
from tacita.accounting.mixture_events import Mixture, MixtureEvent, row_chances
from tacita.accounting.relations import moved
from tacita.errors import UnsupportedEventError

AMPLIFIED = ("add_or_remove_one", "zero_out_one")


@dataclass(frozen=True, kw_only=True)
class HiddenErrorEvent(Event):
    """A sum of bounded contributions and a hidden error, with Gaussian noise; subclasses say how records enter.

    Attributes:
        max_contribution: Largest L2 norm C that one row adds to the sum.
        max_error_change: Largest L2 norm D by which one unit changes the error that is injected: twice its bound.
        noise_std: Standard deviation of the noise on the sum; 0 is allowed and not private.
        max_rows_per_unit: At most so many rows belong to one unit; 1 where the unit is a row.
    """

    max_contribution: float
    max_error_change: float
    noise_std: float
    max_rows_per_unit: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "max_contribution", "max_error_change", "noise_std")
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)

    @property
    def sensitivity(self) -> float:
        """What one unit moves in one query, at most."""
        return moved(self.relation) * self.max_rows_per_unit * self.max_contribution + self.max_error_change

    @property
    def query_mu(self) -> float:
        """Sensitivity over noise of one query."""
        return over_noise(self.sensitivity, self.noise_std)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "the divisor, and with it the bound on the error, is public",
            "batches do not depend on the records' values, and no record is twice in one batch",
            "the error itself is never released, logged or shared",
        )

    def is_private(self) -> bool:
        return math.isfinite(self.query_mu)

    def describe(self) -> str:
        return (
            f"{self.sampler}, hidden error, noise_std {self.noise_std:.6g} on a sum with max_contribution "
            f"{self.max_contribution:.6g} and an error that one unit changes by at most {self.max_error_change:.6g}"
        )


@dataclass(frozen=True, kw_only=True)
class HiddenErrorGaussianEvent(HiddenErrorEvent):
    """Any batches that do not depend on the data: every query is a Gaussian one of sensitivity C + D (2C + D); O1.

    Attributes:
        sampling: How records are drawn, in plain words.
    """

    sampling: str

    @property
    def sampler(self) -> str:
        return f"{self.sampling}, no amplification"

    def gaussian_mu(self, queries: int) -> float:
        return self.query_mu * math.sqrt(queries) if queries else 0.0


@dataclass(frozen=True, kw_only=True)
class HiddenErrorPoissonEvent(PoissonSampledEvent, MixtureEvent, HiddenErrorEvent):
    r"""Each row enters each query by its own coin: the batch is amplified, the error is not.

    Dominating pair of one query, in each direction on its own: :math:`\sum_j \mathrm{Binom}(k, q)(j)\, N(D + jC, s^2)`
    against :math:`N(0, s^2)`; k = 1 where the unit is a row.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relation not in AMPLIFIED:
            raise UnsupportedEventError(
                f"{type(self).__name__} has no guarantee under {self.relation}: what earlier releases tell of the "
                f"record's coins differs between the worlds; it has one under {' and '.join(AMPLIFIED)}."
            )

    @property
    def sampler(self) -> str:
        several = f", at most {self.max_rows_per_unit} rows a unit" if self.max_rows_per_unit > 1 else ""
        return super().sampler + several

    @property
    def largest_mu(self) -> float:
        return self.query_mu

    def gaussian_mu(self, queries: int) -> float | None:
        return known_mu(self.query_mu, queries, amplified=self._amplifies(self.query_mu))

    def _mixture(self) -> Mixture:
        rows = range(self.max_rows_per_unit + 1)
        shifts = tuple((self.max_error_change + j * self.max_contribution) / self.noise_std for j in rows)
        return shifts, row_chances(self.max_rows_per_unit, self.sampling_probability)
