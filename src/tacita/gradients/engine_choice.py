"""The choice of the engine that serves a network: made once, before any data is used."""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, tensors_in
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.functional import LossFn
from tacita.gradients.ghost import GhostEngine, capture_without_values
from tacita.gradients.ghost.capture import PassWithoutValues
from tacita.gradients.loop import LoopEngine
from tacita.gradients.operators import SHARED, WAY_OUT
from tacita.gradients.probe import ROWS, evaluating, row, row_repeated
from tacita.gradients.program import ProgramEngine, Programs
from tacita.gradients.randomness_check import draws_at_random
from tacita.gradients.retention import RemembersError
from tacita.gradients.seeds import generator_states, generators_kept, seeded
from tacita.gradients.traced import TracedEngine, check_traceable
from tacita.gradients.vmap import VmapEngine
from tacita.gradients.weighted_sums import round_up, wide

METHODS = ("loop", "vmap", "ghost", "traced", "program", "auto")
GHOSTS = ("ghost", "traced", "program")  # methods of the ghost engine
SECRETS = 40  # under which a model is tried at most, where its coins look wrong
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
        return _program(model, loss_fn, params, like, probe)
    if method in ("auto", *GHOSTS):
        choice = _ghost(model, loss_fn, params, like)
        if method != "auto" and choice.why_not_ghost:
            raise _refusal(method, choice.why_not_ghost)
        if not choice.why_not_ghost and (reason := obstacle(choice, model, loss_fn, params, probe)):
            if method != "auto":
                raise _refusal(method, reason)
            choice = MethodChoice("loop", why_not_ghost=reason)
        if choice.method == "loop" and (reason := obstacle(choice, model, loss_fn, params, probe)):
            raise UnsupportedModuleError(f"no engine serves this model: {reason}.")
        return choice if method != "traced" else _traced(choice, model, loss_fn, params, like)
    choice = MethodChoice(method)
    without_values = _ghost(model, loss_fn, params, like).why_not_ghost if method == "vmap" else ""
    if reason := without_values or obstacle(choice, model, loss_fn, params, probe):
        raise _refusal(method, reason)
    return choice


def warn_of_the_loop(choice: MethodChoice) -> None:
    """Warn if each record needs a forward and a backward pass of its own, and say why."""
    if choice.why_not_ghost:
        warnings.warn(
            f"each record gets its own forward and backward pass, several times to a hundred times slower: "
            f'{choice.why_not_ghost}. Take that out of the model or the loss, or pass method="loop" to accept it.',
            stacklevel=6,  # the code that builds the oracle
        )


def obstacle(choice: MethodChoice, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any) -> str:
    """Return why an engine cannot serve the model; an empty text if it can, as far as the probe shows.

    The engine is held against the loop, always: where the model draws at random, record by record under the same coins,
    or else in eval mode; a program then against the ghost engine, which draws alike, and that engine against the loop.
    And it is held against itself on the same record at every row, under two secrets.
    """
    if probe is None:
        return ""
    engine_of = partial(_engine, choice, model, loss_fn, params)
    definition = partial(_engine, MethodChoice("loop"), model, loss_fn, params)
    try:
        reason = _coins_of_rows(engine_of, row_repeated(probe, 0))  # in the model's present mode
        if reason or choice.method == "loop":
            return reason
        if not draws_at_random(model, loss_fn, probe):
            return _difference(engine_of(probe), definition(probe))
        return _difference_of_draws(choice, model, loss_fn, params, probe)
    except RemembersError:
        raise
    except Exception as error:  # it holds no data
        return _in_words(error)


def _difference_of_draws(
    choice: MethodChoice, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any
) -> str:
    """Return in what an engine differs from the loop where the model draws at random; empty if in nothing."""
    engine_of = partial(_engine, choice, model, loss_fn, params)
    definition = partial(_engine, MethodChoice("loop"), model, loss_fn, params)
    if choice.method == "program":  # of which a single row runs twice, and draws otherwise
        alike = _ghost(model, loss_fn, params, probe)
        if not alike.why_not_ghost:
            of_ghost = _engine(alike, model, loss_fn, params, probe)
            return _difference(engine_of(probe), of_ghost) or obstacle(alike, model, loss_fn, params, probe)
    singles = [row(probe, index) for index in range(ROWS)]
    if any(_difference(engine_of(one), definition(one)) for one in singles):  # maybe drawn in another order
        with evaluating(model):
            return _difference(engine_of(probe), definition(probe))
    return ""


def _engine(  # noqa: PLR0917
    choice: MethodChoice,
    model: nn.Module,
    loss_fn: LossFn,
    params: Mapping[str, Tensor],
    batch: Any,
    seed: int | None = None,
) -> ChunkedEngine:
    """Return an engine of a synthetic batch; without a seed the model draws from the global generators as they are."""
    size = len(tensors_in(batch)[0])
    tensors, rebuild = flatten(batch, size)
    batch = rebuild([one.clone() for one in tensors])  # a model may write its batch, which is tried again
    kind = GhostEngine if choice.method == "traced" else engine_kind(choice.method)
    engine = kind(model, loss_fn, params, [Chunk(batch, size, 0)], torch.arange(size), seed=seed)
    if isinstance(engine, GhostEngine):
        engine.bare = choice.bare
    if isinstance(engine, ProgramEngine):
        assert choice.programs is not None
        engine.programs = choice.programs
        engine.prepare()
    return engine


