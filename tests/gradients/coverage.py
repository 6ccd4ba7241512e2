"""Every network whose coverage docs/coverage.md states, by family: the tests check it, the benchmark measures it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.gradients import layers, sequences, ten_networks
from tests.gradients.layers import Size
from tests.gradients.libraries import LIBRARIES

MEASURED, MEASURED_LIBRARY = Size(128, 64, 32), Size(64, 32, 8)  # the sizes at which costs are measured


@dataclass(frozen=True)
class Case:
    """A network, its data and its loss.

    Attributes:
        name: What the table says.
        make: Size -> the network.
        data: (size, dtype) -> tensors with the records first.
        loss: ``(model, batch) -> losses``.
        exact: The dtype in which the ghost engine is compared with the loop.
        missing: The library that the network needs and that is not installed; empty if there is none.
        one_by_one: No vectorised pass can run it: the loop serves.
        size: The size at which its cost is measured.
    """

    name: str
    make: Callable[[Size], nn.Module]
    data: Callable[[Size, torch.dtype], tuple[Tensor, ...]] = layers.data
    loss: Callable[[Any, Any], Tensor] = layers.loss
    exact: torch.dtype = torch.float64
    missing: str = ""
    one_by_one: bool = False
    size: Size = MEASURED


def of_torch() -> dict[str, list[Case]]:
    """Return the cases that need PyTorch alone, by family."""
    families = {
        "products": layers.PRODUCTS,
        "shared and parametrised weights": layers.SHARED,
        "convolutions": layers.CONVOLUTIONS,
        "normalisations": layers.NORMALISATIONS,
        "embeddings": layers.EMBEDDINGS,
        "bare parameters": layers.BARE,
        "recurrent layers": sequences.RECURRENT,
        "attention": sequences.ATTENTION,
        "mixtures of experts": sequences.MIXTURES,
        "programs around layers": sequences.PROGRAMS,
    }
    found = {family: [Case(name, make) for name, make in members.items()] for family, members in families.items()}
    found["ten networks"] = [Case(n, make, data, loss) for n, (make, data, loss) in ten_networks.NETWORKS.items()]
    found["half precision"] = [Case(name, make, exact=torch.float32) for name, make in sequences.HALVES.items()]
    found["values that decide shapes"] = [Case(n, make, one_by_one=True) for n, make in sequences.ONE_BY_ONE.items()]
    return found


def of_libraries() -> dict[str, list[Case]]:
    """Return the cases of other libraries, by library."""
    return {
        library: [
            Case(
                name, make, data, loss, one_by_one="nonzero" in name, size=MEASURED_LIBRARY,
                missing="" if importlib.util.find_spec(library) else library,
            )
            for name, (make, data, loss) in members.items()
        ]
        for library, members in LIBRARIES.items()
    }  # fmt: skip


def cases() -> dict[str, list[Case]]:
    """Return all cases, by family."""
    return of_torch() | of_libraries()
