"""Batches: tensors with the batch axis first, maybe nested in tuples, lists, mappings and dataclasses."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

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
        return map_leaves(lambda _: next(remaining), batch)

    return tensors, rebuild


def tensors_in(batch: Any) -> list[Tensor]:
    """Return the tensors of ``batch`` in order.

    Raises:
        UnsupportedModuleError: Something in it is neither a tensor nor ``None``.
    """
    found: list[Any] = []
    map_leaves(lambda leaf: found.append(leaf) or leaf, batch)
    for leaf in found:
        if not isinstance(leaf, Tensor):
            raise UnsupportedModuleError(
                f"a batch may hold tensors, tuples, lists, mappings and dataclasses of them, and None; found "
                f"{type(leaf).__name__}. Encode it as a tensor, or drop it, in collate_fn."
            )
    return found


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Apply ``function`` to each tensor of ``batch``; containers keep their type.

    Raises:
        UnsupportedModuleError: Something in it is neither a tensor nor ``None``.
    """
    tensors_in(batch)  # raises
    return map_leaves(function, batch)


def map_leaves(function: Callable[[Any], Any], batch: Any) -> Any:
    """Apply ``function`` to everything in ``batch`` that is no container and not ``None``; containers keep their type.

    A dataclass is built anew from the fields of its constructor, so that ``__post_init__`` computes what it derives
    from the new ones.
    """
    if batch is None or isinstance(batch, Tensor):
        return None if batch is None else function(batch)
    if isinstance(batch, Mapping):
        return _like_mapping(batch, {key: map_leaves(function, value) for key, value in batch.items()})
    if isinstance(batch, (tuple, list)):
        values = [map_leaves(function, value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        given = [one.name for one in dataclasses.fields(batch) if one.init]
        return dataclasses.replace(batch, **{name: map_leaves(function, getattr(batch, name)) for name in given})
    return function(batch)


def stacked(items: Sequence[Any]) -> Any:
    """Stack records into a batch as torch's ``default_collate`` does, and dataclasses and ``None``, too.

    Example:
        >>> stacked([{"x": torch.zeros(3), "y": 1}, {"x": torch.ones(3), "y": 0}])["y"]
        tensor([1, 0])
    """
    first = items[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return _like_mapping(first, {key: stacked([item[key] for item in items]) for key in first})
    if isinstance(first, (tuple, list)):
        values = [stacked(column) for column in zip(*items, strict=True)]
        return type(first)(*values) if hasattr(first, "_fields") else values
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        given = [one.name for one in dataclasses.fields(first) if one.init]
        return dataclasses.replace(first, **{name: stacked([getattr(item, name) for item in items]) for name in given})
    return default_collate(list(items))


def arranged(batch: Any, like: Any) -> Any:
    """Return ``batch`` in the containers of ``like``, with the keys of mappings in its order.

    A model's code may ask in which order the fields of a batch stand. No record may decide that for the others.

    Raises:
        ValueError: It has other fields. No message tells which.
    """
    if isinstance(like, Mapping):
        _check_fields(isinstance(batch, Mapping) and batch.keys() == like.keys())
        return _like_mapping(like, {key: arranged(batch[key], value) for key, value in like.items()})
    if isinstance(like, (tuple, list)):
        _check_fields(isinstance(batch, (tuple, list)) and len(batch) == len(like))
        values = [arranged(*pair) for pair in zip(batch, like, strict=True)]
        return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        _check_fields(type(batch) is type(like))
        given = [one.name for one in dataclasses.fields(like) if one.init]
        return dataclasses.replace(
            like, **{name: arranged(getattr(batch, name), getattr(like, name)) for name in given}
        )
    _check_fields(isinstance(batch, Tensor) if isinstance(like, Tensor) else type(batch) is type(like))
    return batch


def _check_fields(same: bool) -> None:
    if not same:
        raise ValueError(
            "every record must have the same fields as the first one of the data set: dataset, collate_fn."
        )


def to_device(batch: Any, device: torch.device) -> Any:
    """Return ``batch`` with its tensors on ``device``."""
    return map_tensors(lambda tensor: tensor.to(device), batch)


def _like_mapping(like: Mapping, values: dict) -> Mapping:
    try:
        return type(like)(values)  # type: ignore[call-arg]
    except TypeError:  # a mapping that is built otherwise
        return values


def memory_address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; 0 where it has none: sparse, meta, fake, or one record's view."""
    try:
        storage = tensor.untyped_storage()
        return 0 if storage.device.type == "meta" else storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def memory_key(tensor: Tensor) -> int:
    """Return what two tensors have in common while both live if they share memory, with values or without."""
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # it has no memory of its own: sparse, or a transform's
        return id(tensor)
