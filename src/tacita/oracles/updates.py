"""The gradients that ``backward`` leaves in the parameters, and whether an optimizer used them.

Place: [oracles.updates] -> oracles.gradient_oracle. This is below the line: it sees releases and public version
counters only. An in-place update raises a parameter's version whatever the data are, so nothing here depends on them.
PyTorch's fused optimizers and those of sharded parameters may leave it as it is; a hook after their steps raises it.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from tacita.gradients.processes import fsdp_modules, is_dtensor

_MARK = "_has_private_gradient"  # on a DTensor, which no weak reference may point to
State = tuple[int, int]  # identity and version of a tensor
Reference = Callable[[], Tensor | None]  # gives a tensor, for as long as it is there
_SERVED: "weakref.WeakValueDictionary[int, Tensor]" = weakref.WeakValueDictionary()  # those with a private gradient


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that require a gradient, by name; a tied one stands once, under its first name.

    Of a model that FSDP has sharded they are the shards.
    """
    for module in fsdp_modules(model):
        module.reshard()  # type: ignore[operator] - a forward pass may have left it whole
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def complex_refused(params: Mapping[str, Tensor]) -> ValueError:
    """Return the error that names the complex parameters."""
    found = ", ".join(name for name, p in params.items() if p.is_complex())
    return ValueError(
        f"params must be real, and are complex: {found}. Hold real and imaginary parts in a real parameter."
    )


def names_of(updates: Iterable[Tensor], params: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors in ``updates``, in the order of ``params``."""
    wanted = {id(one) for one in updates}
    named = [name for name, p in params.items() if id(p) in wanted]
    if not wanted or len(named) != len(wanted):
        raise ValueError("updates must hold trainable parameters of the model, at least one, and nothing else.")
    return named


class Updates:
    """Checks that the optimizer updates exactly the parameters that got a private gradient, each of them once."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[State, Reference]] = {}  # parameter as it was, and the gradient that it got
        self._done: set[str] = set()  # parameters that were updated once, which are not checked again
        # Where autograd adds up a gradient, which is another place once the parameter has moved (model.double()).
        self._watched: dict[str, tuple[Any, Any]] = {}

    def check(self, params: Mapping[str, Tensor]) -> None:
        """Check before a query that the last gradients were used.

        Raises:
            RuntimeError: A parameter was not updated although it had to be.
        """
        still = [name for name in self._given if name not in self._done and self._waits(name, params.get(name))]
        if still:
            raise RuntimeError(
                f"not updated after the first step: {', '.join(still)}. Give the optimizer all of model.parameters() "
                "that require a gradient, step it after each backward(), and zero no gradient between. If optimizers "
                "take turns, say whose turn it is: backward(updates=...). If you mean to add up several releases, use "
                "query()."
            )
        self._done |= self._given.keys()
        self._given = {}  # those of shards hold memory

    def assign(self, params: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Assign each gradient to its parameter after a query, and ``None`` to the other parameters."""
        _count_fused_steps()
        for name, parameter in params.items():
            _serve(parameter)
            self._watch(name, parameter)
            parameter.grad = gradients.get(name)
        self._given = {name: (_state(params[name]), _reference(gradient)) for name, gradient in gradients.items()}

    def _watch(self, name: str, parameter: Tensor) -> None:
        """Let a plain ``backward()`` of the loss raise where it would add to the parameter's private gradient."""
        node: Any
        node, kind = self._watched.get(name, (None, None))
        if is_dtensor(parameter) or (getattr(node, "variable", None) is parameter and kind == _kind(parameter)):
            return
        with torch.inference_mode(mode=False), torch.enable_grad():
            node = parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        node.register_prehook(partial(_refuse_sum, weakref.ref(self), name, weakref.ref(parameter)))
        self._watched[name] = node, _kind(parameter)  # the hook goes with the node

    def holds(self, name: str, parameter: Tensor) -> bool:
        """Return whether the parameter waits for its step with the gradient that the last call gave it."""
        return self._waits(name, parameter) and parameter.grad is self._given[name][1]()

    def _waits(self, name: str, parameter: Tensor | None) -> bool:
        """Return whether the parameter is unchanged since the last call gave it its gradient."""
        return name in self._given and parameter is not None and self._given[name][0] == _state(parameter)


def _refuse_sum(updates: Callable[[], Updates | None], name: str, parameter: Reference, _: Any) -> None:
    own, found = updates(), parameter()
    if own is not None and found is not None and own.holds(name, found):
        raise RuntimeError(
            f"loss.backward() would add a gradient without clipping and noise to what oracle.backward() left in the "
            f".grad of {name!r}: delete loss.backward(). A gradient of public data is taken by torch.autograd.grad."
        )


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device


def _state(tensor: Tensor) -> State:
    return id(tensor), tensor._version


def _reference(tensor: Tensor) -> Reference:
    """Return what gives the tensor: a weak reference, with which ``model.to()`` could not swap a ``DTensor``."""
    return (lambda: tensor) if is_dtensor(tensor) else weakref.ref(tensor)


def _serve(parameter: Tensor) -> None:
    """Note that a parameter has a private gradient."""
    if is_dtensor(parameter):
        setattr(parameter, _MARK, True)
    else:
        _SERVED[id(parameter)] = parameter


def _is_served(parameter: Tensor) -> bool:
    return _SERVED.get(id(parameter)) is parameter or hasattr(parameter, _MARK)


@cache
def _count_fused_steps() -> None:
    """Raise the versions of the parameters that a fused optimizer updates, from now on, and of shards."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            silent = group.get("fused") or is_dtensor(parameter)  # kernels for lists of DTensors count nothing
            if silent and parameter.grad is not None and _is_served(parameter):
                increment_version(parameter)
