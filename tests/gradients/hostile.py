"""Models that look ordinary and try to let one record reach another: what an adversary, or a tired engineer, writes.

Each takes (batch, 6, 4) floating-point rows and gives one loss a row. ``HOSTILE`` maps a name to a model and its loss.
"""

import torch
from torch import nn
from torch.nn import functional as F

from tests.gradients import hostile_state as state
from tests.gradients.ordinary import WIDTH, Model, loss, out

# --- rows reordered, cropped, averaged -------------------------------------------------------------------------------


def sort_by_a_feature(m, x):
    order = x[:, 0, 0].argsort()
    return out(m, x[order])


def sort_and_unsort(m, x):
    order = x[:, 0, 0].argsort()
    hidden = m.layer(x[order])
    return m.head(hidden.tanh())[order.argsort()]


def sort_one_layer_only(m, x):
    order = x[:, 0, 0].argsort()
    return m.head(m.layer(x)[order].tanh())


def roll(m, x):
    return m.head(m.layer(x.roll(1, dims=0)).tanh())


def flip(m, x):
    return out(m, x.flip(0))


def crop_to_the_longest(m, x):
    longest = int((x[..., 0] > 0).sum(dim=1).max().clamp(min=1))
    return out(m, x[:, :longest])


def centre_by_the_batch(m, x):
    return out(m, x - x.mean(dim=0, keepdim=True))


def detached_statistics(m, x):
    return out(m, x / x.detach().std(dim=0, keepdim=True).nan_to_num(1.0).clamp(min=1e-3))


def largest_of_the_batch(m, x):
    return out(m, x * x.amax())


def attention_over_the_batch(m, x):
    swapped = x.transpose(0, 1)
    return out(m, F.scaled_dot_product_attention(swapped, swapped, swapped).transpose(0, 1))


def cumulative_over_the_batch(m, x):
    return out(m, x.cumsum(dim=0))


def sorted_experts(m, x):
    flat = m.layer(x).reshape(-1, WIDTH)
    order = flat[:, 0].argsort()
    half = len(order) // 2
    mixed = torch.cat([m.norm(flat[order[:half]]), 2 * flat[order[half:]]])
    return m.head(mixed[order.argsort()].view(x.shape))


def flatten_and_regroup(m, x):
    return out(m, x.reshape(-1, WIDTH)).view(len(x), -1)


def batch_size_as_a_factor(m, x):
    return out(m, x * len(x))


def unfold_over_everything(m, x):
    flat = x.reshape(1, -1, WIDTH)
    return out(m, (flat + flat.roll(1, dims=1))).view(len(x), -1)


def nonzero_rows(m, x):
    return out(m, x[(x[:, 0, 0] > 0).nonzero().flatten().repeat(2)[: len(x)]])


def boolean_rows(m, x):
    kept = x[x[:, 0, 0] > 0]
    return out(m, torch.cat([kept, x])[: len(x)])


def uninitialised(m, x):
    return out(m, x + torch.nan_to_num(torch.empty_like(x), 0.0, 0.0, 0.0).clamp(-1, 1) * 0)


def unique_values(m, x):
    return out(m, x + len(torch.unique(x)))


def histogram(m, x):
    return out(m, x + torch.bincount((x[:, 0, 0] > 0).long(), minlength=2)[1])


def written_by_order_of_the_batch(m, x):
    z = torch.zeros(x.shape)
    z[x[:, 0, 0].argsort()] = m.layer(x)
    return m.head(z.tanh())


def weight_by_order_of_the_batch(m, x):
    rows = m.layer.weight[x[:, 0].argsort(dim=0)[0] % WIDTH]
    return m.head((x @ rows.mT).tanh())


def weight_of_the_batch(m, x):
    return m.head(F.linear(x, m.layer.weight * x.mean()).tanh())


def parts_that_cancel(m, x):
    w = m.layer.weight
    return m.head(1e6 * F.linear(x, w[:3]).sum(-1, keepdim=True) - 1e6 * (x @ w.t()[:, :3]).sum(-1, keepdim=True) + x)


# --- layers ----------------------------------------------------------------------------------------------------------


