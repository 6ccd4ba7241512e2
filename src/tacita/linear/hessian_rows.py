r"""Rows of a linear model's Hessian: vectors whose outer products add up to a matrix above the Hessian at a point.

The Hessian of row i is :math:`\ell''(z_i, y_i)\, x_i x_i^\top`. In place of the second derivative stands the curvature
:math:`c_i \le \kappa` of a quadratic above the loss (:meth:`OutputLoss.majorant`). The matrix is then :math:`\kappa`
times the outer product of :math:`\sqrt{c_i / \kappa}\, x_i` with itself. So the second moments of these vectors, times
:math:`\kappa`, are the matrix of a Newton step that never overshoots.

Everything here is private.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita.gradients.engine import GradientSource, Shapes
from tacita.linear.losses import OutputLoss
from tacita.linear.table_rows import ROW, ShownRows, TableRowsEngine, TableRowsSource


class HessianRowsSource(GradientSource):
    r"""Make engines whose "per-sample gradients" are :math:`\sqrt{c_i / \kappa}\,(s \circ x_i, c)`, for second moments.

    The point at which an oracle is queried, "weight" (outputs, columns) and "bias" (outputs,), decides :math:`c_i`,
    which is ``loss.majorant``; :math:`\kappa` is ``loss.curvature``, a bound on it. So no vector is longer than its
    row. Nothing rests on that: :class:`~tacita.linear.SecondMoment` clips a vector that is.

    Args:
        features: (rows, columns), as for :class:`~tacita.linear.LinearBlocksSource`.
        targets: (rows,), as the loss takes them. A row whose target is not finite contributes nothing.
        loss: The loss of a row.
        scale: What each column is multiplied by, a number or (columns,).
        intercept: c > 0, a constant last entry, whose weight is the bias; ``None`` for a model without bias.

    Example:
        >>> from tacita.linear.losses import HuberLoss
        >>> source = HessianRowsSource(torch.tensor([[4.0]]), torch.tensor([0.0]), HuberLoss(1.0), intercept=None)
        >>> next(source.engine({"weight": torch.ones(1, 1)}, np.array([0])).materialise())["row"]  # c = 1/4, kappa = 1
        tensor([[2.]], dtype=torch.float64)
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
        given = torch.as_tensor(np.asarray(targets)).double()
        self._rows = TableRowsSource(
            features,
            scale=scale,
            intercept=intercept,
            more=torch.where(given.isfinite(), given, torch.nan).unsqueeze(1),
        )
        if given.shape != (self._rows.num_rows,):
            raise ValueError(f"targets must have shape {(self._rows.num_rows,)}, got {tuple(given.shape)}.")
        self.loss = loss
        self._constant = intercept

    @property
    def shapes(self) -> Shapes:
        return {ROW: torch.Size([self._rows.shapes[ROW].numel() - 1])}  # without the target

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> "HessianRowsEngine":
        weight = params["weight"].detach().double()
        if self._constant is not None:
            weight = torch.cat([weight, params["bias"].detach().double().unsqueeze(1)], dim=1)
        return HessianRowsEngine(self, self._rows.engine(params, indices), weight)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(loss={self.loss!r}, columns={self.shapes[ROW].numel()})"


class HessianRowsEngine(ShownRows):
    """The engine of one batch of :class:`HessianRowsSource`, at one point."""

    def __init__(self, source: HessianRowsSource, rows: TableRowsEngine, weight: Tensor) -> None:
        self._source, self._rows, self._weight = source, rows, weight

    @property
    def shapes(self) -> Shapes:
        return self._source.shapes

    @property
    def labels(self) -> Tensor:
        return self._rows.labels

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        """Yield the vectors in chunks; one that no finite number can say is NaN, and counts as zero."""
        for chunk in self._rows.materialise():
            rows, targets = chunk[ROW][:, :-1], chunk[ROW][:, -1]
            loss = self._source.loss
            share = loss.majorant(rows @ self._weight.t(), targets) / loss.curvature
            yield {ROW: share.sqrt().unsqueeze(1) * rows}
