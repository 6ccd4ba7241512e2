"""A tape holds what the code does for one record: the program's gradients are the loop's, and no code is left on it."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, handle_torch_function
from torch.utils.checkpoint import checkpoint

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tacita.gradients.functional import trainable
from tacita.gradients.program import tape, writer


class Twice(torch.autograd.Function):
    """A product whose backward is its own, beside an index that has none."""

    @staticmethod
    def forward(x, weight):
        return x @ weight.t(), x.argmax(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])
        ctx.factor = 2.0

    @staticmethod
    def backward(ctx, grad, of_index):
        x, weight = ctx.saved_tensors
        return ctx.factor * grad @ weight, ctx.factor * grad.t() @ x + of_index.sum()


def cross_entropy(m, b):
    return F.cross_entropy(m(b[0]), b[1], reduction="none")


def without_gradients(m, b):
    with torch.no_grad():
        weight = m(b[0]).softmax(1).amax(1)
    return cross_entropy(m, b) * weight


def detached_inside(m, b):
    def inner(x):
        return m(x).tanh().sum() + (m(x).detach().sum(1) * x.sum(1)).sum()

    return cross_entropy(m, b) + torch.func.grad(inner)(b[0]).square().sum(1)


def constant_written(m, b):
    one, z = torch.ones(2), torch.zeros(1, 3)
    y = (m(b[0]) + one).square()
    one.mul_(3.0)
    z[:, 0] = 1.0
    doubled = z * 2
    z[:, 1] = m[0].bias.sum()
    z[:, 2] = m(b[0]).sum(1)
    return z.square().sum(1) + doubled.sum(1) + (y + one).sum(1)


def weight_put_together(m, b):
    weight = torch.zeros(2, 8)
    weight[:1] = m[2].weight[1:]
    weight[1:] = m[2].weight[:1] * 2
    return F.cross_entropy(F.linear(m[:2](b[0]), weight), b[1], reduction="none")


def record_written(m, b):
    b[0].mul_(2.0)
    return cross_entropy(m, b)


def with_small_ones_left_out(m, b):
    z = m(b[0]).clone()
    z[z < 0.1] = 0
    return z.sum(1)


def half_precision(m, b):
    with torch.autocast("cpu", torch.bfloat16):
        z = m[0](b[0])
    return F.cross_entropy(m[2](z.float().tanh()), b[1], reduction="none")


class Stopped(torch.autograd.Function):
    """Gives its input back, without a gradient."""

    @staticmethod
    def forward(x):
        return x, x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[0])

    @staticmethod
    def backward(ctx, of_same, grad):
        return grad * 5


def input_given_back(m, b):
    same, doubled = Stopped.apply(m[0](b[0]))
    return m[2](same + doubled).sum(1)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return (x * 8).round() / 8

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 3

    generate_vmap_rule = True


class Reversed(torch.autograd.Function):
    """Turns the gradient around by a factor that is read when the gradient comes back."""

    factor = -1.0

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * Reversed.factor


def factor_set_later(m, b):
    Reversed.factor = -1.0
    y = Reversed.apply(m(b[0]))
    Reversed.factor = -3.0
    return y.sum(1)


def written_by_numpy(m, b):
    k = torch.zeros(2)
    y = m(b[0]) + k
    k.numpy()[:] = 2.0
    return ((y + k).square()).sum(1)


def function_within_a_transform(m, b):
    return torch.func.grad(lambda x: Rounded.apply(m(x)).square().sum())(b[0]).square().sum(1)


def pulled_by_vjp(m, b):
    out, pull = torch.func.vjp(lambda x: m(x).tanh(), b[0])
    return out.sum(1) + pull(torch.ones_like(out))[0].square().sum(1)


def of_a_function(m, b):
    y, largest = Twice.apply(b[0], m[0].weight)
    return cross_entropy(m, b) + y[:, :2].square().sum(1) + largest


LOSSES = {
    "function": of_a_function,
    "input_given_back": input_given_back,
    "factor_set_later": factor_set_later,
    "written_by_numpy": written_by_numpy,
    "function_within_a_transform": function_within_a_transform,
    "vjp": pulled_by_vjp,
    "range": lambda m, b: m(b[0][:, range(4)]).sum(1),
    "tensor_type": lambda m, b: m(b[0].type(torch.FloatTensor)).sum(1),
    "no_grad": without_gradients,
    "gradient_penalty": detached_inside,
    "constant_written": constant_written,
    "weight_put_together": weight_put_together,
    "record_written": record_written,
    "autocast": half_precision,
    "one_hot": lambda m, b: (torch.zeros(len(b[1]), 2).scatter_(1, b[1][:, None], 1.0) * m(b[0])).sum(1),
    "highest": lambda m, b: (m(b[0]) * torch.zeros(1, 2).scatter_(1, m(b[0]).topk(1, 1).indices, 1.0)).sum(1),
    "mask_set": with_small_ones_left_out,
    "divergence": lambda m, b: F.kl_div(m(b[0]).log_softmax(1), b[0][:, :2].softmax(1), reduction="none").sum(1),
    "quantile": lambda m, b: torch.quantile(m(b[0]), 0.5, dim=1),
    "density": lambda m, b: -torch.distributions.Categorical(logits=m(b[0])).log_prob(b[1]),
    "checkpoint": lambda m, b: checkpoint(lambda x: cross_entropy(m, (x, b[1])), b[0], use_reentrant=False),
    "arrays": lambda m, b: (m(b[0]) * np.float32(2)).sum(1) + b[0][:, np.array([0, 2])].sum(1) * m[0].bias.sum(),
    "slices_by_constants": lambda m, b: m(b[0][:, : torch.tensor(4)]).sum(1),
}


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), (torch.randn(9, 4), torch.arange(9) % 2)


@pytest.mark.parametrize("name", LOSSES)
def test_a_program_has_the_gradients_of_the_loop(name):
    model, data = made()
    groups = {one: (one,) for one in trainable(model)}
    found, expected = (
        NetworkSource(model, LOSSES[name], copy.deepcopy(data), method=method)
        .engine(trainable(model), np.arange(9), seed=1)
        .weighted_sums(torch.ones_like, groups)
        .values[0]
        for method in ("program", "loop")
    )
    about = 2e-2 if name == "autocast" else 1e-5
    torch.testing.assert_close(found, expected, rtol=about, atol=about)


def of_its_own(x):
    return handle_torch_function(of_its_own, (x,), x)


class WithCode(torch.Tensor):
    pass


class CalledByName:
    """A callable object that is given out for a torch function."""

    def __call__(self, x):
        return x


def evaluated(m, b):
    return m(handle_torch_function(eval, (b[0],), "x", {"x": b[0]})).sum(1)


def noise_of_a_seed(m, b):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return cross_entropy(m, b) + torch.rand(1)


class LeftOn(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def mode_left_on(m, b):
    LeftOn().__enter__()
    return cross_entropy(m, b)


def hooked_unseen(m, b):
    y = m(b[0])
    with torch._C.DisableTorchFunction():
        y.register_hook(lambda grad: grad * 2)
    return y.sum(1)


def assigned(m, b):
    z = b[0] * 2
    z.data = b[0] * 3
    return m(z).sum(1)


def in_a_thread(m, b):
    found = []
    thread = threading.Thread(target=lambda: found.append(b[0] * 2))
    thread.start()
    thread.join()
    return m(found[0]).sum(1)


REFUSED = {
    "function_of_its_own": ("is no function of PyTorch's", lambda m, b: m(of_its_own(b[0])).sum(1)),
    "callable_object": (
        "CalledByName is no function of PyTorch's",
        lambda m, b: m(handle_torch_function(CalledByName(), (b[0],), b[0])).sum(1),
    ),
    "hooked_unseen": ("a hook is put on", hooked_unseen),
    "eval": ("eval is no function of PyTorch's", evaluated),
    "noise_of_a_seed": ("sets a seed, or draws numbers", noise_of_a_seed),
    "draws_inside": (
        r"test_tape.py:\d+: the model or the loss sets a seed, or draws numbers",
        lambda m, b: F.fractional_max_pool2d(m(b[0])[:, None, None], 1, output_size=(1, 2)).sum((1, 2, 3)),
    ),
    "script": ("runs TorchScript", lambda m, b: torch.jit.script(nn.Softplus())(m(b[0])).sum(1)),
    "no_batching_rule": (
        r"no batching rule for multi_margin_loss \(test_tape.py:\d+\)",
        lambda m, b: F.multi_margin_loss(m(b[0]), b[1], reduction="none"),
    ),
    "branch": (
        r"looks at values of a record.* \(test_tape.py:\d+\)",
        lambda m, b: torch.stack([one.sum() if one[0] > 0 else one[0] for one in m(b[0])]),
    ),
    "class_of_its_own": (
        "a tensor with code of its own",
        lambda m, b: m(b[0] + torch.ones(4).as_subclass(WithCode)).sum(1),
    ),
    "thread": ("came from no call", in_a_thread),
    "data": (r"assigns to \.data", assigned),
    "cond": (
        "calls torch.cond",
        lambda m, b: torch.cond(b[0].sum() > 0, lambda z: z, lambda z: -z, (m(b[0]).sum(1),)),
    ),
    "grad": (
        "call torch.func.grad",
        lambda m, b: torch.autograd.grad(m(b[0].requires_grad_()).sum(), b[0])[0].sum(1),
    ),
}


@pytest.mark.parametrize(("words", "loss_fn"), REFUSED.values(), ids=REFUSED)
def test_what_a_tape_cannot_hold_is_refused_in_words(words, loss_fn):
    model, data = made()
    with pytest.raises(UnsupportedModuleError, match=words):
        NetworkSource(model, loss_fn, data, method="program")


def test_modes_that_are_left_on_are_refused_and_put_back():
    model, data = made()
    with pytest.raises(UnsupportedModuleError, match="leaves a mode of PyTorch on"):
        writer.written_down(model, mode_left_on, trainable(model), {}, data)
    assert not _get_current_function_mode_stack()


def test_functions_of_other_threads_are_not_written_down():
    """While one thread writes a tape, another one trains with an ``autograd.Function`` of its own."""
    model, data = made()
    begun, over, found = threading.Event(), threading.Event(), []

    def other():
        begun.wait(10)
        x = torch.ones(1, 3, requires_grad=True)
        Twice.apply(x, torch.ones(1, 3))[0].sum().backward()
        found.append(x.grad)
        over.set()

    def loss_fn(m, b):
        begun.set()
        assert over.wait(10)
        return cross_entropy(m, b)

    thread = threading.Thread(target=other)
    thread.start()
    point = trainable(model)
    written = writer.written_down(model, loss_fn, point, {}, data)
    thread.join()
    assert found[0].tolist() == [[2.0, 2.0, 2.0]]
    assert not any(isinstance(call.function, tape.TapedBackward) for call in written.calls)
