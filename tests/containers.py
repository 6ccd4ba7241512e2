"""Two columns in every container that a batch or a data set may have: each way to hold ``x`` and ``y``."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass
class Columns:
    x: Any
    y: Any


@dataclass(frozen=True)
class Derived:
    """A dataclass that computes something of its fields: of whichever rows it holds."""

    x: Any
    y: Any
    signs: Any = field(init=False, default=None)

    def __post_init__(self):
        if isinstance(self.x, torch.Tensor):
            object.__setattr__(self, "signs", self.x.sign())


class Encoding(UserDict):
    """What tokenizers return: a mapping that is no ``dict``."""


class ReadOnly(dict):
    """A mapping that is built in another way than from a mapping."""

    def __init__(self, first, second):
        super().__init__(x=first, y=second)


# name -> how it holds x and y
HOLDERS = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "named tuple": Pair,
    "dict": lambda x, y: {"x": x, "y": y},
    "ordered dict": lambda x, y: OrderedDict(x=x, y=y),
    "nested dict": lambda x, y: {"inputs": {"x": x, "mask": None}, "labels": (y,)},
    "tokenizer": lambda x, y: Encoding(x=x, y=y),
    "own mapping": ReadOnly,
    "dataclass": Columns,
    "frozen dataclass": Derived,
}


def columns(batch):
    """``x`` and ``y`` of a batch, whatever holds them."""
    if isinstance(batch, Derived):
        assert batch.signs.shape == batch.x.shape
    if isinstance(batch, dict) and "inputs" in batch:
        return batch["inputs"]["x"], batch["labels"][0]
    if isinstance(batch, tuple | list):
        return batch
    return (batch["x"], batch["y"]) if hasattr(batch, "keys") else (batch.x, batch.y)


class Items(torch.utils.data.Dataset):
    """A map-style data set whose records are in one kind of container."""

    def __init__(self, x, y, hold, augment=lambda row: row):
        self.x, self.y, self.hold, self.augment = x, y, hold, augment

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.hold(self.augment(self.x[index]), self.y[index])
