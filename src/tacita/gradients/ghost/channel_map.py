r"""Weights that are normalised channel by channel: their pull-back is a diagonal and a few products a channel.

A weight of shape (channels, ...) minus its mean, over its standard deviation, times a gain: what such code computes
mixes the numbers of a channel only through means and the like. The pull-back of a gradient :math:`g` to the parameter
is then, in each channel,

.. math:: J^\top g = d \odot g + \sum_j u_j \langle v_j, g \rangle,

with one term for each mean. :math:`d`, :math:`u_j` and :math:`v_j` come from the nodes of autograd's graph: each node
says what it makes of a vector. A node that is not known to work number by number, or channel by channel, ends the
search.

No record enters here. Proof: docs/derivations/per-record-engine.md, section 2.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacita.gradients.record_batch import rules_guarded
from tacita.gradients.weighted_sums import wide

Shape = torch.Size

# Nodes that multiply each number of the gradient by a number of its own, or keep the numbers in their order. What was
# broadcast is added up by autograd's engine, after the node.
_NUMBER_BY_NUMBER = {
    f"{name}Backward0"
    for name in (
        "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Sqrt", "Rsqrt", "Reciprocal", "ClampMin", "Clone", "Alias", "View",
        "UnsafeView", "ReshapeAlias", "Unsqueeze",
    )
} | {"RsubBackward1", "ClampBackward1"}  # fmt: skip
# Nodes that spread one number a channel over the numbers that it was computed from, each times a number of its own.
_OF_A_CHANNEL = {"MeanBackward1", "SumBackward1", "StdBackward0", "VarBackward0", "LinalgVectorNormBackward0"}
WORTHWHILE = 2**20  # numbers to pull back; for fewer, autograd is faster than reading its graph
SIZES = (1.0, 2.0**-30, 2.0**30)  # of random vectors that are compared: a hook may clamp large gradients alone
SEED = 0x7AC17A  # no one's weights: those drawn from the same seed would be parallel to the vectors
LARGEST_DIFFERENCE = 1e-3  # from what autograd makes of them, relative


@dataclass(frozen=True)
class Pull:
    """The map from a weight's gradient g to a tensor of the same size: ``diagonal * g + sum_j left_j <right_j, g>``.

    Attributes:
        diagonal: Shape (channels, numbers).
        left, right: Shape (channels, terms, numbers).
    """

    diagonal: Tensor
    left: Tensor
    right: Tensor

    def __call__(self, grads: Tensor, out: Tensor) -> None:
        """Write what becomes of ``grads`` to ``out``, maybe the same memory, both (rows, channels, numbers)."""
        by_channel = torch.bmm(grads.transpose(0, 1), self.right.mT)
        torch.mul(grads, self.diagonal, out=out)
        out.transpose(0, 1).baddbmm_(by_channel, self.left)


@dataclass(frozen=True)
class Product:
    """The map from a weight's gradient g to one number a channel, ``<right, g>``.

    Attributes:
        right: Shape (channels, numbers).
    """

    right: Tensor

    def __call__(self, grads: Tensor, out: Tensor) -> None:  # (rows, channels, numbers), (rows, channels)
        out.copy_(torch.bmm(grads.transpose(0, 1), self.right.unsqueeze(2)).squeeze(2).t())


@dataclass(frozen=True)
class ChannelMap:
    """The pull-back of a derived weight to the parameters that it depends on.

    Attributes:
        parts: By the name of the parameter.
    """

    parts: Mapping[str, Pull | Product]

    def pulled(self, grads: Tensor, at_once: int, *, overwrite: bool = False) -> dict[str, Tensor]:
        """Return the gradients of the parameters, (rows, channels) or (rows, channels, numbers), by name.

        Args:
            grads: The gradients of the weight, (rows, *weight).
            at_once: Numbers that are pulled back at once.
            overwrite: Their memory may be written.
        """
        rows = grads.reshape(*grads.shape[:2], -1)
        narrow = [name for name, part in self.parts.items() if isinstance(part, Product)]
        whole = [name for name in self.parts if name not in narrow]
        found = {}
        for name in (*narrow, *whole):
            in_place = overwrite and [name] == whole
            out = rows if in_place else rows.new_empty(rows.shape[:2] if name in narrow else rows.shape)
            height = max(1, at_once // rows.shape[1:].numel())
            for some, into in zip(rows.split(height), out.split(height), strict=True):
                self.parts[name](some, into)
            found[name] = out
        return found


def channel_map(tensor: Tensor, leaves: Mapping[str, Tensor]) -> ChannelMap | None:
    """Return the pull-back of ``tensor`` to ``leaves``, the parameters that it was computed from.

    Returns:
        ``None`` if a node of the graph is not known to keep channels apart, or if autograd makes something else of a
        random vectors: a hook may change gradients on their way.
    """
    same = all(p.dtype == tensor.dtype == wide(p.dtype) for p in leaves.values())
    if not same or tensor._backward_hooks or tensor.ndim < 2 or min(tensor.shape[0], tensor[:1].numel()) < 2:
        return None
    with torch.no_grad():
        found = _Reader(tensor).read()
    if found is None or any(id(p) not in found for p in leaves.values()):
        return None
    made = ChannelMap({name: found[id(p)] for name, p in leaves.items()})
    return made if _agrees(made, tensor, leaves) else None


def _agrees(made: ChannelMap, tensor: Tensor, leaves: Mapping[str, Tensor]) -> bool:
    """Return whether autograd pulls back random vectors of several sizes as ``made`` does."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
    vectors = torch.stack([drawn * size for size in SIZES])
    with rules_guarded():
        expected = torch.autograd.grad(tensor, [*leaves.values()], vectors, retain_graph=True, is_grads_batched=True)
    found = made.pulled(vectors, 2**18)
    for name, one in zip(leaves, expected, strict=True):
        off, like = (found[name].flatten(1) - one.flatten(1)).norm(dim=1), one.flatten(1).norm(dim=1)
        if not (off <= LARGEST_DIFFERENCE * like).all():
            return False
    return True


