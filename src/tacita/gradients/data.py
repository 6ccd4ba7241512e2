"""Records that are read by index, chunk by chunk. Private.

A record's own randomness (augmentation with torch's, NumPy's or Python's generator) is seeded by the query's secret and
the record's index. Neither workers nor physical batches can change it, nor does the absence of another record. Nobody
who lacks the secret knows it.
"""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from tacita._row_numbers import RowNumbers, pieces
from tacita.gradients.arrays import NOT_MAP_STYLE, arrays_in, check_arrays, is_array, is_arrays
from tacita.gradients.batches import arranged, flatten, map_leaves, map_tensors, stacked, tensors_in
from tacita.gradients.seeds import derived_seed, fresh_seed, generators_kept, seed_generators

_FIRST = np.zeros(1, dtype=np.int64)  # the indices of a batch of the first row alone


@dataclass(frozen=True)
class Request:
    """One chunk of one query; ``seed`` is the query's secret."""

    query: int
    number: int
    indices: np.ndarray
    seed: int = field(repr=False)

    def same(self, other: "Request") -> bool:
        """Return whether both ask for the same records for the same query, under the same seed."""
        named = (self.query, self.number, self.seed) == (other.query, other.number, other.seed)
        return named and np.array_equal(self.indices, other.indices)


def requests(query: int, batch: np.ndarray | RowNumbers, seed: int, chunk_size: int | None) -> Iterator[Request]:
    """Yield the chunks of one batch in order; an empty batch has none."""
    size = chunk_size or max(1, len(batch))
    if isinstance(batch, RowNumbers):
        parts = pieces(batch, size)
    else:
        parts = (batch[first : first + size] for first in range(0, len(batch), size))
    for number, indices in enumerate(parts):
        yield Request(query, number, indices, seed)


class IndexedRows(ABC):
    """Records that can be read by index.

    Attributes:
        threaded: Whether a thread may read a batch while the one before is worked on. Such records draw nothing at
            random.
    """

    threaded: ClassVar[bool] = False

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of records. Private under add_or_remove_one."""

    @property
    def on_cpu(self) -> bool:
        """Whether a worker process may read the records."""
        return True

    @property
    def arrays(self) -> tuple[Tensor | np.ndarray, ...] | None:
        """The arrays that hold all records; ``None`` if records have to be read one by one."""
        return None

    @abstractmethod
    def fetch(self, indices: np.ndarray, seed: int) -> Any:
        """Return a copy of the batch of these records (at least one), on the CPU or where the data is.

        It shares no memory with the records, because a model may write its batch.

        Args:
            indices: The indices of the records.
            seed: The secret from which, with the indices, the records' own randomness follows.
        """

    def view(self, indices: np.ndarray) -> Any | None:
        """Return the batch of these records as views of the arrays that hold them; ``None`` if that takes a copy.

        Nobody may write what this returns.
        """
        return None

    @abstractmethod
    def like(self) -> Any | None:
        """Return a batch of one row with the structure of every batch; ``None`` if only a record could show it."""


class ArrayRows(IndexedRows):
    """Tensors, NumPy arrays or memory maps with the same number of rows, in one container: read by fancy indexing.

    Args:
        dataset: A tuple, list, mapping or dataclass of arrays. Batches are containers of the same kind.
    """

    def __init__(self, dataset: Any):
        check_arrays(dataset)
        self._dataset, self._arrays = dataset, arrays_in(dataset)

    @property
    def num_rows(self) -> int:
        return len(self._arrays[0])

    @property
    def on_cpu(self) -> bool:
        return all(isinstance(a, np.ndarray) or a.device.type == "cpu" for a in self._arrays)

    @property
    def arrays(self) -> tuple[Tensor | np.ndarray, ...]:
        return tuple(self._arrays)

    def fetch(self, indices: np.ndarray, seed: int) -> Any:
        return map_leaves(lambda array: _take(array, indices), self._dataset)

    def view(self, indices: np.ndarray) -> Any | None:
        if not (_side_by_side(indices) and all(_may_be_viewed(array) for array in self._arrays)):
            return None
        return map_leaves(lambda array: _stretch(array, indices), self._dataset)

    def like(self) -> Any:
        return map_leaves(lambda array: _take(_one_row(array), _FIRST), self._dataset)


class BatchRows(IndexedRows):
    """The rows of one given batch, in whatever nesting ``loss_fn`` takes: a dataset for one query."""

    def __init__(self, batch: Any):
        sizes = [t.shape[0] if t.ndim else -1 for t in tensors_in(batch)]
        if not sizes:
            raise ValueError("batch must hold at least one tensor.")
        flatten(batch, sizes[0])  # raises if it is not one batch
        self._batch, self._size = batch, sizes[0]

    @property
    def num_rows(self) -> int:
        return self._size

    def fetch(self, indices: np.ndarray, seed: int) -> Any:
        return map_tensors(lambda tensor: _take(tensor, indices), self._batch)

    def view(self, indices: np.ndarray) -> Any | None:
        if not (_side_by_side(indices) and all(_may_be_viewed(tensor) for tensor in tensors_in(self._batch))):
            return None
        return map_tensors(lambda tensor: _stretch(tensor, indices), self._batch)

    def like(self) -> Any:
        return map_tensors(lambda tensor: _take(_one_row(tensor), _FIRST), self._batch)


class ItemRows(IndexedRows):
    """A map-style dataset, whose items ``dataset[i]`` are collated; without ``collate_fn`` they are stacked."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list], Any] | None):
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._like: Any = None  # a batch of one row, once it has been asked for: all others have its containers

    @property
    def num_rows(self) -> int:
        return len(self._dataset)

    def fetch(self, indices: np.ndarray, seed: int) -> Any:
        with generators_kept():
            if self._collate_fn is None:  # stacks records as they are, without changing any by another
                items = [self._item(int(i), seed) for i in indices]
                with _alike("dataset gives", "collate_fn"):
                    batch = stacked(items)
                return self._arranged(batch)
            return _joined([self._arranged(self._collated(int(i), seed, self._collate_fn)) for i in indices])

    def like(self) -> Any | None:
        if self._like is None and self.num_rows:
            self._like = self.fetch(_FIRST, fresh_seed())
        return self._like

    def _arranged(self, batch: Any) -> Any:
        return batch if self._like is None else arranged(batch, self._like)

    def _collated(self, index: int, seed: int, collate_fn: Callable[[list], Any]) -> Any:
        """Return one record as a batch: ``collate_fn`` sees no other record, and cannot pad it to another's length."""
        item = self._item(index, seed)
        seed_generators(derived_seed(seed, "collate", index))
        return collate_fn([item])

    def _item(self, index: int, seed: int) -> Any:
        seed_generators(derived_seed(seed, "record", index))
        return self._dataset[index]


