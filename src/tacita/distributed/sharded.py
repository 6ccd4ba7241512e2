"""Models whose parameters are spread over the ranks by FSDP2 (``torch.distributed.fsdp.fully_shard``).

Place: gradients.processes -> [distributed.sharded] -> distributed.serving. Proof: docs/derivations/process-group.md.

A query plays a written program, which calls no module: FSDP's hooks, which gather parameters and add up gradients that
are not clipped, do not run. A parameter is gathered where the program reads it, and let go of afterwards
(``gather_at_use.py``). Its sum is reduced and scattered as soon as it is there, and of the release each rank has its
own shard. The modules' code runs while the program is written, on stand-ins without memory.

A ``MixedPrecisionPolicy`` is part of what is written: parameters of ``param_dtype``, and casts of what modules take and
give. Sums, norms, noise and release keep the precision that they have for the shards' own dtype.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tacita.distributed.process_group import Ranks
from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import IN_TURN, ModuleTree, with_tensors
from tacita.gradients.processes import fsdp_modules, is_dtensor
from tacita.gradients.weighted_sums import wide

FSDP = "torch.distributed.fsdp"  # where everything is defined that FSDP attaches to a module
_FOREIGN = ("torch.distributed.tensor", "torch.distributed._composable.replicate")  # hooks of other parallelism
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def shard_like(tensor: Tensor, parameter: Tensor, *, summed: bool = False) -> Tensor:
    """Return this rank's shard of a whole tensor, placed as ``parameter`` is, in memory of its own.

    For a parameter that is not a ``DTensor`` it is the tensor itself, and a shard stays as it is.

    Args:
        tensor: The same on all ranks, of which nothing is sent then; or one summand of a sum over the ranks.
        parameter: How to place it.
        summed: Whether the ranks' tensors are summands, which are reduced and scattered.
    """
    if is_dtensor(tensor) or not is_dtensor(parameter):
        return tensor
    from torch.distributed.tensor import DTensor, Partial, Replicate

    like: Any = parameter
    placed = Partial() if summed else Replicate()
    with torch.no_grad():
        everywhere = DTensor.from_local(tensor, like.device_mesh, [placed] * like.device_mesh.ndim, run_check=False)
        return everywhere.redistribute(like.device_mesh, like.placements)


def first_of_shard(tensor: Any) -> int | None:
    """Return where this rank's shard begins in the flat tensor, which holds it in one piece; else ``None``.

    It is in one piece where the first axis is cut over one axis of ranks, as ``fully_shard`` does by default.
    """
    from torch.distributed.tensor import Shard

    if not is_dtensor(tensor) or tensor.placements != (Shard(0),):
        return None
    rows, size = tensor.shape[0], tensor.device_mesh.size()
    return min(rows, tensor.device_mesh.get_local_rank() * -(-rows // size)) * tensor.shape[1:].numel()


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Give the modules stand-ins for shards, and of FSDP's hooks the casts alone, while the code inside runs.

    A stand-in is a plain tensor of the full shape that has no memory, so that nobody can read values.
    """
    with IN_TURN:
        tree = ModuleTree(model)
        read_as = dtypes_read(model)
        stand_ins = {
            name: _stand_in(p, read_as.get(id(p), p.dtype)) for name, p in tree.by_name.items() if is_dtensor(p)
        }
        held = [(getattr(module, key), cast) for module in model.modules() for key, cast in _casts_of(module).items()]
        before = [hooks.copy() for hooks, _ in held]
        try:
            for hooks, cast in held:
                for key in [key for key, hook in hooks.items() if _home(hook).startswith(FSDP)]:
                    if cast is None:
                        del hooks[key]
                    else:
                        hooks[key] = cast
            with with_tensors(tree, stand_ins):
                yield
        finally:
            for (hooks, _), all_hooks in zip(held, before, strict=True):
                hooks.clear()
                hooks.update(all_hooks)


def dtypes_read(model: nn.Module) -> dict[int, torch.dtype]:
    """Return the dtype in which modules read each shard, by its ``id``: as the innermost module's policy has it."""
    found: dict[int, torch.dtype] = {}
    for module in fsdp_modules(model):  # outer ones first
        wanted = _policy_of(module).param_dtype
        found |= {id(p): wanted if wanted and p.is_floating_point() else p.dtype for p in module.parameters()}
    return found


def _policy_of(module: Any) -> Any:
    """Return the ``MixedPrecisionPolicy`` of a module for which ``fully_shard`` was called."""
    return module._get_fsdp_state()._mp_policy


