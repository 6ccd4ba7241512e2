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
from tacita.gradients.ghost import GhostEngine, coverage
from tacita.gradients.loop import LoopEngine
from tacita.gradients.probe import ROWS, evaluating
from tacita.gradients.rows import wide
from tacita.gradients.vmap import VmapEngine

METHODS = ("loop", "vmap", "ghost", "auto")
GRADIENT_BYTES = 2**28  # held at once by loop and vmap if the caller sets no physical batch size


def engine_kind(method: str) -> type[ChunkedEngine]:
    """The engine of a method."""
    return {"loop": LoopEngine, "vmap": VmapEngine, "ghost": GhostEngine}[method]


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
        tried = ("ghost", "vmap") if probe is not None else ("vmap",)  # vmap keeps samples apart, tried or not
        return next((m for m in tried if not obstacle(m, model, loss_fn, params, probe)), "loop")
    if reason := obstacle(method, model, loss_fn, params, probe):
        raise UnsupportedModuleError(f'method={method!r} cannot serve this model: {reason}. Use method="auto".')
    return method


def obstacle(method: str, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any) -> str:
    """Why ``method`` cannot serve the model; empty if it can, as far as the probe shows."""
    if method == "ghost" and (refused := coverage(model, params).refused):
        return "; ".join(f"{name!r}: {reason}" for name, reason in refused.items())
    if method == "loop" or probe is None:
        return ""
    try:
        engine = _on_probe(engine_kind(method), model, loss_fn, params, probe)
        engine.norms({"all": tuple(params)})  # in the mode that the model is in
        with evaluating(model):  # without what is drawn at random
            return _difference(engine, _on_probe(LoopEngine, model, loss_fn, params, probe))
    except Exception as error:  # nothing in it is data
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}".rstrip(".")


def default_chunk_rows(method: str, params: Mapping[str, Tensor]) -> int | None:
    """Rows in memory at once where the caller sets no bound; ``None``: all of them."""
    if method == "ghost":
        return None
    row_bytes = sum(p.numel() * wide(p.dtype).itemsize for p in params.values())
    return max(1, GRADIENT_BYTES // max(1, row_bytes))


def _on_probe(
    kind: type[ChunkedEngine], model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any
) -> ChunkedEngine:
    return kind(model, loss_fn, params, [Chunk(probe, ROWS, 0)], torch.arange(ROWS), seed=0)


def _difference(engine: ChunkedEngine, definition: ChunkedEngine) -> str:
    """What differs from the definition beyond rounding: a use of a layer that an engine does not see, say."""
    groups = {name: (name,) for name in definition.shapes}
    got, expected = (e.weighted_sums(torch.ones_like, groups) for e in (engine, definition))
    for column, name in enumerate(groups):
        value = definition.params[name]
        tolerance = min(0.1, 1000 * torch.finfo(value.dtype).eps)
        scale = max(expected.norms[:, column].nan_to_num(0.0, 0.0).sum().item(), torch.finfo(value.dtype).tiny)
        off = (got.values[0][name] - expected.values[0][name]).abs().nan_to_num(0.0, 0.0).max().item()
        low = (expected.norms[:, column] - got.norms[:, column]).nan_to_num(0.0, 0.0).max().item()
        if max(off, low) > tolerance * scale:
            return f"it does not give the gradient of {name!r} on synthetic rows"
    return ""
