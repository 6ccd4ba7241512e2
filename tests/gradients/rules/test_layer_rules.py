"""Every rule of the program, on shapes that take each of its paths, through the family's contract."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function_variadic

from tacita.errors import UnsupportedModuleError
from tacita.gradients.rules import Call, LayerRule, register_rule, registry
from tacita.gradients.rules.rounding import totals
from tacita.testing import check_layer_rule


def normal(*shape):
    return lambda rows: torch.randn(rows, *shape)


def tokens(vocabulary, *shape):
    return lambda rows: torch.randint(0, vocabulary, (rows, *shape))


class Product(nn.Module):
    """A weight of shape (in, out), as GPT-2's layers have it."""

    def __init__(self, width, outputs, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, outputs))
        self.bias = nn.Parameter(torch.randn(outputs)) if bias else None

    def forward(self, x):
        if self.bias is None:
            return x @ self.weight
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Weighted(nn.Module):
    """One weight, and maybe a bias, under a forward pass of the case's own."""

    def __init__(self, steps, *shape, bias=0):
        super().__init__()
        self.steps, self.weight = steps, nn.Parameter(torch.randn(shape))
        self.bias = nn.Parameter(torch.randn(bias)) if bias else None

    def forward(self, x):
        return self.steps(x, self.weight) if self.bias is None else self.steps(x, self.weight, self.bias)


def three_parts(x, w):
    return torch.cat([F.linear(x, part) for part in w.chunk(3)], dim=-1)


def overlapping_parts(x, w):
    return F.linear(x, w[:4]) + F.linear(x, w[2:])


def standardised(x, w, b):
    return F.linear(x, (w - w.mean(1, keepdim=True)) / (w.square().mean(1, keepdim=True) + 0.1).sqrt(), b)


def one_product_each(x, w):
    found = torch.bmm(x.transpose(0, 1).flatten(1, 2), w)
    return found.view(len(w), len(x), -1, w.shape[-1]).transpose(0, 1)


def bags(x, w):
    offsets = torch.arange(0, x.numel(), 3)
    return F.embedding_bag(x.flatten(), w, offsets).view(len(x), -1, w.shape[1])