def _coins_of_rows(engine_of: Callable[[Any, int], ChunkedEngine], alike: Any) -> str:
    """Return what is wrong with the coins of a model, seen on a batch whose rows are all the same record.

    Coins by record differ from row to row and from secret to secret. If the rows differ and the secrets do not, the
    coins are public; if the secrets differ and the rows do not, one coin serves all rows. A rare coin may look like
    either under a few secrets, so that many are asked before the model is refused.
    """
    by_secret = list[Tensor]()
    for secret in range(SECRETS):
        engine = engine_of(alike, secret)
        by_secret.append(engine.norms({name: (name,) for name in engine.shapes}).nan_to_num(0.0, 0.0))
        if secret == 0:
            continue
        rows_differ = any(not _alike(one, one[:1].expand_as(one)) for one in by_secret)
        secrets_differ = any(not _alike(one, by_secret[0]) for one in by_secret)
        if rows_differ == secrets_differ:
            return ""
    way = "are the same under every secret of a query" if rows_differ else "are shared by all records"
    return f"the coins that the model or the loss draws {way}: {WAY_OUT}"


def _alike(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-6 * one.abs().max().item())


def _device(params: Mapping[str, Tensor]) -> torch.device:
    return next(iter(params.values())).device


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
        trial = _try_without_values(model, loss_fn, params, like)
    except RemembersError:  # no engine serves it
        raise
    except Exception as error:  # it holds no data: a trial has no values
        return MethodChoice("loop", why_not_ghost=_in_words(error))
    return MethodChoice("ghost", trial.bare, reads_only=trial.reads_only)


def _try_without_values(
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any
) -> PassWithoutValues:
    """Run the model without values, as all records would share what its code does there.

    Python's and NumPy's generators may be moved by another thread, too. Where that cannot be told apart in a few
    passes, the model is traced, which tells (:func:`check_traceable`).

    Raises:
        UnsupportedModuleError: The code draws numbers that do not come from a tensor of the batch.
        Exception: Whatever else stands in the way.
    """
    several = threading.active_count() > 1
    for _ in range(5 if several else 1):
        with generators_kept():
            before = generator_states()
            trial = capture_without_values(model, loss_fn, params, like)
            if generator_states() == before:
                return trial
    if not several:
        raise UnsupportedModuleError(SHARED)
    engine = _engine(MethodChoice("ghost", trial.bare), model, loss_fn, params, like)
    assert isinstance(engine, GhostEngine)
    check_traceable(engine, like, ROWS)
    return trial


def _program(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any, probe: Any) -> MethodChoice:
    """Return the choice of the program; refuse a network that cannot be written down as one."""
    if like is None:
        raise UnsupportedModuleError('method="program" needs a record, for its shapes. Use method="vmap".')
    programs = Programs(model, loss_fn, like)
    try:
        programs.program(params)
        digest, choice = programs.digest, MethodChoice("program", reads_only=True, programs=programs)
        reason = obstacle(choice, model, loss_fn, params, probe)
    except RemembersError:  # no engine serves it
        raise
    except Exception as error:  # it holds no data: a trace has no values
        reason = _in_words(error)
    else:
        programs.digest = digest  # not that of a mode of the trial
    if reason:
        raise UnsupportedModuleError(
            f'method="program" cannot serve this model: {reason}. Rewrite that; or use method="loop", which '
            "runs the model's code on one record at a time, several times to a hundred times slower."
        )
    return choice


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


def _difference(engine: ChunkedEngine, definition: ChunkedEngine) -> str:
    """Name a parameter whose gradient differs from the definition's by more than rounding; empty if there is none.

    Rounding is that of the narrowest dtype in which the definition computes: under autocast it is not the parameters'.
    """
    groups = {name: (name,) for name in definition.shapes}
    with seeded(0, _device(definition.params)), _Precision() as precision:
        expected = definition.weighted_sums(torch.ones_like, groups)
    with seeded(0, _device(definition.params)):
        got = engine.weighted_sums(torch.ones_like, groups)
    scale = max(expected.norms.nan_to_num(0.0, 0.0).sum().item(), torch.finfo(torch.float32).tiny)
    for column, (name, shape) in enumerate(definition.shapes.items()):
        tolerance = max(precision.eps, min(0.1, 1000 * torch.finfo(definition.params[name].dtype).eps))
        off = (got.values[0][name] - expected.values[0][name]).abs().nan_to_num(0.0, 0.0).max().item()
        norms = expected.norms[:, column]
        norms = norms / round_up(torch.ones_like(norms), shape.numel())  # which made them bounds
        low = (norms - got.norms[:, column]).nan_to_num(0.0, 0.0).max().item()
        if max(off, low) > tolerance * scale:
            return f"it does not give the gradient of {name!r} on synthetic rows"
    return ""


class _Precision(TorchDispatchMode):
    """Watch in which dtypes operators compute.

    Attributes:
        eps: The rounding of the narrowest floating dtype that an operator gave.
    """

    eps = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex()):
                self.eps = max(self.eps, torch.finfo(one.dtype).eps)
        return found
