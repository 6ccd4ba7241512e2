"""The choice of the engine that serves a network: made once, before any data is used."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, tensors_in
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.functional import LossFn
from tacita.gradients.loop import KEEPS_NOTHING, LoopEngine
from tacita.gradients.probe import ROWS, evaluating, row
from tacita.gradients.program import ProgramEngine, Programs
from tacita.gradients.program.allowed import line_of
from tacita.gradients.program.batching import NO_RULE
from tacita.gradients.program.surroundings import plain_autograd
from tacita.gradients.seeds import generators_kept, seeded
from tacita.gradients.weighted_sums import round_up, wide

METHODS = ("auto", "program", "loop")
GRADIENT_BYTES = 2**28  # of gradients that the loop holds at once if the caller sets no physical batch size
WAYS_OUT = (
    'Rewrite that; or pass method="loop", which runs the code of the model and the loss on records, one at a time: it '
    "takes several times to a hundred times as long, and the guarantee then has the condition that this code keeps "
    "nothing of a record."
)
_DRAWS = torch.Tag.nondeterministic_seeded


class MethodChoice:
    """What serves a network.

    Args:
        method: ``"program"`` or ``"loop"``.
        programs: The programs of the network; ``None`` for the loop, and without a record to take shapes from.
    """

    def __init__(self, method: str, programs: Programs | None = None) -> None:
        self.method, self.programs = method, programs

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions of the guarantee that nobody enforces."""
        return (KEEPS_NOTHING,) if self.method == "loop" else ()

    def engine(self, model: nn.Module, loss_fn: LossFn, *args: Any, **kwargs: Any) -> ChunkedEngine:
        """Return an engine of one batch; the arguments are those of :class:`ChunkedEngine`."""
        if self.method == "loop":
            return LoopEngine(model, loss_fn, *args, **kwargs)
        engine = ProgramEngine(model, loss_fn, *args, **kwargs)
        engine.programs = self.programs
        engine.prepare()
        return engine

    def check(self, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any) -> None:
        """Try it on synthetic rows in the model's present modes, and hold it against the loop on a record alone.

        Args:
            model: The network.
            loss_fn: Its loss.
            params: Its trainable parameters.
            probe: A synthetic batch of ``ROWS`` rows on which the model runs; ``None`` if there is none.

        Raises:
            UnsupportedModuleError: It cannot serve the model; the message says why, and the ways out.
        """
        if self.method == "loop" and probe is not None:
            _check_repeats(LoopEngine(model, loss_fn, params, [], torch.arange(0), seed=1), probe)
        if self.programs is None:
            return
        with refusing(self.method), plain_autograd():
            self.programs.program(params)
            if probe is not None and (reason := self._obstacle(model, loss_fn, params, probe, self.programs)):
                raise UnsupportedModuleError(reason)

    def _obstacle(
        self, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any, programs: Programs
    ) -> str:
        """Return in what the engine differs from the loop; empty if in nothing.

        Where the model draws at random the two are compared record by record, under the same coins; and if these come
        in another order, in eval mode.
        """

        moved = {name: _moved(one) for name, one in params.items()}  # zeros hide what comes before them

        def engines(batch: Any) -> tuple[ChunkedEngine, ChunkedEngine]:
            tensors, rebuild = flatten(batch, len(tensors_in(batch)[0]))
            chunks = [Chunk(rebuild([one.clone() for one in tensors]), len(tensors[0]), 0)]
            given = model, loss_fn, moved, chunks, torch.arange(len(tensors[0]))
            return self.engine(*given), LoopEngine(*given)

        drawing = programs.program(params)[0].draws
        batches = [row(probe, index) for index in range(ROWS)] if drawing else [probe]
        if not (reason := _difference(map(engines, batches))) or not drawing:
            return reason
        with evaluating(model):  # the coins come in another order, maybe
            calm = not programs.program(params)[0].draws
            return _difference(map(engines, [probe] if calm else batches))


