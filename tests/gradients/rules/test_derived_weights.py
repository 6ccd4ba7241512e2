"""Weights that a model computes from its parameters: gradients in the rows' order, and sums with hardened noise."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import tacita
from tacita.gradients import NetworkSource
from tacita.gradients.rules import derived

ROWS = 5


class Standardised(nn.Conv2d):
    """Weight standardisation as De et al. (2022) and timm's ``StdConv2d`` have it."""

    def forward(self, x):
        channels = len(self.weight)
        flat = F.batch_norm(self.weight.reshape(1, channels, -1), None, None, training=True, eps=1e-6)
        return self._conv_forward(x, flat.reshape_as(self.weight), self.bias)


class ScaledByHand(nn.Conv2d):
    """The same by hand, with a learned gain."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x):
        w, axes = self.weight, (1, 2, 3)
        w = self.gain * (w - w.mean(axes, keepdim=True)) / (w.std(axes, keepdim=True) + 1e-5)
        return self._conv_forward(x, w, self.bias)


class WrittenByParts(nn.Conv2d):
    """A part of the weight is written, so that the backward pass writes, too."""

    def forward(self, x):
        w = self.weight.sin()
        w[:, 0] = self.weight[:, 0].flip(0).cumsum(0)
        return self._conv_forward(x, F.pad(w[..., 1:], (1, 0)), self.bias)


class StraightThrough(nn.Conv2d):
    """Rounded weights, with a backward of the user's own."""

    class Rounded(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(w):
            return w.round(decimals=1)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    def forward(self, x):
        return self._conv_forward(x, self.Rounded.apply(self.weight), self.bias)


def normed(*args, **settings):
    return parametrizations.weight_norm(nn.Conv2d(*args, **settings))


KINDS = {
    "batch_norm": Standardised,
    "by hand": ScaledByHand,
    "weight_norm": normed,
    "written by parts": WrittenByParts,
    "straight through": StraightThrough,
}


def network(conv):
    return nn.Sequential(
        conv(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), conv(8, 8, 3, stride=2), nn.Flatten(), nn.Linear(72, 3)
    ).double()


def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def sums(model, method):
    data = torch.randn(ROWS, 3, 8, 8, dtype=torch.float64), torch.arange(ROWS) % 3
    source = NetworkSource(model, losses, data, method=method)
    engine = source.engine(dict(model.named_parameters()), torch.arange(ROWS).numpy(), seed=1)
    engine.rounding_margin = False
    weights = torch.linspace(0, 1, ROWS, dtype=torch.float64).unsqueeze(1)
    return source.method, engine.weighted_sums(weights.expand_as, {name: (name,) for name in source.shapes})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [1, 1000, 2**18])
def test_rows_are_pulled_back_in_their_order(kind, at_once, monkeypatch):
    monkeypatch.setattr(derived, "AT_ONCE", at_once)
    model = network(KINDS[kind])
    state = torch.get_rng_state()
    method, found = sums(model, "auto")
    torch.set_rng_state(state)
    _, expected = sums(model, "loop")
    assert method == "program"
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-10, atol=1e-12)
    for name, value in expected.values[0].items():
        torch.testing.assert_close(found.values[0][name], value, rtol=1e-10, atol=1e-12)


class UsedTwice(nn.Module):
    """A normalisation whose scale is a view of a parameter, used twice."""

    def __init__(self, read):
        super().__init__()
        self.scale, self.read = nn.Parameter(torch.rand(4, 1) + 0.5), read

    def forward(self, x):
        for _ in range(2):
            x = self.read(x, self.scale.view(-1)).sin()
        return x


READS = {
    "group norm": lambda x, w: F.group_norm(x, 2, w),
    "layer norm": lambda x, w: F.layer_norm(x, (4,), w),
    "group norm of a copy": lambda x, w: F.group_norm(x, 2, w.clone()),
}


@pytest.mark.parametrize("read", READS)
def test_a_rearranged_scale_that_is_used_twice_serves_hardened_sums(read):
    model, x = UsedTwice(READS[read]), torch.randn(ROWS, 4, 4)
    oracle = tacita.ClippedGradientOracle(
        model,
        lambda m, batch: m(batch[0]).square().mean(dim=(1, 2)),
        (x,),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="row"),
        sampler=tacita.FullBatchSampler(num_records=ROWS),
        clipper=tacita.FlatClipper(max_grad_norm=0.01),
        mechanism=tacita.RoundedGaussian(noise_multiplier=1e-6),
        planned_queries=1,
        method="program",
    )
    found = oracle.query(dict(model.named_parameters())).released["all"]["scale"]
    clean = tacita.clipped_gradient_sum(
        model, oracle.source.loss_fn, (x,), tacita.FlatClipper(max_grad_norm=0.01), method="loop"
    )
    torch.testing.assert_close(found.float(), clean.sum["scale"], rtol=1e-3, atol=1e-4)
