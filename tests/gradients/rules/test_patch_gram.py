"""Norms of convolutions on small images, from inner products of pixels: exact, and never too small."""

import copy

import pytest
import torch
from torch import nn

from tacita.gradients.rules import convolution
from tacita.gradients.rules.convolution import patch_gram
from tacita.gradients.rules.rounding import totals
from tests.gradients.rules.test_margins import recorded

ROWS = 6
LAYERS = {
    "3 x 3": (nn.Conv2d(32, 32, 3, padding=1), (32, 5, 5)),
    "5 x 5, one side longer": (nn.Conv2d(24, 32, (5, 3), padding=(2, 1)), (24, 5, 3)),
    "stride": (nn.Conv2d(64, 64, 3, stride=2, padding=1), (64, 5, 6)),
    "dilation": (nn.Conv2d(64, 64, 3, padding=(2, 1), dilation=(2, 1)), (64, 4, 5)),
    "groups": (nn.Conv2d(64, 128, 3, padding=1, groups=2), (64, 5, 5)),
    "zeros on one side": (nn.Conv1d(48, 48, 4, padding="same"), (48, 12)),
    "three axes": (nn.Conv3d(48, 48, (2, 3, 2), padding=(0, 1, 0)), (48, 3, 3, 3)),
}


def use_of(name, dtype, cancelling=False):
    """The use of a layer on ordinary inputs; or on alike pixels, with output gradients that cancel but for little."""
    torch.manual_seed(0)
    module, shape = LAYERS[name]
    module = copy.deepcopy(module).to(dtype)
    x = torch.randn(ROWS, *shape, dtype=dtype)
    grad = torch.randn_like(module(x))
    if cancelling:
        x = 1e4 + 0.1 * x
        grad = grad - grad.mean(dim=tuple(range(2, grad.ndim)), keepdim=True)
    rule, use = recorded(module, x, grad)
    (part,) = rule.split(use)
    return part.only(("weight",))


def squares_of(use, *, rounding_margin=True):
    return totals([[convolution._weight_squares(use)]], rounding_margin=rounding_margin)[0]


def exact_squares(use):
    return convolution._weight_grads(use.wide()).flatten(1).square().sum(dim=1)


@pytest.mark.parametrize("name", LAYERS)
def test_norms_are_those_of_the_gradients(name):
    use = use_of(name, torch.float64)
    assert convolution._patch_gram_is_cheaper(use)
    found = squares_of(use, rounding_margin=False)
    assert not use.kept
    torch.testing.assert_close(found, exact_squares(use), rtol=1e-11, atol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_norms_are_upper_bounds_and_close(name):
    use = use_of(name, torch.float32)
    excess = squares_of(use) / exact_squares(use) - 1
    assert (excess > 0).all()
    assert (excess < 1e-3).all()


@pytest.mark.parametrize("name", LAYERS)
def test_norms_are_upper_bounds_where_positions_cancel(name):
    use = use_of(name, torch.float32, cancelling=True)
    exact, bounds = exact_squares(use), squares_of(use)
    assert (bounds >= exact).all()
    assert (bounds <= 4 * exact).all(), "a loose record is computed again from its gradient"


@pytest.mark.parametrize("name", LAYERS)
def test_the_products_are_those_of_patches(name):
    use = use_of(name, torch.float64)
    x, settings = use.x.flatten(0, 1), use.settings
    patches = convolution._patches(use, x)
    pixels = nn.functional.pad(x, convolution._flat(settings.pads))
    pixels = pixels.reshape(ROWS * settings.groups, -1, *pixels.shape[2:])
    gram = patch_gram(pixels, use.shapes["weight"][2:], settings.stride, settings.dilation)
    torch.testing.assert_close(gram.products, patches @ patches.mT, rtol=1e-12, atol=1e-10)
    assert gram.width == patches.shape[2]
    offsets = sum(use.shapes["weight"][2:]) - len(settings.stride)  # additions after the product of two pixels
    assert gram.terms >= pixels.shape[1] + 1 + offsets


def test_large_images_are_served_otherwise():
    assert not convolution._patch_gram_is_cheaper(recorded_use(nn.Conv2d(16, 16, 3, padding=1), (16, 16, 16)))


def recorded_use(module, shape):
    x = torch.randn(2, *shape)
    rule, use = recorded(module, x, torch.randn_like(module(x)))
    return rule.split(use)[0]
