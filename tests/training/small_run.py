"""A run of ``fit`` that is small enough to be made a hundred times: a regression on 40 rows of 3 numbers."""

import torch

SETTINGS = dict(
    target_epsilon=3.0,
    target_delta=1e-3,
    num_records=40,
    expected_batch_size=10,
    max_grad_norm=1.0,
    privacy_unit="one row",
    optimizer=lambda params: torch.optim.Adam(params, lr=0.1),
    progress=False,
)


def rows():
    """The rows, (40, 3), and what is to be predicted of each."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1)


def loss_fn(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]).square()
