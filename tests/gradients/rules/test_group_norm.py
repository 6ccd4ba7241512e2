"""A group norm whose input or output gradient is a view of other memory: the kernel knows no strides."""

import pytest
import torch
from torch import nn

from tacita import FlatClipper
from tacita.estimators.clipped_sum import clipped_gradient_sum

INPUTS = {
    "cut": lambda x: x[..., :-20],  # as a causal convolution cuts what it padded
    "every second": lambda x: x[..., ::2],
    "channels last": lambda x: x.mT.contiguous().mT,
    "the same everywhere": lambda x: x[..., :1].expand(-1, -1, 7),
}
OUTPUTS = {
    "plain": lambda z: z,
    "channels last": lambda z: z.mT.contiguous(),
    "the first half": lambda z: z[..., : z.shape[-1] // 2].contiguous(),
}


def clipped(model, loss_fn, x, method="program", threshold=1.0):
    found = clipped_gradient_sum(model, loss_fn, (x,), FlatClipper(max_grad_norm=threshold), method)
    return torch.cat([found.sum["weight"], found.sum["bias"]])


@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("before", INPUTS)
@pytest.mark.parametrize("after", OUTPUTS)
def test_a_record_moves_its_share_whatever_the_strides(before, after, rows):
    def loss_fn(model, batch):
        z = OUTPUTS[after](model(INPUTS[before](batch[0])))
        return (z * z.detach().cos()).flatten(1).sum(1)

    model, x = nn.GroupNorm(2, 4).double(), torch.randn(rows, 4, 40, dtype=torch.float64)
    whole = clipped(model, loss_fn, x)
    torch.testing.assert_close(whole, clipped(model, loss_fn, x, "loop"), rtol=1e-10, atol=1e-10)
    if rows > 1:
        assert (whole - clipped(model, loss_fn, x[1:])).norm() <= 1 + 1e-12


def test_a_gradient_that_is_one_number_everywhere_is_read_within_its_memory():
    model, x = nn.GroupNorm(2, 4).double(), torch.randn(1, 4, 40, dtype=torch.float64)
    found = clipped(model, lambda model, batch: model(batch[0]).flatten(1).sum(1), x, threshold=1e9)
    torch.testing.assert_close(found[4:], torch.full((4,), 40.0, dtype=torch.float64))


def test_each_image_has_the_scale_of_its_record():
    def loss_fn(model, batch):
        z = model(batch[0].flatten(0, 1))
        return (z * z.detach().cos()).unflatten(0, (-1, 3)).flatten(1).sum(1)

    model, x = nn.GroupNorm(2, 4).double(), torch.randn(5, 3, 4, 7, dtype=torch.float64)
    torch.testing.assert_close(clipped(model, loss_fn, x), clipped(model, loss_fn, x, "loop"), rtol=1e-10, atol=1e-10)