def _casts_of(module: nn.Module) -> dict[str, Callable[..., Any] | None]:
    """Return, for each kind of hook, what does what FSDP's hooks of that kind do to values: a cast, or nothing."""
    takes = gives = None
    if fsdp_modules(module)[:1] == [module]:
        policy = _policy_of(module)
        takes = policy.param_dtype if policy.cast_forward_inputs else None
        gives = policy.output_dtype

    def cast(given: Any, dtype: torch.dtype) -> Any:
        return tree_map(
            lambda one: one.to(dtype) if isinstance(one, Tensor) and one.is_floating_point() else one, given
        )

    return {
        "_forward_pre_hooks": takes and (lambda _, args, kwargs: cast((args, kwargs), takes)),
        "_forward_hooks": gives and (lambda _, args, output: cast(output, gives)),
    }


def shard_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that are shards at present.

    Raises:
        UnsupportedModuleError: One of them has a hook.
    """
    shards = {name: p for name, p in model.named_parameters() if is_dtensor(p)}
    for name, p in shards.items():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise UnsupportedModuleError(f"{name!r} has a hook, which no private gradient calls: remove it.")
    return frozenset(shards)


def check_shards(model: nn.Module, ranks: Ranks) -> None:
    """Check how a model is sharded.

    Raises:
        UnsupportedModuleError: In a way that is not supported.
        ValueError: The shards are not on the ranks of the process group.
    """
    for module in fsdp_modules(model):
        module.reshard()  # type: ignore[operator] - a forward pass may have left it whole; sends nothing
    if any(is_dtensor(buffer) for buffer in model.buffers()):
        raise UnsupportedModuleError("a buffer is a DTensor, which is not supported: keep it whole on every rank.")
    for name, module in model.named_modules():
        _check_module(name or type(module).__name__, module)
    own = sorted(dist.get_process_group_ranks(ranks.group))
    read_as = dtypes_read(model)
    for name, p in model.named_parameters():
        if is_dtensor(p):
            _check_parameter(name, p, own, managed=id(p) in read_as)
            if wide(read_as[id(p)]) != wide(p.dtype):
                raise UnsupportedModuleError(
                    f"{name!r} is {p.dtype} and the param_dtype of its MixedPrecisionPolicy {read_as[id(p)]}: use "
                    "torch.bfloat16, float16 or float32 for parameters of float32, whose sums are float32."
                )


def _stand_in(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    empty = torch.empty(parameter.shape, dtype=dtype, device=parameter.device)
    empty.untyped_storage().resize_(0)
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)


def _check_module(name: str, module: nn.Module) -> None:
    for key in _HOOKS:
        for hook in getattr(module, key).values():
            if any(_home(hook).startswith(foreign) for foreign in _FOREIGN):
                raise UnsupportedModuleError(
                    f"{name!r} has hooks of another kind of parallelism ({_home(hook)}), which is not supported: use "
                    "fully_shard alone."
                )


def _check_parameter(name: str, parameter: Any, group: list[int], *, managed: bool) -> None:
    from torch.distributed.tensor import Replicate, Shard

    placements, mesh = parameter.placements, parameter.device_mesh
    shards = sum(type(one) is Shard for one in placements)
    if not managed or shards > 1 or any(type(one) not in (Shard, Replicate) for one in placements):
        raise UnsupportedModuleError(
            f"{name!r} is a DTensor with the placements {tuple(placements)}, as tensor parallelism makes them, which is"
            " not supported: use fully_shard alone, or hold the whole model on every rank."
        )
    if sorted(mesh.mesh.flatten().tolist()) != group:
        raise ValueError(
            f"process_group must have the ranks of the mesh that {name!r} is sharded over, "
            f"{sorted(mesh.mesh.flatten().tolist())}, got {group}."
        )
    place = [dist.get_rank(mesh.get_group(axis)) for axis in range(mesh.ndim)]
    if list(mesh.get_coordinate() or ()) != place:
        raise UnsupportedModuleError(
            f"{name!r} is sharded over a mesh that does not name its ranks in ascending order, so that FSDP and DTensor"
            " disagree on which shard is whose: use init_device_mesh, or sort the ranks."
        )
    if parameter.device.type != mesh.device_type:
        raise UnsupportedModuleError(
            f"{name!r} is on {parameter.device.type} and its mesh on {mesh.device_type} (CPUOffloadPolicy), which is"
            " not supported: leave offload_policy out."
        )


def _home(hook: Any) -> str:
    """Return the module in which a hook, or the class of the object that it is a method of, is defined."""
    while isinstance(hook, partial):
        hook = hook.func
    owner = getattr(hook, "__self__", None)
    return (type(owner).__module__ if owner is not None else getattr(hook, "__module__", "")) or ""
