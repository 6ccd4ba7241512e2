"""One forward and one backward pass that record every call in which an input meets parameters.

The forward pass runs on *one record that stands for all* (``record_batch.py``). A model therefore cannot mix records,
whatever its code does: there is no batch axis to sort, crop or average over. A call of a torch function that has a rule
(``registry.py``) runs on the whole batch by its ordinary kernel, with detached parameters; its input and the edge of
its output are recorded. One backward pass then gives the gradients of all outputs. A parameter that is used in any
other way is *bare*: it enters as one copy a record, so that autograd gives its per-sample gradients.

Everything here is private. Proof: docs/derivations/per-record-engine.md.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, map_tensors, tensors_in
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import LossFn, ModuleTree, losses_at, on_copies, real_values
from tacita.gradients.ghost.derived import Derivations, Derived, derived, memory_key
from tacita.gradients.ghost.fused_kernels import KERNELS, REPLACEMENTS
from tacita.gradients.ghost.products import PRODUCTS
from tacita.gradients.ghost.recorded_calls import ANCHOR, EarlyNorms, RecordedCall, TakeNorms, in_graph
from tacita.gradients.ghost.registry import RULES
from tacita.gradients.ghost.rule import Call, LayerRule, NamedUse, named_autograd_use
from tacita.gradients.lent_memory import nothing_lent_is_written
from tacita.gradients.operators import OperatorCheck
from tacita.gradients.record_batch import (
    OPERATORS,
    RecordBatch,
    WritesUnseen,
    check_operator,
    outside,
    records,
    rules_guarded,
)
from tacita.gradients.retention import Marks, nothing_is_written

RECORDS = 2  # of a pass without values
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_FACTS = {  # what code asks of a tensor that is no tensor, and the same for all records
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "requires_grad")),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "is_floating_point", "is_contiguous")),
}
_HOOKING = {  # gives hooks to a tensor, or the node of the graph that takes them
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    getattr(torch.Tensor, "grad_fn").__get__,  # noqa: B009 - its type is that of a tensor's attribute
}


class PassWithoutValues(NamedTuple):
    """What a pass without values shows of a model and its loss.

    Attributes:
        bare: Parameters that are used where no rule sees them.
        reads_only: Nothing writes a tensor of the batch in place, nor could without PyTorch's counting it.
    """

    bare: frozenset[str]
    reads_only: bool


def capture(
    model: nn.Module,
    loss_fn: LossFn,
    params: Mapping[str, Tensor],
    chunk: Chunk,
    bare: frozenset[str] = frozenset(),
    *,
    take_norms: TakeNorms | None = None,
) -> tuple[list[NamedUse], frozenset[str]]:
    """Run ``chunk`` forward and backward, and return every use of a parameter that the losses depend on.

    A parameter that turns out to be used where no rule sees it joins ``bare``, and the pass is made again. Which
    parameters join does not depend on the records: the model's code sees one record that stands for all.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses``; sees a batch of one record.
        params: The point, by parameter name.
        chunk: At least one record.
        bare: Names of parameters that enter as one copy a record, so that any use of them is served.
        take_norms: Takes the norms of a use, where that frees memory during the backward pass.

    Returns:
        The uses, or what ``take_norms`` left of them; and the names of all bare parameters.

    Raises:
        UnsupportedModuleError: The input of a recorded call is modified in place afterwards, or the code would write a
            chunk that is lent, or a module has a backward hook.
    """
    while True:
        one = record_once(model, loss_fn, params, chunk, bare, take_norms=take_norms)
        if not one.unseen:
            break
        bare |= one.unseen
    with _nothing_lent_is_written(chunk):
        return uses_of(one.calls, one.of_copies), bare


class RecordedPass(NamedTuple):
    """What one forward and one backward pass recorded.

    Attributes:
        calls: The calls that met parameters, with the gradients of their outputs.
        of_copies: The per-sample gradients of the bare parameters, by name; ``None`` where no loss depends on one.
        unseen: Parameters that were used where no rule saw them: the pass must be made again with them as bare ones.
    """

    calls: list[RecordedCall]
    of_copies: dict[str, Tensor | None]
    unseen: frozenset[str]


def record_once(
    model: nn.Module,
    loss_fn: LossFn,
    params: Mapping[str, Tensor],
    chunk: Chunk,
    bare: frozenset[str],
    *,
    take_norms: TakeNorms | None = None,
) -> RecordedPass:
    """Run ``chunk`` forward and backward once, with the arguments of :func:`capture`."""
    with rules_guarded(), torch.enable_grad(), on_copies(model, params) as (tree, point):
        leaves = {name: p.detach().requires_grad_() for name, p in point.items() if name not in bare}
        copies = {n: point[n].detach().expand(chunk.size, *point[n].shape).requires_grad_() for n in sorted(bare)}
        check_backward_hooks(tree)
        with nothing_is_written(tree), _nothing_lent_is_written(chunk):
            early = None if take_norms is None else EarlyNorms(take_norms)
            losses, recorder = forward(tree, loss_fn, leaves, copies, chunk, early)
            of_leaves, of_copies = _backward(losses, recorder, leaves, copies)
    del losses
    for call in recorder.calls:
        call.check_gradient()
    recorder.check_nothing_is_kept()
    unseen = frozenset(name for name, grad in zip(leaves, of_leaves, strict=True) if grad is not None)
    return RecordedPass(recorder.calls, dict(zip(copies, of_copies, strict=True)), unseen)


def _nothing_lent_is_written(chunk: Chunk) -> AbstractContextManager[None]:
    return nothing_lent_is_written(tensors_in(chunk.batch)) if chunk.lent else nullcontext()


def capture_without_values(
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any
) -> PassWithoutValues:
    """Run :func:`capture` on two records under ``FakeTensorMode``: tensors have shapes and no values.

    What is decided or raised here can therefore depend neither on data nor on the values of parameters.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses``.
        params: Parameters that a gradient is taken in.
        like: A batch of at least one row; only its shapes and dtypes are used.

    Raises:
        UnsupportedModuleError: The model keeps or writes what it must not, calls an operator of unknown origin, or
            draws what records would share.
        Exception: Whatever the model's code raises where it depends on values, or where ``vmap`` has no rule.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")  # would log a failure that the exception tells already
    before, logger.disabled = logger.disabled, True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fakes:
            batch = map_tensors(lambda t: torch.empty(RECORDS, *t.shape[1:], dtype=t.dtype, device=t.device), like)
            points = {name: fakes.from_tensor(p.detach()) for name, p in params.items()}
            versions = [t._version for t in tensors_in(batch)]
            with WritesUnseen() as unseen, OperatorCheck(by_record=False):
                _, bare = capture(model, loss_fn, points, Chunk(batch, RECORDS, 0))
            as_it_was = [t._version for t in tensors_in(batch)] == versions
            return PassWithoutValues(bare, as_it_was and not unseen.possible)
    finally:
        logger.disabled = before


