import numpy as np
import pytest
import torch
from torch import nn

from tacita.gradients import NetworkSource

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def squared(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]) ** 2


def sums(model, method, seed=None):
    data = torch.linspace(-1, 1, 80).reshape(20, 4), torch.linspace(0, 1, 20).numpy()  # on the CPU
    source = NetworkSource(model, squared, data, method=method, max_physical_batch_size=3)
    params = dict(model.named_parameters())
    engine = source.engine(params, np.arange(1, 12), query=0, seed=seed)
    found = engine.weighted_sums(torch.ones_like, {"all": tuple(params)})
    return torch.cat([v.flatten() for v in found.values[0].values()]), found.norms


@pytest.mark.parametrize("method", ["loop", "vmap", "auto"])
def test_batches_move_to_the_parameters(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    total, norms = sums(model, "loop")
    on_device, device_norms = sums(model.cuda(), method)
    assert on_device.is_cuda
    torch.testing.assert_close(on_device.cpu(), total, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(device_norms.cpu(), norms, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("method", ["loop", "vmap", "auto"])
def test_dropout_follows_the_seed_and_leaves_both_generators(method):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).cuda()
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    first, _ = sums(model, method, seed=4)
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], torch.cuda.get_rng_state())
    torch.randn(5, device="cuda")
    torch.testing.assert_close(first, sums(model, method, seed=4)[0])
    assert not torch.allclose(first, sums(model, method, seed=5)[0])
