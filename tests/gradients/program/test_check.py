"""The static check by itself: operators that no batching rule would pass either, should one do so some day."""

import itertools

import pytest
import torch
from torch import nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program import Programs
from tacita.gradients.program.check import check
from tacita.gradients.program.operators import recorded
from tacita.gradients.program.run import SIZES

OWN = torch.Generator()


@torch.library.custom_op("tacita_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_fake(torch.empty_like)


def checked(function):
    nodes = [*recorded(lambda given: [function(*given)], [torch.zeros(7, 4)]).graph.nodes]
    check(nodes, set(nodes))


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


def test_the_number_of_rows_is_no_value():
    """Code that knows at which sizes a program is traced gives integers that follow them: it runs twice only."""
    calls = itertools.count()

    def loss_fn(model, batch):
        losses = model(batch[0]).square().sum(1)
        call = next(calls)
        return losses * (SIZES[call] if call < len(SIZES) else 7)

    model = nn.Linear(3, 2)
    like, params = (torch.zeros(1, 3),), {name: p.detach() for name, p in model.named_parameters()}
    with pytest.raises(UnsupportedModuleError, match="integers that do not follow the number of rows"):
        Programs(model, loss_fn, like).program(params)