def check_backward_hooks(tree: ModuleTree) -> None:
    """Refuse backward hooks of modules: under ``vmap`` PyTorch leaves them out, and they may change a gradient."""
    of_all = torch.nn.modules.module
    if of_all._global_backward_hooks or of_all._global_backward_pre_hooks:
        raise UnsupportedModuleError(
            "a backward hook is registered for all modules (register_module_full_backward_hook or one like it), which "
            'only the loop calls. Remove the hook, or use method="loop".'
        )
    for name, module in tree.modules:
        if module._backward_hooks or module._backward_pre_hooks:
            raise UnsupportedModuleError(
                f"the module {name!r} has a backward hook, which only the loop calls. Remove the hook, or use "
                'method="loop".'
            )


def forward(  # noqa: PLR0917
    tree: ModuleTree,
    loss_fn: LossFn,
    leaves: Mapping[str, Tensor],
    copies: Mapping[str, Tensor],
    chunk: Chunk,
    early: EarlyNorms | None,
) -> tuple[Tensor, "_Recorder"]:
    """Return the losses of the chunk, (rows,), and the recorder that saw the calls."""
    tensors, rebuild = flatten(chunk.batch, chunk.size)
    with records(chunk.size) as all_records:
        seen = {name: all_records.one(copy) for name, copy in copies.items()}
        one = [all_records.one(t.unsqueeze(1)) for t in tensors]
        with _Recorder(all_records, leaves, copies, tree, early) as recorder:
            recorder.mark(one)
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
        if recorder.early is not None and not all(call.wanted for call in recorder.calls):
            recorder.early.begin(recorder.calls)
            wanted.append(ANCHOR)  # the pass reaches every watched call
        grads = [*torch.autograd.grad(losses, wanted, torch.ones_like(losses), allow_unused=True)]
    first = 0
    for call in recorder.calls:
        call.grads += grads[first : first + len(call.wanted)]  # a watched call has its own already
        first += len(call.wanted)
    second = first + len(leaves)
    return grads[first:second], grads[second : second + len(copies)]


