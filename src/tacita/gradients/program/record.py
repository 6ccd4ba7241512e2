"""One forward and one backward pass that record every call in which an input meets parameters.

A tape (``tape.py``) is played on *one record that stands for all* (``record_batch.py``). A model therefore cannot mix
records: there is no batch axis to sort, crop or average over. A call of a torch function that has a rule
(``registry.py``) runs on the whole batch by its ordinary kernel, with detached parameters; its input and the edge of
its output are recorded. One backward pass then gives the gradients of all outputs. A parameter that is used in any
other way is *bare*: it enters as one copy a record, so that autograd gives its per-sample gradients.

Everything here is private. Proof: docs/derivations/per-record-engine.md, section 2.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tacita.gradients.batches import flatten
from tacita.gradients.chunked import Chunk
from tacita.gradients.program.recorded_calls import RecordedCall, in_graph
from tacita.gradients.program.tape import Tape
from tacita.gradients.record_batch import RecordBatch, outside, records
from tacita.gradients.rules.derived import Derived, derived
from tacita.gradients.rules.fused_kernels import KERNELS, REPLACEMENTS
from tacita.gradients.rules.products import PRODUCTS
from tacita.gradients.rules.registry import RULES
from tacita.gradients.rules.rule import Call, LayerRule

_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default


class BareParametersError(Exception):
    """The pass must be made again: a rule does not see all uses of some parameters.

    Attributes:
        names: Of these parameters.
    """

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(repr(names))
        self.names = names


class RecordedPass(NamedTuple):
    """What one forward and one backward pass recorded.

    Attributes:
        calls: The calls that met parameters, with the gradients of their outputs.
        of_copies: The per-sample gradients of the bare parameters, by name; ``None`` where no loss depends on one.
    """

    calls: list[RecordedCall]
    of_copies: dict[str, Tensor | None]


def record_once(
    tape: Tape, params: Mapping[str, Tensor], fixed: Mapping[str, Tensor], chunk: Chunk, bare: Collection[str]
) -> RecordedPass:
    """Play a tape on tensors without values, forward and backward, and record every call that meets parameters.

    Args:
        tape: What the model and the loss do for one record.
        params: The point, by parameter name.
        fixed: The other weights, by name.
        chunk: At least one record.
        bare: Names of parameters that enter as one copy a record, so that any use of them is served.

    Raises:
        BareParametersError: More must.
        UnsupportedModuleError: The code writes what it must not.
    """
    with torch.enable_grad():
        leaves = {name: p.detach().requires_grad_() for name, p in params.items() if name not in bare}
        copies = {n: params[n].detach().expand(chunk.size, *params[n].shape).requires_grad_() for n in sorted(bare)}
        losses, recorder = forward(tape, [*params], leaves, copies, [*fixed.values()], chunk)
        of_leaves, of_copies = _backward(losses, recorder, leaves, copies)
    del losses
    for call in recorder.calls:
        call.check_untouched()
    unseen = frozenset(name for name, grad in zip(leaves, of_leaves, strict=True) if grad is not None)
    if unseen:
        raise BareParametersError(unseen)
    return RecordedPass(recorder.calls, dict(zip(copies, of_copies, strict=True)))


def forward(  # noqa: PLR0917
    tape: Tape,
    names: Sequence[str],
    leaves: Mapping[str, Tensor],
    copies: Mapping[str, Tensor],
    fixed: Sequence[Tensor],
    chunk: Chunk,
) -> tuple[Tensor, "_Recorder"]:
    """Return the losses of the chunk, (rows,), and the recorder that saw the calls."""
    tensors, _ = flatten(chunk.batch, chunk.size)
    with records(chunk.size) as all_records:
        point = [leaves[name] if name in leaves else all_records.one(copies[name]) for name in names]
        one = [all_records.one(t.unsqueeze(1).clone() if tape.writes_record else t.unsqueeze(1)) for t in tensors]
        with _Recorder(all_records, leaves) as recorder:
            losses = tape.play([*point, *fixed, *one], all_records.each_its_own)
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

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, result = kwargs or {}, NotImplemented
        rule, replacement = RULES.get(func), REPLACEMENTS.get(func)
        if rule is not None:
            result = self._by_rule(func, rule, args, kwargs)
        if result is NotImplemented and replacement is not None:
            with nullcontext() if func in KERNELS else self:  # the calls of others are seen one by one
                result = replacement(self.batch, *args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result

    def _by_rule(self, func: Callable, rule: LayerRule, args: tuple, kwargs: dict) -> Any:
        """Run a call that ``rule`` serves: its parameters are the same for all records."""
        try:
            call = rule.read(*args, **kwargs)
        except TypeError:  # arguments that the function does not take either: let it say so
            return NotImplemented
        if call is None or (func in PRODUCTS and not self.batch.differs(call.x)):
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
