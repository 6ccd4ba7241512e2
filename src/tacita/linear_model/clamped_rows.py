"""Rows whose entries are clamped, made block by block; the scaler and the mean release sums of them. Private."""

from typing import Any

import numpy as np
import torch

from tacita import _validate
from tacita.linear.row_blocks import RowBlocks


class ClampedRows(RowBlocks):
    """The rows u = clamp((x - center) / scale, -1, 1), or (u, u^2 - shift); for a row that is not finite u = 0.

    Args:
        rows: (rows, columns).
        scale: (columns,).
        center: (columns,) or 0.
        shift: A public number. If given, the squares minus this number follow.
    """

    def __init__(
        self, rows: np.ndarray, scale: np.ndarray, *, center: np.ndarray | float = 0.0, shift: float | None = None
    ) -> None:
        self._rows, self._scale, self._center, self._shift = rows, scale, center, shift
        self.shape = (rows.shape[0], (1 if shift is None else 2) * rows.shape[1])
        self.dtype = torch.float64

    def _read(self, rows: slice | np.ndarray) -> torch.Tensor:
        with np.errstate(all="ignore"):  # a warning would tell what a row holds
            block = (self._rows[rows].astype(np.float64) - self._center) / self._scale
        bad = ~np.isfinite(self._rows[rows]).all(axis=1)
        clamped = torch.from_numpy(np.clip(block, -1.0, 1.0))
        clamped[torch.from_numpy(bad)] = 0.0
        return clamped if self._shift is None else torch.cat([clamped, clamped.square() - self._shift], dim=1)


def declared_scale(column_scale: Any, columns: int) -> np.ndarray | None:
    """Return the declared sizes of columns, (columns,), float64; ``None`` if they are to be bought.

    Raises:
        ValueError: One is not positive and finite, or there is not one for each column.
    """
    if column_scale is None:
        return None
    sizes = np.asarray(column_scale)
    if sizes.dtype.kind not in "fiu" or sizes.shape not in ((), (columns,)):
        raise ValueError(f"column_scale must be a number, or one for each of {columns} columns.")
    declared = np.broadcast_to(sizes.astype(np.float64), (columns,))
    for one in declared:
        _validate.positive("column_scale", float(one))
    return declared


def by_column(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns by number, float64."""
    return {str(j): rows[:, j].astype(np.float64) for j in range(rows.shape[1])}
