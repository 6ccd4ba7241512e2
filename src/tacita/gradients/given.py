"""Engines of per-sample gradients that are given as tensors: for clients' vectors, mean estimation, tests and audits.

Private. Tensors may have any number of leading axes, so that an estimator handles many runs at once.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from tacita.gradients.engine import Engine, GradientSource, Groups, Rule, Shapes, Sums
from tacita.gradients.weighted_sums import group_norms, weight_arrays, weighted_sum

DEFAULT_NAME = "theta"  # the name of a tensor that comes without one


class GivenEngine(Engine):
    """The engine over per-sample gradients ``(..., batch, d)``.

    Args:
        grads: One tensor, or several by parameter name: (..., batch, d) with the same axes up to ``batch``.
        labels: A stable label of each record, shape (batch,), int64; 0, 1, ... by default.
        mask: Which rows are present, bool, (..., batch), broadcast against those axes; all by default. An absent row
            is treated as a row of NaN: its norm is NaN, its weight 0, its materialised row NaN. An audit can so compare
            both worlds under the same coins.

    Example:
        >>> engine = GivenEngine(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        >>> sums = engine.weighted_sums(lambda norms: (norms < 1).double(), {"all": ("theta",)})
        >>> sums.values[0]["theta"]
        tensor([0.3000, 0.4000])
    """

    def __init__(
        self, grads: Tensor | Mapping[str, Tensor], *, labels: Tensor | None = None, mask: Tensor | None = None
    ):
        self._grads = as_mapping(grads)
        self._rows = rows = next(iter(self._grads.values())).shape[:-1]
        self._labels = torch.arange(rows[-1]) if labels is None else labels
        self._mask = mask
        if self._labels.shape != rows[-1:]:
            raise ValueError(f"labels must have shape {tuple(rows[-1:])}, got {tuple(self._labels.shape)}.")
        if mask is not None and (mask.dtype != torch.bool or mask.shape[-1:] != rows[-1:]):
            raise ValueError(f"mask must be bool of shape (..., {rows[-1]}), got {mask.dtype} {tuple(mask.shape)}.")

    @property
    def shapes(self) -> Shapes:
        return {name: g.shape[-1:] for name, g in self._grads.items()}

    @property
    def labels(self) -> Tensor:
        return self._labels

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        norms = self.norms(groups)
        arrays = [self._present(weights, 0.0) for weights in weight_arrays(rule, norms)]
        sums = tuple(weighted_sum(self._grads, weights, groups, len(self._rows)) for weights in arrays)
        return Sums(values=sums, norms=norms)

    def norms(self, groups: Groups) -> Tensor:
        return self._present(group_norms(self._grads, groups, len(self._rows)), torch.nan)

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        if self._rows[-1] > 0:
            yield {name: self._present(g, torch.nan) for name, g in self._grads.items()}

    def _present(self, rows: Tensor, absent: float) -> Tensor:
        return rows if self._mask is None else torch.where(self._mask.unsqueeze(-1), rows, absent)


class GivenSource(GradientSource):
    """Make engines from records that are gradients themselves, the same at every point.

    Args:
        grads: One tensor, or several by parameter name: (..., rows, d).
    """

    rows_alone = True

    def __init__(self, grads: Tensor | Mapping[str, Tensor]):
        self._grads = as_mapping(grads)

    @property
    def shapes(self) -> Shapes:
        return {name: g.shape[-1:] for name, g in self._grads.items()}

    @property
    def num_rows(self) -> int:
        return next(iter(self._grads.values())).shape[-2]

    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> GivenEngine:
        labels = torch.as_tensor(indices, dtype=torch.int64)
        batch = {name: g.index_select(-2, labels.to(g.device)) for name, g in self._grads.items()}
        return GivenEngine(batch, labels=labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shapes={ {name: tuple(s) for name, s in self.shapes.items()} })"


def as_mapping(grads: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return per-sample gradients by name; a single tensor gets the name ``"theta"``."""
    named = {DEFAULT_NAME: grads} if isinstance(grads, Tensor) else dict(grads)
    if not named:
        raise ValueError("grads must hold at least one tensor, got none.")
    for name, g in named.items():
        if g.ndim < 2 or not g.is_floating_point() or g.shape[:-1] != next(iter(named.values())).shape[:-1]:
            raise ValueError(
                f"grads must be floating-point tensors (..., batch, d) with the same axes up to batch, got "
                f"{name!r} of shape {tuple(g.shape)}, {g.dtype}."
            )
    return named
