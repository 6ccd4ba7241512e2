"""Padding of single records to a public length.

If a batch were padded to its longest record, the length of that record would change all others.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita import _validate
from tacita.gradients.batches import stacked


def pad_to(length: int, *, value: float | Mapping[str, float] = 0) -> Callable[[list], Any]:
    """Make a ``collate_fn`` that brings the first axis of everything in a record to one public length.

    Longer sequences are cut, shorter ones are followed by ``value``; numbers stay numbers. A model that must tell the
    padding from the data can take a mask among the record's fields, which is padded like the rest.

    Args:
        length: Number of positions that every sequence has afterwards; public.
        value: The value that follows a shorter sequence; or, by the name of a field, one for each of some fields, such
            as ``{"labels": -100}``, and 0 for the others.

    Returns:
        A function from a list of records (tensors, arrays, lists of numbers; nested in tuples, lists of those,
        mappings or dataclasses) to a batch.

    Example:
        >>> pad_to(4)([(torch.tensor([7, 8]), 1), (torch.tensor([1, 2, 3, 4, 5]), 0)])
        [tensor([[7, 8, 0, 0],
                [1, 2, 3, 4]]), tensor([1, 0])]
    """
    _validate.count("length", length)

    by_name, other = (value, 0.0) if isinstance(value, Mapping) else ({}, value)

    def padded(part: Any, fill: float) -> Any:
        if isinstance(part, Mapping):
            return {key: padded(inner, by_name.get(key, fill)) for key, inner in part.items()}
        if isinstance(part, tuple):
            return tuple(padded(inner, fill) for inner in part)
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            fields = {one.name: getattr(part, one.name) for one in dataclasses.fields(part) if one.init}
            return dataclasses.replace(part, **padded(fields, fill))
        part = torch.as_tensor(np.asarray(part)) if isinstance(part, (list, np.ndarray)) else part
        return _cut_or_filled(part, length, fill) if isinstance(part, Tensor) and part.ndim else part

    return lambda items: stacked([padded(item, other) for item in items])


def _cut_or_filled(sequence: Tensor, length: int, value: float) -> Tensor:
    found = sequence.new_full((length, *sequence.shape[1:]), value)
    found[: len(sequence)] = sequence[:length]
    return found
