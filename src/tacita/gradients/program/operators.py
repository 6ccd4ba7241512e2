"""Run a function of tensors on tensors that have shapes and no values, and write down every operator.

What stands in the list is what PyTorch's dispatcher comes to below autograd and ``vmap``: its operators on whole
batches. Everything here is private. Proof: docs/derivations/program.md.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node, traceback
from torch.fx.experimental.proxy_tensor import disable_autocast_cache
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import IN_TURN
from tacita.gradients.program.batching import every_operator_needs_a_rule, give_rule
from tacita.gradients.program.surroundings import modes_kept, quiet

_aten = torch.ops.aten
_SAME = {_aten.detach.default, _aten.alias.default}  # without autograd, names of the tensor that they are given
_RESHAPES = {_aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.reshape.default}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor without values lies in memory: ``node.meta["val"]`` of the node that stands for it.

    Attributes:
        shape: Its shape.
        strides: Its strides.
        dtype: Its dtype.
        memory: The same object for tensors that share memory, kept alive.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    memory: Any

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """The number of its elements."""
        return self.shape.numel()


class Operators(TorchDispatchMode):
    """Writes down the operators that run while it is on.

    Attributes:
        fake: Makes tensors without values.
        graph: The operators, in order.
        constants: Copies of the tensors with values that operators met, by node, as they are afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.graph = Graph()
        self.constants: dict[Node, Tensor] = {}
        self._nodes: dict[int, tuple[Node, Tensor]] = {}  # id -> node; the tensor is kept, lest its id recurs

    @property
    def outputs(self) -> Sequence[Node]:
        """The nodes of what the function returned."""
        return self.graph.output_node().args[0]  # pyright: ignore[reportReturnType]

    def run(self, function: Callable[[list[Tensor]], Sequence[Tensor]], given: Sequence[Tensor]) -> None:
        """Run a function on tensors of the shapes of ``given``."""
        inputs: list[Tensor] = [self.fake.from_tensor(one) for one in given]  # a view is made by operators of its own
        for k, one in enumerate(inputs):
            self._stands_for(self.graph.placeholder(f"input_{k}"), one)
        with disable_autocast_cache(), self.fake, self:
            found = function(inputs)
        self.graph.output([self._node(one) for one in found])
        self.constants = {node: one.detach().clone() for node, one in self.constants.items()}
        self._nodes.clear()  # and what autograd kept of them

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        if func is _aten.lift_fresh.default:  # gives the constant itself, which later operators may write
            func = _aten.lift_fresh_copy.default
        found = func(*args, **kwargs)
        node = self.graph.call_function(func, *tree_map_only(Tensor, self._node, (args, kwargs)))
        node.meta["stack_trace"] = traceback.current_meta.get("stack_trace")
        if isinstance(found, Tensor):
            self._stands_for(node, found)
        elif isinstance(found, (tuple, list)):
            node.meta["val"] = [_layout(one) if isinstance(one, Tensor) else None for one in found]
            for k, one in enumerate(found):
                if isinstance(one, Tensor):
                    self._stands_for(self.graph.call_function(operator.getitem, (node, k)), one)
        return found

    def _stands_for(self, node: Node, tensor: Tensor) -> None:
        node.meta["val"] = _layout(tensor)
        self._nodes[id(tensor)] = node, tensor

    def _node(self, tensor: Tensor) -> Node:
        if id(tensor) not in self._nodes:
            if isinstance(tensor, FakeTensor):
                raise UnsupportedModuleError("a tensor came from no operator of this pass")
            node = self.graph.create_node("get_attr", f"constant_{len(self.constants)}")
            self.constants[node] = tensor
            self._stands_for(node, tensor)
        return self._nodes[id(tensor)][0]


def recorded(function: Callable[[list[Tensor]], Sequence[Tensor]], given: Sequence[Tensor]) -> Operators:
    """Run a function on tensors without values, and return its operators, those left out that nobody needs."""
    with (
        IN_TURN,
        quiet(),
        modes_kept(without=True),
        traceback.preserve_node_meta(),
        every_operator_needs_a_rule(),
    ):  # switches of the process
        while True:
            operators = Operators()
            try:
                operators.run(function, given)
                break
            except RuntimeError as error:
                if not give_rule(error):
                    raise
    _simplify(operators.graph)
    return operators


def _layout(tensor: Tensor) -> Layout:
    """Return the layout of a tensor; one without memory of its own (sparse, say) raises, as its writers are unknown."""
    return Layout(tensor.shape, tensor.stride(), tensor.dtype, tensor.untyped_storage())


def memory(value: Any) -> int:
    """Return what the layouts of two tensors have in common if they share memory; some operators do not say so."""
    return value.memory._cdata if isinstance(value, Layout) else 0


def _simplify(graph: Graph) -> None:
    """Take out calls that give what they are given, and those whose result nobody uses."""
    alone = not any(torch.Tag.inplace_view in getattr(node.target, "tags", ()) for node in graph.nodes)  # y.t_()
    for node in [*graph.nodes] if alone else []:
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
            continue
        given = node.args[0]
        same = node.target in _SAME
        if node.target in _RESHAPES:
            before, after = given.meta["val"], node.meta["val"]
            same = before.shape == after.shape and before.strides == after.strides
        if same:
            node.replace_all_uses_with(given)
            graph.erase_node(node)
    graph.eliminate_dead_code()
