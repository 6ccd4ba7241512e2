"""Equal networks have one program, others have their own."""

import pytest
import torch
from torch import nn

from tacita.gradients.program.engine import Programs
from tests.traced_once import build_once


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.layer = factor, nn.Linear(3, 1)

    def forward(self, x):
        return self.factor * self.layer(x).squeeze(1)


def losses(model, batch):
    return model(batch)


def program(model, loss_fn=losses, columns=3):
    like = torch.zeros(1, columns)
    return Programs(model, loss_fn, like, build_once).program(dict(model.named_parameters()))[0]


def of_power(power):
    return lambda model, batch: model(batch) ** power


def test_equal_networks_have_one_program():
    assert program(Scaled(2.0)) is program(Scaled(2.0))
    assert program(Scaled(2.0), of_power(2)) is program(Scaled(2.0), of_power(2))


@pytest.mark.parametrize(
    "other",
    [
        lambda: program(Scaled(3.0)),
        lambda: program(Scaled(2.0).eval()),
        lambda: program(Scaled(2)),
        lambda: program(Scaled(2.0), of_power(2)),
        lambda: program(Scaled(2.0), of_power(3)),
        lambda: program(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))),
    ],
)
def test_others_have_their_own(other):
    known = [program(Scaled(2.0)), program(Scaled(2.0), of_power(1))]
    assert all(other() is not one for one in known)
