r"""Linear models on a table: clipped sums of gradients for the price of two products with the table.

The gradient of a row is :math:`e_i (s \circ x_i, c)^\top` with :math:`e_i = \ell'(z_i, y_i)`, so that its norm is
:math:`\lVert e_i \rVert \, \lVert (s \circ x_i, c) \rVert`, of which the second factor is computed once. A pass reads
blocks of rows that stay in the cache. Rows themselves, and rows of a Hessian, are gradients of losses of their own:
:func:`table_rows` and :func:`hessian_rows`, for second moments.

Everything here is private.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacita import _validate
from tacita._row_numbers import IN_MEMORY, RowNumbers
from tacita.gradients.engine import Engine, GradientSource, Groups, Rule, Shapes, Sums
from tacita.gradients.weighted_sums import UNIT, full_precision, weight_arrays
from tacita.hardened.row_arithmetic import tree_sum
from tacita.linear.losses import HessianRowLoss, OutputLoss, RowLoss
from tacita.linear.row_blocks import CHUNK_NUMBERS, LEAST_ROWS, RUN, blocks, owned_row_blocks

WEIGHT, BIAS = "weight", "bias"
CHUNK = 2**21  # elements of per-sample gradients at once
TINY = torch.finfo(torch.float64).tiny


class LinearSource(GradientSource):
    r"""Make engines of a linear model on a table: :math:`z = W (s \circ x) + c \, b`, a loss of z for each row.

    Targets are read as numbers (classes as 0, 1, ...). A row that holds NaN or an infinity has an infinite norm, so
    that every clipper gives it weight 0.

    Args:
        features: (rows, columns), float32 or float64, on the CPU. A tensor, an array or a SciPy sparse matrix is
            copied, because norms of rows are taken once; a memory map must be open for reading only, and its file must
            not change.
        targets: (rows,).
        loss: The loss of a row.
        scale: s: what each column is multiplied by, a number or (columns,). Public, or bought.
        intercept: c > 0, the constant feature that the bias is the weight of; ``None`` for a model without bias.
        weights: What the loss of each row is multiplied by, (rows,); 1 each if ``None``.
        exact: Whether the bits of a per-sample gradient depend on its row alone, as integer noise needs them. It is
            taken in float64 and takes longer.
        model: The layer that the parameters are those of, for ``oracle.backward()``; not modified.

    Example:
        >>> from tacita.linear import SquaredLoss
        >>> source = LinearSource(torch.tensor([[3.0, 4.0]]), torch.tensor([10.0]), SquaredLoss())
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
        weights: Any = None,
        exact: bool = False,
        model: nn.Linear | None = None,
    ) -> None:
        rows = owned_row_blocks(features)
        self._dtype = torch.float64 if exact else rows.dtype
        self._exact, self.loss, self.model = exact, loss, model
        self.rows_alone = exact
        given = torch.as_tensor(np.asarray(targets))
        # a bounded loss has a derivative at infinity; what only float32 cannot hold is a far target, and stays one
        self._targets = torch.where(given.isfinite(), given.to(self._dtype), torch.nan)
        if self._targets.shape != rows.shape[:1]:
            raise ValueError(f"targets must have shape {rows.shape[:1]}, got {tuple(self._targets.shape)}.")
        self._factors = None if weights is None else torch.as_tensor(np.asarray(weights)).to(self._dtype, copy=True)
        if exact:  # raises if the loss has none
            loss.exact_derivative(torch.zeros(0, loss.num_outputs(), dtype=self._dtype), self._targets[:0])
        self._scale = torch.as_tensor(scale, dtype=torch.float64).expand(rows.shape[1])
        self._constant = 0.0 if intercept is None else _validate.positive("intercept", intercept)
        self._lengths = rows.kept_norms(self._scale, self._constant)
        self._rows = rows.without(np.flatnonzero(~self._lengths.isfinite().numpy()))
        self._norms = (self._lengths * _room(self._dtype)).to(self._dtype)

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
    ) -> "LinearEngine":
        rows = indices if isinstance(indices, RowNumbers) else np.asarray(indices).astype(np.int64, copy=False)
        if not self.loss.reads_outputs:
            params = {name: torch.zeros(shape) for name, shape in self.shapes.items()}
        return LinearEngine(self, {name: params[name].detach() for name in self.shapes}, rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(loss={self.loss!r}, columns={self._rows.shape[1]})"


def table_rows(
    features: Any, *, scale: float | Tensor = 1.0, intercept: float | None = 1.0, weights: Any = None
) -> LinearSource:
    r"""Return a source whose "per-sample gradients" are the rows :math:`(s \circ x_i, c)`, for second moments.

    They are the gradients of the output of a linear model, the same at every point. Arguments are those of
    :class:`LinearSource`.

    Example:
        >>> source = table_rows(torch.tensor([[1.0, 2.0]]), scale=0.5)
        >>> next(source.engine({}, np.array([0])).materialise())["weight"]
        tensor([[[0.5000, 1.0000]]], dtype=torch.float64)
    """
    rows = owned_row_blocks(features)
    return LinearSource(rows, np.zeros(rows.shape[0]), RowLoss(), scale=scale, intercept=intercept, weights=weights)


def hessian_rows(
    features: Any,
    targets: Any,
    loss: OutputLoss,
    *,
    scale: float | Tensor = 1.0,
    intercept: float | None = 1.0,
    weights: Any = None,
) -> LinearSource:
    r"""Return a source of rows of a linear model's Hessian: :math:`\sqrt{c_i / \kappa}\,(s \circ x_i, c)`.

    The Hessian of row i is :math:`\ell''(z_i, y_i)\, x_i x_i^\top`. In place of the second derivative stands the
    curvature :math:`c_i \le \kappa` of a quadratic above the loss (:meth:`OutputLoss.majorant`) at the point of the
    query, and :math:`\kappa` is ``loss.curvature``. So the second moments of these vectors, times :math:`\kappa`, are
    the matrix of a Newton step that never overshoots. No vector is longer than its row; nothing rests on that, because
    :class:`~tacita.linear.SecondMoment` clips a vector that is. Arguments are those of :class:`LinearSource`.

    Example:
        >>> from tacita.linear import HuberLoss
        >>> source = hessian_rows(torch.tensor([[4.0]]), torch.tensor([0.0]), HuberLoss(1.0), intercept=None)
        >>> engine = source.engine({"weight": torch.ones(1, 1)}, np.array([0]))
        >>> next(engine.materialise())["weight"]  # c = 1/4, kappa = 1
        tensor([[[2.]]], dtype=torch.float64)
    """
    return LinearSource(features, targets, HessianRowLoss(loss), scale=scale, intercept=intercept, weights=weights)


class LinearEngine(Engine):
    """The engine of one batch of :class:`LinearSource`."""

    def __init__(self, source: LinearSource, params: Mapping[str, Tensor], indices: np.ndarray | RowNumbers) -> None:
        self._source, self._rows, self._indices = source, source._rows, indices
        self._weights = (params[WEIGHT].double() * source._scale).t().to(source._dtype)
        self._offset = (params[BIAS].double() * source._constant).to(source._dtype) if source._constant else None

    @property
    def shapes(self) -> Shapes:
        return self._source.shapes

    @property
    def labels(self) -> Tensor:
        return torch.from_numpy(np.asarray(self._indices))

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        outputs, columns = self.shapes[WEIGHT]
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
            seen = [torch.zeros(0, len(groups), dtype=self._source._dtype)]
            totals = [torch.zeros(columns + 1, outputs, dtype=torch.float64) for _ in weight_arrays(rule, seen[0])]
        values = tuple(self._named(total, groups) for total in totals)
        if count > IN_MEMORY:
            return Sums(values=values, norms=partial(self.norms, groups))  # computed again if anybody asks
        return Sums(values=values, norms=seen[0] if len(seen) == 1 else torch.cat(seen))

    def norms(self, groups: Groups) -> Tensor:
        empty = torch.zeros(0, len(groups), dtype=self._source._dtype)
        return torch.cat([empty, *(self._norms_of(rows, errors, groups) for rows, errors in self._errors())])

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        source = self._source
        for rows, errors in self._errors(max(1, CHUNK // max(1, self.shapes[WEIGHT].numel()))):
            bad = ~torch.isfinite(source._lengths[rows])
            scaled = self._rows.dense(rows).double() * source._scale
            wide = torch.where(bad.unsqueeze(1), torch.nan, errors.double())
            found = {WEIGHT: wide.unsqueeze(2) * scaled.unsqueeze(1), BIAS: wide * source._constant}
            yield {name: found[name] for name in self.shapes}

    def weighted_rows(self, weight: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Yield the gradients of a model with one output times their weights, each as one vector: weight, then bias.

        They come in chunks, (rows, columns), float64, and a row of weight 0 is zeros. Rounding included, no vector is
        longer than its weight times the norm that the weight was taken for. A chunk's memory serves the next one.

        Args:
            weight: Gives the weights, (rows,), for upper bounds of norms, (rows,), float64.
        """
        source, scale = self._source, self._source._scale
        columns, width = self._rows.shape[1], sum(shape.numel() for shape in self.shapes.values())
        one = bool((scale == scale[:1]).all())
        height = max(LEAST_ROWS, CHUNK_NUMBERS // width)
        kept = torch.empty(min(height, len(self._indices)), width, dtype=torch.float64)  # memory that is new is slow
        for rows, errors in self._errors(height):
            (error,) = errors.double().unbind(dim=1)
            weights = weight(source._lengths[rows] * error.abs() * (1 + 16 * UNIT))
            shares = F.hardshrink(weights * error, TINY)  # below it, no relative precision
            dense, found = self._rows.dense(rows), kept[: len(weights)]
            factors = F.hardshrink(shares * scale[:1], TINY) if one else shares
            torch.mul(dense if one else dense * scale, factors.unsqueeze(1), out=found[:, :columns])
            if source._constant:
                torch.mul(shares, source._constant, out=found[:, columns])
            absent = weights == 0
            if absent.any():
                found[absent] = 0.0  # 0 * nan is nan
            yield found

    def _errors(self, height: int | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Yield the rows of each block, and the derivatives of their losses in the outputs, (rows, outputs)."""
        source, loss = self._source, self._source.loss
        columns, outputs = self._weights.shape
        if source._exact:
            height = min(height or CHUNK, max(1, CHUNK // max(1, self._weights.numel())))
        start = not self._weights.any()  # where a fit starts: half of a pass is known
        for rows in blocks(self._indices, source.num_rows, columns, height):
            targets = source._targets[rows]
            if start:
                found = targets.new_zeros(len(targets), outputs)
            elif source._exact:
                found = tree_sum(self._rows.dense(rows).double().unsqueeze(1) * self._weights.t())
            else:
                found = self._rows.products(rows, self._weights)
            if self._offset is not None:
                found = found.add_(self._offset)
            errors = (loss.exact_derivative if source._exact else loss.derivative)(found, targets)
            yield rows, errors if source._factors is None else errors * source._factors[rows].unsqueeze(1)

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

    16 u are for a row's own term: see :meth:`LinearEngine._norms_of`. A sum of m terms of norm at most C is off by at
    most :math:`m u \cdot m C`, in any order; one record moves one run of float32, in each of two neighbouring tables.
    """
    eps = torch.finfo(dtype).eps  # 2 u
    return 1 + 8 * eps + (RUN**2 * eps if dtype == torch.float32 else 0.0)