RULES = {
    "matmul": (lambda: Product(6, 5, bias=False), normal(3, 6)),
    "matmul_gram": (lambda: Product(40, 30, bias=False), normal(3, 40)),
    "addmm": (lambda: Product(6, 5), normal(3, 6)),
    "addmm_one_position": (lambda: Product(6, 5), normal(6)),
    "linear_one_position": (lambda: nn.Linear(5, 4), normal(5)),
    "linear_no_bias": (lambda: nn.Linear(5, 4, bias=False), normal(5)),
    "linear_gram": (lambda: nn.Linear(40, 30), normal(3, 40)),
    "linear_gram_in_blocks": (lambda: nn.Linear(200, 150), normal(64, 200)),
    "linear_kept": (lambda: nn.Linear(4, 3), normal(20, 4)),
    "linear_direct": (lambda: nn.Linear(16, 16), normal(8, 16)),
    "linear_many_axes": (lambda: nn.Linear(6, 5), normal(2, 3, 2, 6)),
    "conv": (lambda: nn.Conv2d(2, 3, 3), normal(2, 6, 6)),
    "conv_stride_padding_dilation": (
        lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 3)),
        normal(2, 9, 8),
    ),
    "conv_groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1, bias=False), normal(4, 4, 4)),
    "conv_depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), normal(4, 4, 4)),
    "conv_same_even_kernel": (lambda: nn.Conv2d(2, 3, (2, 4), padding="same", dilation=(1, 1)), normal(2, 5, 6)),
    "conv_valid": (lambda: nn.Conv2d(2, 3, 2, padding="valid"), normal(2, 4, 4)),
    "conv_circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), normal(2, 4, 6)),
    "conv_reflect": (lambda: nn.Conv2d(2, 3, (3, 1), padding=(1, 0), padding_mode="reflect"), normal(2, 4, 6)),
    "conv_vector_kernel": (lambda: nn.Conv2d(8, 16, 3, padding=1), normal(8, 6, 6)),
    "conv_gram": (lambda: nn.Conv2d(40, 40, 3, padding=1), normal(40, 2, 2)),
    "conv_gram_groups": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=2), normal(64, 2, 2)),
    "conv_one_position": (lambda: nn.Conv2d(40, 30, 4), normal(40, 4, 4)),
    "conv_direct": (lambda: nn.Conv2d(24, 24, 3, padding=1), normal(24, 5, 5)),
    "embedding": (lambda: nn.Embedding(7, 4), tokens(7, 6)),
    "embedding_one_position": (lambda: nn.Embedding(7, 4), tokens(7)),
    "embedding_padding": (lambda: nn.Embedding(5, 4, padding_idx=2), tokens(5, 8)),
    "embedding_axes": (lambda: nn.Embedding(3, 4), tokens(3, 2, 5)),
    "conv_zeros_on_one_side": (lambda: nn.Conv1d(2, 3, 4, padding="same"), normal(2, 7)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2), normal(2, 11)),
    "conv1d_depthwise": (lambda: nn.Conv1d(4, 4, 3, groups=4), normal(4, 6)),
    "conv1d_replicate": (lambda: nn.Conv1d(2, 3, 3, padding=1, padding_mode="replicate"), normal(2, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, (3, 2, 1), stride=(1, 2, 1), padding=(1, 0, 1)), normal(2, 4, 5, 3)),
    "conv3d_groups": (lambda: nn.Conv3d(4, 4, 2, groups=2, dilation=(1, 2, 1)), normal(4, 3, 4, 3)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), normal(2, 5)),
    "transposed2d": (lambda: nn.ConvTranspose2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)), normal(2, 4, 3)),
    "transposed2d_groups": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2, stride=2), normal(4, 3, 3)),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), normal(2, 2, 3, 2)),
    "transposed_beyond_the_stride": (
        lambda: nn.ConvTranspose2d(2, 3, 3, output_padding=1, dilation=2),
        normal(2, 3, 3),
    ),
    "transposed_far_beyond_the_stride": (
        lambda: nn.ConvTranspose1d(8, 8, 3, stride=2, output_padding=4, dilation=5, padding=1),
        normal(8, 6),
    ),
    "layer_norm": (lambda: nn.LayerNorm(6), normal(6)),
    "layer_norm_positions": (lambda: nn.LayerNorm(6), normal(5, 6)),
    "layer_norm_axes": (lambda: nn.LayerNorm((3, 6)), normal(4, 3, 6)),
    "layer_norm_no_bias": (lambda: nn.LayerNorm(6, bias=False), normal(5, 6)),
    "group_norm": (lambda: nn.GroupNorm(2, 6), normal(6, 4, 4)),
    "group_norm_vector": (lambda: nn.GroupNorm(2, 6), normal(6)),
    "group_norm_sequence": (lambda: nn.GroupNorm(3, 6), normal(6, 9)),
    "rms_norm": (lambda: nn.RMSNorm(6), normal(5, 6)),
    "instance_norm": (lambda: nn.InstanceNorm2d(4, affine=True), normal(4, 5, 5)),
    "bare": (nn.PReLU, normal(7)),
    "bare_scalar": (lambda: Weighted(lambda x, w: w * x), normal(7)),
    "mm": (lambda: Weighted(lambda x, w: torch.mm(x.flatten(0, 1), w).view(*x.shape[:2], -1), 6, 5), normal(3, 6)),
    "matrix_on_the_left": (lambda: Weighted(lambda x, w: w @ x.mT, 5, 6), normal(3, 6)),
    "transposed_view": (lambda: Weighted(lambda x, w: x @ w.t(), 30, 40), normal(3, 40)),
    "transposed_view_kept": (lambda: Weighted(lambda x, w: F.linear(x, w.T), 4, 3), normal(20, 4)),
    "view_of_a_part": (lambda: Weighted(lambda x, w: F.linear(x, w[1:4, ::2]), 6, 8), normal(3, 4)),
    "three_parts": (lambda: Weighted(three_parts, 9, 6), normal(4, 6)),
    "overlapping_parts": (lambda: Weighted(overlapping_parts, 6, 6), normal(4, 6)),
    "computed_weight": (lambda: Weighted(standardised, 5, 6, bias=5), normal(4, 6)),
    "scaled_weight": (lambda: Weighted(lambda x, w: F.linear(x, 0.1 * w), 5, 6), normal(4, 6)),
    "einsum_implied": (lambda: Weighted(lambda x, w: torch.einsum("...b,cb", x, w), 5, 6), normal(3, 4, 6)),
    "bmm": (lambda: Weighted(one_product_each, 3, 6, 5), normal(3, 4, 6)),
    "stack": (lambda: Weighted(torch.matmul, 3, 6, 5), normal(3, 4, 6)),
    "stack_gram": (lambda: Weighted(torch.matmul, 3, 40, 30), normal(3, 3, 40)),
    "stack_one_position": (lambda: Weighted(torch.matmul, 3, 6, 5), normal(3, 1, 6)),
    "stack_on_one_input": (lambda: Weighted(lambda x, w: x.unsqueeze(1) @ w, 3, 6, 5), normal(4, 6)),
    "einsum": (lambda: Weighted(lambda x, w: torch.einsum("btd,df->btf", x, w), 6, 5), normal(4, 6)),
    "einsum_heads": (lambda: Weighted(lambda x, w: torch.einsum("btd,hdk->bhtk", x, w), 2, 6, 3), normal(4, 6)),
    "einsum_stack": (lambda: Weighted(lambda x, w: torch.einsum("betd,edo->beto", x, w), 2, 6, 3), normal(2, 4, 6)),
    "bilinear": (lambda: Weighted(lambda x, w: F.bilinear(x, x, w), 3, 4, 4), normal(5, 4)),
    "rows_by_index": (lambda: Weighted(lambda x, w: w[x], 7, 4), tokens(7, 6)),
    "scalars_by_index": (lambda: Weighted(lambda x, w: w[x - 7], 7), tokens(7, 6)),
    "matrices_by_index": (lambda: Weighted(lambda x, w: w[x], 3, 4, 2), tokens(3, 5)),
    "tied": (lambda: Weighted(lambda x, w: F.linear(F.embedding(x, w).sin(), w), 7, 4), tokens(7, 6)),
    "tied_gram": (lambda: Weighted(lambda x, w: F.linear(F.embedding(x, w).sin(), w), 60, 50), tokens(60, 3)),
    "tied_gram_view": (lambda: Weighted(lambda x, w: F.embedding(x, w, 1).sin() @ w.t(), 60, 50), tokens(60, 3)),
    "tied_gram_columns": (lambda: Weighted(lambda x, w: (x @ w).sin() @ w.t(), 60, 50), normal(3, 60)),
    "bag": (lambda: nn.EmbeddingBag(7, 4, padding_idx=1), tokens(7, 6)),
    "bag_offsets": (lambda: Weighted(bags, 7, 4), tokens(7, 6)),
}


