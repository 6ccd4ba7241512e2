"""Batches: tensors with the batch axis first, maybe nested in tuples, lists, mappings and dataclasses."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tacita.errors import UnsupportedModuleError

Rebuild = Callable[[Sequence[Tensor]], Any]


def flatten(batch: Any, size: int) -> tuple[list[Tensor], Rebuild]:
    """Return the tensors of ``batch`` in order, and a function that builds the batch again from other tensors.

    Raises:
        UnsupportedModuleError: Something in it is neither a tensor with ``size`` rows nor ``None``.
    """
    tensors = tensors_in(batch)
    if any(tensor.ndim == 0 or tensor.shape[0] != size for tensor in tensors):
        raise UnsupportedModuleError(
            "every tensor of a batch must have the batch axis first, with one row a record, but one does not. Put "
            "constants into loss_fn."
        )

    def rebuild(others: Sequence[Tensor]) -> Any:
        remaining = iter(others)
        return map_tensors(lambda _: next(remaining), batch)

    return tensors, rebuild


def tensors_in(batch: Any) -> list[Tensor]:
    """Return the tensors of ``batch`` in order."""
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, batch)
    return found


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Apply ``function`` to each tensor of ``batch``; containers keep their type."""
    if isinstance(batch, Tensor):
        return function(batch)
    if batch is None:
        return None
    if isinstance(batch, Mapping):
        return _like_mapping(batch, {key: map_tensors(function, value) for key, value in batch.items()})
    if isinstance(batch, (tuple, list)):
        values = [map_tensors(function, value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: map_tensors(function, getattr(batch, f.name)) for f in dataclasses.fields(batch)}
        return dataclasses.replace(batch, **fields)
    raise UnsupportedModuleError(
        f"a batch may hold tensors, tuples, lists, mappings and dataclasses of them, and None; found "
        f"{type(batch).__name__}. Encode it as a tensor, or drop it, in collate_fn."
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """Return ``batch`` with its tensors on ``device``."""
    return map_tensors(lambda tensor: tensor.to(device), batch)


def _like_mapping(like: Mapping, values: dict) -> Mapping:
    try:
        return type(like)(values)  # type: ignore[call-arg]
    except TypeError:  # a mapping that is built otherwise
        return values
