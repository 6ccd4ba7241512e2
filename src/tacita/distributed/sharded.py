"""Models whose parameters are spread over the ranks by FSDP2 (``torch.distributed.fsdp.fully_shard``).

Place: gradients.processes -> [distributed.sharded] -> distributed.serving. Proof: docs/derivations/process-group.md.

Between queries every rank holds shards. For a query the whole parameters are gathered, and the engines run on a *twin*:
the same modules without FSDP. So FSDP's hooks, which gather parameters and add up gradients that are not clipped, never
run in a query. Of the release each rank keeps its own shard.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tacita.distributed.process_group import Ranks
from tacita.distributed.reachable import reachable
from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import LossFn
from tacita.gradients.processes import WholeModel, fsdp_modules, is_dtensor

FSDP = "torch.distributed.fsdp"  # where everything is defined that FSDP attaches to a module
_FOREIGN = ("torch.distributed.tensor", "torch.distributed._composable.replicate")  # hooks of other parallelism
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_HELD = ("_parameters", "_buffers", "_modules", *_HOOKS)  # mappings of which a twin has its own
_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params", "_compiled_call_impl")  # the last calls the original


def gathered(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole, detached tensors; every rank calls this with the same names. They are not to be written."""
    with torch.no_grad():
        return {name: _whole(p.detach()) for name, p in params.items()}


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's shard of a whole tensor that is equal on all ranks, placed as ``parameter`` is; sends nothing.

    The shard has memory of its own. For a parameter that is not a ``DTensor`` it is the tensor itself.
    """
    if not is_dtensor(parameter):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    like: Any = parameter
    mesh = like.device_mesh
    with torch.no_grad():
        everywhere = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return everywhere.redistribute(mesh, like.placements)


class ShardedModel(WholeModel):
    """A model that FSDP2 has sharded, and its twin.

    Args:
        model: The model; not modified.
        loss_fn: Its loss.
        ranks: The ranks that hold the shards.

    Raises:
        UnsupportedModuleError: The model is sharded in a way that is not supported, or cannot be told from its twin.
        ValueError: The shards are not on the ranks of the process group.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, ranks: Ranks) -> None:
        self._model, self._ranks, self.held = model, ranks, False
        for module in fsdp_modules(model):
            module.reshard()  # type: ignore[operator] - a forward pass may have left it whole; sends nothing
        _check_shards(model, ranks)
        self._names = _shards(model)
        self._twin = PlainTwin(model)
        self._twin.check_alone(loss_fn)

    @property
    def twin(self) -> nn.Module:
        """The modules without FSDP."""
        return self._twin.model

    @contextmanager
    def whole(self, params: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Gather the parameters on every rank, and let the twin hold them while the code inside runs.

        An exception on one rank before the parameters are gathered is an error on all.

        Args:
            params: The point, by parameter name: ``DTensor`` or whole. What it does not name is taken from the model.
        """
        own = dict(self._model.named_parameters())
        if _shards(self._model) != self._names:
            raise UnsupportedModuleError(
                "FSDP holds parameters whole that were shards: a forward pass outside of the oracle has not ended. "
                "Build the model and the oracle anew, from a checkpoint."
            )
        for name, p in own.items():
            _check_hooks(name, p)
        known = {**own, **params}
        described = [(name, *p.shape, str(p.dtype), is_dtensor(p)) for name, p in known.items()]
        values = self._ranks.at_once("shards", repr(described).encode(), lambda: gathered(known))
        try:
            self._twin.renew(values)
            with self._not_called():
                self.held = True
                yield {name: values[name] for name in params}
        finally:
            self.held = False
            self._twin.renew({})

    @contextmanager
    def _not_called(self) -> Iterator[None]:
        """Raise if the code inside calls a module that FSDP has sharded: its hooks would wait for other ranks."""
        called: list[str] = []

        def refuse(module: nn.Module, *_: Any) -> None:
            called.append(type(module).__name__)
            raise _reached(called[0])

        hooks = [one.register_forward_pre_hook(refuse, prepend=True) for one in fsdp_modules(self._model)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if called:  # a trial may have caught the exception
            raise _reached(called[0])


class PlainTwin:
    """The modules of a model without FSDP: each has its class and attributes, and shares its buffers.

    Parameters that are sharded have stand-ins of the full shape, which take no memory, until :meth:`renew` gives them
    values. The copies are the same objects for as long as the modules are, so that what was made for them stays valid.
    """

    def __init__(self, model: nn.Module) -> None:
        self._original = model
        self._copies: dict[nn.Module, nn.Module] = {}
        self.renew({})

    @property
    def model(self) -> nn.Module:
        """The copy of the model."""
        return self._copies[self._original]

    def renew(self, values: Mapping[str, Tensor]) -> None:
        """Give the copies the present modes, hooks and attributes of the modules, and ``values`` as parameters.

        Args:
            values: By the names of ``named_parameters()``; other parameters that are sharded get stand-ins.
        """
        before = self._copies
        self._copies = {module: _blank(module, before.get(module)) for module in self._original.modules()}
        tensors: dict[int, Tensor] = {}
        for name, p in self._original.named_parameters():
            if name in values or is_dtensor(p):
                whole = values[name] if name in values else torch.zeros((), dtype=p.dtype, device=p.device)
                tensors[id(p)] = nn.Parameter(whole.expand(p.shape), requires_grad=p.requires_grad)
        for module, copy in self._copies.items():
            self._fill(vars(copy), vars(module), tensors)

    def check_alone(self, loss_fn: LossFn) -> None:
        """Raise if the loss, or an attribute of a module, leads to the sharded modules.

        Raises:
            UnsupportedModuleError: It does; the message says where.
        """
        apart = {"_parameters", "_buffers", "_modules", "_flat_weights"}  # the last is made anew by recurrent networks
        attributes = {
            f"model.{name}": {key: value for key, value in vars(module).items() if key not in apart}
            for name, module in self.model.named_modules()
        }
        found = reachable(loss_fn, self.model) | reachable(partial(len, attributes), self.model)
        originals = {id(module) for module in self._copies} | {id(p) for p in self._original.parameters()}
        for where, thing in found.items():
            if id(thing) in originals:
                raise _reached(where.removeprefix("loss_fn.args.0."))

    def _fill(self, own: dict[str, Any], given: Mapping[str, Any], tensors: Mapping[int, Tensor]) -> None:
        """Make the attributes ``own`` of a copy those that its module was ``given``."""
        made: dict[str, Callable[[Any], Any]] = {
            "_parameters": lambda t: tensors.get(id(t), t),
            "_modules": self._copies.get,
        }
        before = own.copy()
        own.clear()
        for key, value in given.items():
            if key in _HELD or _holds_fsdp(value):
                held = own[key] = before[key] if key in before else type(value)()
                held.clear()
                make = made.get(key, lambda one: one)
                held.update({name: make(one) for name, one in value.items() if not _of_fsdp(one)})
            elif key not in _MARKS:
                own[key] = self._bound(value, before.get(key))

    def _bound(self, value: Any, before: Any) -> Any:
        """Return a method of one of the modules as that of its copy, and any other value as it is."""
        if not (isinstance(value, MethodType) and isinstance(value.__self__, nn.Module)):
            return value
        copy = self._copies.get(value.__self__)
        if copy is None:
            return value
        bound = MethodType(value.__func__, copy)
        return before if before == bound else bound


def _shards(model: nn.Module) -> set[str]:
    """Return the names of the parameters that are shards at present."""
    return {name for name, p in model.named_parameters() if is_dtensor(p)}


def _check_hooks(name: str, parameter: Tensor) -> None:
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise UnsupportedModuleError(f"{name!r} has a hook, which no private gradient calls: remove it.")


def _check_shards(model: nn.Module, ranks: Ranks) -> None:
    if any(is_dtensor(buffer) for buffer in model.buffers()):
        raise UnsupportedModuleError("a buffer is a DTensor, which is not supported: keep it whole on every rank.")
    for name, module in model.named_modules():
        _check_module(name or type(module).__name__, module)
    own = sorted(dist.get_process_group_ranks(ranks.group))
    managed = {id(p) for module in fsdp_modules(model) for p in module.parameters() if is_dtensor(p)}
    for name, p in model.named_parameters():
        if is_dtensor(p):
            _check_parameter(name, p, own, managed=id(p) in managed)


def _check_module(name: str, module: nn.Module) -> None:
    for key in _HOOKS:
        for hook in getattr(module, key).values():
            if any(_home(hook).startswith(foreign) for foreign in _FOREIGN):
                raise UnsupportedModuleError(
                    f"{name!r} has hooks of another kind of parallelism ({_home(hook)}), which is not supported: use "
                    "fully_shard alone."
                )
    policy = getattr(module._get_fsdp_state(), "_mp_policy", None) if isinstance(module, _fsdp()) else None  # type: ignore[operator]
    if getattr(policy, "param_dtype", None) or getattr(policy, "output_dtype", None):
        raise UnsupportedModuleError(
            f"{name!r} is sharded with a MixedPrecisionPolicy of another param_dtype or output_dtype, which a private "
            "query would ignore: leave mp_policy out, and cast the model, or write torch.autocast into the loss."
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


def _reached(where: str) -> UnsupportedModuleError:
    return UnsupportedModuleError(
        f"the loss or the model leads to a sharded module in another way than by loss_fn's first argument ({where}), "
        "and a query runs on the modules without FSDP: use the model that loss_fn is given, and its attributes."
    )


def _fsdp() -> Any:
    """Return the class of modules that FSDP has sharded; no class if it was never imported."""
    return getattr(sys.modules.get(FSDP), "FSDPModule", ())


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def _blank(module: nn.Module, before: nn.Module | None) -> nn.Module:
    """Return a module to fill, of the class that ``module`` had before ``fully_shard``: ``before`` if it has it."""
    kind = next(kind for kind in type(module).__mro__ if not issubclass(kind, _fsdp()))
    return before if before is not None and type(before) is kind else object.__new__(kind)


def _home(hook: Any) -> str:
    """Return the module in which a hook, or the class of the object that it is a method of, is defined."""
    while isinstance(hook, partial):
        hook = hook.func
    owner = getattr(hook, "__self__", None)
    return (type(owner).__module__ if owner is not None else getattr(hook, "__module__", "")) or ""


def _of_fsdp(thing: Any) -> bool:
    """Return whether a value is a hook or the state that FSDP attaches to a module."""
    if isinstance(thing, Tensor | nn.Module):
        return False
    return type(thing).__module__.startswith(FSDP) or (callable(thing) and _home(thing).startswith(FSDP))


def _holds_fsdp(value: Any) -> bool:
    """Return whether an attribute is the mapping in which FSDP keeps its state, beside those of others."""
    return isinstance(value, dict) and any(type(one).__module__.startswith(FSDP) for one in value.values())
