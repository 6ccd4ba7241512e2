"""Data sets that are held as arrays: a tuple, list, mapping or dataclass of arrays with one row a record.

A batch of such a data set has the same container, with the drawn rows in each of its arrays.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita.gradients.batches import map_leaves

Array = Tensor | np.ndarray
NOT_MAP_STYLE = (
    "dataset must be a map-style Dataset (__getitem__ and __len__) or tensors or NumPy arrays in a tuple, mapping or "
    "dataclass, got {}. A DataLoader or an iterable cannot be read by index: give its "
    "dataset (loader.dataset) and the batch size to the sampler (expected_batch_size=)."
)


def is_sparse(array: Any) -> bool:
    """Return whether ``array`` is a SciPy sparse matrix."""
    return hasattr(array, "tocsr") and hasattr(array, "shape")


def is_array(one: Any) -> bool:
    """Return whether ``one`` holds a row for each record: a tensor, an array, a sparse matrix or a data frame."""
    return isinstance(one, Array) or is_sparse(one) or hasattr(one, "to_numpy")


def is_arrays(dataset: Any) -> bool:
    """Return whether ``dataset`` is a container of arrays, and not a map-style ``Dataset``.

    A list or tuple without an array in it is a sequence of records, and so map-style. A mapping never is: its keys are
    names.

    Example:
        >>> x = torch.zeros(5, 2)
        >>> is_arrays((x, x)), is_arrays({"x": x}), is_arrays([(x[0], 1), (x[1], 0)])
        (True, True, False)
    """
    if isinstance(dataset, tuple | list):
        return any(map(is_array, dataset))
    return isinstance(dataset, Mapping) or _is_plain_dataclass(dataset)


def arrays_in(dataset: Any) -> list[Any]:
    """Return the arrays of a container, in order."""
    found: list[Any] = []
    map_leaves(lambda leaf: found.append(leaf) or leaf, dataset)
    return found


def length(dataset: Any) -> int:
    """Return the number of records of a container of arrays, of a sparse matrix or of a map-style ``Dataset``."""
    one = arrays_in(dataset)[0] if is_arrays(dataset) else dataset
    if not (is_sparse(one) or hasattr(one, "__len__")):
        raise ValueError(NOT_MAP_STYLE.format(type(one).__name__))
    return int(one.shape[0]) if is_sparse(one) else len(one)


def check_arrays(dataset: Any) -> None:
    """Raise ``ValueError`` unless every part is an array of a dtype that torch has, all with as many rows."""
    arrays = arrays_in(dataset)
    if not arrays or not all(isinstance(one, Array) for one in arrays):
        found = ", ".join(sorted({type(one).__name__ for one in arrays if not isinstance(one, Array)})) or "nothing"
        raise ValueError(
            f"dataset must hold tensors or NumPy arrays with one row a record, and nothing else; found {found}. Of a "
            "data frame pass frame.to_numpy('float32'); a sparse matrix is for tacita.linear.LinearSource."
        )
    for array in arrays:
        _check_dtype(array)
    if len({len(array) if array.ndim else -1 for array in arrays}) != 1 or not arrays[0].ndim:
        raise ValueError("dataset must be one or more arrays of the same length.")


def _is_plain_dataclass(dataset: Any) -> bool:
    return dataclasses.is_dataclass(dataset) and not (isinstance(dataset, type) or hasattr(dataset, "__getitem__"))


def _check_dtype(array: Any) -> None:
    if isinstance(array, np.ndarray):
        try:
            torch.from_numpy(np.empty(0, array.dtype))
        except (TypeError, ValueError):
            raise ValueError(f"dataset holds an array of dtype {array.dtype}, which torch does not have.") from None
