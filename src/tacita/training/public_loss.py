"""The loss on data that the caller declares to be public, the one curve that may be shown while a run goes on.

It is computed from the released model and public rows only. So it costs no privacy, and tells no more about the private
rows than the releases do. If the rows are not public, the statement is wrong: nothing is charged for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.gradients.batches import to_device
from tacita.gradients.data import as_rows
from tacita.gradients.functional import LossFn, ModuleTree, with_tensors
from tacita.gradients.probe import evaluating
from tacita.methods import ExponentialAverage, RandomIterate, SuffixAverage

ROWS = 4096  # rows in memory at once
SHARE = 20  # evaluations in a run, about, if the caller sets no number of queries between them


def public_loss(
    model: nn.Module,
    loss_fn: LossFn,
    data: Any,
    *,
    collate_fn: Callable[[list], Any] | None = None,
    point: Mapping[str, Tensor] | None = None,
) -> float:
    """Return the mean loss over ``data``, in evaluation mode; the model's mode is restored.

    Args:
        model: The model with its present parameters.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,).
        data: As an oracle's data set, declared public.
        collate_fn: As the oracle's.
        point: Parameters by name to take in place of the model's own.
    """
    rows = as_rows(data, collate_fn)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with evaluating(model), torch.no_grad(), with_tensors(ModuleTree(model), point or {}):
        chunks = (np.arange(k, min(k + ROWS, rows.num_rows)) for k in range(0, rows.num_rows, ROWS))
        losses = [loss_fn(model, to_device(rows.fetch(chunk, 0), device)).cpu().double() for chunk in chunks]
    return torch.cat(losses).mean().item() if losses else float("nan")


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """End a run when the loss on public data has not improved for a while.

    The decision is a function of releases and public rows. The guarantee stays that of the whole plan, and the
    statement says so: a smaller epsilon for fewer queries would be wrong, because the releases chose their number.

    Attributes:
        patience: End after so many evaluations in a row that are no improvement, >= 1.
        min_improvement: A loss must be below the best one so far by more than this to count as an improvement, >= 0.

    Example:
        >>> stop = EarlyStop(patience=2)
        >>> stop.ends([0.9, 0.7, 0.8]), stop.ends([0.9, 0.7, 0.8, 0.7])
        (False, True)
    """

    patience: int
    min_improvement: float = 0.0

    def __post_init__(self) -> None:
        _validate.count("patience", self.patience)
        _validate.non_negative("min_improvement", self.min_improvement)

    def ends(self, losses: Sequence[float]) -> bool:
        """Return whether a run with these losses on public data, in order, ends here. A NaN is no improvement."""
        best, waited = float("inf"), 0
        for loss in losses:
            improved = loss < best - self.min_improvement
            best, waited = (loss, 0) if improved else (best, waited + 1)
        return waited >= self.patience


def end_point(average: SuffixAverage | ExponentialAverage | RandomIterate | None) -> Mapping[str, Tensor] | None:
    """Return the point at which a run would end now if an average of the iterates decides; ``None`` for the last one.

    A random iterate is not known before the run has reached it: the last one stands for it.
    """
    if isinstance(average, SuffixAverage):
        return average.mean if average.seen > average.skip else None
    return average.mean if isinstance(average, ExponentialAverage) and average.seen else None
