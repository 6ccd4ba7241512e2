"""One forward and one backward pass that record every call in which an input meets parameters.

The forward pass runs on *one record that stands for all* (``record_batch.py``). A model therefore cannot mix records,
whatever its code does: there is no batch axis to sort, crop or average over. A call of a torch function that has a rule
(``registry.py``) runs on the whole batch by its ordinary kernel, with detached parameters; its input and the edge of
its output are recorded. One backward pass then gives the gradients of all outputs. A parameter that is used in any
other way is *bare*: it enters as one copy a record, so that autograd gives its per-sample gradients.

Everything here is private. Proof: docs/derivations/per-record-engine.md, section 2.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, memory_key
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import LossFn, ModuleTree, attributes_kept, losses_at, on_copies, real_values
from tacita.gradients.program.recorded_calls import RecordedCall, exact, in_graph
from tacita.gradients.record_batch import RecordBatch, check_operator, outside, records, rules_guarded
from tacita.gradients.rules.derived import Derived, derived
from tacita.gradients.rules.fused_kernels import KERNELS, REPLACEMENTS
from tacita.gradients.rules.products import PRODUCTS
from tacita.gradients.rules.registry import RULES
from tacita.gradients.rules.rule import Call, LayerRule

_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_FACTS = {  # what code asks of a tensor that is no tensor, and the same for all records
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout")),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "is_floating_point", "is_contiguous")),
}
_OF_AUTOGRAD = {getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "is_leaf")}  # hidden by ``vmap``
_HOOKING = {  # gives hooks to a tensor, or the node of the graph that takes them
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    getattr(torch.Tensor, "grad_fn").__get__,  # noqa: B009 - its type is that of a tensor's attribute
}


@dataclass(frozen=True)
class Needs:
    """What a pass must do otherwise, as a pass before it has shown.

    Attributes:
        bare: Names of parameters that enter as one copy a record, so that any use of them is served.
        batch: The code gets copies of the tensors of the batch, because it writes them.
    """

    bare: frozenset[str] = frozenset()
    batch: bool = False


class NeedsMoreError(Exception):
    """The pass must be made again.

    Attributes:
        needs: What it must do.
    """

    def __init__(self, needs: Needs) -> None:
        super().__init__(repr(needs))
        self.needs = needs


class RecordedPass(NamedTuple):
    """What one forward and one backward pass recorded.

    Attributes:
        calls: The calls that met parameters, with the gradients of their outputs.
        of_copies: The per-sample gradients of the bare parameters, by name; ``None`` where no loss depends on one.
        written: The names of the modules' attributes that the code sets.
    """

    calls: list[RecordedCall]
    of_copies: dict[str, Tensor | None]
    written: set[str]


def record_once(
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], chunk: Chunk, needs: Needs
) -> RecordedPass:
    """Run model and loss forward and backward on tensors without values, and record every call that meets parameters.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses``; sees a batch of one record.
        params: The point, by parameter name.
        chunk: At least one record.
        needs: What is known of the model.

    Raises:
        NeedsMoreError: The pass must be made again.
        UnsupportedModuleError: A module has a backward hook, or the code writes what it must not.
    """
    with rules_guarded(), torch.enable_grad(), on_copies(model, params) as (tree, point):
        leaves = {name: p.detach().requires_grad_() for name, p in point.items() if name not in needs.bare}
        copies = {n: point[n].detach().expand(chunk.size, *point[n].shape).requires_grad_() for n in sorted(needs.bare)}
        check_backward_hooks(tree)
        with attributes_kept(tree) as written:
            losses, recorder = forward(tree, loss_fn, leaves, copies, chunk, needs)
            of_leaves, of_copies = _backward(losses, recorder, leaves, copies)
    del losses
    for call in recorder.calls:
        call.check_gradient()
        call.check_untouched()
    unseen = frozenset(name for name, grad in zip(leaves, of_leaves, strict=True) if grad is not None)
    if unseen:
        raise NeedsMoreError(replace(needs, bare=needs.bare | unseen))
    return RecordedPass(recorder.calls, dict(zip(copies, of_copies, strict=True)), written)


def check_backward_hooks(tree: ModuleTree) -> None:
    """Refuse backward hooks of modules: under ``vmap`` PyTorch leaves them out, and they may change a gradient."""
    of_all = torch.nn.modules.module
    if of_all._global_backward_hooks or of_all._global_backward_pre_hooks:
        raise UnsupportedModuleError(
            "a backward hook is registered for all modules (register_module_full_backward_hook or one like it), which "
            "only the loop calls: remove the hook"
        )
    for name, module in tree.modules:
        if module._backward_hooks or module._backward_pre_hooks:
            raise UnsupportedModuleError(
                f"the module {name!r} has a backward hook, which only the loop calls: remove the hook"
            )


def forward(  # noqa: PLR0917
    tree: ModuleTree,
    loss_fn: LossFn,
    leaves: Mapping[str, Tensor],
    copies: Mapping[str, Tensor],
    chunk: Chunk,
    needs: Needs,
) -> tuple[Tensor, "_Recorder"]:
    """Return the losses of the chunk, (rows,), and the recorder that saw the calls."""
    tensors, rebuild = flatten(chunk.batch, chunk.size)
    with records(chunk.size) as all_records:
        seen = {name: all_records.one(copy) for name, copy in copies.items()}
        one = [all_records.one(t.unsqueeze(1).clone() if needs.batch else t.unsqueeze(1)) for t in tensors]
        with _Recorder(all_records, leaves) as recorder:
            losses = losses_at(tree, loss_fn, {**leaves, **seen}, rebuild(one), 1)
        return all_records.result(losses[0]), recorder


def _backward(
    losses: Tensor, recorder: "_Recorder", leaves: Mapping[str, Tensor], copies: Mapping[str, Tensor]
) -> tuple[list, list]:
    """Give the recorded calls the gradients of the summed losses that they want.

    Returns:
        The gradients in the parameters, and in their copies.
    """
    wanted: list[Any] = [one for call in recorder.calls for one in call.wanted]
    wanted += [*leaves.values(), *copies.values()]
    grads: list[Tensor | None] = [None] * len(wanted)
    if losses.requires_grad:
        grads = [*torch.autograd.grad(losses, wanted, torch.ones_like(losses), allow_unused=True)]
    first = 0
    for call in recorder.calls:
        call.grads += grads[first : first + len(call.wanted)]
        first += len(call.wanted)
    second = first + len(leaves)
    return grads[first:second], grads[second : second + len(copies)]


class _Recorder(TorchFunctionMode):
    """Runs calls that a rule knows on the whole batch and records them."""

    def __init__(self, batch: RecordBatch, leaves: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.batch = batch
        self.names = {id(leaf): name for name, leaf in leaves.items()}
        self.calls: list[RecordedCall] = []
        self._made: dict[int, Tensor] = {}  # tensors of this pass that are the same for all records

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in _FACTS:
            return func(*args, **(kwargs or {}))
        check_operator(func)
        if (func in _OF_AUTOGRAD or func in _HOOKING) and self.batch.understands(args[0]):
            behind = self.batch.all(args[0]) if self.batch.differs(args[0]) else args[0]
            if func in _OF_AUTOGRAD:
                return func(behind)
            if behind.requires_grad:
                raise UnsupportedModuleError(
                    "a hook is put on a parameter, or on what was computed from parameters or records (grad_fn gives "
                    "the node that takes one), which only the loop calls: leave it out"
                )
        kwargs, result = kwargs or {}, NotImplemented
        rule, replacement = RULES.get(func), REPLACEMENTS.get(func)
        if rule is not None and self.batch.innermost():
            result = self._by_rule(func, rule, args, kwargs)
        if result is NotImplemented and replacement is not None and self.batch.innermost():
            with nullcontext() if func in KERNELS else self:  # the calls of others are seen one by one
                result = replacement(self.batch, *args, **kwargs)
        if result is NotImplemented:
            for target in written_by(func, args, kwargs):
                if id(target) in self._made and any(map(self.batch.differs, _tensors(args, kwargs))):
                    self.batch.spread(target)
            result = self._without_values(func, args, kwargs)
            self._remember_made(result, args, kwargs)
        return result

    def _without_values(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        """Call a function in a pass without values. Constants have theirs, so that code may look at its own masks."""
        plain = self.batch.understands  # and no tensor within a transform of the user's own
        if all(
            plain(t) and not isinstance(t, FakeTensor) and not self.batch.differs(t) for t in _tensors(args, kwargs)
        ):
            with real_values():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _remember_made(self, result: Any, args: tuple, kwargs: Mapping[str, Any]) -> None:
        """Remember a new tensor that is the same for all records, if no other name refers to its memory.

        PyTorch knows the names that are views; ``detach()`` and ``.data`` give names that nothing tells of.
        """
        if not isinstance(result, Tensor) or self.batch.differs(result):
            return
        given = [one for one in _tensors(args, kwargs) if not self.batch.differs(one)]
        sharing = [one for one in given if one is result or memory_key(one) == memory_key(result)]
        if not sharing:
            self._made[id(result)] = result
        elif not result._is_view() and all(one is not result for one in sharing):
            for one in sharing:
                self._made.pop(id(one), None)

    def _by_rule(self, func: Callable, rule: LayerRule, args: tuple, kwargs: dict) -> Any:
        """Run a call that ``rule`` serves: its parameters are the same for all records, and its input is understood."""
        try:
            call = rule.read(*exact(args), **{name: exact(one) for name, one in kwargs.items()})
        except TypeError:  # arguments that the function does not take either: let it say so
            return NotImplemented
        if call is None or not self.batch.understands(call.x):
            return NotImplemented
        if func in PRODUCTS and not self.batch.differs(call.x):
            return NotImplemented  # a weight that is a product of others, the same for all records
        given = {local: p for local, p in call.parameters.items() if p is not None}
        names = {local: self.names[id(p)] for local, p in given.items() if id(p) in self.names}
        if any(self.batch.differs(p) for p in given.values()):
            return NotImplemented
        others = {local: derived(p, self.names) for local, p in given.items() if p.grad_fn is not None}
        made = {local: one for local, one in others.items() if one is not None}
        if not (names or made or self.batch.differs(call.x)):
            return NotImplemented
        return self._run(func, rule, call, given, names, made)

    def _run(  # noqa: PLR0917
        self,
        func: Callable,
        rule: LayerRule,
        call: Call,
        given: dict[str, Tensor],
        names: dict[str, str],
        made: dict[str, Derived],
    ) -> Any:
        """Run a call on the whole batch; record it if it meets parameters that a gradient is taken in."""
        x, met = self.batch.all(call.x), {*names, *made}
        values = {local: p.detach() if local in met else p for local, p in given.items()}
        with outside():
            output = call.run(x, values)
            if output._is_view():  # a view's history is rewritten by what the model does in place, and its edge lost
                output = _UNSAFE_VIEW(output, output.shape)
            if met and torch.is_grad_enabled():
                shapes = {local: values[local].shape for local in given if local in met}
                copies = {local: call.copies[local] for local in shapes if local in call.copies}
                one = RecordedCall(
                    func.__name__, rule, call.settings, names, made, shapes, x.detach(), x._version, copies
                )
                output = in_graph(one, output)
                self.calls.append(one)
        return self.batch.one(output)


_FIRST = ("self", "input", "tensor")  # what torch calls the first argument of a function that writes it


@cache
def _writes_first(func: Any) -> bool:
    """Return whether a torch function writes its first argument in place: a tensor, or a list of tensors."""
    name = getattr(func, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    return in_place or (name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__"))


def written_by(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that a torch function writes, as its name and ``out=`` tell."""
    given = kwargs.get("out", ())
    if "out" not in kwargs and _writes_first(func):
        given = args[0] if args else next((kwargs[name] for name in _FIRST if name in kwargs), ())
    return [one for one in (given if isinstance(given, (tuple, list)) else (given,)) if isinstance(one, Tensor)]


def _tensors(args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
    given = [*args, *kwargs.values()]
    given += [part for one in given if isinstance(one, (tuple, list)) for part in one]
    return [one for one in given if isinstance(one, Tensor)]
