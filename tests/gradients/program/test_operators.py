"""The list of operators of a function: it gives what the function gives, and nothing in it depends on values."""

import contextlib

import pytest
import torch
from torch.fx import GraphModule, Node, traceback

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.operators import memory, recorded
from tacita.gradients.program.run import build

X, Y = torch.randn(5, 4), torch.randn(4)
KEPT = torch.arange(4.0)


def ran(function, *given):
    """What the operators of a function give, run on the values."""
    found = recorded(lambda inputs: list(function(*inputs)), given)
    held = torch.nn.Module()
    for node, one in found.constants.items():
        held.register_buffer(str(node.target), one)
    return GraphModule(held, found.graph)(*given)


def in_place(x, y):
    z = x * 2
    z[:, 0].add_(y[0])
    z.t_()
    return z, z.sum(0)


def several(x, y):
    found = x.sort(1)
    return found.values, found.indices, *x.split([1, 3], dim=1), *torch.std_mean(x, 0)


def backward(x, y):
    z = x.detach().requires_grad_()
    return torch.autograd.grad((z @ y).tanh().sum(), z)


FUNCTIONS = {
    "in place": in_place,
    "several results": several,
    "backward pass": backward,
    "constants": lambda x, y: (x + KEPT, x * torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "under vmap": lambda x, y: (torch.func.vmap(lambda row: row.softmax(0) @ y)(x),),
    "an input and a constant": lambda x, y: (x, KEPT),
    "lists of tensors": lambda x, y: (torch.cat([x, y[None]]), torch.stack([y, y + 1])),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_list_of_operators_gives_what_the_function_gives(function):
    for one, other in zip(ran(function, X, Y), function(X, Y), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


VIEWS = {
    "a slice": torch.randn(9)[5:],
    "transposed": torch.randn(3, 4).t()[:, 0],
    "the same number four times": torch.randn(1).expand(4),
    "conjugated": torch.randn(4, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_an_input_or_a_constant_may_be_a_view(view):
    for one in (ran(lambda x, y: (x * y,), X, view), ran(lambda x, y: (x * view,), X, Y)):
        torch.testing.assert_close(one[0], X * view, rtol=0, atol=0)


@pytest.mark.parametrize("fails", [False, True])
def test_what_pytorch_notes_for_its_tracers_is_as_it_was(fails):
    def loss_fn(model, batch):
        return torch.linalg.lu(model(batch[0]).view(-1, 2, 2))[2].sum((1, 2)) if fails else model(batch[0]).sum(1)

    with traceback.preserve_node_meta():
        traceback.current_meta["stack_trace"] = "mine"
        with pytest.raises(RuntimeError, match="linalg_lu") if fails else contextlib.nullcontext():
            build(model := torch.nn.Linear(4, 4), loss_fn, dict(model.named_parameters()), (X,))
        assert traceback.current_meta["stack_trace"] == "mine"


def test_a_constant_is_copied_before_it_is_written():
    made = torch.tensor([1.0, 2.0])

    def function(inputs):
        return [inputs[0] * torch.ops.aten.lift_fresh(made).mul_(3)]

    found = recorded(function, [torch.ones(2)])
    assert [one.tolist() for one in found.constants.values()] == [[1.0, 2.0]] == [made.tolist()]
    assert "lift_fresh_copy" in {node.target._opname for node in found.graph.nodes if node.op == "call_function"}


def test_values_are_not_there():
    with pytest.raises(Exception, match="_local_scalar_dense"):
        recorded(lambda inputs: [inputs[0] * inputs[0].sum().item()], [X])


def test_a_tensor_of_another_pass_is_refused():
    kept = []
    recorded(lambda inputs: kept.append(inputs[0] + 1) or inputs, [X])
    with pytest.raises(UnsupportedModuleError, match="came from no operator of this pass"):
        recorded(lambda inputs: [inputs[0] * kept[0]], [X])


@pytest.mark.parametrize("of_a_record", [False, True])
def test_a_tensor_without_memory_of_its_own_is_refused(of_a_record):
    """What shares its values is not known, and so not what writes them."""
    kept = torch.eye(4).to_sparse()
    with pytest.raises(NotImplementedError, match="Cannot access storage"):
        recorded(lambda inputs: [inputs[0] @ (inputs[0][:4].to_sparse() if of_a_record else kept).to_dense()], [X])


def test_an_operator_that_failed_is_not_in_the_list():
    def function(inputs):
        with contextlib.suppress(RuntimeError):
            inputs[0].view(3, 3)
        return [inputs[0] + 1]

    names = [node.target._opname for node in recorded(function, [X]).graph.nodes if node.op == "call_function"]
    assert names == ["add"]


def test_what_nobody_needs_is_left_out():
    found = recorded(lambda inputs: [inputs[0].detach().view(5, 4) + 0 * inputs[0].exp().sum()], [X])
    names = [node.target._opname for node in found.graph.nodes if node.op == "call_function"]
    assert "detach" not in names
    assert "view" not in names
    idle = recorded(lambda inputs: [inputs[0] + 1, inputs[0].exp()][:1], [X])
    assert [node.target._opname for node in idle.graph.nodes if node.op == "call_function"] == ["add"]


def test_tensors_that_share_memory_are_known_to():
    found = recorded(lambda inputs: [inputs[0][1:], inputs[0] + 1], [X])
    view, other = (node.meta["val"] for node in found.outputs if isinstance(node, Node))
    (given,) = (node.meta["val"] for node in found.graph.nodes if node.op == "placeholder")
    assert memory(view) == memory(given) != memory(other)
