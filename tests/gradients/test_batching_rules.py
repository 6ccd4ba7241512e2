"""Code that would see the whole batch under ``vmap`` is refused or never called, and the loop serves it."""

import pytest
import torch
from torch import Tensor, nn

from tacita import FlatClipper
from tacita.errors import UnsupportedModuleError
from tacita.estimators.clipped_sum import clipped_gradient_sum

CLIPPER = FlatClipper(max_grad_norm=1.0)


def packed(t):
    scale = t.abs().max().clamp(min=1e-30) / 127
    return (t / scale).round(), scale


class Compressed(nn.Module):
    """Saves activations in 8 bits, with one scale a tensor."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4, bias=False)

    def forward(self, x):
        h = self.layer(x)
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda kept: kept[0] * kept[1]):
            return h * h.tanh()


@torch.library.custom_op("tacita_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, grad: grad * 2, setup_context=lambda ctx, inputs, output: None)


@twice.register_vmap
def _(info, axes, x):
    return twice(x.sum(axes[0], keepdim=True).expand_as(x).clone()), axes[0]


class WithOperator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4, bias=False)

    def forward(self, x):
        return self.layer(x) * twice(x)[..., :1].tanh()


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(grad):
        return grad.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, axes, grad):
        return grad.sum(axes[0], keepdim=True).expand_as(grad).clone(), axes[0]


class Outer(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return Inner.apply(grad)


class MixedBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4, bias=False)

    def forward(self, x):
        return Outer.apply(self.layer(x))


def summed(model, x, method):
    return clipped_gradient_sum(model, lambda m, batch: m(batch).sum(dim=1), x, CLIPPER, method=method).sum


WORDS = {
    Compressed: "saved_tensors_hooks would not be called|yet support saved tensor hooks",  # PyTorch's
    WithOperator: "the operator tacita_tests::twice is not PyTorch's own",
}


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.__name__)
def test_what_sees_the_batch_is_refused(kind):
    with pytest.raises(UnsupportedModuleError, match=f"cannot serve this model: .*({WORDS[kind]})"):
        summed(kind(), torch.randn(8, 3), "program")


def test_a_batching_rule_of_the_user_s_is_not_called():
    torch.manual_seed(0)
    model, x = MixedBackward(), torch.randn(8, 3)
    torch.testing.assert_close(summed(model, x, "program"), summed(model, x, "loop"))


@pytest.mark.parametrize("kind", [Compressed, WithOperator], ids=lambda kind: kind.__name__)
def test_the_loop_serves_it_and_a_record_moves_the_sum_by_the_threshold(kind):
    torch.manual_seed(0)
    model, x = kind(), 0.5 * torch.randn(16, 3)
    x[0] *= 1e4
    whole, rest = summed(model, x, "loop"), summed(model, x[1:], "loop")
    assert float((whole["layer.weight"] - rest["layer.weight"]).norm()) <= 1 + 1e-5
