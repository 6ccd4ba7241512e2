r"""Linear models on a table, fast: clipped sums of gradients for the price of two products with the table.

The gradient of a row is :math:`e_i (s \circ x_i, c)^\top` with :math:`e_i = \ell'(z_i, y_i)`, so that its norm is
:math:`\lVert e_i \rVert \, \lVert (s \circ x_i, c) \rVert`, of which the second factor is computed once. A pass reads
blocks of rows that stay in the cache. :mod:`tacita.linear.exact` has the same gradients with bits that no
other row changes, as integer noise needs them; it is slower.

Everything here is private.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tacita import _validate
from tacita._row_numbers import IN_MEMORY, RowNumbers, pieces
from tacita.gradients.engine import Engine, GradientSource, Groups, Rule, Shapes, Sums
from tacita.gradients.weighted_sums import full_precision, weight_arrays
from tacita.linear.losses import OutputLoss
from tacita.linear.row_blocks import RUN, blocks, owned_row_blocks

WEIGHT, BIAS = "weight", "bias"
CHUNK = 2**21  # elements of per-sample gradients at once


class LinearBlocksSource(GradientSource):
    r"""Make engines of a linear model on a table: :math:`z = W (s \circ x) + c \, b`, a loss of z for each row.

    Targets are read as numbers (classes as 0, 1, ...). A row that holds NaN or an infinity has an infinite norm, so
    that every clipper gives it weight 0.

    Args:
        features: (rows, columns), float32 or float64. A tensor, an array or a SciPy sparse matrix is copied, because
            norms of rows are taken once; a memory map must be open for reading only, and its file must not change.
        targets: (rows,).
        loss: The loss of a row.
        scale: s: what each column is multiplied by, a number or (columns,). Public, or bought.
        intercept: c > 0, the constant feature that the bias is the weight of; ``None`` for a model without bias.

    Example:
        >>> from tacita.linear.losses import SquaredLoss
        >>> source = LinearBlocksSource(torch.tensor([[3.0, 4.0]]), torch.tensor([10.0]), SquaredLoss())
        >>> engine = source.engine({"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}, np.array([0]))
        >>> engine.weighted_sums(torch.ones_like, {"all": ("weight", "bias")}).values[0]["weight"]
        tensor([[-30., -40.]], dtype=torch.float64)
    """

    takes_row_numbers = True

    def __init__(
        self,
        features: Any,
        targets: Any,
        loss: OutputLoss,
        *,
        scale: float | Tensor = 1.0,
        intercept: float | None = 1.0,
    ) -> None:
        self._rows = owned_row_blocks(features)
        given = torch.as_tensor(np.asarray(targets))
        # a bounded loss has a derivative at infinity; what only float32 cannot hold is a far target, and stays one
        self._targets = torch.where(given.isfinite(), given.to(self._rows.dtype), torch.nan)
        if self._targets.shape != self._rows.shape[:1]:
            raise ValueError(f"targets must have shape {self._rows.shape[:1]}, got {tuple(self._targets.shape)}.")
        self.loss = loss
        self._scale = torch.as_tensor(scale, dtype=torch.float64).expand(self._rows.shape[1])
        self._constant = 0.0 if intercept is None else _validate.positive("intercept", intercept)
        norms = self._rows.kept_norms(self._scale, self._constant)
        self._rows = self._rows.without(np.flatnonzero(~norms.isfinite().numpy()))
        self._norms = (norms * _room(self._rows.dtype)).to(self._rows.dtype)

    @property
    def shapes(self) -> Shapes:
        outputs = self.loss.num_outputs()
        bias = {BIAS: torch.Size([outputs])} if self._constant else {}
        return {WEIGHT: torch.Size([outputs, self._rows.shape[1]]), **bias}

    @property
    def num_rows(self) -> int:
        return self._rows.shape[0]

    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> "LinearBlocksEngine":
        rows = indices if isinstance(indices, RowNumbers) else np.asarray(indices).astype(np.int64, copy=False)
        return LinearBlocksEngine(self, {name: params[name].detach() for name in self.shapes}, rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(loss={self.loss!r}, columns={self._rows.shape[1]})"


class LinearBlocksEngine(Engine):
    """The engine of one batch of :class:`LinearBlocksSource`."""

    def __init__(
        self, source: LinearBlocksSource, params: Mapping[str, Tensor], indices: np.ndarray | RowNumbers
    ) -> None:
        self._source, self._rows, self._indices = source, source._rows, indices
        self._weights = (params[WEIGHT].double() * source._scale).t().to(self._rows.dtype)
        bias = params[BIAS].double() * source._constant if source._constant else torch.zeros(1)
        self._offset = bias.to(self._rows.dtype) if source._constant else None

    @property
    def shapes(self) -> Shapes:
        return self._source.shapes

    @property
    def labels(self) -> Tensor:
        return torch.from_numpy(np.asarray(self._indices))

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        columns, outputs = self._weights.shape
        totals: list[Tensor] = []
        seen, count = list[Tensor](), 0
        with full_precision(torch.device("cpu")):
            for rows, errors in self._errors():
                norms = self._norms_of(rows, errors, groups)
                count += len(norms)
                seen = [*seen, norms] if count <= IN_MEMORY else []
                arrays = weight_arrays(rule, norms)
                totals = totals or [torch.zeros(columns + 1, outputs, dtype=torch.float64) for _ in arrays]
                for total, weights in zip(totals, arrays, strict=True):
                    self._add(total, rows, errors, weights, groups)
        if not count:
            seen = [torch.zeros(0, len(groups), dtype=self._rows.dtype)]
            totals = [torch.zeros(columns + 1, outputs, dtype=torch.float64) for _ in weight_arrays(rule, seen[0])]
        values = tuple(self._named(total, groups) for total in totals)
        if count > IN_MEMORY:
            return Sums(values=values, norms=partial(self.norms, groups))  # computed again if anybody asks
        return Sums(values=values, norms=seen[0] if len(seen) == 1 else torch.cat(seen))

    def norms(self, groups: Groups) -> Tensor:
        empty = torch.zeros(0, len(groups), dtype=self._rows.dtype)
        return torch.cat([empty, *(self._norms_of(rows, errors, groups) for rows, errors in self._errors())])

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        columns, outputs = self._weights.shape
        height = max(1, CHUNK // max(1, columns * outputs))
        source = self._source
        for rows, errors in self._errors(height):
            bad = ~torch.isfinite(source._norms[rows])
            scaled = self._rows.dense(rows).double() * source._scale
            wide = torch.where(bad.unsqueeze(1), torch.nan, errors.double())
            found = {WEIGHT: wide.unsqueeze(2) * scaled.unsqueeze(1), BIAS: wide * source._constant}
            yield {name: found[name] for name in self.shapes}

    def _errors(self, height: int | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Yield the rows of each block, and the derivatives of their losses in the outputs, (rows, outputs)."""
        source, indices = self._source, self._indices
        count, columns = self._rows.shape
        parts = blocks(indices, count, columns)
        if height is not None:
            parts = pieces(indices, height)
        start = not self._weights.any()  # where a fit starts: half of a pass is known
        for rows in parts:
            targets = source._targets[rows]
            zeros = (len(targets), self._weights.shape[1])
            outputs = targets.new_zeros(zeros) if start else self._rows.products(rows, self._weights)
            if self._offset is not None:
                outputs = outputs.add_(self._offset)
            yield rows, source.loss.derivative(outputs, targets)

    def _norms_of(self, rows: Any, errors: Tensor, groups: Groups) -> Tensor:
        r"""Return upper bounds of :math:`\lVert e_i \rVert \, \lVert (s \circ x_i, c) \rVert`, (rows, groups).

        They have room for all that is rounded between here and a row's term of the sum, in the table's dtype: the norm
        of the errors (k + 2 roundings of u for k outputs), its product with the norm of the row, the weight, and the
        products with the error and with the row. The norms of rows are larger by 16 u; softmax has few outputs or an
        error whose squares were added in float64.
        """
        if errors.shape[1] == 1:
            norms = errors.abs().squeeze(1)
        else:
            norms = errors.double().square().sum(dim=1).sqrt_().to(errors.dtype)
        norms.mul_(self._source._norms[rows])  # of the weight alone too: (s x, c) is no shorter
        return norms.unsqueeze(1).expand(-1, len(groups))

    def _add(self, total: Tensor, rows: Any, errors: Tensor, weights: Tensor, groups: Groups) -> None:
        """Add the weighted sum of one block: rows of ``total`` are the columns of the table, then the constant."""
        place = {name: k for k, names in enumerate(groups.values()) for name in names}
        for name, part in ((WEIGHT, total[:-1]), (BIAS, total[-1:])):
            if name not in place or (name == BIAS and place.get(WEIGHT) == place[BIAS]):
                continue
            column = weights[:, place[name], None]
            least = torch.finfo(errors.dtype).tiny  # below it no relative error bounds a rounding: such a row is absent
            shares = F.hardshrink(column.to(errors.dtype), least) * errors
            kept = F.hardshrink(shares, least).nan_to_num_(0.0, torch.inf, -torch.inf)  # 0 * nan: absent
            if name == WEIGHT:
                part.add_(self._rows.sums(rows, kept))
            if name == BIAS or place.get(BIAS) == place[name]:
                total[-1] += kept.sum(dim=0, dtype=torch.float64)

    def _named(self, total: Tensor, groups: Groups) -> dict[str, Tensor]:
        found = {WEIGHT: (total[:-1] * self._source._scale.unsqueeze(1)).t(), BIAS: total[-1] * self._source._constant}
        asked = {name for names in groups.values() for name in names}
        return {name: found[name] for name in self.shapes if name in asked}


def _room(dtype: torch.dtype) -> float:
    r"""Return the factor on norms of rows that pays for all that is rounded between them and the sum.

    16 u are for a row's own term: see :meth:`LinearBlocksEngine._norms_of`. A sum of m terms of norm at most C is off
    by at most :math:`m u \cdot m C`, in any order; one record moves one run of float32, in each of two neighbouring
    tables.
    """
    eps = torch.finfo(dtype).eps  # 2 u
    return 1 + 8 * eps + (RUN**2 * eps if dtype == torch.float32 else 0.0)