# Autograd rounds the gradient of a computed weight before its norm is taken, as it does a bare parameter's.
ROUNDED_BEFORE = {"computed_weight", "scaled_weight", "tied_gram_columns"}


@pytest.mark.parametrize("name", RULES)
def test_contract(name):
    torch.manual_seed(0)
    make_module, make_input = RULES[name]
    module = make_module()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    normalises = isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.InstanceNorm2d))
    offset = 0.0 if normalises or name in ROUNDED_BEFORE else 1e4
    check_layer_rule(module, make_input, canary_offset=offset, canary_slack=1e-6)


def planted_linear(x, weight, bias):
    """A linear map that is a torch function of its own, whose rule has one bug."""
    if has_torch_function_variadic(x, weight, bias):
        return handle_torch_function(planted_linear, (x, weight, bias), x, weight, bias)
    return F.linear(x, weight, bias)


class Planted(nn.Linear):
    def forward(self, x):
        return planted_linear(x, self.weight, self.bias)


class PlantedRule(LayerRule):
    def __init__(self, bug):
        self.bug = bug

    def read(self, x, weight, bias):
        def run(x, parameters):
            return F.linear(x, parameters["weight"], parameters["bias"])

        return Call(x, {"weight": weight, "bias": bias}, run)

    def split(self, use):
        part = replace(use, x=use.x.flatten(1, -2), grad=use.grad.flatten(1, -2))
        if self.bug == "doubles_grad":
            part = replace(part, grad=part.grad.clone())
            use.grad.mul_(2.0)
        return [part]

    def grads(self, use):
        grad = use.grad.mean(dim=1, keepdim=True).expand_as(use.grad) if self.bug == "mean_grad" else use.grad
        found = {"weight": grad.mT @ use.x, "bias": grad.sum(dim=1)}
        return {name: found[name] for name in (found if self.bug == "ignores_frozen" else use.names)}

    def squared_norms(self, use):
        found = super().squared_norms(use)
        if self.bug == "squares_in_place":
            use.grad.square_()
        if self.bug == "gram_cancels" and "weight" in found:
            gram = (use.x @ use.x.mT) * (use.grad @ use.grad.mT)
            found["weight"] = gram.sum(dim=(1, 2)).clamp(min=0.0).double()
        if self.bug == "misses_bias" and "bias" in found:
            found["bias"] = torch.zeros(len(use.x), dtype=torch.float64)
        if self.bug == "loose":
            found = {name: totals([[squares]])[0] * 1.03 for name, squares in found.items()}
        return found

    def sums(self, use, weights):
        if self.bug == "zero_times_nan":
            return {name: torch.tensordot(weights.values.to(g), g, 1) for name, g in self.grads(use).items()}
        found = super().sums(use, weights)
        return {name: 1.001 * total for name, total in found.items()} if self.bug == "adds_more" else found


