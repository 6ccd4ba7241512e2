"""Full-batch sampling: every record is in every query.

Place: [sampling.full_batch] -> gradients.
"""

from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita._row_numbers import RowNumbers, RowRange, kept
from tacita.accounting.sampling_laws import FullBatchLaw
from tacita.sampling.sampler import Coins, Sampler


@dataclass(frozen=True, kw_only=True)
class FullBatchSampler(Sampler):
    """Take all rows in every query; the public divisor is ``num_records``.

    Attributes:
        num_records: Public number of records. Under add_or_remove_one it may be a guess, which only sets the divisor.

    Example:
        >>> FullBatchSampler(num_records=1000).expected_batch_size
        1000.0
    """

    num_records: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_records", _validate.count("num_records", self.num_records))

    @property
    def law(self) -> FullBatchLaw:
        return FullBatchLaw()

    @property
    def sample_rate(self) -> float:  # type: ignore[override]
        return 1.0

    @property
    def expected_batch_size(self) -> float:
        return float(self.num_records)

    @property
    def requires_public_count(self) -> bool:
        return False

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        return np.arange(num_rows)

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        self._check_draw(query, num_rows)
        return kept(RowRange(0, num_rows))

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        return np.ones((runs, num_rows), bool)
