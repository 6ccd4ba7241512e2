"""The second lock: a list of operators in which records meet is refused, whoever wrote it."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.operators import recorded
from tacita.gradients.program.rows import check_rows

SIZES = 7, 11
WEIGHT = torch.ones(4, 4)
COMMON = torch.rand(300, 4)
aten = torch.ops.aten


def check(function, shape=(6, 4)):
    passes = [recorded(lambda given: tree_leaves(function(*given)), [torch.zeros(n, *shape)]) for n in SIZES]
    nodes = [[*one.graph.nodes] for one in passes]
    check_rows(nodes, SIZES, {nodes[0][0]}, set())


MIXERS = {
    "mean": lambda x: x - x.mean(0),
    "largest": lambda x: x * x.amax(),
    "largest whole number": lambda x: x + x.long().max(0).values,
    "place of the largest": lambda x: x + x.max(0).indices,
    "the last rows, as many as are traced": lambda x: x[-11:].cumsum(1),
    "the first rows, as many as are traced": lambda x: x[:11].cumsum(1),
    "sort": lambda x: x.sort(0).values,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "cumulative": lambda x: x.cumsum(0),
    "softmax": lambda x: x.softmax(0),
    "products of records": lambda x: x.flatten(1) @ x.flatten(1).T,
    "matrix of ones": lambda x: torch.ones(len(x), len(x)) @ x.flatten(1),
    "one record for all": lambda x: x + x[0],
    "shifted": lambda x: F.pad(x, (0, 0, 0, 0, 1, -1)),
    "regrouped": lambda x: x.transpose(0, 1).reshape(-1, 4).view(len(x), 6, 4),
    "regrouped in place": lambda x: x + x.transpose(0, 1).reshape(len(x), 6, 4),
    "joined end to end": lambda x: torch.cat([x, x]).view(len(x), 2, 6, 4),
    "repeated": lambda x: x.repeat(2, 1, 1).view(len(x), 2, 6, 4),
    "gathered": lambda x: x.gather(0, x.long().clamp(0, 1)),
    "indexed": lambda x: x[x[:, 0, 0].argsort()],
    "indexed backwards": lambda x: x[torch.arange(len(x)).flip(0)],
    "windows": lambda x: F.avg_pool1d(x.permute(1, 2, 0), 3, 1, 1).permute(2, 0, 1),
    "written by an index": lambda x: torch.zeros_like(x).index_put((x[:, 0, 0].argsort(),), x),
    "strides": lambda x: x.as_strided((len(x), 4), (1, 1)),
    "statistics": lambda x: F.batch_norm(x.transpose(1, 2), None, None, training=True),
    "statistics of all by the sizes that are named": lambda x: aten.native_group_norm(
        x, None, None, 1, 6 * len(x), 4, 1, 1e-5
    ),
    "groups of several records": lambda x: aten.native_group_norm(
        x.view(1, 6 * len(x), 4), None, None, 1, 6 * len(x), 4, 6, 1e-5
    )[0].view(len(x), 6, 4),
    "folded the other way": lambda x: x.transpose(0, 1).reshape(-1, 4).mul(2).view(6, len(x), 4),
    "a constant for each position": lambda x: x + COMMON.as_strided((len(x), 4), (4, 1))[:, None],
    "a permutation": lambda x: x + torch.randperm(len(x))[:, None, None],
    "its own number": lambda x: x + torch.arange(len(x))[:, None, None],
    "every second number": lambda x: x.view(-1, 4)[torch.arange(0, 2 * len(x), 2)],
    "positions of others": lambda x: x.view(-1, 4)[torch.arange(len(x))],
    "boundaries of others": lambda x: torch.bucketize(x[:, 0, 0], x[:, 1, 0]),
    "filled by an index of others": lambda x: x.view(len(x), 24).index_fill(1, x[:, 0, 0].long().clamp(0, 23), 1.0),
    "written by an index of others": lambda x: torch.zeros(300, 4).index_put((x[:, 0, 0].long() % 7,), x[:, 0]),
    "written into what is the same for all": lambda x: torch.zeros(4).expand(len(x), 4).copy_(x[:, 0]),
    "in the order of memory": lambda x: x.take(x.long().clamp(0, 9)),
    "scattered in the order of memory": lambda x: x.masked_scatter(x > 0, x),
    "of one matrix": lambda x: x[:, 0].tril(),
    "columns of one matrix": lambda x: torch.linalg.qr(x[:, 0])[0],
    "bags": lambda x: F.embedding_bag(x[:, :2, 0].long(), x[:, 0], mode="sum"),
    "looked up in records": lambda x: F.embedding(x[:, 0, 0].long(), x[:, 0]),
    "attention with fewer keys than values": lambda x: F.scaled_dot_product_attention(
        x[:, None], x[:, None, :3], x[:, None]
    ),
    "summed losses": lambda x: x + F.mse_loss(x, x.flip(1), reduction="sum"),
}
ORDINARY = {
    "layer": lambda x: (x @ WEIGHT).relu(),
    "mean of a record": lambda x: x - x.mean(1, keepdim=True),
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "folded": lambda x: (x.reshape(-1, 4) @ WEIGHT).view(len(x), 6, 4).transpose(0, 1).contiguous().transpose(0, 1),
    "sorted positions": lambda x: x.sort(1).values.cumsum(1).softmax(-1),
    "own number": lambda x: x[torch.arange(len(x)), x[:, 0, 0].long()],
    "padded positions": lambda x: F.pad(x, (0, 0, 1, 1)),
    "own channels": lambda x: F.conv1d(x.view(1, -1, 4), x.view(-1, 2, 4)[..., :3], groups=3 * len(x)),
    "own groups": lambda x: aten.native_group_norm(
        x.view(1, 6 * len(x), 4), None, None, 1, 6 * len(x), 4, 3 * len(x), 1e-5
    ),
    "written by its own number": lambda x: x[:, 0].index_put((torch.arange(len(x)), x[:, 0, 0].long()), x[:, 1, 0]),
    "a table": lambda x: F.embedding(x.long(), WEIGHT),
    "its diagonal": lambda x: x.diagonal(0, 1, 2).diag_embed(),
    "loss": lambda x: F.cross_entropy(x[:, 0], x[:, 1, 0].long(), reduction="none"),
}


@pytest.mark.parametrize("function", MIXERS.values(), ids=MIXERS)
def test_records_that_meet_are_refused(function):
    with pytest.raises(UnsupportedModuleError, match=r"it (may join records|cannot be confirmed)"):
        check(function)


@pytest.mark.parametrize("function", ORDINARY.values(), ids=ORDINARY)
def test_records_that_are_kept_apart_are_not(function):
    check(function)