@pytest.fixture
def check_planted(monkeypatch):
    def check(bug):
        monkeypatch.setitem(registry.RULES, planted_linear, PlantedRule(bug))  # and out of the table after the test
        torch.manual_seed(0)
        check_layer_rule(Planted(8, 6), normal(4, 8), function=planted_linear, rule=PlantedRule(bug))

    return check


def test_a_rule_of_ones_own_needs_to_read_calls_and_give_gradients(check_planted):
    check_planted("")


BUGS = ["mean_grad", "gram_cancels", "misses_bias", "loose", "zero_times_nan", "adds_more"]


@pytest.mark.parametrize("bug", BUGS)
def test_the_contract_can_fail(check_planted, bug):
    with pytest.raises(AssertionError):
        check_planted(bug)


@pytest.mark.parametrize(
    ("bug", "method"),
    [("squares_in_place", "squared_norms"), ("doubles_grad", "split")],
)
def test_a_rule_that_writes_what_it_is_given_does_not_pass(check_planted, bug, method):
    """Two calls with one input, or whose outputs are added, share these tensors."""
    with pytest.raises(AssertionError, match=rf"{method}\(\) writes the input of a call"):
        check_planted(bug)


@pytest.mark.parametrize("module", [Planted(8, 6), nn.Linear(8, 6)], ids=["reads nothing", "is not called"])
def test_a_rule_that_serves_nothing_does_not_pass(monkeypatch, module):
    if isinstance(module, Planted):
        monkeypatch.setattr(PlantedRule, "read", lambda *args: None)
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))
    with pytest.raises(AssertionError, match=r"the rule serves no parameter of the layer.*planted_linear"):
        check_layer_rule(module, normal(4, 8), function=planted_linear, rule=PlantedRule(""))


def test_registered_rules_are_checked():
    with pytest.raises(TypeError, match="function must be a torch function"):
        register_rule(nn.Linear, registry.RULES[F.linear])
    with pytest.raises(TypeError, match="rule must be a LayerRule"):
        register_rule(planted_linear, object())


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_an_embedding_that_writes_or_counts_is_refused(setting):
    with pytest.raises(UnsupportedModuleError, match=next(iter(setting))):
        check_layer_rule(nn.Embedding(5, 2, **setting), tokens(5, 3))
