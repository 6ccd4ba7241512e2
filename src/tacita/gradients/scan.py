"""Refuse, before any data is used, a model or loss whose per-sample gradients are not defined.

There are two checks. One knows modules that mix samples or remember data. The other tries the model on synthetic rows,
which shows cases that no list has: a contrastive loss, an attention over the batch axis, a buffer that a forward pass
writes. A trial can miss a mixing that synthetic rows do not show. It refuses no loss that is per sample up to rounding.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import map_leaves
from tacita.gradients.functional import PER_SAMPLE, LossFn, ModuleTree, attributes_kept, described, is_per_sample
from tacita.gradients.probe import FILLS, ROWS, draws, evaluating, jittered, row, row_repeated, select, synthetic, trial
from tacita.gradients.processes import is_dtensor

TYPES = (
    "let records fit model and loss, which get batches of any size, of one record too: numbers in float32, classes in "
    "int64, tensors in the shapes and containers they read"
)
OF_STRUCTURE = ("type (", "output type", "dtype", "shape", "size", "channels", "argument", "attribute", "indices must")


@dataclass(frozen=True)
class Refusal:
    """One reason why per-sample gradients are not defined.

    Attributes:
        where: Qualified name of the module, or ``"loss_fn"``.
        reason: The defect, as a predicate of ``where``.
        way_out: How to mend it.
    """

    where: str
    reason: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.where!r} {self.reason}; {self.way_out}"


@dataclass(frozen=True)
class Scan:
    """The refusals of a model, notes, and the synthetic batch (``ROWS`` rows) on which it runs, if there is one."""

    refusals: tuple[Refusal, ...]
    probe: Any | None
    notes: tuple[str, ...]

    def check(self) -> "Scan":
        """Raise ``UnsupportedModuleError`` if anything was refused."""
        if self.refusals:
            raise UnsupportedModuleError(
                "per-sample gradients are not defined: " + ". ".join(str(r) for r in self.refusals) + "."
            )
        return self


def scan(model: nn.Module, loss_fn: LossFn, like: Any | None) -> Scan:
    """Check the modules, then try the model on synthetic rows shaped like the batch ``like``.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses (batch,)``.
        like: A batch of at least one row, on the model's device; only its structure, shapes and dtypes are used.
            With ``None`` (an empty dataset) only the modules are checked.
    """
    refusals = module_refusals(model)
    if refusals:
        return Scan(refusals, None, ())
    if like is None:
        return Scan((), None, ("there is no record to take shapes from: the model was not tried.",))
    with attributes_kept(ModuleTree(model)):
        return _try(model, loss_fn, like)


def module_refusals(model: nn.Module) -> tuple[Refusal, ...]:
    """Return the modules that mix samples or remember data in their present mode, trainable or frozen. Cheap."""
    return tuple(filter(None, (refused(name or type(one).__name__, one) for name, one in model.named_modules())))


def check_modules(model: nn.Module) -> None:
    """Raise ``UnsupportedModuleError`` if :func:`module_refusals` finds any module."""
    Scan(module_refusals(model), None, ()).check()


def refused(name: str, module: nn.Module) -> Refusal | None:
    """Return why one module mixes samples or remembers data in its present mode; ``None`` if it does not."""
    checks = (_wrapper, _sharded, _lazy, _hooked, _complex, _batch_norm, _instance_norm)
    return next(filter(None, (check(name, module) for check in checks)), None)


def _wrapper(name: str, module: nn.Module) -> Refusal | None:
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return Refusal(name, "adds up the gradients of samples before they are clipped", "pass model.module")
    if isinstance(module, getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())):
        way_out = "shard the model with fully_shard (FSDP2), and pass process_group="
        return Refusal(name, "adds up the gradients of samples before they are clipped", way_out)
    return None


def _sharded(name: str, module: nn.Module) -> Refusal | None:
    if any(is_dtensor(p) for p in module.parameters(recurse=False)) and not hasattr(module, "_is_fsdp_managed_module"):
        return Refusal(
            name,
            "has parameters that are spread over several ranks (DTensor, as FSDP2 and tensor parallelism make them), "
            "which is not supported here",
            "hold the whole model on every rank, and share the rows: process_group=, with which an oracle also serves "
            "a model sharded by fully_shard",
        )
    return None


def _lazy(name: str, module: nn.Module) -> Refusal | None:
    if any(is_lazy(p) for p in module.parameters(recurse=False)):
        return Refusal(name, "has parameters without a shape yet", "run one forward pass first")
    return None


def _hooked(name: str, module: nn.Module) -> Refusal | None:
    hooks = {
        key: (p._backward_hooks, p._post_accumulate_grad_hooks) for key, p in module.named_parameters(recurse=False)
    }
    found = [key for key, of_one in hooks.items() if any(of_one)]
    if found:
        return Refusal(
            name,
            f"has a hook on a parameter ({', '.join(found)}), which a private gradient does not call",
            "remove it, and do the same to .grad after backward(): what is done to a released gradient is free",
        )
    return None


def _complex(name: str, module: nn.Module) -> Refusal | None:
    found = [key for key, p in module.named_parameters(recurse=False) if p.requires_grad and p.is_complex()]
    if found:
        return Refusal(
            name,
            f"has complex parameters ({', '.join(found)}), for which neither norms nor noise are defined here",
            "hold real and imaginary parts in a real parameter (torch.view_as_complex), or freeze it",
        )
    return None


def _batch_norm(name: str, module: nn.Module) -> Refusal | None:
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        kind = type(module).__name__
        return Refusal(
            name,
            f"({kind}) computes statistics over the batch, and so mixes samples",
            f"replace {kind} {name!r} by GroupNorm, or put it in eval mode with frozen statistics: .eval() of {name!r} "
            "alone, after model.train() (which tacita.fit calls if the whole model is in eval mode)",
        )
    return None


def _instance_norm(name: str, module: nn.Module) -> Refusal | None:
    if isinstance(module, _InstanceNorm) and module.training and module.track_running_stats:
        return Refusal(
            name, f"({type(module).__name__}) remembers statistics of the data", "set track_running_stats=False"
        )
    return None


def _try(model: nn.Module, loss_fn: LossFn, like: Any) -> Scan:
    failure, probe = "", like
    for fill in FILLS:
        probe = synthetic(like, ROWS, fill=fill, seed=1)
        try:
            losses, changed = trial(model, loss_fn, probe)
        except Exception as error:  # the values may be outside of the model's domain: try others
            failure = type(error).__name__
            continue
        if not is_per_sample(losses, ROWS):
            reason = f"returns {described(losses)} for {ROWS} samples, not one floating-point loss a sample"
            return Scan((Refusal("loss_fn", reason, PER_SAMPLE[0].lower() + PER_SAMPLE[1:]),), None, ())
        if losses.isfinite().all() or fill == FILLS[-1]:
            return Scan(_changed(changed) or _alone(model, loss_fn, probe) or _mixing(model, loss_fn, probe), probe, ())
    try:
        trial(model, loss_fn, row(probe, 0))
    except Exception as error:
        if type(error) in (RuntimeError, TypeError, AttributeError) and any(map(str(error).count, OF_STRUCTURE)):
            kinds, words = str(map_leaves(lambda t: (t.dtype, *t.shape), like)), str(error).partition("\n")[0]
            kinds = kinds if len(kinds) < 300 else f"{kinds[:200]} ... (a list of numbers is a list of records)"
            return Scan((Refusal("loss_fn", f"raises {type(error).__name__} on {kinds}: {words}", TYPES),), None, ())
    return Scan((), None, (f"the model does not run on synthetic rows ({failure}): it was not tried.",))


def _changed(names: tuple[str, ...]) -> tuple[Refusal, ...]:
    way_out = "remove it, or put its module in eval mode if that stops it"
    return tuple(
        Refusal(name, "is a parameter or buffer that a forward pass changes: it would remember data", way_out)
        for name in names
    )


def _alone(model: nn.Module, loss_fn: LossFn, probe: Any) -> tuple[Refusal, ...]:
    """Return refusals if the model does not run on one sample alone, as engines run it."""
    way_out = "keep the batch axis, squeeze(1) in place of squeeze() say"
    try:
        losses, _ = trial(model, loss_fn, row(probe, 0))
    except Exception as error:
        return (Refusal("loss_fn", f"fails on a batch of one sample ({type(error).__name__})", way_out),)
    if not is_per_sample(losses, 1):
        return (Refusal("loss_fn", f"returns {described(losses)} for a batch of one sample, not (1,)", way_out),)
    return ()


def _mixing(model: nn.Module, loss_fn: LossFn, probe: Any) -> tuple[Refusal, ...]:
    """Return refusals if a row's loss depends on the other rows, or on how many there are."""
    way_out = (
        "check the batch axis of attention and recurrent layers (batch_first=True), "
        "statistics over the batch, contrastive terms, divisions by the batch size"
    )
    if _content_matters(model, loss_fn, probe):
        return (Refusal("loss_fn", "gives a sample a loss that depends on other samples of the batch", way_out),)
    if _number_matters(model, loss_fn, probe):
        return (Refusal("loss_fn", "gives a sample a loss that depends on how many samples there are", way_out),)
    return ()


