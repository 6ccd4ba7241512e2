"""Recorded calls: what a call of a torch function was, and what it stands for once its output's gradient is known.

Everything here is private.
"""

from dataclasses import dataclass, field
from typing import Any, SupportsFloat, SupportsIndex

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from tacita.errors import UnsupportedModuleError
from tacita.gradients.rules.derived import Derivations, Derived
from tacita.gradients.rules.rule import AUTOGRAD_RULE, LayerRule, LayerUse, NamedUse, autograd_use
from tacita.gradients.weighted_sums import to_exact

_ANCHOR = torch.empty(0, requires_grad=True)  # no gradient reaches it


_EXACT = {type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format}


def exact(value: Any) -> Any:
    """Return an argument without code of the user's own: of a subclass of int, float or str, the plain value.

    Raises:
        UnsupportedModuleError: It is of another type than PyTorch's operators take.
    """
    if type(value) in _EXACT or isinstance(value, (Tensor, torch.Generator)):
        return value
    if isinstance(value, (list, tuple)):
        return [exact(one) for one in value] if isinstance(value, list) else tuple(exact(one) for one in value)
    for kind, plain in ((str, str.__str__), (float, float.__float__), (SupportsIndex, int), (SupportsFloat, float)):
        if isinstance(value, kind) and type(found := plain(value)) in _EXACT:  # type: ignore[arg-type]
            return found
    raise UnsupportedModuleError(f"a {type(value).__name__} may have code of its own: give an operator plain numbers")


@dataclass
class RecordedCall:
    """One call on the whole batch.

    Attributes:
        function: Name of the torch function.
        rule: The function's rule, with the ``settings`` that it read.
        parameters: The rule's own name -> the model's.
        derived: The rule's own name -> what was computed from parameters alone.
        shapes: Of parameters and derived weights, by the rule's names.
        x: The input.
        version: Of the input, when the call was made, to see whether it is modified later.
        copies: Copies of the parameters, one a record, whose gradients are the per-sample gradients.
        edge: Of the output, in autograd's graph.
        grads: What the backward pass gave for ``wanted``; ``None`` where the losses do not depend on it.
        seen: The gradient of the output and its version, when it was first known.
    """

    function: str
    rule: LayerRule
    settings: Any
    parameters: dict[str, str]
    derived: dict[str, Derived]
    shapes: dict[str, torch.Size]
    x: Tensor
    version: int
    copies: dict[str, Tensor] = field(default_factory=dict)
    edge: GradientEdge | None = None
    grads: list[Tensor | None] = field(default_factory=list)
    seen: tuple[Tensor, int] | None = None

    def names(self) -> list[str]:
        """Return the names of the parameters that the call meets, one for each time."""
        return [*self.parameters.values(), *(name for one in self.derived.values() for name in one.leaves)]

    @property
    def wanted(self) -> list[Any]:
        """Where autograd has to give gradients."""
        return [*self.copies.values()] or ([] if self.edge is None else [self.edge])

    def uses(self, through: Derivations | None = None) -> list[NamedUse]:
        """Return the uses of parameters that the call stands for. It forgets its input and its output's gradient.

        Args:
            through: Takes the uses of derived weights, if there are any.
        """
        if all(grad is None for grad in self.grads):
            return []
        parts = self._parts()
        self.settings, self.x, self.grads = None, self.x.new_empty(0), []  # the rule may hold a copy of its own
        found: list[NamedUse] = []
        for part, rule in parts:
            names = {local: self.parameters[local] for local in part.names if local in self.parameters}
            if names:
                found.append(NamedUse(part.only(tuple(names)), self.function, names, rule))
            for local in part.names:
                if local in self.derived:
                    assert through is not None
                    found += through.uses(part.only((local,)), rule, self.function, self.derived[local])
        return found

    def _parts(self) -> list[tuple[LayerUse, LayerRule]]:
        """Return the uses, each with its rule: autograd's where it gave the per-sample gradients."""
        if self.copies:
            of_copies = zip(self.copies, self.grads, strict=True)
            return [(autograd_use(grad, local), AUTOGRAD_RULE) for local, grad in of_copies if grad is not None]
        (grad,) = self.grads
        assert grad is not None
        use = LayerUse(self.settings, self.shapes, tuple(self.shapes), to_exact(self.x), to_exact(grad))
        return [(part, self.rule) for part in self.rule.split(use)]

    def gradient_seen(self, grad: Tensor) -> None:
        """Remember the gradient of the output, to see whether the rest of the backward pass writes it."""
        self.seen = grad, grad._version

    def check_gradient(self) -> None:
        """Refuse a backward of the user's own that has written the gradient which the call was given.

        Raises:
            UnsupportedModuleError: It has.
        """
        seen, self.seen = self.seen, None
        if seen is not None and seen[0]._version != seen[1]:
            raise UnsupportedModuleError(
                f"the backward of an autograd.Function writes the gradient that it is given, and with it that of the "
                f"call with {', '.join(map(repr, self.names()))}. Let it return a new tensor (grad * 2, not "
                "grad.mul_(2))"
            )

    def check_untouched(self) -> None:
        """Refuse a call whose input, or a weight derived from parameters, is written afterwards.

        Raises:
            UnsupportedModuleError: It is.
        """
        if self.x._version == self.version and all(d.tensor._version == d.version for d in self.derived.values()):
            return
        raise UnsupportedModuleError(
            f"the input of the call with {', '.join(map(repr, self.names()))} is modified in place afterwards: copy it "
            "first (x = x.clone())"
        )


def in_graph(call: RecordedCall, output: Tensor) -> Tensor:
    """Return a call's output as a tensor whose gradient the backward pass gives to the call."""
    if not output.requires_grad:
        output = _InGraph.apply(output, _ANCHOR)  # pyright: ignore[reportAssignmentType]
    call.edge = get_gradient_edge(output)
    output.register_hook(call.gradient_seen)
    return output


class _InGraph(torch.autograd.Function):
    """Put a tensor into the graph although nothing that it was computed from needs a gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, None]:
        return None, None
