"""Fixed-size sampling: a fresh uniform subset of the records for each query.

Place: [sampling.fixed_size] -> gradients. Which records were drawn is private; their number is a public setting.
Source: Wang, Balle, Kasiviswanathan (2019), https://arxiv.org/abs/1808.00087.
"""

from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting.sampling_laws import FixedSizeLaw
from tacita.sampling._assignment import orders
from tacita.sampling.sampler import Coins, Sampler


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampler(Sampler):
    """Draw ``batch_size`` of ``num_records`` records without replacement; all subsets are equally likely.

    A guarantee is proved under replace_one only. The number of records is public, because one record more would change
    everyone's batches.

    Attributes:
        batch_size: Number of records in a query, from 1 to num_records.
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
        hint = "It must be at least batch_size."
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