class _Reader:
    """Follows a gradient g from a weight to the parameters, node by node.

    What reaches a node is a map of g, either to a tensor of the weight's size or to one number a channel.

    Args:
        weight: The weight.

    Attributes:
        rights: The right factors of all terms.
        wide: By node: the diagonal, under ``None``, and the left factors by the index of the right one, each
            (channels, numbers).
        narrow: By node: the right factor of a product, (channels, numbers).
    """

    def __init__(self, weight: Tensor) -> None:
        self.size = weight.shape[0], weight[0].numel()
        self.root: Any = weight.grad_fn
        self.rights: list[Tensor] = []
        self.wide: dict[Any, dict[int | None, Tensor]] = {self.root: {None: weight.new_ones(self.size)}}
        self.narrow: dict[Any, Tensor] = {}

    def read(self) -> dict[int, Pull | Product] | None:
        """Return what reaches each parameter, by identity; ``None`` if a node is not known to keep channels apart."""
        found: dict[int, Pull | Product] = {}
        for node in _in_order(self.root):
            if not hasattr(node, "variable"):
                if not self._step(node):
                    return None
            elif node in self.narrow:
                found[id(node.variable)] = Product(self.narrow[node])
            else:
                found[id(node.variable)] = self._pull(self.wide[node])
        return found

    def _pull(self, parts: dict[int | None, Tensor]) -> Pull:
        terms = {j: left for j, left in parts.items() if j is not None}
        none = self.wide[self.root][None].new_zeros(self.size)
        left = torch.stack([*terms.values()], dim=1) if terms else none[:, None][:, :0]
        right = torch.stack([self.rights[j] for j in terms], dim=1) if terms else left
        return Pull(parts.get(None, none), left, right)

    def _step(self, node: Any) -> bool:
        """Pass on what has reached a node; return whether it is known what the node does."""
        shape, targets = _shape(node), [one for one, _ in node.next_functions]
        shapes = [None if one is None else _shape(one) for one in targets]
        if shape is None or any(k for _, k in node.next_functions):
            return False
        if node in self.narrow:
            return self._from_narrow(node, shape, targets, shapes)
        return node.name() in _NUMBER_BY_NUMBER and self._from_wide(node, shape, targets, shapes)

    def _from_wide(self, node: Any, shape: Shape, targets: list, shapes: list[Shape | None]) -> bool:
        """Multiply number by number; where one number was used for a whole channel, add up over the channel."""
        made = {j: self._passed(node, one, shape) for j, one in self.wide[node].items()}
        for k, (target, goal) in enumerate(zip(targets, shapes, strict=True)):
            if target is None:
                continue
            parts = {j: one[k] for j, one in made.items()}
            if goal is not None and self._is_wide(goal):
                there = self.wide.setdefault(target, {})
                for j, one in parts.items():
                    there[j] = there[j] + one if j in there else one
            elif goal == (shape[0], *(1,) * (len(shape) - 1)):
                for j, one in parts.items():
                    self._add_narrow(target, one if j is None else one.sum(dim=1, keepdim=True) * self.rights[j])
            else:
                return False
        return True

    def _from_narrow(self, node: Any, shape: Shape, targets: list, shapes: list[Shape | None]) -> bool:
        """Multiply channel by channel, or spread a channel's number over the numbers that it was computed from."""
        spread = node.name() in _OF_A_CHANNEL
        if not spread and node.name() not in _NUMBER_BY_NUMBER:
            return False
        made = self._passed(node, self.narrow[node].new_ones(shape), shape)
        for one, target, goal in zip(made, targets, shapes, strict=True):
            if target is None:
                continue
            if spread and goal is not None and self._is_wide(goal) and _by_channel(shape, goal):
                self.rights.append(self.narrow[node])
                self.wide.setdefault(target, {})[len(self.rights) - 1] = one
            elif not spread and goal is not None and self._is_narrow(goal):
                self._add_narrow(target, one * self.narrow[node])
            else:
                return False
        return True

    def _add_narrow(self, target: Any, right: Tensor) -> None:
        self.narrow[target] = self.narrow[target] + right if target in self.narrow else right

    def _passed(self, node: Any, one: Tensor, shape: Shape) -> list[Tensor]:
        """Return what a node makes of a vector, for each of its inputs, (channels, numbers) or (channels, 1)."""
        made = node(one.view(shape))
        made = made if isinstance(made, tuple) else (made,)
        return [one if some is None else some.reshape(self.size[0], -1) for some in made]

    def _is_wide(self, shape: Shape) -> bool:
        return shape[:1] == self.size[:1] and shape.numel() == self.size[0] * self.size[1]

    def _is_narrow(self, shape: Shape) -> bool:
        return shape[:1] == self.size[:1] and shape.numel() == self.size[0]


def _by_channel(small: Shape, whole: Shape) -> bool:
    """Return whether one number a channel came from the numbers of its channel: no other axis has that length."""
    return small == (whole[0], *(1,) * (len(whole) - 1)) or (len(small) == 1 and whole[0] not in whole[1:])


def _shape(node: Any) -> Shape | None:
    """Return the shape of the one tensor whose gradient a node takes; ``None`` if there are several."""
    metadata = getattr(node, "_input_metadata", ())
    return torch.Size(metadata[0].shape) if len(metadata) == 1 else None


def _in_order(root: Any) -> list[Any]:
    """Return the nodes of a graph, each after all that pass something on to it."""
    waiting, entries = [root], Counter[Any]()
    seen = {root}
    while waiting:
        after = [one for one, _ in waiting.pop().next_functions if one is not None]
        entries.update(after)
        waiting += [one for one in dict.fromkeys(after) if one not in seen]
        seen.update(after)
    ordered, ready = [], [root]
    while ready:
        ordered.append(ready.pop())
        for one, _ in ordered[-1].next_functions:
            if one is not None:
                entries[one] -= 1
                if not entries[one]:
                    ready.append(one)
    return ordered
