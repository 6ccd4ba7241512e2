"""Recorded calls: what a call of a torch function was, and what it stands for once its output's gradient is known.

Everything here is private.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from tacita.errors import UnsupportedModuleError
from tacita.gradients.rules.derived import Derivations, Derived
from tacita.gradients.rules.rule import AUTOGRAD_RULE, LayerRule, LayerUse, NamedUse, autograd_use
from tacita.gradients.weighted_sums import to_exact

_ANCHOR = torch.empty(0, requires_grad=True)  # no gradient reaches it


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
        self.settings, self.x, self.grads = None, _ANCHOR, []  # the rule may hold a copy of its own
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
