"""Forward passes that leave something behind: what one batch writes, the next batch reads.

Each is the forward pass of a :class:`tests.gradients.ordinary.Model`.
"""

import torch

from tests.gradients.ordinary import WIDTH, out

STASH: list = []
TOTAL = torch.zeros(WIDTH)


def running_mean_attribute(m, x):
    m.mean = 0.5 * getattr(m, "mean", 0.0) + x.detach().mean(dim=(0, 1))
    return out(m, x - m.mean)


def stash_in_a_list(m, x):
    m.kept.append(x.detach())
    return out(m, x - m.kept[0].mean())


def buffer_in_place(m, x):
    m.mean.mul_(0.5).add_(0.5 * x.detach().mean(dim=(0, 1)))
    return out(m, x - m.mean)


def buffer_assigned(m, x):
    m.mean = 0.5 * m.mean + 0.5 * x.detach().mean(dim=(0, 1))
    return out(m, x - m.mean)


def counter_buffer(m, x):
    m.count.add_(1)
    return out(m, x * m.count)


def counter_attribute(m, x):
    m.calls += 1
    return out(m, x * m.calls)


def parameter_written(m, x):
    with torch.no_grad():
        m.layer.weight.mul_(0.99)
    return out(m, x)


def parameter_data_written(m, x):
    m.layer.weight.data.add_(x.detach().mean())
    return out(m, x)


def value_remembered(m, x):
    m.calls = m.calls + float(x.detach().sum())
    return out(m, x * m.calls)


def written_into_a_global(m, x):
    TOTAL.add_(x.detach().mean(dim=(0, 1)))
    return out(m, x + TOTAL)


def stash_in_a_global(m, x):
    before = STASH[-1].mean() if STASH else 0.0
    STASH.append(x.detach())
    return out(m, x - before)


def stash_a_view(m, x):
    m.kept.append(x[:, 0])
    return out(m, x - m.kept[0].mean())
