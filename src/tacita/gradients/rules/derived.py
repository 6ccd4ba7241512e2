"""Weights that the model's code computes from parameters alone: a transpose, a slice, a normalised or a pruned weight.

Such a tensor is the same for all records. A call that meets it is recorded like a call that meets a parameter, and what
the rule gives is pulled back to the parameter. A *rearrangement* puts coordinates elsewhere and changes no norm, so the
rule's norms serve as they are. Through anything else the per-sample gradients themselves are pulled back, by autograd.

Everything here is private. Proof: docs/derivations/per-record-engine.md, section 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tacita.gradients.batches import memory_key
from tacita.gradients.rules.rounding import SquaredNorms
from tacita.gradients.rules.rule import (
    UNDERNEATH,
    Factors,
    LayerRule,
    LayerUse,
    NamedUse,
    RowWeights,
    named_autograd_use,
)
from tacita.gradients.weighted_sums import to_exact, wide

AT_ONCE = 2**18  # elements of gradients that are pulled back at once: they stay in a cache over all steps of the way

# Nodes of autograd's graph whose function puts each coordinate of its input in one place of its output, or nowhere.
_REARRANGEMENTS = {
    f"{name}Backward0"
    for name in (
        "T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Slice", "Select", "Split", "SplitWithSizes",
        "Unbind", "Squeeze", "Unsqueeze", "Alias", "Clone",
    )
} | {"SplitBackward0", "UnbindBackward0", "SqueezeBackward1"}  # fmt: skip


@dataclass(frozen=True)
class Derived:
    """A tensor that is a function of parameters alone.

    Attributes:
        tensor: The tensor, with its graph.
        leaves: The parameters that it depends on, by name.
        rearranged: It is a rearrangement of its one parameter.
        view: It also shares that parameter's memory, which has no gaps.
        version: Of the tensor, to see whether it is modified later.
    """

    tensor: Tensor
    leaves: Mapping[str, Tensor]
    rearranged: bool
    view: bool
    version: int

    def place(self) -> tuple:
        """Return what two rearrangements have in common if they put the same coordinates in the same places."""
        if not self.view:
            return (id(self.tensor),)
        return (*self.leaves, self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset())

    def extent(self) -> range | None:
        """Return the stretch of the parameter's memory that it has all of; ``None`` if it has gaps, or a copy."""
        length = _length(self.tensor)
        start = self.tensor.storage_offset()
        return range(start, start + length) if self.view and length == self.tensor.numel() else None

    def pull_rows(self, grads: Tensor) -> Tensor:
        """Return the gradients of the one parameter of a rearrangement, (rows, *tensor) -> (rows, *parameter)."""
        if not self.view:
            return self.pulled(grads)[0]
        ((_, leaf),) = self.leaves.items()
        found = grads.new_zeros(len(grads), leaf.numel())
        start = self.tensor.storage_offset() - leaf.storage_offset()
        found.as_strided(grads.shape, (leaf.numel(), *self.tensor.stride()), start).copy_(grads)
        return found.as_strided((len(grads), *leaf.shape), (leaf.numel(), *leaf.stride()))

    def pulled(self, grads: Tensor) -> list[Tensor]:
        """Return the gradients of all parameters, each (rows, *parameter), for those of the tensor, (rows, *tensor).

        They are pulled back a few rows at a time.
        """
        grads = grads.to(self.tensor.device, self.tensor.dtype)
        height = max(1, AT_ONCE // max(1, self.tensor.numel()))
        parts = [self._pulled_at_once(rows) for rows in grads.split(height)]
        return [to_exact(torch.cat(of_one)) for of_one in zip(*parts, strict=True)]

    def _pulled_at_once(self, grads: Tensor) -> list[Tensor]:
        leaves = list(self.leaves.values())
        return [*torch.autograd.grad(self.tensor, leaves, grads, retain_graph=True, is_grads_batched=True)]


def derived(tensor: Tensor, names: Mapping[int, str]) -> Derived | None:
    """Return how a tensor that is the same for all records depends on parameters.

    Args:
        tensor: The tensor.
        names: The names of the parameters that a gradient is taken in, by identity.

    Returns:
        ``None`` if it depends on none of them, or on something else that takes a gradient.
    """
    waiting, seen = [tensor.grad_fn], set[Any]()
    leaves: dict[str, Tensor] = {}
    rearranged = not tensor._backward_hooks
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is None:
            rearranged = rearranged and node.name() in _REARRANGEMENTS
            waiting += [after for after, _ in node.next_functions]
        elif id(leaf) in names:
            leaves[names[id(leaf)]] = leaf
        else:
            return None
    if not leaves:
        return None
    leaf, rearranged = next(iter(leaves.values())), rearranged and len(leaves) == 1
    view = rearranged and memory_key(tensor) == memory_key(leaf) and _length(leaf) == leaf.numel()
    rearranged = rearranged and (view or tensor.dtype == wide(tensor.dtype))  # autograd would round what it pulls back
    return Derived(tensor, leaves, rearranged, view, tensor._version)


class RearrangedRule(LayerRule):
    """The rule of a rearranged parameter: another rule's norms, and its sums and gradients put in their places.

    Args:
        plain: The rule of the call.
        source: What the call meets.
        local: The rule's name of it.
    """

    def __init__(self, plain: LayerRule, source: Derived, local: str) -> None:
        self.plain, self.source, self.local = plain, source, local

    def read(self, *args: Any, **kwargs: Any) -> None:
        return None

    def wrapped(self, use: LayerUse) -> LayerUse:
        """Return the use of the parameter for the use of what was derived from it."""
        (leaf,) = self.source.leaves.values()
        return replace(use, shapes={self.local: leaf.shape}, names=(self.local,), kept={})

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        return {self.local: self.source.pull_rows(self.plain.grads(self._of_the_call(use))[self.local])}

    def squared_norms(self, use: LayerUse) -> Mapping[str, SquaredNorms | Tensor]:
        of_the_call = self._of_the_call(use)
        found = self.plain.squared_norms(of_the_call)
        self._remember(use, of_the_call)
        return found

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        found = self.plain.sums(self._of_the_call(use), weights)[self.local]
        return {self.local: self.source.pull_rows(found.unsqueeze(0))[0]}

    def radius(self, use: LayerUse) -> dict[str, Tensor]:
        of_the_call = self._of_the_call(use)
        found = self.plain.radius(of_the_call)
        self._remember(use, of_the_call)
        return found

    def positions(self, use: LayerUse) -> int:
        return self.plain.positions(self._of_the_call(use))

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        return self.plain.reach(self._of_the_call(use))

    def factors(self, use: LayerUse) -> Factors | None:
        found = self.plain.factors(self._of_the_call(use))
        ((_, leaf),) = self.source.leaves.items()
        if found is None or not self.source.view or leaf.ndim != 2:
            return None
        if self.source.place()[1:] == (leaf.shape, leaf.stride(), leaf.storage_offset()):
            return found
        turned = leaf.t()
        same = self.source.place()[1:] == (turned.shape, turned.stride(), turned.storage_offset())
        return found.transposed() if same else None

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse | None:
        whole = self.plain.merged([self._of_the_call(use) for use in uses])
        return None if whole is None else self.wrapped(whole)

    def _remember(self, use: LayerUse, of_the_call: LayerUse) -> None:
        """Keep with the use what the rule of the call has kept: the sums take it, and bounds of the sums rest on it."""
        use.kept.update({UNDERNEATH + name: kept for name, kept in of_the_call.kept.items()})

    def _of_the_call(self, use: LayerUse) -> LayerUse:
        name = UNDERNEATH + self.local
        kept = {self.local: use.kept[name]} if name in use.kept else {}
        return replace(use, shapes={self.local: self.source.tensor.shape}, kept=kept)


class Derivations:
    """Turns uses of derived weights into uses of the parameters that they depend on."""

    def __init__(self) -> None:
        self._rules: dict[tuple, RearrangedRule] = {}  # one for all uses that can be merged
        self._sums: dict[int, tuple[Derived, Tensor]] = {}  # by tensor, with its gradients

    def uses(self, use: LayerUse, of_the_call: LayerRule, function: str, source: Derived) -> list[NamedUse]:
        """Return the use of a rearranged parameter, the one of ``use``; remember the gradients of anything else."""
        (local,) = use.names
        if source.rearranged:
            key = (id(of_the_call), local, *source.place())
            rule = self._rules.setdefault(key, RearrangedRule(of_the_call, source, local))
            (name,) = source.leaves
            return [NamedUse(rule.wrapped(use), function, {local: name}, rule)]
        grads, key = of_the_call.grads(use)[local], id(source.tensor)
        before = self._sums.get(key)
        self._sums[key] = (source, grads if before is None else before[1] + grads)
        return []

    def pulled_uses(self) -> list[NamedUse]:
        """Return the uses of parameters from which something else than a rearrangement was computed."""
        found = []
        for source, grads in self._sums.values():
            found += [named_autograd_use(n, g) for n, g in zip(source.leaves, source.pulled(grads), strict=True)]
        return found


def apart(rules: Sequence[LayerRule]) -> bool:
    """Return whether the rules serve stretches of one parameter that do not meet: the squares of their norms add up."""
    stretches = [rule.source.extent() if isinstance(rule, RearrangedRule) else None for rule in rules]
    if any(stretch is None for stretch in stretches):
        return False
    ordered = sorted((s.start, s.stop) for s in stretches if s is not None)
    return all(before[1] <= after[0] for before, after in pairwise(ordered))


def _length(tensor: Tensor) -> int:
    """Return how much memory lies between the first coordinate and the last, both included."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
