"""The dry run: what would be done with a model, and what would be refused, before any budget is spent.

Place: [gradients]. Nothing here reads a value of the batch: structure, shapes and dtypes only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, map_tensors, to_device
from tacita.gradients.functional import LossFn, trainable
from tacita.gradients.methods import chosen_method, default_chunk_rows, obstacle
from tacita.gradients.rows import wide
from tacita.gradients.scan import module_refusals, scan


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
        body = [
            (p.name, "x".join(map(str, p.shape)) or "scalar", p.rule, p.cost, _size(p.memory)) for p in self.parameters
        ]
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
    faster = {"ghost": (), "vmap": ("ghost",), "loop": ("ghost", "vmap")}[method]
    reasons = tuple(f"{m} is not used: {obstacle(m, model, loss_fn, params, found.probe)}." for m in faster)
    return Explanation(
        method=method,
        parameters=tuple(_plan(name, p, method) for name, p in model.named_parameters()),
        refused=(),
        notes=found.notes + reasons,
        physical_batch_size=default_chunk_rows(method, params),
    )


def _plan(name: str, parameter: Tensor, method: str) -> ParameterPlan:
    shape = tuple(parameter.shape)
    if not parameter.requires_grad:
        return ParameterPlan(name, shape, "frozen", "none", 0)
    cost = {
        "loop": "its own forward and backward pass, one after the other",
        "vmap": "its own forward and backward pass, vectorised",
    }
    return ParameterPlan(name, shape, method, cost[method], parameter.numel() * wide(parameter.dtype).itemsize)


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


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