class ZippedRows(ItemRows):
    """Arrays whose records are containers of their rows, with a ``collate_fn`` of the user's."""

    def __init__(self, arrays: Any, collate_fn: Callable[[list], Any]):
        check_arrays(arrays)
        super().__init__(RecordsOfArrays(arrays), collate_fn)
        self._arrays, self._collate = arrays, collate_fn

    @property
    def arrays(self) -> tuple[Tensor | np.ndarray, ...]:
        return tuple(arrays_in(self._arrays))

    def like(self) -> Any:
        record = RecordsOfArrays(map_leaves(_one_row, self._arrays))[0]
        try:
            with generators_kept():
                return self._collate([record])
        except Exception as error:  # it holds no data
            raise ValueError(
                f"collate_fn must take a record of ones, which shows the shapes; it raised "
                f"{type(error).__name__}. Pass a map-style Dataset if collate_fn cannot take ones."
            ) from error


class RecordsOfArrays:
    """Arrays as a map-style dataset, whose items are containers of a copy of one row of each."""

    def __init__(self, arrays: Any):
        self._arrays, self._rows = arrays, len(arrays_in(arrays)[0])

    @property
    def arrays(self) -> tuple[Tensor | np.ndarray, ...]:
        """The arrays that hold all records."""
        return tuple(arrays_in(self._arrays))

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> Any:
        return map_leaves(lambda array: _copied(array[index]), self._arrays)  # an augmentation may work in place


def _copied(row: Any) -> Any:
    return row.clone() if isinstance(row, Tensor) else row.copy()


