"""Poisson sampling: each record enters each query by an independent coin of its own.

Place: [sampling.poisson] -> gradients. Which records were drawn, and how many, is private.
Source: Abadi et al. (2016), Section 3.1, https://arxiv.org/abs/1607.00133.
"""

from dataclasses import dataclass, field
from numbers import Real

import numpy as np

from tacita import _validate
from tacita._row_numbers import ChosenRows, RowNumbers, kept
from tacita.accounting.sampling_laws import PoissonLaw, PoissonUnitLaw, TruncatedPoissonLaw
from tacita.random import Stream
from tacita.sampling._rare_rows import LARGEST_RATE, rare_rows
from tacita.sampling.sampler import Coins, Sampler

MANY_ROWS = 2**20  # of more public rows, rare ones are found without asking each; of fewer, all are asked


@dataclass(frozen=True, init=False)
class PoissonSampler(Sampler):
    r"""Put each row into each query with probability ``sample_rate``, independently of everything else.

    Row :math:`i` is in query :math:`t` if word :math:`i` of the query's stream is below
    :math:`\lfloor q \, 2^{64} \rfloor`. So adding or removing one row changes no other row's coin, and the probability
    is never above :math:`q`. Of more than 2^20 public records, at rates up to 1/64, the rows of a batch are found by
    draws of the same law, in time proportional to the batch (docs/derivations/rare-rows.md). The batch size is
    Binomial(rows, q), and an empty batch is ordinary. The divisor is the public ``sample_rate * num_records``.

    With ``max_batch_size``, a query has at most so many rows: if more come up, those with the smallest words stay, a
    uniform subset, and the others wait for their next coin. One row less then lets at most one other row in. A session
    costs a little more (docs/derivations/truncation.md); :func:`tacita.accounting.least_max_batch_size` chooses.

    Attributes:
        sample_rate: Probability q that a record is in a query, in (0, 1]. Give either it or ``expected_batch_size``.
        num_records: Public number of records. Under add_or_remove_one it may be a guess, which only sets the divisor;
            but with ``max_batch_size`` the guarantee rests on the data's having at most so many.
        max_batch_size: Largest number of rows in a query; ``None`` for no limit.

    Raises:
        ValueError: A setting is out of range, or both or neither of ``sample_rate`` and ``expected_batch_size`` are
            given.

    Example:
        >>> PoissonSampler(expected_batch_size=32, num_records=1000)
        PoissonSampler(sample_rate=0.032, num_records=1000)
    """

    sample_rate: float
    num_records: int
    max_batch_size: int | None

    def __init__(
        self,
        *,
        num_records: int,
        sample_rate: float | None = None,
        expected_batch_size: float | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        num_records = _validate.count("num_records", num_records)
        object.__setattr__(self, "num_records", num_records)
        object.__setattr__(self, "sample_rate", _rate(num_records, sample_rate, expected_batch_size))
        limit = None if max_batch_size is None else _validate.count("max_batch_size", max_batch_size)
        object.__setattr__(self, "max_batch_size", limit)

    def __repr__(self) -> str:  # that of a session without a limit is in older ledgers
        limit = "" if self.max_batch_size is None else f", max_batch_size={self.max_batch_size}"
        return f"PoissonSampler(sample_rate={self.sample_rate!r}, num_records={self.num_records}{limit})"

    @property
    def law(self) -> PoissonLaw | TruncatedPoissonLaw:
        if self.max_batch_size is None:
            return PoissonLaw(self.sample_rate)
        return TruncatedPoissonLaw(self.sample_rate, self.max_batch_size, self.num_records)

    @property
    def requires_public_count(self) -> bool:
        return False

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        if query < 0:  # all that can be wrong: any number of queries, and of rows, is fine
            self._check_draw(query, num_rows)
        stream = coins.for_query(query)
        drawn = np.asarray(self._chosen(stream, num_rows))
        if self.max_batch_size is None or len(drawn) <= self.max_batch_size:
            return drawn
        return drawn[_smallest(stream.words_at(drawn), self.max_batch_size)]

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        self._check_draw(query, num_rows)
        if self.max_batch_size is not None:
            return self.draw(query, coins, num_rows)
        return kept(self._chosen(coins.for_query(query), num_rows))

    def _chosen(self, stream: Stream, num_rows: int) -> ChosenRows:
        if self.num_records > MANY_ROWS and self.sample_rate <= LARGEST_RATE:
            return rare_rows(stream, num_rows, self.sample_rate)
        return ChosenRows(
            num_rows, lambda first, count: np.flatnonzero(stream.bernoulli(count, self.sample_rate, first))
        )

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        stream = coins.for_query(query)
        drawn = stream.bernoulli(runs * num_rows, self.sample_rate).reshape(runs, num_rows)
        if self.max_batch_size is None:
            return drawn
        return drawn & _smallest(stream.words(runs * num_rows).reshape(runs, num_rows), self.max_batch_size)


@dataclass(frozen=True, kw_only=True)
class UnitPoissonSampler(Sampler):
    """Poisson sampling of rows where one privacy unit (a person) has at most ``max_rows_per_unit`` of them.

    Rows are drawn as by :class:`PoissonSampler`; only the event differs. The sampler does not check that no unit has
    more rows: :class:`~tacita.oracles.Records` ensures it.

    Attributes:
        sample_rate: Probability that a row is in a query, in (0, 1].
        num_records: Public number of rows; may be a guess, which only sets the divisor.
        max_rows_per_unit: Largest number of rows of one unit.
    """

    sample_rate: float
    num_records: int
    max_rows_per_unit: int = field()  # which it inherits a value of, and asks for all the same

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_records", _validate.count("num_records", self.num_records))
        object.__setattr__(self, "sample_rate", _rate(self.num_records, self.sample_rate, None))
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)

    @property
    def law(self) -> PoissonUnitLaw:
        return PoissonUnitLaw(self.sample_rate, self.max_rows_per_unit)

    @property
    def requires_public_count(self) -> bool:
        return False

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        return self._rows().draw(query, coins, num_rows)

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        return self._rows().batch(query, coins, num_rows)

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        return self._rows().masks(query, coins, num_rows, runs)

    def _rows(self) -> PoissonSampler:
        return PoissonSampler(sample_rate=self.sample_rate, num_records=self.num_records)


def _smallest(words: np.ndarray, count: int) -> np.ndarray:
    """Return which words are the ``count`` smallest of the last axis, bool; of equal words the first ones are."""
    among = np.zeros(words.shape, bool)
    np.put_along_axis(among, np.argsort(words, axis=-1, kind="stable")[..., :count], True, axis=-1)
    return among


def _rate(num_records: int, sample_rate: float | None, expected_batch_size: float | None) -> float:
    """Return the sample rate, given either itself or the expected batch size."""
    if (sample_rate is None) == (expected_batch_size is None):
        raise ValueError(
            "exactly one of sample_rate and expected_batch_size must be given, "
            f"got {sample_rate!r} and {expected_batch_size!r}."
        )
    if sample_rate is not None:
        many = isinstance(sample_rate, Real) and sample_rate > 1
        hint = f"For {sample_rate} samples a step set expected_batch_size={sample_rate}." if many else ""
        return float(_validate.probability("sample_rate", sample_rate, hint=hint))
    size = _validate.positive("expected_batch_size", expected_batch_size)  # type: ignore[arg-type]
    if size > num_records:
        raise ValueError(f"expected_batch_size must be at most num_records = {num_records}, got {expected_batch_size}.")
    return size / num_records
