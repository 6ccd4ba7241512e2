"""Nested dicts and lists of tensors, numbers and strings as JSON and tensors, and as bytes. Nothing is pickled."""

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch  # noqa: F401 - for the example
from torch import Tensor


def without_tensors(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Return ``tree`` with each tensor replaced by ``{"tensor": name}``, and put the tensors into ``tensors``.

    Raises:
        TypeError: ``tree`` holds something else.
    """
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(tree, Mapping):
        named = {key if type(key) is int else str(key): value for key, value in tree.items()}
        return {"map": [[key, without_tensors(value, tensors)] for key, value in named.items()]}
    if isinstance(tree, list | tuple):
        return {"list": [without_tensors(value, tensors) for value in tree]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise TypeError(f"a checkpoint cannot hold a {type(tree).__name__}.")


def with_tensors(layout: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the tree that :func:`without_tensors` took apart; tuples are lists, keys strings or integers."""
    ((kind, content),) = layout.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "map":
        return {key: with_tensors(value, tensors) for key, value in content}
    if kind == "list":
        return [with_tensors(value, tensors) for value in content]
    return content


def to_bytes(tree: Any) -> bytes:
    """Return a tree as bytes.

    Example:
        >>> from_bytes(to_bytes({"step": 3, "moments": [torch.ones(2), None]}))
        {'step': 3, 'moments': [tensor([1., 1.]), None]}
    """
    tensors: dict[str, Tensor] = {}
    layout = json.dumps(without_tensors(tree, tensors))
    return safetensors.torch.save(tensors, {"layout": layout})


def from_bytes(data: bytes) -> Any:
    """Return the tree that :func:`to_bytes` wrote."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return with_tensors(json.loads(header["__metadata__"]["layout"]), safetensors.torch.load(data))
