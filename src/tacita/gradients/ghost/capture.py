"""One forward and one backward pass that record what every layer with a rule received and was sent back.

Place: ghost engine. Private. Parameters take part in the graph, so that it shows each use of each of them, but no
gradient of a parameter is computed: the backward pass is asked for the outputs of layers only.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from tacita.errors import UnsupportedModuleError
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import LossFn, losses_at
from tacita.gradients.ghost.registry import rule_for
from tacita.gradients.ghost.rule import LayerRule, LayerUse
from tacita.gradients.rows import wide

WAY_OUT = 'Use method="vmap" or "loop".'


@dataclass(frozen=True)
class _Call:
    """What a forward hook sees: the layer, its parameters (its own name -> the model's), input and output."""

    module: nn.Module
    parameters: dict[str, str]
    x: Tensor
    version: int
    edge: GradientEdge
    output_rows: int


@dataclass(frozen=True)
class NamedUse:
    """A use of a layer, with the model's names of its parameters."""

    use: LayerUse
    parameters: dict[str, str]  # the layer's own name -> the model's
    rule: LayerRule


def capture(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], chunk: Chunk) -> list[NamedUse]:
    """Every use of a layer with a rule that the losses depend on.

    Raises:
        UnsupportedModuleError: A parameter is used in a way that the hooks did not see, a layer's input was modified
            in place afterwards, or its first axis is not the batch.
    """
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    names = {id(leaf): name for name, leaf in leaves.items()}
    with torch.enable_grad():
        with _recorded(model, params, names) as calls:
            losses = losses_at(model, loss_fn, leaves, chunk.batch, chunk.size)
        grads = _output_grads(losses, calls)
    uses = [(call, grad) for call, grad in zip(calls, grads, strict=True) if grad is not None]
    _check_every_use_was_seen(losses, names, [call for call, _ in uses])
    return [_named_use(call, grad, chunk.size) for call, grad in uses]


def check_layout(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], batch: Any) -> None:
    """Raise if a layer's first axis is not the batch, on a batch of one row.

    A batch whose size happens to equal another axis (positions in ``embedding(arange(T))``, time-first sequences)
    looks right; one row of it does not.
    """
    wrong: list[str] = []

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        x = args[0] if args else next(iter(kwargs.values()))
        if any(isinstance(t, Tensor) and t.shape[:1] != (1,) for t in (x, output)):
            wrong.append(type(module).__name__)

    with torch.no_grad(), _hooked(_layers(model, {id(p) for p in _trainable(model, params)}), hook):
        losses_at(model, loss_fn, params, batch, 1)
    if wrong:
        raise UnsupportedModuleError(
            f"the first axis of the input of a {wrong[0]} layer is not the batch: for one sample it is not 1. {WAY_OUT}"
        )


def _trainable(model: nn.Module, params: Mapping[str, Tensor]) -> list[Tensor]:
    return [p for name, p in model.named_parameters() if name in params]


def _layers(model: nn.Module, chosen: Collection[int]) -> list[nn.Module]:
    """Layers with a rule and one of the parameters whose ids are given."""
    served = (module for module in model.modules() if module._parameters and rule_for(module) is not None)
    return [module for module in served if any(id(p) in chosen for p in module._parameters.values())]


@contextmanager
def _hooked(layers: list[nn.Module], hook: Callable) -> Iterator[None]:
    """Forward hooks that run before any of the user's own, which may replace the output."""
    handles = [layer.register_forward_hook(hook, prepend=True, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _recorded(model: nn.Module, params: Mapping[str, Tensor], names: Mapping[int, str]) -> Iterator[list[_Call]]:
    """The calls of layers while the forward pass runs with parameters whose ids are in ``names``."""
    calls: list[_Call] = []

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        found = {local: names[id(p)] for local, p in module._parameters.items() if id(p) in names}
        if found and isinstance(output, Tensor) and output.requires_grad:
            x = args[0] if args else next(iter(kwargs.values()))
            rows = output.shape[0] if output.ndim else 0
            calls.append(_Call(module, found, x.detach(), x._version, get_gradient_edge(output), rows))

    with _hooked(_layers(model, {id(p) for p in _trainable(model, params)}), hook):
        yield calls


def _output_grads(losses: Tensor, calls: list[_Call]) -> tuple[Tensor | None, ...]:
    """Gradients of the summed losses with respect to the layers' outputs; ``None`` where they do not depend on one."""
    if not calls or not losses.requires_grad:
        return (None,) * len(calls)
    ones = torch.ones_like(losses)
    return torch.autograd.grad(losses, [call.edge for call in calls], ones, allow_unused=True)


def _check_every_use_was_seen(losses: Tensor, names: Mapping[int, str], calls: list[_Call]) -> None:
    """Raise unless the graph uses each parameter exactly as often as the recorded calls do."""
    in_graph = _uses_in_graph(losses, names)
    recorded = Counter(name for call in calls for name in call.parameters.values())
    wrong = sorted(name for name in in_graph | recorded if in_graph[name] != recorded[name])
    if wrong:
        raise UnsupportedModuleError(
            f"the ghost engine did not see every use of {', '.join(map(repr, wrong))}: it is used outside a call of "
            f"its layer, or the layer's output is a view that is modified in place. {WAY_OUT}"
        )


def _uses_in_graph(losses: Tensor, names: Mapping[int, str]) -> Counter[str]:
    """How many edges of the graph of ``losses`` lead to each parameter."""
    found: Counter[str] = Counter()
    waiting = [losses.grad_fn] if losses.grad_fn is not None else []
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None:
                continue
            if type(node).__name__ == "AccumulateGrad":  # where a leaf's gradient would arrive
                leaf = id(node.variable)  # type: ignore[attr-defined]
                found.update([names[leaf]] if leaf in names else [])
            elif node not in seen:
                seen.add(node)
                waiting.append(node)
    return found


def _named_use(call: _Call, grad: Tensor, size: int) -> NamedUse:
    listed = ", ".join(map(repr, call.parameters.values()))
    if call.x._version != call.version:
        raise UnsupportedModuleError(f"the input of the layer of {listed} is modified in place afterwards. {WAY_OUT}")
    x = call.x.to(wide(call.x.dtype)) if call.x.is_floating_point() else call.x
    use = LayerUse(call.module, tuple(call.parameters), x, grad.to(wide(grad.dtype)))
    rows = x.shape[0] if x.ndim else 0
    rule = rule_for(call.module)
    if rule is None:
        raise UnsupportedModuleError(f"the rule for the layer of {listed} was withdrawn while it ran.")
    reason = rule.obstacle(call.module) or rule.misfit(use)
    if not reason and not rows == call.output_rows == grad.shape[0] == size:
        reason = f"the first axis of its input is not the batch: {rows} for {size} samples"
    if reason:
        raise UnsupportedModuleError(f"the layer of {listed} is not served: {reason}. {WAY_OUT}")
    return NamedUse(use, call.parameters, rule)
