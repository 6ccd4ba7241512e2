"""Fixed-size sampling: a uniform subset of the records, anew for each query.

Place: [sampling.fixed_size] -> gradients. Which records were drawn is private; how many is a setting.
Source: Wang, Balle, Kasiviswanathan (2019), https://arxiv.org/abs/1808.00087.
"""

from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting.cells import FixedSizeLaw
from tacita.sampling._assignment import orders
from tacita.sampling.sampler import Coins, Sampler


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampler(Sampler):
    """``batch_size`` of ``num_records`` records without replacement, every subset as likely as any other.

    Proved under replace_one only: the number of records is public, since one more would change everybody's batches.

    Attributes:
        batch_size: Records in a query, in 1 .. num_records.
        num_records: Number of records; must be the data's.

    Example:
        >>> from tacita.random import QueryCoins, Randomness
        >>> coins = QueryCoins(Randomness.insecure(0), "train-1")
        >>> len(FixedSizeSampler(batch_size=3, num_records=10).draw(0, coins, 10))
        3
    """

    batch_size: int
    num_records: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", _validate.count("batch_size", self.batch_size))
        hint = "It must not be below batch_size."
        records = _validate.count("num_records", self.num_records, at_least=self.batch_size, hint=hint)
        object.__setattr__(self, "num_records", records)

    @property
    def law(self) -> FixedSizeLaw:
        return FixedSizeLaw(self.batch_size, self.num_records)

    @property
    def sample_rate(self) -> float:  # type: ignore[override]
        return self.batch_size / self.num_records

    @property
    def expected_batch_size(self) -> float:
        return float(self.batch_size)

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        return coins.for_query(query).choice(num_rows, self.batch_size)

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        return orders(coins.for_query(query), num_rows, runs) < self.batch_size
