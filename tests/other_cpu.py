"""Another processor, simulated: sums of products, sums and elementary functions are off by a rounding or two.

A pytest plugin (``pytest -p tests.other_cpu FILES``). How a number is off depends on the operation and the shapes
alone, as on a real machine: the same call gives the same bits, and a batch cut differently gives others. A test that
fails here holds numbers to the precision of their container, or to one order of summation.
"""

import zlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}  # where the left factor is
SUMS = {"sum", "mean", "linalg_vector_norm", "norm", "logsumexp", "_log_softmax", "_softmax", "cumsum"}
OTHERS = {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "tanh", "exp", "log", "gelu"}
NOT_SIMULATED = {  # a mode of PyTorch is seen by
    "test_no_gradient_of_a_parameter_is_computed": "counts the calls of a kernel, and sees them twice",
    "test_no_number_has_its_noise_on_two_values": "a mode belongs to one thread: the others round as this machine does",
}
SHORT = 2**12  # a multiple of its inverse has few digits


class OtherProcessor(TorchDispatchMode):
    """Inside, operations round differently from this machine's."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if not isinstance(out, tuple | list):
            return _rounded(out, name, args) if _rounds(name, args, out) else out
        found = [_rounded(x, name, args) if name in OTHERS else x for x in out]
        return found if isinstance(out, list) else tuple(found)


def _rounds(name: str, args: tuple, out: object) -> bool:
    """Whether several roundings lie between the arguments and what came out, so that their order matters."""
    if name in PRODUCTS:
        return args[PRODUCTS[name]].shape[-1] > 1
    return name in OTHERS or (name in SUMS and isinstance(out, Tensor) and out.numel() < args[0].numel())


def _rounded(x: object, name: str, args: tuple) -> object:
    """``x`` moved by -1, 0 or 1 spacings, but for numbers of few digits: those are exact in any order."""
    if type(x) is not Tensor or x.dtype not in (torch.float32, torch.float64) or not x.numel():
        return x
    shapes = [tuple(a.shape) for a in args if isinstance(a, Tensor)]
    coins = torch.Generator().manual_seed(zlib.crc32(f"{name} {shapes}".encode()))
    with torch.no_grad():
        spacings = torch.randint(-1, 2, x.shape, generator=coins).to(x.dtype) * torch.finfo(x.dtype).eps
        return torch.where(x * SHORT == (x * SHORT).round(), x, x + x * spacings)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what this way of simulating changes by more than roundings."""
    for item in items:
        for name, reason in NOT_SIMULATED.items():
            if item.name.startswith(name):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with OtherProcessor():
        return (yield)
