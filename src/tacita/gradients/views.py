r"""Several views a record: K augmented copies of one record, clipped once.

Each record enters the sum with :math:`\mathrm{clip}\big(\frac1K \sum_k \nabla \ell(\theta, a_k(z_i))\big)`, where
:math:`a_1, \dots, a_K` are random augmentations. The views are averaged *before* clipping, so that the record adds at
most C, whatever K is, and the guarantee is that of a single view.

Source: De, Berrada, Hayes, Smith, Balle (2022), "Unlocking High-Accuracy Differentially Private Image Classification
through Scale", augmentation multiplicity, https://arxiv.org/abs/2204.13650.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from tacita import _validate
from tacita.gradients.arrays import is_arrays, length
from tacita.gradients.batches import flatten, stacked, tensors_in
from tacita.gradients.data import RecordsOfArrays
from tacita.gradients.functional import LossFn, is_per_sample


class SeveralViews(Dataset):
    """A data set each of whose records holds ``views`` augmented views of one record, (views, ...) in each tensor.

    A record is read ``views`` times. What is drawn while it is read and augmented must come from torch's, NumPy's or
    Python's global generator: an oracle seeds these for each record of each query by the query's secret, so that
    neither other records nor ``num_workers`` change a bit. ``augment`` must look at its record alone. (Mixing two
    records, as mixup and cutmix do, would let one record move what another adds, and no clipping bounds that.)

    Args:
        dataset: A map-style ``Dataset``, or arrays in a tuple, mapping or dataclass.
        views: Number of views, K.
        augment: Record -> augmented record, of a shape that is the same for all. ``None`` if ``dataset`` draws by
            itself whenever a record is read.
        collate_fn: Makes a batch from the views of one record; by default they are stacked.

    Raises:
        ValueError: ``views`` is above 1 for arrays without ``augment``: all views would be the same.

    Example:
        >>> import torch
        >>> images, classes = torch.zeros(100, 3, 8, 8), torch.zeros(100, dtype=torch.long)
        >>> flip = lambda record: (record[0].flip(-1) if torch.rand(()) < 0.5 else record[0], record[1])
        >>> x, y = SeveralViews((images, classes), 4, flip)[0]
        >>> x.shape, y.shape
        (torch.Size([4, 3, 8, 8]), torch.Size([4]))
    """

    def __init__(
        self,
        dataset: Any,
        views: int,
        augment: Callable[[Any], Any] | None = None,
        *,
        collate_fn: Callable[[list], Any] | None = None,
    ) -> None:
        self.dataset, self.views, self.augment = dataset, _validate.count("views", views), augment
        self.collate_fn = stacked if collate_fn in (None, default_collate) else collate_fn
        if is_arrays(dataset) and augment is None and views > 1:
            raise ValueError("views must be 1 without augment, as arrays give the same row each time. Pass augment=.")
        self._records = RecordsOfArrays(dataset) if is_arrays(dataset) else dataset

    @property
    def arrays(self) -> tuple[Tensor | np.ndarray, ...] | None:
        """The arrays that hold all records; ``None`` if records have to be read one by one."""
        return self._records.arrays if isinstance(self._records, RecordsOfArrays) else None

    def __len__(self) -> int:
        return length(self.dataset)

    def __getitem__(self, index: int) -> Any:
        read = (self._records[index] for _ in range(self.views))
        return self.collate_fn([one if self.augment is None else self.augment(one) for one in read])


def mean_over_views(loss_fn: LossFn) -> LossFn:
    """Return the loss of records of several views: the mean of ``loss_fn`` over the views of each record.

    Args:
        loss_fn: ``(model, batch) -> losses``, one loss a row. It sees the views as rows, (records x views, ...).

    Returns:
        ``(model, batch) -> losses`` of shape (records,), for a batch whose tensors are (records, views, ...). If
        ``loss_fn`` does not return one loss a row, its result is handed on, and refused when an oracle is built.

    Raises:
        ValueError: When it is called: the tensors of the batch have no axis of views in common.

    Example:
        >>> import torch
        >>> loss_fn = mean_over_views(lambda model, batch: batch[0].square().sum(1))
        >>> loss_fn(None, (torch.tensor([[[1.0], [3.0]], [[0.0], [2.0]]]),))
        tensor([5., 2.])
    """
    return partial(_mean_over_views, loss_fn)


def score_over_views(loss_fn: LossFn) -> LossFn:
    """Return the same for a score: a view whose loss is NaN does not count, and a record of such views alone is NaN."""
    return partial(_mean_over_views, loss_fn, mean=torch.nanmean)


def _mean_over_views(loss_fn: LossFn, model: Any, batch: Any, mean: Callable[..., Tensor] = torch.mean) -> Tensor:
    found = tensors_in(batch)
    records = found[0].shape[0] if found and found[0].ndim else 0
    tensors, rebuild = flatten(batch, records)
    shapes = {tensor.shape[:2] for tensor in tensors}
    if len(shapes) != 1 or tensors[0].ndim < 2:
        raise ValueError("every tensor of a batch of views must be (records, views, ...), with as many views.")
    count = tensors[0].shape[:2].numel()
    losses = loss_fn(model, rebuild([tensor.flatten(0, 1) for tensor in tensors]))
    return mean(losses.view(tensors[0].shape[:2]), dim=1) if is_per_sample(losses, count) else losses
