"""Every rule of the ghost engine, on shapes that take each of its paths, through the family's contract."""

import pytest
import torch
from torch import nn

from tacita.gradients.ghost import LayerRule, coverage, register_rule, registry
from tacita.testing import check_layer_rule


def normal(*shape):
    return lambda rows: torch.randn(rows, *shape)


def tokens(vocabulary, *shape):
    return lambda rows: torch.randint(0, vocabulary, (rows, *shape))


RULES = {
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
    "layer_norm": (lambda: nn.LayerNorm(6), normal(6)),
    "layer_norm_positions": (lambda: nn.LayerNorm(6), normal(5, 6)),
    "layer_norm_axes": (lambda: nn.LayerNorm((3, 6)), normal(4, 3, 6)),
    "layer_norm_no_bias": (lambda: nn.LayerNorm(6, bias=False), normal(5, 6)),
    "group_norm": (lambda: nn.GroupNorm(2, 6), normal(6, 4, 4)),
    "group_norm_vector": (lambda: nn.GroupNorm(2, 6), normal(6)),
    "group_norm_sequence": (lambda: nn.GroupNorm(3, 6), normal(6, 9)),
}


@pytest.mark.parametrize(("make_module", "make_input"), RULES.values(), ids=RULES)
def test_contract(make_module, make_input):
    torch.manual_seed(0)
    module = make_module()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    normalises = isinstance(module, (nn.LayerNorm, nn.GroupNorm))
    check_layer_rule(module, make_input, canary_offset=0.0 if normalises else 1e4, canary_slack=1e-6)


class Planted(nn.Linear):
    """A linear layer whose rule has one bug."""


class PlantedRule(LayerRule):
    parameters = ("weight", "bias")

    def __init__(self, bug):
        self.bug = bug

    def grads(self, use):
        grad = use.grad.mean(dim=1, keepdim=True).expand_as(use.grad) if self.bug == "mean_grad" else use.grad
        found = {"weight": grad.mT @ use.x, "bias": grad.sum(dim=1)}
        return {name: found[name] for name in (found if self.bug == "ignores_frozen" else use.names)}

    def squared_norms(self, use, *, rounding_margin=True):
        found = super().squared_norms(use, rounding_margin=rounding_margin)
        if self.bug == "gram_cancels" and "weight" in found:
            gram = (use.x @ use.x.mT) * (use.grad @ use.grad.mT)
            found["weight"] = gram.sum(dim=(1, 2)).clamp(min=0.0).double()
        if self.bug == "misses_bias" and "bias" in found:
            found["bias"] = torch.zeros_like(found["bias"])
        if self.bug == "loose":
            found = {name: squares * 1.03 for name, squares in found.items()} if rounding_margin else found
        return found

    def sums(self, use, weights):
        if self.bug == "zero_times_nan":
            return {name: torch.tensordot(weights.values.to(g), g, 1) for name, g in self.grads(use).items()}
        found = super().sums(use, weights)
        return {name: 1.001 * total for name, total in found.items()} if self.bug == "adds_more" else found


def check_planted(monkeypatch, bug):
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    torch.manual_seed(0)
    check_layer_rule(Planted(8, 6), normal(4, 8), rule=PlantedRule(bug))


def test_a_rule_of_ones_own_needs_grads_only(monkeypatch):
    check_planted(monkeypatch, "")


@pytest.mark.parametrize("bug", ["mean_grad", "gram_cancels", "misses_bias", "loose", "zero_times_nan", "adds_more"])
def test_the_contract_can_fail(monkeypatch, bug):
    with pytest.raises(AssertionError):
        check_planted(monkeypatch, bug)


def test_registered_rules_are_checked():
    with pytest.raises(TypeError, match="module_type must be a subclass"):
        register_rule(nn.Linear(1, 1), registry.rule_for(nn.Linear(1, 1)))
    with pytest.raises(TypeError, match="rule must be a LayerRule"):
        register_rule(Planted, object())


def test_coverage_names_what_no_rule_serves():
    model = nn.Sequential(
        nn.Linear(2, 2),
        nn.PReLU(),
        Planted(2, 2),
        nn.Embedding(2, 2, max_norm=1.0),
        nn.Embedding(2, 2, sparse=True),
        nn.Embedding(2, 2, scale_grad_by_freq=True),
        nn.MultiheadAttention(2, 1),
    )
    found = coverage(model)
    assert set(found.rules) == {"0.weight", "0.bias"}
    reasons = [found.refused[f"{k}.weight"] for k in (1, 2, 3, 4, 5)]
    for reason, word in zip(reasons, ["PReLU", "Planted", "max_norm", "sparse", "scale_grad_by_freq"], strict=True):
        assert word in reason
    assert {"6.in_proj_weight", "6.in_proj_bias", "6.out_proj.weight", "6.out_proj.bias"} <= set(found.refused)


def test_coverage_is_of_trainable_parameters_and_of_every_layer_that_holds_them():
    model = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.PReLU(), Planted(2, 2, bias=False)])
    model[1].requires_grad_(False)
    assert set(coverage(model).refused) == {"2.weight"}
    model[0].weight = model[2].weight
    assert coverage(model).rules == {}, "a tied parameter is only served if all its layers are"
    assert set(coverage(model, ["1.weight"]).refused) == {"1.weight"}


def test_weight_normalised_layers_have_no_rule():
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    assert coverage(nn.Sequential(layer)).refused
