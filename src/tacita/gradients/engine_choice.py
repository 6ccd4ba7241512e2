"""The choice of the engine that serves a network: made once, before any data is used."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.functional import LossFn
from tacita.gradients.ghost import GhostEngine, capture_without_values
from tacita.gradients.loop import LoopEngine
from tacita.gradients.probe import ROWS, evaluating
from tacita.gradients.program import ProgramEngine, Programs
from tacita.gradients.randomness_check import draws_at_random
from tacita.gradients.retention import RemembersError
from tacita.gradients.traced import TracedEngine, check_traceable
from tacita.gradients.vmap import VmapEngine
from tacita.gradients.weighted_sums import wide

METHODS = ("loop", "vmap", "ghost", "traced", "program", "auto")
GHOSTS = ("ghost", "traced", "program")  # methods of the ghost engine
GRADIENT_BYTES = 2**28  # of gradients that loop and vmap hold at once if the caller sets no physical batch size


@dataclass(frozen=True)
class MethodChoice:
    """The engine that serves a network.

    Attributes:
        method: ``"program"``, ``"ghost"``, ``"traced"``, ``"vmap"`` or ``"loop"``.
        bare: For the ghost engine, the parameters that are used where no rule sees them.
        why_not_ghost: Why the ghost engine does not serve the network; empty if it does or was not tried.
        reads_only: The ghost engine serves the network, which writes nothing into its batch, so that it may get the
            data set's own memory.
        programs: The programs of the network, if its method is ``"program"``.
    """

    method: str
    bare: frozenset[str] = frozenset()
    why_not_ghost: str = ""
    reads_only: bool = False
    programs: Programs | None = None


def engine_kind(method: str) -> type[ChunkedEngine]:
    """Return the class of a method's engine."""
    return {
        "loop": LoopEngine,
        "vmap": VmapEngine,
        "ghost": GhostEngine,
        "traced": TracedEngine,
        "program": ProgramEngine,
    }[method]


