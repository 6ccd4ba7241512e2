"""The dry run: what would be done with a model, and what would be refused, before any budget is spent.

Place: [gradients]. Nothing here reads a value of the batch: structure, shapes and dtypes only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, map_tensors, to_device
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import LossFn, trainable
from tacita.gradients.ghost.capture import NamedUse, capture
from tacita.gradients.methods import chosen_method, default_chunk_rows, obstacle
from tacita.gradients.probe import ROWS
from tacita.gradients.rows import wide
from tacita.gradients.scan import module_refusals, scan
from tacita.gradients.seeds import seeded


@dataclass(frozen=True)
class ParameterPlan:
    """What is done for one parameter.

    Attributes:
        name: As in ``named_parameters()``.
        shape: Its shape.
        rule: The rule that gives its per-sample norms and weighted sums; ``"frozen"`` if it has no gradient.
        cost: In words, per sample.
        memory: Bytes of per-sample quantities that the rule holds, for each row of a physical batch (estimate).
    """

    name: str
    shape: tuple[int, ...]
    rule: str
    cost: str
    memory: int


@dataclass(frozen=True)
class Explanation:
    """The plan for a model and its loss. ``str()`` of it is a table.

    Attributes:
        method: ``"ghost"``, ``"vmap"`` or ``"loop"``: what ``method="auto"`` chooses; ``None`` if refused.
        parameters: One entry for each parameter.
        refused: Why per-sample gradients are not defined, each with the way out; empty if they are.
        notes: Why a faster method is not used, and what could not be tried.
        physical_batch_size: Rows in memory at once if none is set; ``None``: the whole batch.
    """

    method: str | None
    parameters: tuple[ParameterPlan, ...]
    refused: tuple[str, ...]
    notes: tuple[str, ...]
    physical_batch_size: int | None

    def __str__(self) -> str:
        head = ("parameter", "shape", "rule", "cost per sample", "memory per row")
        body = [(p.name, _by(p.shape), p.rule, p.cost, _size(p.memory)) for p in self.parameters]
        widths = [max(len(line[k]) for line in [head, *body]) for k in range(len(head))]
        table = [
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in [head, *body]
        ]
        total = f"total memory per row: {_size(sum(p.memory for p in self.parameters))}"
        rows = self.physical_batch_size or "the whole batch"
        state = [f"method: {self.method}", f"rows in memory at once: {rows}"] if self.method else []
        return "\n".join(
            [*state, *table, total, *(f"refused: {r}" for r in self.refused), *(f"note: {n}" for n in self.notes)]
        )


def explain(model: nn.Module, loss_fn: LossFn, batch: Any) -> Explanation:
    """The dry run of a model: the rule for each parameter, its cost and memory, and what is refused and why.

    Args:
        model: Any module; not modified.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,).
        batch: At least one row, as ``loss_fn`` takes it; only its structure, shapes and dtypes are used.

    Example:
        >>> import torch
        >>> plan = explain(nn.Linear(2, 1), lambda model, x: model(x).squeeze(1), torch.zeros(4, 2))
        >>> plan.refused
        ()
    """
    refused = module_refusals(model)
    if refused:
        return _refusal(model, tuple(str(r) for r in refused))
    params = trainable(model)
    if not params:
        return _refusal(model, ("'model' has no trainable parameter; set requires_grad=True on some",))
    try:
        found = scan(model, loss_fn, _like(batch, params))
    except UnsupportedModuleError as error:
        return _refusal(model, (str(error),))
    if found.refusals:
        return _refusal(model, tuple(str(r) for r in found.refusals))
    method = chosen_method("auto", model, loss_fn, params, found.probe)
    return Explanation(
        method=method,
        parameters=_plans(method, model, loss_fn, params, found.probe),
        refused=(),
        notes=found.notes + _why_not_faster(method, model, loss_fn, params, found.probe),
        physical_batch_size=default_chunk_rows(method, params),
    )


def _why_not_faster(
    method: str, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any
) -> tuple[str, ...]:
    faster = {"ghost": (), "vmap": ("ghost",), "loop": ("ghost", "vmap")}[method]
    reasons = {m: obstacle(m, model, loss_fn, params, probe) or "the model was not tried" for m in faster}
    return tuple(f"{m} is not used: {reason}." for m, reason in reasons.items())


def _plans(
    method: str, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any
) -> tuple[ParameterPlan, ...]:
    ghost = _ghost_plans(model, loss_fn, params, probe) if method == "ghost" else {}
    return tuple(ghost.get(name) or _plan(name, p, method) for name, p in model.named_parameters())


def _plan(name: str, parameter: Tensor, method: str) -> ParameterPlan:
    shape = tuple(parameter.shape)
    if not parameter.requires_grad:
        return ParameterPlan(name, shape, "frozen", "none", 0)
    cost = {
        "ghost": "none: the loss does not reach it",
        "vmap": "its own forward and backward pass, vectorised",
        "loop": "its own forward and backward pass, one after the other",
    }
    memory = 0 if method == "ghost" else parameter.numel() * wide(parameter.dtype).itemsize
    return ParameterPlan(name, shape, method, cost[method], memory)


def _ghost_plans(
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any
) -> dict[str, ParameterPlan]:
    """What each layer's rule does with the probe: the choice of a form is by shape, so a batch makes the same."""
    with seeded(0, next(iter(params.values())).device):
        uses = capture(model, loss_fn, params, Chunk(probe, ROWS, 0))
    plans: dict[str, ParameterPlan] = {}
    for named in uses:
        named.rule.squared_norms(named.use)
        for local, name in named.parameters.items():
            plan = _use_plan(name, local, tuple(params[name].shape), named)
            before = plans.get(name)
            cost = plan.cost if before is None else f"{before.cost} + {plan.cost}"
            plans[name] = replace(plan, cost=cost, memory=plan.memory + (before.memory if before else 0))
    return plans


def _use_plan(name: str, local: str, shape: tuple[int, ...], named: NamedUse) -> ParameterPlan:
    use = named.use
    kept = use.kept.get(local)
    first = local == use.names[0]  # input and output gradient serve all parameters of the layer: counted once
    held = [kept] if kept is not None else []
    memory = sum(t[0].numel() * t.element_size() for t in [*held, *([use.x, use.grad] if first else [])])
    form = "gradient, kept for the sum" if kept is not None else "norm without gradient"
    cost = f"{form}: input {_by(use.x.shape[1:])}, output {_by(use.grad.shape[1:])}"
    return ParameterPlan(name, shape, f"ghost {type(use.module).__name__}", cost, memory)


def _like(batch: Any, params: Mapping[str, Tensor]) -> Any:
    sizes: list[int] = []
    map_tensors(lambda t: sizes.append(t.shape[0] if t.ndim else 0) or t, batch)
    if not sizes or sizes[0] == 0:
        raise ValueError("batch must hold at least one row, to take shapes from.")
    flatten(batch, sizes[0])  # raises if it is not one batch
    return to_device(batch, next(iter(params.values())).device)


def _refusal(model: nn.Module, reasons: tuple[str, ...]) -> Explanation:
    return Explanation(
        method=None,
        parameters=tuple(
            ParameterPlan(name, () if nn.parameter.is_lazy(p) else tuple(p.shape), "refused", "none", 0)
            for name, p in model.named_parameters()
        ),
        refused=reasons,
        notes=(),
        physical_batch_size=None,
    )


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
