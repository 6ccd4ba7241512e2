"""Pull-backs of weights that are normalised channel by channel: those of autograd, or none."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacita.gradients.ghost.channel_map import channel_map
from tacita.gradients.ghost.convolution import ConvolutionRule
from tacita.gradients.ghost.derived import Derivations, derived
from tacita.gradients.ghost.rule import LayerUse

AXES = (1, 2, 3)
ROWS = 7
W = (4, 3, 2, 2)


def parameter(*shape):
    return nn.Parameter(torch.rand(shape, dtype=torch.float64) + 0.5)


def by_hand(w, gain):
    return gain * (w - w.mean(AXES, keepdim=True)) / (w.std(AXES, keepdim=True) + 1e-5)


def flat(w, gain):
    rows = w.view(len(w), -1)
    return (gain[:, None] * (rows - rows.mean(1)[:, None]) * (rows.var(1, keepdim=True) + 1e-5).rsqrt()).view_as(w)


def of_unit_length(w):
    return w / torch.linalg.vector_norm(w, dim=AXES, keepdim=True)


def several_ways(w):
    return of_unit_length(w) + w * w.mean(AXES, keepdim=True) - w.square().clamp(min=0.3)


def gain_of_the_mean(w, gain):
    return w / (gain * w.mean(AXES, keepdim=True) + gain.sqrt())


def hooked(w):
    centred = w - w.mean(AXES, keepdim=True)
    centred.register_hook(lambda grad: 2 * grad)
    return centred * 3


def clamped_on_the_way(w):
    centred = w - w.mean(AXES, keepdim=True)
    centred.register_hook(lambda grad: grad.clamp(max=1e4))
    return centred * 3


def hooked_at_the_end(w):
    centred = w - w.mean(AXES, keepdim=True)
    centred.register_hook(lambda grad: grad * (grad != 1))
    return centred


MAPS = {
    "by hand": (by_hand, W, (4, 1, 1, 1)),
    "of flat rows": (flat, W, (4,)),
    "of unit length": (of_unit_length, W),
    "several ways": (several_ways, W),
    "gain of the mean": (gain_of_the_mean, W, (4, 1, 1, 1)),
    "a matrix": (lambda w: w - w.mean(1, keepdim=True), (5, 5)),
    "number by number": (lambda w, mask: w * mask, W, W),
}
NONE = {
    "mean of all": (lambda w: w - w.mean(), W),
    "mean over channels": (lambda w: w - w.mean(0, keepdim=True), W),
    "mean over channels of a square": (lambda w: w - w.mean(0)[:, None], (4, 4)),
    "mean of rows taken for columns": (lambda w: w - w.mean(1), (4, 4)),
    "transposed": (lambda w: (w - w.mean(1, keepdim=True)).t(), (4, 4)),
    "half of the channels": (lambda w: (w - w.mean(AXES, keepdim=True))[:2], W),
    "one gain for all": (lambda w, gain: w * gain, W, ()),
    "softmax": (lambda w: w.softmax(1), W),
    "hook on the way": (hooked, W),
    "hook that clamps": (clamped_on_the_way, W),
    "hook at the end": (hooked_at_the_end, W),
}


def made(make, *shapes):
    torch.manual_seed(0)
    leaves = {f"p{k}": parameter(*shape) for k, shape in enumerate(shapes)}
    return make(*leaves.values()), leaves


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_map_is_the_pull_back_of_autograd(name, overwrite):
    weight, leaves = made(*MAPS[name])
    found = channel_map(weight, leaves)
    assert found is not None
    rows = torch.randn(ROWS, *weight.shape, dtype=torch.float64)
    given = rows.clone()
    expected = torch.autograd.grad(weight, [*leaves.values()], rows, is_grads_batched=True)
    pulled = found.pulled(given, 2 * weight.numel(), overwrite=overwrite)
    assert list(sorted(pulled)) == list(leaves)
    for one, like in zip(leaves, expected, strict=True):
        torch.testing.assert_close(pulled[one].view_as(like), like, rtol=1e-12, atol=1e-13)
    assert overwrite or torch.equal(given, rows)


@pytest.mark.parametrize("name", [name for name in NONE if "hook" not in name])
def test_the_graph_alone_tells_what_may_mix_channels(name, monkeypatch):
    monkeypatch.setattr("tacita.gradients.ghost.channel_map._agrees", lambda made, tensor, leaves: True)
    weight, leaves = made(*NONE[name])
    assert channel_map(weight, leaves) is None


@pytest.mark.parametrize("name", NONE)
def test_what_may_mix_channels_has_no_map(name):
    weight, leaves = made(*NONE[name])
    assert channel_map(weight, leaves) is None


def test_a_row_that_is_not_finite_leaves_the_others_alone():
    weight, leaves = made(*MAPS["by hand"])
    found, rows = channel_map(weight, leaves), torch.randn(ROWS, *W, dtype=torch.float64)
    assert found is not None
    clean = {name: one.clone() for name, one in found.pulled(rows, 10**6).items()}
    rows[2], rows[4] = torch.nan, torch.inf
    for name, one in found.pulled(rows, 10**6).items():
        others = [0, 1, 3, 5, 6]
        torch.testing.assert_close(one[others], clean[name][others], rtol=1e-13, atol=1e-14)
        assert not one[[2, 4]].isfinite().all(1).any() if one.ndim == 2 else not one[2].isfinite().any()


class Lender(ConvolutionRule):
    """A rule of a user's own that returns a gradient in memory that is not its own."""

    lent = torch.ones(ROWS, *W)

    def grads(self, use):
        return {"weight": self.lent}


def test_memory_that_a_rule_of_the_users_own_returns_is_not_written(monkeypatch):
    monkeypatch.setattr("tacita.gradients.ghost.derived.WORTHWHILE", 0)
    w = nn.Parameter(torch.rand(W))
    weight = of_unit_length(w)
    source, through = derived(weight, {id(w): "w"}), Derivations()
    assert source is not None
    use = LayerUse(None, {"weight": weight.shape}, ("weight",), torch.zeros(ROWS, 1), torch.zeros(ROWS, 1))
    through.uses(use, Lender(F.conv2d, 2), "conv2d", source)
    through.pulled_uses()
    assert (Lender.lent == 1).all()
