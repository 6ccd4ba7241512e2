"""The dry run: how a model would be served, and what would be refused, before any budget is spent.

Nothing here reads a value of the batch: only structure, shapes and dtypes are used.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, tensors_in, to_device
from tacita.gradients.chunked import Chunk
from tacita.gradients.engine_choice import MethodChoice, choose_method
from tacita.gradients.functional import LossFn, check_loss_fn, trainable
from tacita.gradients.probe import ROWS, synthetic
from tacita.gradients.program import ProgramEngine
from tacita.gradients.rules.rule import NamedUse
from tacita.gradients.scan import module_refusals, scan
from tacita.gradients.seeds import seeded

__all__ = ["Explanation", "ParameterPlan", "explain"]

FROZEN = "frozen"  # the rule of a parameter without a gradient


@dataclass(frozen=True)
class ParameterPlan:
    """How one parameter is served.

    Attributes:
        name: As in ``named_parameters()``.
        shape: Its shape.
        rule: The rule that gives its per-sample norms and weighted sums; ``"frozen"`` if it has no gradient.
        cost: The cost per sample, in words.
        memory: Estimated bytes of per-sample quantities that the rule holds for each row of a physical batch.
    """

    name: str
    shape: tuple[int, ...]
    rule: str
    cost: str
    memory: int


@dataclass(frozen=True)
class Explanation:
    """The plan for a model and its loss. ``str()`` of it is a table, with frozen parameters on one line.

    Attributes:
        method: ``"program"``; ``None`` if the model is refused.
        parameters: One entry for each parameter.
        refused: The reasons why per-sample gradients are not defined, each with the way out; empty if they are.
        notes: What could not be tried.
        physical_batch_size: Rows in memory at once if the caller sets no number; ``None``: the whole batch.
    """

    method: str | None
    parameters: tuple[ParameterPlan, ...]
    refused: tuple[str, ...]
    notes: tuple[str, ...]
    physical_batch_size: int | None

    def __str__(self) -> str:
        head = ("parameter", "shape", "rule", "cost per sample", "memory per row")
        frozen = [p for p in self.parameters if p.rule == FROZEN]
        shown = [p for p in self.parameters if p.rule != FROZEN]
        body = [(p.name, _by(p.shape), p.rule, p.cost, _size(p.memory)) for p in shown]
        widths = [max(len(line[k]) for line in [head, *body]) for k in range(len(head))]
        table = [
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in [head, *body]
        ]
        if frozen:
            table.append(f"frozen: {len(frozen)} parameters, {sum(math.prod(p.shape) for p in frozen):,} numbers")
        total = f"total memory per row: {_size(sum(p.memory for p in self.parameters))}"
        rows = self.physical_batch_size or "the whole batch"
        state = [f"method: {self.method}", f"rows in memory at once: {rows}"] if self.method else []
        return "\n".join(
            [*state, *table, total, *(f"refused: {r}" for r in self.refused), *(f"note: {n}" for n in self.notes)]
        )


def explain(model: nn.Module, loss_fn: LossFn, batch: Any) -> Explanation:
    """Make a dry run of a model: the rule for each parameter, its cost and memory, and what is refused and why.

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
    check_loss_fn(loss_fn)
    refused = module_refusals(model)
    if refused:
        return _refusal(model, tuple(str(r) for r in refused))
    params = trainable(model)
    if not params:
        return _refusal(model, ("'model' has no trainable parameter; set requires_grad=True on some",))
    try:
        like = _like(batch, params)
        found = scan(model, loss_fn, like)
    except UnsupportedModuleError as error:
        return _refusal(model, (str(error),))
    if found.refusals:
        return _refusal(model, tuple(str(r) for r in found.refusals))
    try:
        choice = choose_method("auto", model, loss_fn, like=like)
        choice.check(model, loss_fn, params, found.probe)
    except UnsupportedModuleError as error:
        return _refusal(model, (str(error),))
    return Explanation(
        method=choice.method,
        parameters=_plans(choice, model, loss_fn, params, like),
        refused=(),
        notes=found.notes,
        physical_batch_size=None,
    )


def _plans(
    choice: MethodChoice, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any
) -> tuple[ParameterPlan, ...]:
    """Return what each rule does with synthetic rows. It chooses a form by shape, so a real batch gets the same."""
    with seeded(0, next(iter(params.values())).device):
        probe = synthetic(like, ROWS, fill="zeros", seed=0)
        engine = choice.engine(model, loss_fn, params, [], torch.empty(0))
        assert isinstance(engine, ProgramEngine)
        uses = engine.uses(Chunk(probe, ROWS, 0)).found
    plans: dict[str, ParameterPlan] = {}
    for named in uses:
        named.rule.squared_norms(named.use)
        for local, name in named.parameters.items():
            plan = _use_plan(name, local, tuple(params[name].shape), named)
            before = plans.get(name)
            cost = plan.cost if before is None else f"{before.cost} + {plan.cost}"
            plans[name] = replace(plan, cost=cost, memory=plan.memory + (before.memory if before else 0))
    unused = ("unused", "none: the loss does not reach it")
    return tuple(
        plans.get(name)
        or ParameterPlan(name, tuple(p.shape), *(unused if p.requires_grad else (FROZEN, "none")), memory=0)
        for name, p in model.named_parameters()
    )


def _use_plan(name: str, local: str, shape: tuple[int, ...], named: NamedUse) -> ParameterPlan:
    use = named.use
    kept = use.kept.get(local)
    first = local == use.names[0]  # input and output gradient serve all parameters of the layer, so count them once
    held = [kept] if kept is not None else []
    memory = sum(t[0].numel() * t.element_size() for t in [*held, *([use.x, use.grad] if first else [])])
    form = "gradient, kept for the sum" if kept is not None else "norm without gradient"
    cost = f"{form}: input {_by(_of_a_record(use.x))}, output {_by(_of_a_record(use.grad))}"
    return ParameterPlan(name, shape, named.function, cost, memory)


def _of_a_record(rows: Tensor) -> Sequence[int]:
    """Return the shape of a row, without the axis of a batch of one record."""
    return rows.shape[2:] if rows.ndim > 2 and rows.shape[1] == 1 else rows.shape[1:]


def _like(batch: Any, params: Mapping[str, Tensor]) -> Any:
    sizes = [t.shape[0] if t.ndim else 0 for t in tensors_in(batch)]
    if not sizes or sizes[0] == 0:
        raise ValueError("batch must hold at least one row, to take shapes from.")
    flatten(batch, sizes[0])  # raises if the tensors differ in length
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