def as_rows(dataset: Any, collate_fn: Callable[[list], Any] | None) -> IndexedRows:
    """Return the records of a map-style dataset or of arrays; an :class:`IndexedRows` is returned as it is.

    A ``datasets.Dataset`` without a format of its own is read as tensors, unless a ``collate_fn`` makes them.

    Raises:
        ValueError: ``dataset`` is neither, or its arrays differ in length or have a dtype that torch lacks.
    """
    if isinstance(dataset, IndexedRows):
        return dataset
    if collate_fn is default_collate:
        collate_fn = None
    if type(dataset) is TensorDataset and collate_fn is None:
        return ArrayRows(dataset.tensors)
    if is_arrays(dataset):
        return ArrayRows(dataset) if collate_fn is None else ZippedRows(dataset, collate_fn)
    if is_array(dataset):
        raise ValueError(f"dataset must be a tuple of arrays, got one {type(dataset).__name__}. Write (array,).")
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ValueError(NOT_MAP_STYLE.format(type(dataset).__name__))
    return ItemRows(_as_tensors(dataset) if collate_fn is None else dataset, collate_fn)


def _as_tensors(dataset: Any) -> Any:
    """Return a ``datasets.Dataset`` of Hugging Face so that its rows are tensors where they would be lists."""
    form = getattr(dataset, "format", None)
    if hasattr(dataset, "with_format") and isinstance(form, Mapping) and form.get("type", "") is None:
        return dataset.with_format("torch", columns=form.get("columns"))
    return dataset


def _joined(batches: list[Any]) -> Any:
    """Join batches of one record each into one batch.

    Raises:
        ValueError: Their tensors have different shapes.
    """
    parts = [flatten(batch, 1) for batch in batches]
    columns = zip(*(tensors for tensors, _ in parts), strict=True)
    with _alike("collate_fn made", "It"):
        return parts[0][1]([torch.cat(column) for column in columns])


@contextmanager
def _alike(who: str, collate: str) -> Iterator[None]:
    """Say what to do about records of different shapes, in words that hold no shape: a record's length is private."""
    try:
        yield
    except RuntimeError:
        raise ValueError(
            f"{who} tensors of different shapes for different records. {collate} sees one record at a time, so that "
            "none is padded to the length of another. Pad to a public length: collate_fn=tacita.pad_to(length), say."
        ) from None


def _take(array: Tensor | np.ndarray, indices: np.ndarray) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().index_select(0, torch.from_numpy(indices).to(array.device))
    if isinstance(array, np.memmap) and len(indices) < len(array) // 64:
        _read_ahead(array, indices)
    return torch.from_numpy(np.ascontiguousarray(array[indices]))  # reads only these rows of a memory map


def _read_ahead(array: np.memmap, indices: np.ndarray) -> None:
    """Ask the system for all pages of these rows: it reads them side by side, and their neighbours not at all."""
    mapped: Any = array._mmap  # pyright: ignore[reportAttributeAccessIssue]
    if not hasattr(mmap, "MADV_WILLNEED"):  # Windows
        return
    begin = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    first = (begin + indices * array.strides[0]) // mmap.PAGESIZE
    last = (begin + indices * array.strides[0] + array[:1].nbytes - 1) // mmap.PAGESIZE
    for page, end in np.unique(np.stack([first, last], axis=1), axis=0).tolist():
        mapped.madvise(mmap.MADV_WILLNEED, page * mmap.PAGESIZE, (end + 1 - page) * mmap.PAGESIZE)


def _side_by_side(indices: np.ndarray) -> bool:
    """Return whether the indices are those of several rows that follow each other: all rows of a full batch, say."""
    count = len(indices)
    ends = count > 1 and int(indices[-1]) - int(indices[0]) == count - 1
    return ends and bool((np.diff(indices) == 1).all())


def _may_be_viewed(array: Tensor | np.ndarray) -> bool:
    """Return whether the rows of an array are in memory; those of a memory map are read.

    They must also lie there in order, as in the trial without values that showed what the model writes: it may copy
    what is not in order, and then write the copy. And PyTorch must count what is written, as it does outside of
    inference mode.
    """
    if isinstance(array, Tensor):
        return array.layout == torch.strided and array.is_contiguous() and not array.is_inference()
    return type(array) is np.ndarray and array.flags.writeable and array.flags.c_contiguous and array.flags.aligned


def _stretch(array: Tensor | np.ndarray, indices: np.ndarray) -> Tensor:
    first, last = int(indices[0]), int(indices[-1]) + 1
    return array.detach()[first:last] if isinstance(array, Tensor) else torch.from_numpy(array[first:last])


def _one_row(array: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """Return a row of ones with the shape and dtype of the array's rows; the array may be empty."""
    shape = (1, *array.shape[1:])
    if isinstance(array, Tensor):
        return torch.ones(shape, dtype=array.dtype, device=array.device)
    return np.ones(shape, array.dtype)
