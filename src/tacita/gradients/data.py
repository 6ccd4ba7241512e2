"""Reading the records of a batch: by index, chunk by chunk, by workers that read ahead if asked.

Place: [gradients]. Private. A record's own randomness (augmentation with torch's, NumPy's or Python's generator) is
seeded by the query's secret and the record's index, so that neither workers nor physical batches change it, and nobody
who lacks the secret knows it: were it public, a record removed would change what is drawn for each record after it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from tacita.gradients.batches import flatten, map_tensors
from tacita.gradients.seeds import derived_seed, fresh_seed, generators_kept, seed_generators

_FIRST = np.zeros(1, dtype=np.int64)  # indices of a batch that holds the first row alone


class Rows(ABC):
    """Records by index."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """How many there are. Private under add_or_remove_one."""

    @property
    def on_cpu(self) -> bool:
        """Whether a worker process may read them."""
        return True

    @abstractmethod
    def fetch(self, indices: np.ndarray, seed: int) -> Any:
        """The batch of these records (at least one), on the CPU or where the data is.

        Args:
            indices: Of the records.
            seed: The secret that the records' own randomness follows from, together with their indices.
        """

    @abstractmethod
    def like(self) -> Any | None:
        """A batch of one row with the structure of every batch; ``None`` if only a record could tell it."""


class ArrayRows(Rows):
    """A tuple of tensors, NumPy arrays or memory maps with the same number of rows: read by fancy indexing."""

    def __init__(self, arrays: Sequence[Tensor | np.ndarray]):
        self._arrays = tuple(arrays)
        lengths = {len(a) for a in self._arrays}
        if len(lengths) != 1:
            raise ValueError("dataset must be one or more arrays of the same length.")

    @property
    def num_rows(self) -> int:
        return len(self._arrays[0])

    @property
    def on_cpu(self) -> bool:
        return all(isinstance(a, np.ndarray) or a.device.type == "cpu" for a in self._arrays)

    def fetch(self, indices: np.ndarray, seed: int) -> tuple[Tensor, ...]:
        return tuple(_take(array, indices) for array in self._arrays)

    def like(self) -> tuple[Tensor, ...]:
        return tuple(_take(_one_row(array), _FIRST) for array in self._arrays)


class BatchRows(Rows):
    """The rows of one batch that is there already, in whatever nesting ``loss_fn`` takes: a dataset for one query."""

    def __init__(self, batch: Any):
        sizes: list[int] = []
        map_tensors(lambda t: sizes.append(t.shape[0] if t.ndim else -1) or t, batch)
        if not sizes:
            raise ValueError("batch must hold at least one tensor.")
        flatten(batch, sizes[0])  # raises if it is not one batch
        self._batch, self._size = batch, sizes[0]

    @property
    def num_rows(self) -> int:
        return self._size

    def fetch(self, indices: np.ndarray, seed: int) -> Any:
        return map_tensors(lambda tensor: _take(tensor, indices), self._batch)

    def like(self) -> Any:
        return map_tensors(lambda tensor: _take(_one_row(tensor), _FIRST), self._batch)


class ItemRows(Rows):
    """A map-style dataset: ``dataset[i]``, collated."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list], Any]):
        self._dataset = dataset
        self._collate_fn = collate_fn

    @property
    def num_rows(self) -> int:
        return len(self._dataset)

    def fetch(self, indices: np.ndarray, seed: int) -> Any:
        with generators_kept():
            items = [self._item(int(i), seed) for i in indices]
            seed_generators(derived_seed(seed, "collate", indices[0]))  # no other chunk of the query begins with it
            return self._collate_fn(items)

    def like(self) -> Any | None:
        return self.fetch(_FIRST, fresh_seed()) if self.num_rows else None

    def _item(self, index: int, seed: int) -> Any:
        seed_generators(derived_seed(seed, "record", index))
        return self._dataset[index]


class ZippedRows(ItemRows):
    """Arrays, each record a tuple, with a ``collate_fn`` of the user's."""

    def __init__(self, arrays: tuple, collate_fn: Callable[[list], Any]):
        super().__init__(_Zipped(arrays), collate_fn)
        self._arrays = arrays

    def like(self) -> Any:
        record = _Zipped(tuple(_one_row(array) for array in self._arrays))[0]
        try:
            with generators_kept():
                return self._collate_fn([record])
        except Exception as error:  # nothing in it is data
            raise ValueError(
                f"collate_fn must take a record of ones, from which shapes are learnt; it raised "
                f"{type(error).__name__}. Pass a map-style Dataset if its records must be others."
            ) from error


class _Zipped:
    """Arrays as a map-style dataset of tuples, for a ``collate_fn`` of the user's."""

    def __init__(self, arrays: tuple):
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, index: int) -> tuple:
        return tuple(a[index] for a in self._arrays)


def as_rows(dataset: Any, collate_fn: Callable[[list], Any] | None) -> Rows:
    """The records of a map-style dataset, or of a tuple of arrays; what is :class:`Rows` already is left as it is.

    Raises:
        ValueError: ``dataset`` is neither, or its arrays differ in length or have a dtype torch has not.
    """
    if isinstance(dataset, Rows):
        return dataset
    if type(dataset) is TensorDataset and collate_fn is None:
        return ArrayRows(dataset.tensors)
    if isinstance(dataset, (tuple, list)) and dataset and all(isinstance(a, (Tensor, np.ndarray)) for a in dataset):
        rows = ArrayRows(dataset)
        for array in dataset:
            _check_dtype(array)
        return rows if collate_fn is None else ZippedRows(tuple(dataset), collate_fn)
    if isinstance(dataset, (Tensor, np.ndarray)):
        raise ValueError(f"dataset must be a tuple of arrays, got one {type(dataset).__name__}. Write (array,).")
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ValueError(
            f"dataset must be a map-style Dataset (__getitem__ and __len__) or a tuple of tensors or NumPy arrays, "
            f"got {type(dataset).__name__}. A DataLoader or an iterable cannot be read by index."
        )
    return ItemRows(dataset, collate_fn or default_collate)


def _take(array: Tensor | np.ndarray, indices: np.ndarray) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach()[torch.from_numpy(indices).to(array.device)]
    return torch.from_numpy(np.ascontiguousarray(array[indices]))  # a memory map is read here, only these rows


def _one_row(array: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """One row of ones with the shape and dtype of the array's, which it need not have."""
    shape = (1, *array.shape[1:])
    if isinstance(array, Tensor):
        return torch.ones(shape, dtype=array.dtype, device=array.device)
    return np.ones(shape, array.dtype)


def _check_dtype(array: Tensor | np.ndarray) -> None:
    if isinstance(array, np.ndarray):
        try:
            torch.from_numpy(np.empty(0, array.dtype))
        except (TypeError, ValueError):
            raise ValueError(f"dataset holds an array of dtype {array.dtype}, which torch does not have.") from None
