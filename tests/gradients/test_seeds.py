import random

import numpy as np
import pytest
import torch

from tacita.gradients import seeds
from tacita.gradients.seeds import derived_seed, fill, fresh_seed, generators_kept, seed_generators, seeded

CPU = torch.device("cpu")
FAR = [2**32, 2**63, 2**64, 2**200]  # seeds that differ by these are one seed to generators of 32 or 64 bits


def draws(seed):
    """What each of the three generators gives after ``seed``."""
    with generators_kept():
        seed_generators(seed)
        return torch.rand(1000).tolist(), np.random.rand(1000).tolist(), [random.random() for _ in range(1000)]


def dropout(seed):
    with seeded(seed, CPU):
        return torch.nn.functional.dropout(torch.ones(1000), 0.5)


@pytest.mark.parametrize("apart", FAR)
def test_seeds_alike_in_their_last_bits_are_different_seeds(apart):
    seed = derived_seed("a")
    assert not torch.equal(dropout(seed), dropout(seed ^ apart))
    assert all(a != b for a, b in zip(draws(seed), draws(seed ^ apart), strict=True))


def test_the_same_seed_gives_the_same_draws_and_leaves_no_trace():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(dropout(5), dropout(5))
    assert draws(5) == draws(5)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_the_three_generators_draw_apart():
    _, numpy, python = draws(5)
    assert numpy[:3] != python[:3]


def test_the_whole_state_is_filled_and_kept():
    states = [torch.Generator(), torch.Generator()]
    for generator, seed in zip(states, (3, 3 + 2**32), strict=True):
        fill(generator, seed)
    first, second = (generator.get_state()[24 : 24 + 8 * 624].view(torch.int64) for generator in states)
    assert (first != second).all()
    assert first.min() >= 0
    assert 2**31 < first.max() < 2**32
    again = torch.Generator()
    again.set_state(states[0].get_state())
    assert torch.equal(torch.rand(2000, generator=again), torch.rand(2000, generator=states[0]))


def test_filled_generators_are_uniform():
    generator = torch.Generator()
    fill(generator, 11)
    values = torch.rand(100_000, generator=generator, dtype=torch.float64)
    assert abs(values.mean() - 0.5) < 5 * (1 / 12 / 100_000) ** 0.5
    assert torch.histc(values, 10).sub(10_000).abs().max() < 500


def test_a_state_of_another_layout_is_refused(monkeypatch):
    monkeypatch.setattr(seeds, "_FIRST", 32)
    with pytest.raises(RuntimeError, match="another layout"):
        fill(torch.Generator(), 5)


def test_derived_seeds_have_256_bits_and_tell_labels_apart():
    labels = [(), (1,), ("1",), (1, 2), (12,), ("1, 2",), ("1", "2"), (1, "chunk", 2), (1, "record", 2), (2**255,)]
    found = [derived_seed(*label) for label in labels]
    assert len(set(found)) == len(labels)
    assert all(2**240 < seed < 2**256 for seed in found)
    assert derived_seed(np.int64(3), "a") == derived_seed(3, "a")


def test_fresh_seeds_have_256_bits():
    assert fresh_seed() != fresh_seed()
    assert max(fresh_seed() for _ in range(20)) > 2**250
