"""Automatic clipping: the published formula, and settings that are refused."""

import pytest
import torch

from tacita.clipping import AutomaticClipper


def test_weight_is_the_papers_factor():
    norms = torch.tensor([[0.0], [0.5], [6.0]], dtype=torch.float64)
    weights = AutomaticClipper(max_grad_norm=2.0, gamma=0.5).weights(norms)
    expected = torch.tensor([[4.0], [2.0], [2.0 / 6.5]], dtype=torch.float64)
    torch.testing.assert_close(weights, expected, rtol=1e-14, atol=0)


def test_gamma_is_not_lost_beside_a_large_norm():
    norms = torch.tensor([[1e9]])  # 1e9 + 0.01 is 1e9 in float32
    assert AutomaticClipper(max_grad_norm=1.0, gamma=0.01).weights(norms).item() * 1e9 < 1.0


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="gamma must be a finite number > 0"):
        AutomaticClipper(max_grad_norm=1.0, gamma=wrong)
    with pytest.raises(ValueError, match="max_grad_norm must be a finite number > 0"):
        AutomaticClipper(max_grad_norm=wrong, gamma=0.01)


def test_a_tiny_gamma_is_the_papers_algorithm_4():
    """Exact normalisation, C g / |g|, to float32's precision from norms of 0.01 on; a zero gradient stays zero."""
    norms = torch.tensor([[0.01], [0.5], [6.0], [1e9]])
    weights = AutomaticClipper(max_grad_norm=2.0, gamma=1e-9).weights(norms)
    torch.testing.assert_close(weights * norms, torch.full_like(norms, 2.0), rtol=1e-6, atol=0)
    zero = AutomaticClipper(max_grad_norm=2.0, gamma=1e-9).weights(torch.zeros(1, 1))
    assert zero.isfinite().all()
