"""Every network whose coverage docs/coverage.md states, by family: the tests check it, the benchmark measures it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.gradients import layers, sequences, small_cnns, ten_networks
from tests.gradients.layers import Size
from tests.gradients.libraries import BERT_CLASSES, GPT2_LM, LIBRARIES, LLAMA_LM, next_token, sequence_class, text

MEASURED, MEASURED_LIBRARY = Size(128, 64, 32), Size(64, 32, 8)  # the sizes at which costs are measured
LARGER = Size(128, 64, 16)


@dataclass(frozen=True)
class Case:
    """A network, its data and its loss.

    Attributes:
        name: What the table says.
        make: Size -> the network.
        data: (size, dtype) -> tensors with the records first.
        loss: ``(model, batch) -> losses``.
        exact: The dtype in which the program is compared with the loop.
        missing: The library that the network needs and that is not installed; empty if there is none.
        one_by_one: No vectorised pass can run it: the loop serves.
        size: The size at which its cost is measured.
        again: An earlier case is the same network, measured at another size.
    """

    name: str
    make: Callable[[Size], nn.Module]
    data: Callable[[Size, torch.dtype], tuple[Tensor, ...]] = layers.data
    loss: Callable[[Any, Any], Tensor] = layers.loss
    exact: torch.dtype = torch.float64
    missing: str = ""
    one_by_one: bool = False
    size: Size = MEASURED
    again: bool = False


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
    for family, members in (("small CNNs", small_cnns.NETWORKS), ("several views a record", small_cnns.VIEWS)):
        found[family] = [
            Case(n, make, data, loss, size=size, again=size.width > small_cnns.WIDTHS[0])
            for n, (make, data, loss, size) in members.items()
        ]
    found["half precision"] = [Case(name, make, exact=torch.float32) for name, make in sequences.HALVES.items()]
    found["values that decide shapes"] = [Case(n, make, one_by_one=True) for n, make in sequences.ONE_BY_ONE.items()]
    return found


def of_libraries() -> dict[str, list[Case]]:
    """Return the cases of other libraries, by library."""
    found = {
        library: [
            Case(name, make, data, loss, one_by_one="nonzero" in name, size=MEASURED_LIBRARY, missing=missing(library))
            for name, (make, data, loss) in members.items()
        ]
        for library, members in LIBRARIES.items()
    }
    found["transformers of 4 layers of 256"] = [
        Case(f"{name}, {LARGER.rows} x {LARGER.length} tokens", make, text, loss, size=LARGER,
             missing=missing("transformers"), again=True)
        for name, (make, loss) in {
            "GPT-2": (GPT2_LM, next_token), "BERT": (BERT_CLASSES, sequence_class), "Llama": (LLAMA_LM, next_token),
        }.items()
    ]  # fmt: skip
    return found


def missing(library: str) -> str:
    """Return the name of a library that is not installed; empty if it is."""
    return "" if importlib.util.find_spec(library) else library


def cases() -> dict[str, list[Case]]:
    """Return all cases, by family."""
    return of_torch() | of_libraries()
