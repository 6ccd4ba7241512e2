"""An ordinary model and its loss, which the hostile ones change in one place."""

import torch
from torch import nn

WIDTH, LENGTH = 4, 6


class Model(nn.Module):
    """A linear layer and a head under a forward pass of the case's own."""

    calls_of_class = 0

    def __init__(self, steps, **state):
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.norm = nn.LayerNorm(WIDTH)
        self.steps = steps
        self.kept = []
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x):
        return self.steps(self, x)


def loss(model, batch):
    x, y = batch
    return (model(x).flatten(1).mean(dim=1) - y).square()


def out(m, x):
    return m.head(m.layer(x).tanh())
