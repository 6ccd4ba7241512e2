"""The precision that products are taken in where a bound on their rounding is claimed.

Place: the ground of engines.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Matrix products and convolutions as the derivations take them: no TF32, no bfloat16, no autocast."""
    if torch.is_autocast_enabled(device.type):
        with torch.autocast(device.type, enabled=False), full_precision(device):
            yield
        return
    changed = [(s, name, getattr(s, name), exact) for s, name, exact in _switches(device.type)]
    changed = [switch for switch in changed if switch[2] != switch[3]]
    for owner, name, _, exact in changed:
        setattr(owner, name, exact)
    try:
        yield
    finally:
        for owner, name, before, _ in changed:
            setattr(owner, name, before)


def _switches(device_type: str) -> list[tuple[Any, str, Any]]:
    """Where PyTorch keeps the precision of its float32 products: object, attribute, value that rounds once."""
    backends: Any = torch.backends
    if hasattr(backends.mkldnn, "matmul"):  # torch >= 2.9
        owners = (backends.cuda.matmul, backends.cudnn.conv) if device_type == "cuda" else ()
        owners = owners or (backends.mkldnn.matmul, backends.mkldnn.conv)
        return [(owner, "fp32_precision", "ieee") for owner in owners]
    if device_type == "cuda":
        return [(backends.cuda.matmul, "allow_tf32", False), (backends.cudnn, "allow_tf32", False)]
    return []
