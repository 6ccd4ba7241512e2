"""Which engine serves a network: decided once, before any data is used.

Place: [gradients], between the engines and the source.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.functional import LossFn
from tacita.gradients.loop import LoopEngine
from tacita.gradients.probe import ROWS
from tacita.gradients.rows import wide
from tacita.gradients.vmap import VmapEngine

METHODS = ("loop", "vmap", "ghost", "auto")
ENGINES: dict[str, type[ChunkedEngine]] = {"loop": LoopEngine, "vmap": VmapEngine}
GRADIENT_BYTES = 2**28  # held at once by loop and vmap if the caller sets no physical batch size


def chosen_method(method: str, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any) -> str:
    """The method that ``method`` stands for: itself, or for ``"auto"`` the fastest that serves the model.

    Args:
        method: One of ``METHODS``.
        model: The network.
        loss_fn: Its loss.
        params: Its trainable parameters.
        probe: Synthetic batch of ``ROWS`` rows on which the model runs; ``None`` if there is none.

    Raises:
        UnsupportedModuleError: ``method`` cannot serve the model; the message says what does.
        ValueError: ``method`` is not one of them.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    if method == "auto":
        return next((m for m in ("ghost", "vmap") if not obstacle(m, model, loss_fn, params, probe)), "loop")
    if reason := obstacle(method, model, loss_fn, params, probe):
        raise UnsupportedModuleError(f'method={method!r} cannot serve this model: {reason}. Use method="auto".')
    return method


def obstacle(method: str, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any) -> str:
    """Why ``method`` cannot serve the model; empty if it can, as far as the probe shows."""
    if method == "vmap" and probe is not None:
        return _failure(VmapEngine, model, loss_fn, params, probe)
    if method == "ghost":
        return "it is not available"
    return ""


def default_chunk_rows(method: str, params: Mapping[str, Tensor]) -> int | None:
    """Rows in memory at once where the caller sets no bound; ``None``: all of them."""
    if method == "ghost":
        return None
    row_bytes = sum(p.numel() * wide(p.dtype).itemsize for p in params.values())
    return max(1, GRADIENT_BYTES // max(1, row_bytes))


def _failure(
    engine: type[ChunkedEngine], model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any
) -> str:
    """What goes wrong when ``engine`` runs on the probe: nothing of it is data."""
    labels = torch.arange(ROWS)
    try:
        engine(model, loss_fn, params, [Chunk(probe, ROWS, 0)], labels, seed=0).norms({"all": tuple(params)})
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}".rstrip(".")
    return ""
