"""Engines of one model in several threads take turns, and leave the model its own tensors."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from tacita.clipping import FlatClipper
from tacita.gradients import NetworkSource
from tacita.gradients.functional import ModuleTree, with_tensors

CLIP = FlatClipper(max_grad_norm=1.0)


def squared(model, batch):
    return (model(batch[0]) - 1).square().sum(1)


def deep():
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))


@pytest.mark.parametrize("methods", [("program", "loop"), ("program", "program")], ids="-".join)
def test_the_model_keeps_its_tensors(methods):
    torch.manual_seed(0)
    model, data = deep(), (torch.randn(8, 4),)
    own = [*model.parameters()]
    sources = [NetworkSource(model, squared, data, method=method, max_physical_batch_size=8) for method in methods]

    def sums(source):
        engine = source.engine(dict(model.named_parameters()), np.arange(8))
        return engine.weighted_sums(CLIP.weights, CLIP.groups(source.shapes)).values[0]

    expected = sums(sources[0])
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(sums, 6 * sources):
            torch.testing.assert_close(dict(found), dict(expected))
    assert all(one is other for one, other in zip(model.parameters(), own, strict=True))


def test_no_thread_takes_the_tensors_of_another_for_the_model_s():
    model = nn.Linear(2, 1)
    with ThreadPoolExecutor(1) as pool:
        with with_tensors(ModuleTree(model), {"weight": torch.zeros(1, 2)}):
            tree = pool.submit(ModuleTree, model)
        assert tree.result().by_name["weight"] is model.weight
