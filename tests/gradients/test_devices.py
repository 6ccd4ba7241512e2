"""What the engine computes and draws where the model lives: on a simulated device, and on a GPU if there is one."""

import numpy as np
import pytest
import torch
from torch import nn

from tacita.gradients import NetworkSource
from tacita.gradients.probe import draws
from tacita.gradients.seeds import generator_state, seeded
from tacita.gradients.weighted_sums import sums_by_index
from tests.devices import get_device, gpu

METHODS = ["loop", "auto"]


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=gpu)])
def device(request):
    return get_device(request.param)


def squared(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]) ** 2


def sums(model, method, seed=None):
    data = torch.linspace(-1, 1, 80).reshape(20, 4), torch.linspace(0, 1, 20).numpy()  # on the CPU
    source = NetworkSource(model, squared, data, method=method, max_physical_batch_size=3)
    params = dict(model.named_parameters())
    engine = source.engine(params, np.arange(1, 12), query=0, seed=seed)
    found = engine.weighted_sums(torch.ones_like, {"all": tuple(params)})
    return torch.cat([v.flatten() for v in found.values[0].values()]), found.norms


@pytest.mark.parametrize("method", METHODS)
def test_batches_move_to_the_parameters(device, method):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    total, norms = sums(model, "loop")
    on_device, device_norms = sums(model.to(device), method)
    assert on_device.device.type == device.type
    torch.testing.assert_close(on_device.cpu(), total, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(device_norms.cpu(), norms, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_dropout_follows_the_seed_and_leaves_both_generators(device, method):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(device)
    before = torch.get_rng_state(), generator_state(device)
    first, _ = sums(model, method, seed=4)
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], generator_state(device))
    torch.randn(5, device=device)
    torch.testing.assert_close(first.cpu(), sums(model, method, seed=4)[0].cpu())
    assert not torch.allclose(first.cpu(), sums(model, method, seed=5)[0].cpu())


def test_a_generator_is_restored_after_an_error(device):
    before = generator_state(device)
    with pytest.raises(KeyError), seeded(3, device):
        raise KeyError(torch.randn(5, device=device))
    assert torch.equal(before, generator_state(device))


def test_a_draw_on_the_device_is_a_draw(device):
    class Drawing(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 0.0 * torch.rand(1, device=x.device)

    def draws_and_drops(model, batch):
        return model(batch[0]).squeeze(1)

    probe = (torch.ones(2, 4, device=device),)
    assert draws(Drawing(4, 1).to(device), draws_and_drops, probe)
    assert not draws(nn.Linear(4, 1).to(device), draws_and_drops, probe)


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_sums_by_index_have_the_same_bits_each_time(device, rows):
    index, values = torch.randint(0, 7, (rows,)), torch.randn(rows, 3)
    found = [sums_by_index(index.to(device), values.to(device), 9).cpu() for _ in range(4)]
    assert all(torch.equal(found[0], one) for one in found)
    assert found[0].shape == (9, 3)
    torch.testing.assert_close(found[0], sums_by_index(index, values, 9), rtol=1e-4, atol=1e-4)


def test_the_check_of_bits_can_fail(device):
    """``index_add_`` adds up in an order that varies there."""
    index, values = torch.zeros(5000, dtype=torch.int64, device=device), torch.randn(5000, 3).to(device)
    found = {torch.zeros(1, 3, device=device).index_add_(0, index, values).cpu().numpy().tobytes() for _ in range(20)}
    assert len(found) > 1


class Tokens(nn.Module):
    """Embeddings of tokens that meet again within a row and among rows; the second is asked with offsets."""

    def __init__(self):
        super().__init__()
        self.words, self.bags, self.head = nn.Embedding(5, 6), nn.EmbeddingBag(5, 6, mode="sum"), nn.Linear(6, 1)

    def forward(self, tokens):
        offsets = torch.arange(0, tokens.numel(), tokens.shape[1], device=tokens.device)
        return self.head(self.words(tokens).sum(1) + self.bags(tokens.flatten(), offsets)).squeeze(1)


@pytest.mark.parametrize("method", METHODS)
def test_sums_and_norms_over_tokens_have_the_same_bits_each_time(device, method):
    torch.manual_seed(0)
    model, tokens = Tokens().to(device), torch.randint(0, 5, (64, 50))
    source = NetworkSource(model, lambda model, batch: model(batch[0]).square(), (tokens,), method=method)
    params = dict(model.named_parameters())

    def once():
        found = source.engine(params, np.arange(64)).weighted_sums(torch.ones_like, {"all": tuple(params)})
        parts = [*found.values[0].values(), found.norms]
        return [part.cpu() for part in parts]

    first = once()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))
