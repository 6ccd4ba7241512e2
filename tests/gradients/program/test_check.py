"""The static check by itself: operators that no batching rule would pass either, should one do so some day."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.check import check

OWN = torch.Generator()


@torch.library.custom_op("tacita_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_fake(torch.empty_like)


def checked(function):
    graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(torch.zeros(7, 4)).graph
    nodes = [*graph.nodes]
    check(nodes, set(nodes), set())


def test_a_draw_from_a_generator_of_its_own_is_refused():
    with pytest.raises(UnsupportedModuleError, match="draws from a generator of its own"):
        checked(lambda x: x * torch.bernoulli(x.sigmoid(), generator=OWN))


def test_a_draw_from_the_query_s_stream_is_not():
    checked(lambda x: x * torch.bernoulli(x.sigmoid()))


def test_a_view_of_the_batch_may_not_be_written():
    with pytest.raises(UnsupportedModuleError, match="writes in place"):
        checked(lambda x: x[:, 1:].mul_(2))


def test_memory_of_another_size_is_refused():
    with pytest.raises(UnsupportedModuleError, match="nobody has written"):
        checked(lambda x: (x * 2).resize_(7, 9))


def test_an_operator_of_somebody_else_is_refused():
    with pytest.raises(UnsupportedModuleError, match=r"tacita_tests\.doubled\.default is not one of PyTorch's own"):
        checked(doubled)
