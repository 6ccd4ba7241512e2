"""Suffix averaging equals the mean of the iterates it is told to keep."""

import torch

from tacita.methods import SuffixAverage


def test_equals_the_mean_of_the_last_iterates():
    iterates = torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    average = SuffixAverage({"w": iterates[0]}, skip=4)
    for iterate in iterates:
        average.update({"w": iterate})
    assert torch.allclose(average.mean["w"], iterates[4:].mean(0), atol=1e-14)


def test_nothing_is_copied_before_the_first_average():
    params = {"w": torch.ones(2)}
    average = SuffixAverage(params, skip=3)
    average.update({"w": torch.zeros(2)})
    average.copy_to(params)
    assert torch.equal(params["w"], torch.ones(2))


def test_the_average_does_not_share_memory_with_the_parameters():
    params = {"w": torch.zeros(2)}
    average = SuffixAverage(params, skip=0)
    average.update(params)
    params["w"] += 1
    assert torch.equal(average.mean["w"], torch.zeros(2))
