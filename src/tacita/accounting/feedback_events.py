r"""Events of a hidden error: what one record changed once keeps speaking, up to a bound, in every later query.

Place: [accounting.feedback_events] -> accountant.
Proofs: docs/derivations/dicesgd.md, "Any batches" (O1) and "Poisson sampling" (O2).

A query releases a sum of contributions, each of norm at most C, plus a vector of norm at most D/2 that depends on all
batches so far. Neighbours differ in the first by what they always do, and in the second by D, whether or not the record
is in the batch.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from tacita import _validate
from tacita.accounting import _pld
from tacita.accounting.events import DEFAULT_INTERVAL, Event
from tacita.accounting.gaussian_events import UNAMPLIFIED_RATIO
from tacita.accounting.mixture_events import _kept, _mixture_rdp
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
        for name in ("max_contribution", "max_error_change", "noise_std"):
            object.__setattr__(self, name, _validate.non_negative(name, getattr(self, name)))
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)

    @property
    def sensitivity(self) -> float:
        """What one unit moves in one query, at most."""
        return moved(self.relation) * self.max_rows_per_unit * self.max_contribution + self.max_error_change

    @property
    def query_mu(self) -> float:
        """Sensitivity over noise of one query."""
        if self.sensitivity == 0:
            return 0.0
        return self.sensitivity / self.noise_std if self.noise_std > 0 else math.inf

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

    def unamplified_mu(self, queries: int) -> float:
        """``mu`` of the session without any amplification (O1)."""
        return self.query_mu * math.sqrt(queries) if queries else 0.0


@dataclass(frozen=True, kw_only=True)
class HiddenErrorGaussianEvent(HiddenErrorEvent):
    """Any batches that do not depend on the data: every query is a Gaussian one of sensitivity C + D (2C + D).

    Attributes:
        sampling: How records are drawn, in plain words.
    """

    sampling: str

    @property
    def sampler(self) -> str:
        return f"{self.sampling}, no amplification"

    def gaussian_mu(self, queries: int) -> float:
        return self.unamplified_mu(queries)

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL):
        mu = self.gaussian_mu(queries)
        return _pld.gaussian_pld(mu, interval) if 0 < mu < math.inf else None

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        return np.asarray(orders, dtype=float) * self.gaussian_mu(queries) ** 2 / 2


@dataclass(frozen=True, kw_only=True)
class HiddenErrorPoissonEvent(HiddenErrorEvent):
    r"""Each row enters each query by its own coin: the batch is amplified, the error is not.

    Dominating pair of one query, in each direction on its own: :math:`\sum_j \mathrm{Binom}(k, q)(j)\, N(D + jC, s^2)`
    against :math:`N(0, s^2)`; k = 1 where the unit is a row.

    Attributes:
        sampling_probability: Chance q of a row's coin, in (0, 1].
    """

    sampling_probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = _validate.probability("sampling_probability", self.sampling_probability)
        object.__setattr__(self, "sampling_probability", float(rate))
        if self.relation not in AMPLIFIED:
            raise UnsupportedEventError(
                f"{type(self).__name__} has no guarantee under {self.relation}: what earlier releases tell of the "
                f"record's coins differs between the worlds; it has one under {' and '.join(AMPLIFIED)}."
            )

    @property
    def sampler(self) -> str:
        several = f", at most {self.max_rows_per_unit} rows a unit" if self.max_rows_per_unit > 1 else ""
        return f"Poisson sampling, sample rate {self.sampling_probability:.6g}{several}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("each record enters each query by an independent secret coin", *super().assumptions)

    def gaussian_mu(self, queries: int) -> float | None:
        if queries == 0 or self.query_mu == 0:
            return 0.0
        if self.sampling_probability == 1 or self.query_mu > UNAMPLIFIED_RATIO:
            return self.unamplified_mu(queries)
        return None

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL):
        mu = self.gaussian_mu(queries)
        if mu is not None:
            return _pld.gaussian_pld(mu, interval) if 0 < mu < math.inf else None
        return _pld.mixture_pld(*self._mixture(), queries, interval)

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        mu = self.gaussian_mu(queries)
        if mu is not None:
            return np.asarray(orders, dtype=float) * mu**2 / 2
        return queries * _mixture_rdp(*self._mixture(), tuple(map(float, orders)))

    def loss_range(self, queries: int) -> float:
        return self.query_mu * (self.query_mu / 2 + 10)

    def _mixture(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        rows = range(self.max_rows_per_unit + 1)
        chances = binom.pmf(rows, self.max_rows_per_unit, self.sampling_probability)
        shifts = tuple((self.max_error_change + j * self.max_contribution) / self.noise_std for j in rows)
        return _kept(shifts, tuple(map(float, chances)))