def _content_matters(model: nn.Module, loss_fn: LossFn, probe: Any) -> bool:
    losses, _ = trial(model, loss_fn, probe)
    for keep in range(ROWS):  # the same seed: dropout draws the same masks for the same shapes
        beside, _ = trial(model, loss_fn, select(probe, row_repeated(probe, keep - 1), keep))
        if not _close(beside[keep], losses[keep], losses) and not _round_off(model, loss_fn, probe, beside, keep):
            return True
    return False


def _number_matters(model: nn.Module, loss_fn: LossFn, probe: Any) -> bool:
    if not torch.equal(*(trial(model, loss_fn, probe, seed)[0].nan_to_num() for seed in (0, 1))):
        with evaluating(model):  # the model draws at random: compare without the draws, if they stop
            return not draws(model, loss_fn, probe) and _differs_alone(model, loss_fn, probe)
    return _differs_alone(model, loss_fn, probe)


def _differs_alone(model: nn.Module, loss_fn: LossFn, probe: Any) -> bool:
    losses, _ = trial(model, loss_fn, probe)
    alone = torch.cat([trial(model, loss_fn, row(probe, i))[0] for i in range(ROWS)])
    return not _close(alone, losses, losses) and not _round_off(model, loss_fn, probe, alone, slice(None))


def _round_off(model: nn.Module, loss_fn: LossFn, probe: Any, others: Tensor, rows: int | slice) -> bool:
    """Return whether losses differ by no more than a few roundings of the inputs move them.

    A loss in which large terms cancel (the sum of what a group norm returns) is rounding alone, and a small squared
    error is mostly that. Other kernels change all of such a loss.
    """
    losses, moved = (trial(model, loss_fn, batch)[0] for batch in (probe, jittered(probe)))
    eps = torch.finfo(losses.dtype).eps
    most = min(8, 0.1 / eps) * (moved - losses).abs().nan_to_num(0.0, 0.0).max().item()
    return torch.allclose(others[rows], losses[rows], rtol=0, atol=most, equal_nan=True)


def _close(a: Tensor, b: Tensor, losses: Tensor) -> bool:
    """Return whether losses are equal up to the rounding of other kernels: 1000 units, relative to the largest loss."""
    tolerance = min(0.1, 1000 * torch.finfo(losses.dtype).eps)
    scale = losses.abs().nan_to_num(0.0, 0.0).max().item()
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
