"""Users as records: all rows of a user are one record, of which each query sees a few rows, clipped once.

Place: sampling.units, gradients -> [user_records] -> oracles. Private. Proof: docs/derivations/user-records.md.
Source: Charles et al. (2024), user-level sampling, https://arxiv.org/abs/2407.07737. Differs from it in one point: the
rows of a user are drawn anew in each query, so that no cap on rows is needed.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
from torch import Tensor

from tacita import _validate
from tacita._stream import Stream
from tacita.gradients.batches import map_tensors
from tacita.gradients.data import IndexedRows, as_rows
from tacita.gradients.seeds import derived_seed
from tacita.sampling.units import unit_codes

__all__ = ["UserRecords"]


class UserRecords(IndexedRows):
    """A data set whose records are users: (rows_per_query, ...) in each tensor, drawn from the user's own rows.

    Of a user with more than M = ``rows_per_query`` rows, a query reads M, drawn uniformly; of one with r <= M rows it
    reads each at least M // r times, and at most once more. The loss of a user is the mean over these rows:
    ``loss_fn=tacita.mean_over_views(loss_fn)``. It is clipped once, so that the guarantee is by user, whatever the
    number of rows that a user has, under every relation, and with any sampler of single records. Which rows are drawn
    follows from the query's secret and the user's name, and from no other user.

    ``num_records`` of the sampler is the number of users, and ``max_physical_batch_size`` counts users, too.
    :func:`tacita.fit` with ``units=`` does all of this.

    Args:
        dataset: A map-style ``Dataset``, or arrays in a tuple, mapping or dataclass.
        units: The user of each row, as :func:`tacita.cap_units` takes it; a row whose user is ``None`` or NaN takes no
            part. A user without rows is no record.
        rows_per_query: Number of rows that a query reads of each user that it draws, M.
        collate_fn: Makes a batch from one row, as :class:`~tacita.ClippedGradientOracle` has it.

    Raises:
        ValueError: There is not one unit for each row.

    Example:
        >>> import torch
        >>> users = UserRecords((torch.arange(5.0),), ["ann", "bob", "ann", "ann", None], rows_per_query=2)
        >>> len(users), users.fetch(np.array([1]), seed=0)[0]  # bob has one row
        (2, tensor([[1., 1.]]))
    """

    def __init__(
        self,
        dataset: Any,
        units: Iterable[Hashable],
        rows_per_query: int = 1,
        *,
        collate_fn: Callable[[list], Any] | None = None,
    ) -> None:
        self.dataset, self.rows_per_query = dataset, _validate.count("rows_per_query", rows_per_query)
        self._rows = as_rows(dataset, collate_fn)
        self.codes, self.names = unit_codes(units)
        if len(self.codes) != self._rows.num_rows:
            raise ValueError("units must hold the user of each row: one for every row of the data set.")
        self._by_user = np.argsort(self.codes, kind="stable")
        self._starts = np.searchsorted(self.codes[self._by_user], np.arange(len(self.names) + 1))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def num_rows(self) -> int:
        return len(self)

    @property
    def on_cpu(self) -> bool:
        return self._rows.on_cpu

    @property
    def arrays(self) -> tuple[Tensor | np.ndarray, ...] | None:
        """The arrays that hold all rows, and the user of each row; ``None`` if rows have to be read one by one."""
        return None if self._rows.arrays is None else (*self._rows.arrays, self.codes)

    def fetch(self, indices: np.ndarray, seed: int) -> Any:
        drawn = np.concatenate([self._drawn(int(user), seed) for user in indices])
        return self._of_users(self._rows.fetch(drawn, seed))

    def like(self) -> Any | None:
        row = self._rows.like()
        repeated = None if row is None else map_tensors(lambda x: x.repeat_interleave(self.rows_per_query, 0), row)
        return None if repeated is None else self._of_users(repeated)

    def _of_users(self, batch: Any) -> Any:
        return map_tensors(lambda x: x.unflatten(0, (-1, self.rows_per_query)), batch)

    def _drawn(self, user: int, seed: int) -> np.ndarray:
        """Return the rows of one user that a query reads; none of it depends on the user's place."""
        own, wanted = self._by_user[self._starts[user] : self._starts[user + 1]], self.rows_per_query
        stream = Stream(derived_seed(seed, "rows of a user", self.names[user]).to_bytes(32, "big"))
        if len(own) > wanted:
            return own[stream.choice(len(own), wanted)]
        return own[stream.permutation(len(own))[np.arange(wanted) % len(own)]]
