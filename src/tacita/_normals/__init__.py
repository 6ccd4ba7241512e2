"""Float32 normals: their definition (:mod:`~tacita._normals.definition`), and kernels that make the same bits sooner.

A kernel is optional. It serves if it gives the bits of the definition; otherwise NumPy makes the normals, and a line of
the log says why.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from tacita._normals import definition
from tacita._normals.definition import GROUP, LANES

WORTH_BUILDING = 2**11  # normals in one draw from which on a kernel for the CPU is built, in 0.3 s
_GROUPS = 512  # that a thread takes at once

Fill = Callable[[bytes, int, np.ndarray], None]  # (key, first group, float32 values of whole groups to write)
Make = Callable[[bytes, int, int], Tensor]  # (key, first group, groups) -> normals, (groups * GROUP,)


def normals(key: bytes, first: int, groups: int, device: torch.device) -> Tensor:
    """Return the normals of ``groups`` from group ``first`` on, float32, on the device or on the CPU."""
    made = None
    if groups and device.type == "cuda":
        made = _cuda_kernel(device)
    if made is None and (groups * GROUP >= WORTH_BUILDING or _cpu_kernel.cache_info().currsize):
        made = _cpu_kernel()
    return (made or partial(_in_memory, definition.fill))(key, first, groups)


def in_threads(fill: Callable[[int], None], starts: range) -> None:
    """Call ``fill`` for each start, in as many threads as PyTorch has."""
    threads = min(len(starts), torch.get_num_threads())
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, starts))
    else:
        for start in starts:
            fill(start)


def _in_memory(fill: Fill, key: bytes, first: int, groups: int) -> Tensor:
    out, size = np.empty(groups * GROUP, np.float32), _GROUPS * GROUP
    in_threads(lambda i: fill(key, first + i // GROUP, out[i : i + size]), range(0, len(out), size))
    return torch.from_numpy(out)


@cache
def _cpu_kernel() -> Make | None:
    def load() -> Make:
        from tacita._normals import compiled

        return partial(_in_memory, compiled.load())

    return _checked("C++", load)


@cache
def _cuda_kernel(device: torch.device) -> Make | None:
    def load() -> Make:
        from tacita._normals import on_cuda

        return on_cuda.load(device)

    return _checked("Triton", load)


def _checked(language: str, load: Callable[[], Make]) -> Make | None:
    """Return a kernel if its bits are right in two groups, on either side of block 2^32; otherwise log why not."""
    try:
        made, place = load(), (bytes(range(32)), 2**32 // LANES - 1, 2)
        if torch.equal(made(*place).cpu(), _in_memory(definition.fill, *place)):
            return made
        why = "its bits are not those of the definition"
    except Exception as error:  # whatever compilers and drivers raise: the normals are made without them
        why = f"{error}"
    logging.getLogger(__name__).warning("float32 noise is drawn without the %s kernel: %s", language, why)
    return None