def choose_method(method: str, model: nn.Module, loss_fn: LossFn, *, like: Any, build: Any = None) -> MethodChoice:
    """Choose the engine: the loop if it is named, else the program. Nothing is tried yet.

    Args:
        method: One of ``METHODS``.
        model: The network.
        loss_fn: Its loss.
        like: A batch of at least one row, for its shapes and dtypes; ``None`` if there is none.
        build: Makes a program of a model of shards; ``None`` if the model is whole.

    Raises:
        ValueError: ``method`` is not one of ``METHODS``.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    if method == "loop":
        return MethodChoice("loop")
    return MethodChoice("program", None if like is None else Programs(model, loss_fn, like, build))


@contextmanager
def refusing(method: str) -> Iterator[None]:
    """Let whatever is raised inside be the reason why a method cannot serve a model.

    It holds no data: a trace has no values, and a trial none of a record.
    """
    try:
        yield
    except Exception as error:
        ways_out = WAYS_OUT if method == "program" else "Rewrite that."
        raise UnsupportedModuleError(
            f'method="{method}" cannot serve this model: {_in_words(error)}. {ways_out}'
        ) from None


def default_chunk_rows(method: str, params: Mapping[str, Tensor]) -> int | None:
    """Return how many rows are in memory at once if the caller sets no bound; ``None`` means all."""
    if method != "loop":
        return None
    row_bytes = sum(p.numel() * wide(p.dtype).itemsize for p in params.values())
    return max(1, GRADIENT_BYTES // max(1, row_bytes))


# A pattern in PyTorch's message where vmap or a trial without values stops -> a cause that a person can act on.
_CAUSES = {
    "gather.*for index": "class labels, or another index, are neither int64 nor int32: write .long(), as in "
    "cross_entropy(model(x), y.long(), reduction='none')",
    "override the setup_context": "the forward of a torch.autograd.Function takes ctx: write def forward(x) and "
    "def setup_context(ctx, inputs, output)",
    "control flow": "its code looks at values of a record (an if, bool() or a comparison of a tensor)",
    r"DataDependentOutput|\.item\(\)": "its code looks at values of a record (.item(), .tolist(), int() of a tensor)",
    "DynamicOutputShape|dynamic shape": "the shape of a tensor depends on values (nonzero, a boolean mask as index, "
    "bincount), which torch.where with all rows in place avoids",
    "GuardOnDataDependent": "the shape of a tensor depends on values, or a branch does (packed sequences, .item())",
}


def _in_words(error: Exception) -> str:
    """Say why a trial failed, in one line without a full stop."""
    line = next((line for line in str(error).splitlines() if line.strip()), "no message").rstrip(".")
    if (place := line_of(error)) and place not in line:
        line = f"{line} ({place})"
    if isinstance(error, UnsupportedModuleError):
        return line
    said = f"{type(error).__name__}: {error}"
    if found := NO_RULE.search(said):
        return f"PyTorch's vmap has no batching rule for {found[1]}{f' ({place})' if place else ''}"
    cause = next((words for part, words in _CAUSES.items() if re.search(part, said)), "")
    return (f"{cause} ({place})" if place else cause) if cause else f"{type(error).__name__}: {line}"


def _check_repeats(engine: LoopEngine, probe: Any) -> None:
    """Raise ``UnsupportedModuleError`` if a synthetic row has another loss or gradient once others were met."""
    chunk = Chunk(probe, ROWS, 0, labels=torch.arange(ROWS))

    def seen(loss: Tensor, params: dict[str, Tensor]) -> list[Tensor]:
        return [loss.detach(), *engine.grads_of(loss, params).values()]

    with refusing("loop"), generators_kept(engine._device):
        first, *_, again = engine.each_record(chunk, (*range(ROWS), 0), seen)
    if not all(torch.allclose(a, b, equal_nan=True) for a, b in zip(first, again, strict=True)):
        raise UnsupportedModuleError(
            "a record has another loss or gradient once the model and the loss have met others: they keep something "
            "of them, count, or draw from a generator of their own. Let them depend on parameters and the batch alone; "
            "count outside of them; draw in __init__, or from the global generator (torch.rand_like(x), dropout)."
        )


def _moved(tensor: Tensor) -> Tensor:
    """Return a point beside a parameter, the same at each call."""
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
    return tensor + (0.02 * noise).to(tensor.device, tensor.dtype)


def _difference(pairs: Iterable[tuple[ChunkedEngine, ChunkedEngine]]) -> str:
    """Name a parameter whose gradient differs from the definition's by more than rounding; empty if there is none.

    Rounding is that of the narrowest dtype in which the definition computes, which under autocast is not the
    parameters', and in proportion to all rows: a row of equal tokens may have no gradient but what rounding makes.
    """
    found = [(definition, *_both(engine, definition)) for engine, definition in pairs]
    scale = max(sum(one.norms.nan_to_num(0.0, 0.0).sum().item() for _, _, one, _ in found), 1e-37)
    for definition, got, expected, eps in found:
        for column, (name, shape) in enumerate(definition.shapes.items()):
            tolerance = max(eps, min(0.1, 1000 * torch.finfo(definition.params[name].dtype).eps))
            exact, mine = expected.values[0][name], got.values[0][name]
            norms = expected.norms[:, column] / round_up(expected.norms.new_ones(()), shape.numel())  # no bounds now
            if max(_most((mine - exact).abs(), exact), _most(norms - got.norms[:, column], norms)) > tolerance * scale:
                return f"it does not give the gradient of {name!r} on synthetic rows"
    return ""


def _most(apart: Tensor, exact: Tensor) -> float:
    """Return the largest difference from exact numbers that are finite; infinite, where the engine has no number."""
    return apart.nan_to_num(torch.inf, torch.inf).where(exact.isfinite(), 0.0).max().item()


def _both(engine: ChunkedEngine, definition: ChunkedEngine) -> tuple[Any, Any, float]:
    """Return what the engine and the definition add up, under the same coins, and the definition's rounding."""
    groups = {name: (name,) for name in definition.shapes}
    with seeded(0, definition._device), _Precision() as precision:
        expected = definition.weighted_sums(torch.ones_like, groups)
    with seeded(0, definition._device):
        return engine.weighted_sums(torch.ones_like, groups), expected, precision.eps


