"""Flat clipping: the published formula, and settings that are refused."""

from fractions import Fraction

import pytest
import torch

from tacita.clipping import FlatClipper, bounded_quotient, clip_weights


def test_weight_is_the_papers_factor():
    norms = torch.tensor([[0.0], [0.5], [1.5], [6.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0], [1.0], [1.0], [0.25]], dtype=torch.float64)
    torch.testing.assert_close(FlatClipper(max_grad_norm=1.5).weights(norms), expected, rtol=1e-14, atol=0)


def test_margin_is_a_few_roundings_and_no_more():
    norms = torch.tensor([[3.0]])
    weight = FlatClipper(max_grad_norm=1.0).weights(norms).item()
    assert 1 / 3 * (1 - 2**-20) < weight < 1 / 3


def test_one_group_one_bound():
    clipper = FlatClipper(max_grad_norm=2.0)
    shapes = {"b": torch.Size([1]), "a": torch.Size([2])}
    assert clipper.groups(shapes) == {"all": ("b", "a")}
    assert clipper.max_contribution(shapes) == {"all": 2.0}


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), True])
def test_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="max_grad_norm must be a finite number > 0"):
        FlatClipper(max_grad_norm=wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_threshold_of_any_dtype_leaves_room_for_rounding(dtype):
    threshold = torch.tensor([0.1], dtype=dtype)
    norms = torch.cat(
        [
            threshold.double() * torch.linspace(1.1, 9, 200, dtype=torch.float64),
            torch.tensor([1e-310], dtype=torch.float64),
        ]
    )
    weights = bounded_quotient(threshold, norms, torch.float64)
    assert all(
        Fraction(w) * Fraction(n) <= Fraction(threshold.item())
        for w, n in zip(weights.tolist(), norms.tolist(), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.1, 0.35, 1.0, 3e-30, 1e30, 2e-38, 1e-39, 3e38])
def test_a_weight_is_below_the_exact_quotient_and_one_exactly_up_to_the_threshold(dtype, threshold):
    """The threshold is no number of float32: a norm just above it must not have weight 1."""
    limits = torch.finfo(dtype)
    near = torch.tensor(threshold, dtype=torch.float64).to(dtype)
    around = [
        near,
        torch.nextafter(near, torch.zeros_like(near)),
        torch.nextafter(near, torch.full_like(near, torch.inf)),
    ]
    wide = near * torch.logspace(-3, 6, 400, dtype=torch.float64).to(dtype)
    norms = torch.cat([torch.stack(around), wide, torch.tensor([0.0, torch.inf, torch.nan, limits.max], dtype=dtype)])
    weights = clip_weights(threshold, norms.unsqueeze(1))[:, 0]
    assert weights.dtype == dtype
    for weight, norm in zip(weights.tolist(), norms.tolist(), strict=True):
        if norm <= threshold:
            assert weight == 1.0
        elif not norm < float("inf"):
            assert weight == 0.0
        else:
            exact = Fraction(threshold) / Fraction(norm)
            assert weight == 0.0 or Fraction(weight) <= exact * (1 - Fraction(2 * limits.eps))  # room for products
            assert weight >= exact * (1 - 4 * Fraction(limits.eps)) * (1 - 2 * Fraction(limits.eps)) or weight == 0.0
            assert weight > 0 or exact < 2 * limits.tiny or threshold < 2 * limits.tiny