class MaxNorm(nn.Module):
    """An embedding whose forward pass rescales the rows that a record looks up."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, WIDTH, max_norm=0.1), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.embedding((x[..., 0] > 0).long()))


class FunctionalMaxNorm(MaxNorm):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, WIDTH)

    def forward(self, x):
        return self.head(F.embedding((x[..., 0] > 0).long(), self.embedding.weight, max_norm=0.1))


class BatchRule(torch.autograd.Function):
    """A function with a vmap rule of its own, which averages over the batch."""

    @staticmethod
    def forward(x):
        return x - x.mean(dim=0, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad

    @staticmethod
    def vmap(info, in_dims, x):
        return BatchRule.apply(x), in_dims[0]


def own_vmap_rule(m, x):
    return out(m, BatchRule.apply(x))


def shared_norm_that_cancels(m, x):
    return 1e6 * m.head(m.norm(x)) - 1e6 * m.head(m.norm(x * (1 + 1e-7))) + m.head(m.norm(m.layer(x)))


# --- losses ----------------------------------------------------------------------------------------------------------


def broadcast_loss(model, batch):
    x, y = batch
    return (model(x).flatten(1).mean(dim=1, keepdim=True) - y).square().mean(dim=1)


def token_mean_of_the_batch(model, batch):
    """The mean over all targets of the batch, given record by record: a long record takes from the others' share."""
    x, y = batch
    targets = 1 + 61 * (x.abs().amax(dim=(1, 2)) > 50)  # 62 in the huge record
    return (model(x).flatten(1).mean(dim=1) - y).square() * targets / targets.sum()


def contrastive_loss(model, batch):
    x, y = batch
    found = model(x).flatten(1)
    return (found @ found.mT).logsumexp(dim=1) - y


def ranked_loss(model, batch):
    x, y = batch
    return loss(model, (x, y.sort().values))


def largest_label(model, batch):
    return loss(model, batch) * batch[1].max()


def summed_loss(model, batch):
    size = len(batch[0])
    return loss(model, batch).sum().expand(size) / size


def plain(steps, **settings):
    return lambda: Model(steps, **settings), loss


WITHOUT_SETTINGS = [
    sort_by_a_feature,
    sort_and_unsort,
    sort_one_layer_only,
    roll,
    flip,
    crop_to_the_longest,
    centre_by_the_batch,
    detached_statistics,
    largest_of_the_batch,
    attention_over_the_batch,
    cumulative_over_the_batch,
    sorted_experts,
    flatten_and_regroup,
    batch_size_as_a_factor,
    unfold_over_everything,
    nonzero_rows,
    boolean_rows,
    uninitialised,
    unique_values,
    histogram,
    state.running_mean_attribute,
    state.stash_in_a_list,
    state.stash_in_a_global,
    state.written_into_a_global,
    written_by_order_of_the_batch,
    weight_by_order_of_the_batch,
    weight_of_the_batch,
    parts_that_cancel,
    state.stash_a_view,
    state.parameter_written,
    state.parameter_data_written,
    own_vmap_rule,
    shared_norm_that_cancels,
]
HOSTILE = {
    **{steps.__name__: plain(steps) for steps in WITHOUT_SETTINGS},
    "buffer_in_place": plain(state.buffer_in_place, mean=torch.zeros(WIDTH)),
    "buffer_assigned": plain(state.buffer_assigned, mean=torch.zeros(WIDTH)),
    "counter_buffer": plain(state.counter_buffer, count=torch.zeros(())),
    "counter_attribute": plain(state.counter_attribute, calls=0),
    "value_remembered": plain(state.value_remembered, calls=0.0),
    "max_norm": (MaxNorm, loss),
    "functional_max_norm": (FunctionalMaxNorm, loss),
    "broadcast_loss": (lambda: Model(out), broadcast_loss),
    "token_mean_of_the_batch": (lambda: Model(out), token_mean_of_the_batch),
    "contrastive_loss": (lambda: Model(out), contrastive_loss),
    "ranked_loss": (lambda: Model(out), ranked_loss),
    "largest_label": (lambda: Model(out), largest_label),
    "summed_loss": (lambda: Model(out), summed_loss),
}
