"""Poisson sampling: each record enters each query by a coin of its own.

Place: [sampling.poisson] -> gradients. Which records were drawn, and how many, is private.
Source: Abadi et al. (2016), Section 3.1, https://arxiv.org/abs/1607.00133.
"""

from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting.cells import PoissonLaw, PoissonUnitLaw
from tacita.sampling.sampler import Coins, Sampler


@dataclass(frozen=True, init=False)
class PoissonSampler(Sampler):
    r"""Each of the rows is in each query with chance ``sample_rate``, independently of all else.

    Row :math:`i` is in query :math:`t` where word :math:`i` of the query's stream is below
    :math:`\lfloor q \, 2^{64} \rfloor`: one row more or less moves no other row's coin, and the chance is never above
    :math:`q`. The batch size is Binomial(rows, q), so that an empty batch is ordinary; the divisor is the public
    ``sample_rate * num_records``.

    Attributes:
        sample_rate: Chance q of a record to be in a query, in (0, 1]. Or give ``expected_batch_size`` in its place.
        num_records: Public number of records; under add_or_remove_one a guess, which only sets the divisor.

    Raises:
        ValueError: A setting is out of range, or not exactly one of the two is given.

    Example:
        >>> PoissonSampler(expected_batch_size=32, num_records=1000)
        PoissonSampler(sample_rate=0.032, num_records=1000)
    """

    sample_rate: float
    num_records: int

    def __init__(
        self, *, num_records: int, sample_rate: float | None = None, expected_batch_size: float | None = None
    ) -> None:
        num_records = _validate.count("num_records", num_records)
        object.__setattr__(self, "num_records", num_records)
        object.__setattr__(self, "sample_rate", _rate(num_records, sample_rate, expected_batch_size))

    @property
    def law(self) -> PoissonLaw:
        return PoissonLaw(self.sample_rate)

    @property
    def expected_batch_size(self) -> float:
        return self.sample_rate * self.num_records

    @property
    def requires_public_count(self) -> bool:
        return False

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        return np.flatnonzero(coins.for_query(query).bernoulli(num_rows, self.sample_rate))

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        return coins.for_query(query).bernoulli(runs * num_rows, self.sample_rate).reshape(runs, num_rows)


@dataclass(frozen=True, kw_only=True)
class UnitPoissonSampler(Sampler):
    """Poisson sampling of rows where the unit of privacy (a person) has at most ``max_rows_per_unit`` of them.

    Rows are drawn as by :class:`PoissonSampler`; what differs is the event. That no unit has more rows is the records'
    to see to, not the sampler's.

    Attributes:
        sample_rate: Chance of a row to be in a query, in (0, 1].
        num_records: Public number of rows; a guess, which only sets the divisor.
        max_rows_per_unit: Cap on the rows of one unit.
    """

    sample_rate: float
    num_records: int
    max_rows_per_unit: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_records", _validate.count("num_records", self.num_records))
        object.__setattr__(self, "sample_rate", _rate(self.num_records, self.sample_rate, None))
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)

    @property
    def law(self) -> PoissonUnitLaw:
        return PoissonUnitLaw(self.sample_rate, self.max_rows_per_unit)

    @property
    def expected_batch_size(self) -> float:
        return self.sample_rate * self.num_records

    @property
    def requires_public_count(self) -> bool:
        return False

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        return self._rows().draw(query, coins, num_rows)

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        return self._rows().masks(query, coins, num_rows, runs)

    def _rows(self) -> PoissonSampler:
        return PoissonSampler(sample_rate=self.sample_rate, num_records=self.num_records)


def _rate(num_records: int, sample_rate: float | None, expected_batch_size: float | None) -> float:
    """The sample rate, from the one of the two that is given."""
    if (sample_rate is None) == (expected_batch_size is None):
        raise ValueError(
            "exactly one of sample_rate and expected_batch_size must be given, "
            f"got {sample_rate!r} and {expected_batch_size!r}."
        )
    if sample_rate is not None:
        hint = f"For {sample_rate} samples a step set expected_batch_size={sample_rate}." if sample_rate > 1 else ""
        return float(_validate.probability("sample_rate", sample_rate, hint=hint))
    size = _validate.positive("expected_batch_size", expected_batch_size)  # type: ignore[arg-type]
    if size > num_records:
        raise ValueError(f"expected_batch_size must be at most num_records = {num_records}, got {expected_batch_size}.")
    return size / num_records