def choose_method(
    method: str, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], *, like: Any, probe: Any
) -> MethodChoice:
    """Choose the engine: the named ``method``, or for ``"auto"`` ghost if it serves the model, else the loop.

    Args:
        method: One of ``METHODS``.
        model: The network.
        loss_fn: Its loss.
        params: Its trainable parameters.
        like: A batch of at least one row, for its shapes and dtypes; ``None`` if there is none.
        probe: A synthetic batch of ``ROWS`` rows on which the model runs; ``None`` if there is none.

    Raises:
        UnsupportedModuleError: ``method`` cannot serve the model; the message names one that does.
        ValueError: ``method`` is not one of ``METHODS``.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    if method == "auto" and like is None:
        return MethodChoice("vmap")  # keeps samples apart even if it could not be tried
    if method == "program":
        return _program(model, loss_fn, params, like)
    if method in ("auto", *GHOSTS):
        choice = _ghost(model, loss_fn, params, like)
        if method != "auto" and choice.why_not_ghost:
            raise _refusal(method, choice.why_not_ghost)
        return choice if method != "traced" else _traced(choice, model, loss_fn, params, like)
    if reason := obstacle(method, model, loss_fn, params, probe):
        raise _refusal(method, reason)
    return MethodChoice(method)


def warn_of_the_loop(choice: MethodChoice) -> None:
    """Warn if each record needs a forward and a backward pass of its own, and say why."""
    if choice.why_not_ghost:
        warnings.warn(
            f"each record gets its own forward and backward pass, several times to a hundred times slower: "
            f'{choice.why_not_ghost}. Take that out of the model or the loss, or pass method="loop" to accept it.',
            stacklevel=6,  # the code that builds the oracle
        )


def obstacle(method: str, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any) -> str:
    """Return why ``method`` cannot serve the model; an empty text if it can, as far as the probe shows."""
    if method == "loop" or probe is None:
        return ""
    try:
        engine = _on_probe(engine_kind(method), model, loss_fn, params, probe)
        engine.norms({"all": tuple(params)})  # in the model's present mode
        with evaluating(model):  # without random draws
            if draws_at_random(model, loss_fn, probe):  # the loss draws in every mode, each engine in its own order
                return ""
            return _difference(engine, _on_probe(LoopEngine, model, loss_fn, params, probe))
    except RemembersError:
        raise
    except Exception as error:  # it holds no data
        return _in_words(error)


def default_chunk_rows(method: str, params: Mapping[str, Tensor]) -> int | None:
    """Return how many rows are in memory at once if the caller sets no bound; ``None`` means all."""
    if method in GHOSTS:
        return None
    row_bytes = sum(p.numel() * wide(p.dtype).itemsize for p in params.values())
    return max(1, GRADIENT_BYTES // max(1, row_bytes))


def _ghost(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any) -> MethodChoice:
    if like is None:
        return MethodChoice("ghost")
    try:
        trial = capture_without_values(model, loss_fn, params, like)
    except RemembersError:  # no engine serves it
        raise
    except Exception as error:  # it holds no data: a trial has no values
        return MethodChoice("loop", why_not_ghost=_in_words(error))
    return MethodChoice("ghost", trial.bare, reads_only=trial.reads_only)


def _program(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any) -> MethodChoice:
    """Return the choice of the program; refuse a network that cannot be written down as one."""
    if like is None:
        raise UnsupportedModuleError('method="program" needs a record, for its shapes. Use method="vmap".')
    programs = Programs(model, loss_fn, like)
    try:
        programs.program(params)
    except RemembersError:  # no engine serves it
        raise
    except Exception as error:  # it holds no data: a trace has no values
        raise UnsupportedModuleError(
            f'method="program" cannot serve this model: {_in_words(error)}. Rewrite that; or use method="loop", which '
            "runs the model's code on one record at a time, several times to a hundred times slower."
        ) from None
    return MethodChoice("program", reads_only=True, programs=programs)


def _traced(
    choice: MethodChoice, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any
) -> MethodChoice:
    """Return the choice of traced steps for what the ghost engine serves; refuse a network that cannot be traced."""
    if like is None:
        raise UnsupportedModuleError('method="traced" needs a record, for its shapes. Use method="ghost".')
    engine = GhostEngine(model, loss_fn, params, [], torch.empty(0))
    engine.bare = choice.bare
    try:
        check_traceable(engine, like, ROWS)
    except RemembersError:
        raise
    except Exception as error:  # it holds no data: a trace has no values
        raise UnsupportedModuleError(
            f'method="traced" cannot serve this model: {_in_words(error)}. Use method="ghost".'
        ) from None
    return replace(choice, method="traced")


# A part of PyTorch's message where vmap or a trial without values stops -> a cause that a person can act on.
_CAUSES = {
    "control flow": "its code looks at values of a record (an if, bool() or a comparison of a tensor)",
    "DataDependentOutput": "its code looks at values of a record (.item(), .tolist(), int() of a tensor)",
    ".item()": "its code looks at values of a record (.item(), .tolist(), int() of a tensor)",
    "DynamicOutputShape": "the shape of a tensor depends on values (nonzero, a boolean mask as index, bincount)",
    "dynamic shape": "the shape of a tensor depends on values (nonzero, a boolean mask as index, bincount), which "
    "torch.where with all rows in place avoids",
    "inplace arithmetic": "it writes a record's values into a part of a tensor that is the same for all records (z = "
    "torch.zeros(...), z[0].copy_(x)): write z[0] = x, make z by x.new_zeros(...), or use torch.cat",
    "vmap support": "a torch.autograd.Function has no vmap rule: set generate_vmap_rule = True in its class",
}


def _in_words(error: Exception) -> str:
    """Say why a trial failed, in one line without a full stop."""
    line = next((line for line in str(error).splitlines() if line.strip()), "no message").rstrip(".")
    if isinstance(error, UnsupportedModuleError):
        return line
    said = f"{type(error).__name__}: {error}"
    cause = next((words for part, words in _CAUSES.items() if part in said), "")
    return cause or f"{type(error).__name__}: {line}"


def _refusal(method: str, reason: str) -> UnsupportedModuleError:
    return UnsupportedModuleError(f'method={method!r} cannot serve this model: {reason}. Use method="auto".')


def _on_probe(
    kind: type[ChunkedEngine], model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any
) -> ChunkedEngine:
    return kind(model, loss_fn, params, [Chunk(probe, ROWS, 0)], torch.arange(ROWS), seed=0)


def _difference(engine: ChunkedEngine, definition: ChunkedEngine) -> str:
    """Name a parameter whose gradient differs from the definition's by more than rounding; empty if there is none."""
    groups = {name: (name,) for name in definition.shapes}
    got, expected = (e.weighted_sums(torch.ones_like, groups) for e in (engine, definition))
    scale = max(expected.norms.nan_to_num(0.0, 0.0).sum().item(), torch.finfo(torch.float32).tiny)
    for column, name in enumerate(groups):
        tolerance = min(0.1, 1000 * torch.finfo(definition.params[name].dtype).eps)
        off = (got.values[0][name] - expected.values[0][name]).abs().nan_to_num(0.0, 0.0).max().item()
        low = (expected.norms[:, column] - got.norms[:, column]).nan_to_num(0.0, 0.0).max().item()
        if max(off, low) > tolerance * scale:
            return f"it does not give the gradient of {name!r} on synthetic rows"
    return ""
