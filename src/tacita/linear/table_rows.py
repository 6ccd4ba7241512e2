"""The rows of a table as engines give them, for second moments: the record itself takes the place of its gradient.

Everything here is private.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tacita._row_numbers import RowNumbers
from tacita.gradients.engine import Engine, GradientSource, Groups, Rule, Shapes, Sums
from tacita.gradients.weighted_sums import UNIT, group_norms, round_up, weight_arrays, weighted_sum
from tacita.linear.row_blocks import CHUNK_NUMBERS, LEAST_ROWS, as_row_blocks, blocks

ROW = "row"
TINY = torch.finfo(torch.float64).tiny


class TableRowsSource(GradientSource):
    r"""Make engines whose "per-sample gradients" are the rows :math:`(s \circ x_i, c)` themselves, for second moments.

    Args:
        features: As for :class:`LinearBlocksSource`.
        scale: As there.
        intercept: c > 0, a constant last entry; ``None`` for none.
        more: Further entries, (rows, k), such as scaled targets; they come last.

    Example:
        >>> source = TableRowsSource(torch.tensor([[1.0, 2.0]]), scale=0.5, intercept=1.0)
        >>> next(source.engine({}, np.array([0])).materialise())["row"]
        tensor([[0.5000, 1.0000, 1.0000]], dtype=torch.float64)
    """

    takes_row_numbers = True

    def __init__(
        self,
        features: Any,
        *,
        scale: float | Tensor = 1.0,
        intercept: float | None = 1.0,
        more: Tensor | None = None,
    ) -> None:
        self._rows = as_row_blocks(features)
        self._shared = features is self._rows  # with other sources, which take the same norms
        self._scale = torch.as_tensor(scale, dtype=torch.float64).expand(self._rows.shape[1])
        self._constant = intercept
        self._more = more

    @property
    def shapes(self) -> Shapes:
        extra = (self._constant is not None) + (0 if self._more is None else self._more.shape[1])
        return {ROW: torch.Size([self._rows.shape[1] + extra])}

    @property
    def num_rows(self) -> int:
        return self._rows.shape[0]

    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> "TableRowsEngine":
        return TableRowsEngine(self, indices if isinstance(indices, RowNumbers) else np.asarray(indices, np.int64))

    def row_norms(self) -> Tensor:
        """Return upper bounds of the norms of the rows, (rows,), float64."""
        measure = self._rows.kept_norms if self._shared else self._rows.norms
        found = measure(self._scale, self._constant or 0.0)
        if self._more is None:
            return found
        lengths = torch.linalg.vector_norm(self._more.double(), dim=1)
        return round_up(torch.hypot(found, lengths), self._more.shape[1] + 4).nan_to_num(torch.inf, torch.inf)


class ShownRows(Engine):
    """An engine that shows vectors chunk by chunk, and sums and measures them as they are shown."""

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        totals: list[dict[str, Tensor]] = []
        seen: list[Tensor] = []
        for grads in self.materialise():
            norms = group_norms(grads, groups)
            found = [weighted_sum(grads, weights, groups) for weights in weight_arrays(rule, norms)]
            seen.append(norms)
            totals = [{n: a[n] + b[n] for n in b} for a, b in zip(totals, found, strict=True)] if totals else found
        return Sums(values=tuple(totals), norms=torch.cat(seen))

    def norms(self, groups: Groups) -> Tensor:
        return torch.cat([group_norms(grads, groups) for grads in self.materialise()])


class TableRowsEngine(ShownRows):
    """The engine of one batch of :class:`TableRowsSource`."""

    def __init__(self, source: TableRowsSource, indices: np.ndarray | RowNumbers) -> None:
        self._source, self._indices = source, indices

    @property
    def shapes(self) -> Shapes:
        return self._source.shapes

    @property
    def labels(self) -> Tensor:
        return torch.from_numpy(np.asarray(self._indices))

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        """Yield the rows in chunks that stay in the cache; an empty batch gives one empty chunk."""
        source, columns = self._source, self._source._rows.shape[1]
        (width,) = source.shapes[ROW]
        for rows in self._chunks():
            dense = source._rows.dense(rows)
            found = torch.empty(len(dense), width, dtype=torch.float64)
            torch.mul(dense, source._scale, out=found[:, :columns])
            if source._constant is not None:
                found[:, columns] = source._constant
            if source._more is not None:
                place = rows if isinstance(rows, slice) else torch.from_numpy(rows)
                found[:, width - source._more.shape[1] :] = source._more[place]
            yield {ROW: found}

    def weighted_rows(self, weight: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Yield the rows times their weights in chunks, (rows, columns), float64; a row of weight 0 is zeros.

        Rounding included, no row is longer than its weight times the norm that the weight was taken for. A chunk's
        memory serves the next one.

        Args:
            weight: Gives the weights, (rows,), for upper bounds of norms, (rows,), float64.
        """
        source, columns = self._source, self._source._rows.shape[1]
        (width,), norms, scale = source.shapes[ROW], source.row_norms() * (1 + 16 * UNIT), source._scale
        one = bool((scale == scale[:1]).all())
        height = max(LEAST_ROWS, CHUNK_NUMBERS // width)
        kept = torch.empty(min(height, len(self._indices)), width, dtype=torch.float64)  # memory that is new is slow
        for block in blocks(self._indices, source.num_rows, columns):
            places = np.arange(block.start, block.stop) if isinstance(block, slice) else block
            weights = weight(norms[places]).unsqueeze(1)
            factors = F.hardshrink(weights * scale[:1], TINY) if one else weights  # below it, no relative precision
            for start in range(0, len(places), height):
                some = slice(start, min(start + height, len(places)))
                rows = (
                    slice(block.start + some.start, block.start + some.stop)
                    if isinstance(block, slice)
                    else block[some]
                )
                dense, found = source._rows.dense(rows), kept[: some.stop - some.start]
                torch.mul(dense if one else dense * scale, factors[some], out=found[:, :columns])
                if source._constant is not None:
                    torch.mul(weights[some, 0], source._constant, out=found[:, columns])
                if source._more is not None:
                    extra = source._more[places[some]]
                    torch.mul(extra, weights[some], out=found[:, width - extra.shape[1] :])
                absent = weights[some, 0] == 0
                if absent.any():
                    found[absent] = 0.0  # 0 * nan is nan
                yield found

    def _chunks(self) -> Iterator[slice | np.ndarray]:
        """Yield the rows of each chunk: slices where the batch is all rows in order."""
        source = self._source
        height = max(LEAST_ROWS, CHUNK_NUMBERS // source.shapes[ROW].numel())
        if not len(self._indices):
            yield np.empty(0, np.int64)
        for rows in blocks(self._indices, source.num_rows, source._rows.shape[1]):
            if isinstance(rows, slice):
                yield from (slice(k, min(k + height, rows.stop)) for k in range(rows.start, rows.stop, height))
            else:
                yield from (rows[k : k + height] for k in range(0, len(rows), height))