class _Precision(TorchDispatchMode):
    """Watch in which dtypes the loop computes; let it draw as a program does, where a single row runs twice.

    Attributes:
        eps: The rounding of the narrowest floating dtype that an operator gave.
    """

    eps = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        found = self._as_drawn_twice(func, args, kwargs) if _DRAWS in func.tags else func(*args, **kwargs)
        for one in tree_leaves(found):
            if isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex()):
                self.eps = max(self.eps, torch.finfo(one.dtype).eps)
        return found

    def _as_drawn_twice(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Draw for a record and its copy, and give the record's coins, which depend on how many are drawn."""
        device = next((one.device for one in tree_leaves(args) if isinstance(one, Tensor)), torch.device("cpu"))
        with generators_kept(device):
            found = func(*args, **kwargs)
        try:
            tensors = any(isinstance(one, Tensor) for one in tree_leaves(args))
            # a draw from sizes is asked for with an axis for the two
            two = tree_map(_twice, args) if tensors else [[2, *a] if isinstance(a, list | tuple) else a for a in args]
            both = func(*two, **kwargs)
        except RuntimeError:
            return func(*args, **kwargs)
        for one, twice in zip(tree_leaves(found), tree_leaves(both), strict=True):
            if isinstance(one, Tensor) and twice.shape[1:] == one.shape:  # from sizes, with an axis for the two
                one.copy_(twice[0])
            elif isinstance(one, Tensor) and one.ndim and len(twice) == 2 * len(one):
                one.copy_(twice[: len(one)])
        return found


def _twice(one: Any) -> Any:
    return torch.cat([one, one]) if isinstance(one, Tensor) and one.ndim else one