class _Recorder(Marks):
    """Runs calls that a rule knows on the whole batch and records them; marks tensors that differ between records."""

    def __init__(
        self,
        batch: RecordBatch,
        leaves: Mapping[str, Tensor],
        copies: Mapping[str, Tensor],
        tree: ModuleTree,
        early: EarlyNorms | None,
    ) -> None:
        super().__init__([*leaves.values(), *tree.tensors], of_a_record=batch.differs)
        self.batch, self.early = batch, early
        self.names = {id(leaf): name for name, leaf in leaves.items()}
        self.calls: list[RecordedCall] = []
        self._made: set[int] = (
            set()
        )  # tensors of this pass that are the same for all records; what is older is no one's
        self.without_values = any(isinstance(one, FakeTensor) for one in (*leaves.values(), *copies.values()))

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in _FACTS:
            return func(*args, **(kwargs or {}))
        if isinstance(func, OPERATORS):
            check_operator(func)
        if func in _HOOKING and args[0].requires_grad and not self.batch.differs(args[0]):
            raise UnsupportedModuleError(
                "a hook is put on a parameter, or on what was computed from parameters alone, which only the loop "
                'calls. Leave it out, or use method="loop".'
            )
        kwargs, result = kwargs or {}, NotImplemented
        rule, replacement = RULES.get(func), REPLACEMENTS.get(func)
        if rule is not None and self.batch.innermost():
            result = self._by_rule(func, rule, args, kwargs)
        if result is NotImplemented and replacement is not None and self.batch.innermost():
            with nullcontext() if func in KERNELS else self:  # the calls of others are seen one by one
                result = replacement(self.batch, *args, **kwargs)
        if result is NotImplemented:
            for target in self.check_targets(func, args, kwargs):
                if id(target) in self._made and self._any_differs(args, kwargs):
                    self.batch.spread(target)
                    self.mark(target)
            result = self._without_values(func, args, kwargs) if self.without_values else func(*args, **kwargs)
            self._remember_made(result, args, kwargs)
        self.mark(result)
        return result

    def _without_values(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        """Call a function in a pass without values. Constants have theirs, so that code may look at its own masks."""
        if not any(isinstance(t, FakeTensor) or self.batch.differs(t) for t in _tensors(args, kwargs)):
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
            self._made.add(id(result))
        elif not result._is_view() and all(one is not result for one in sharing):
            self._made -= {id(one) for one in sharing}

    def _any_differs(self, args: tuple, kwargs: Mapping[str, Any]) -> bool:
        return any(self.batch.differs(one) for one in _tensors(args, kwargs))

    def _by_rule(self, func: Callable, rule: LayerRule, args: tuple, kwargs: dict) -> Any:
        """Run a call that ``rule`` serves: its parameters are the same for all records, and its input is understood."""
        try:
            call = rule.read(*args, **kwargs)
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
                output = in_graph(one, output, self.early)
                if self.without_values:
                    output.register_hook(one.gradient_seen)
                self.calls.append(one)
        return self.batch.one(output)


def _tensors(args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
    given = [*args, *kwargs.values()]
    given += [part for one in given if isinstance(one, (tuple, list)) for part in one]
    return [one for one in given if isinstance(one, Tensor)]


def uses_of(calls: list[RecordedCall], of_copies: dict[str, Tensor | None]) -> list[NamedUse]:
    """Return the uses that recorded calls stand for, and those of bare parameters, where a gradient has come back.

    Args:
        calls: The recorded calls.
        of_copies: The per-sample gradients of the bare parameters, by name.
    """
    through = Derivations() if any(call.derived for call in calls) else None
    found = [use for call in calls for use in call.uses(through)]
    found += through.pulled_uses() if through is not None else []
    for name, grad in of_copies.items():
        if grad is not None:
            found.append(named_autograd_use(name, grad))
    return found
