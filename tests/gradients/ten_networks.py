"""Ten networks in the manner of the field, written without looking at the rules of the program.

Each comes with the data of a few records and its loss: a U-Net that removes noise, a small GPT, a text CNN, a BiLSTM
tagger, a recommender, PointNet, graph attention, a variational autoencoder, a temporal CNN, and a selective scan.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.gradients.layers import Size

VOCABULARY = 30


class UNet(nn.Module):
    """Predicts the noise in an image at a time step (Ho et al. 2020), one level deep."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.inc = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, 2 * width), nn.GroupNorm(4, width)
        self.to_bias = nn.Linear(width, 2 * width)
        self.mid = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)
        self.width = width

    def embed(self, t: Tensor) -> Tensor:
        half = self.width // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device, dtype=t.dtype) / half)
        args = t[:, None] * freqs[None]
        return self.time_mlp(torch.cat([args.sin(), args.cos()], dim=-1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.embed(t)
        skip = F.silu(self.inc(x))
        h = F.silu(self.norm1(self.down(skip)))
        h = h + self.to_bias(emb)[:, :, None, None]
        h = F.silu(self.mid(h)) + h
        h = F.silu(self.norm2(self.up(h)))
        return self.out(torch.cat([h, skip], dim=1))


def denoising(model: Any, batch: Any) -> Tensor:
    x, noise, t = batch
    keep = torch.cos(t * math.pi / 2).view(-1, 1, 1, 1)
    predicted = model(keep * x + (1 - keep**2).sqrt() * noise, t)
    return F.mse_loss(predicted, noise, reduction="none").mean(dim=(1, 2, 3))


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd = heads, width
        self.bias: Tensor
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GPT(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, width),
                "wpe": nn.Embedding(length, width),
                "h": nn.ModuleList(CausalSelfAttention(width, 2, length) for _ in range(2)),
                "ln": nn.ModuleList(nn.LayerNorm(width) for _ in range(3)),
                "mlp": nn.ModuleList(
                    nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(2)
                ),
            }
        )
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        t: Any = self.transformer
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = t["wte"](idx) + t["wpe"](pos)
        for attn, norm, mlp in zip(t["h"], t["ln"], t["mlp"], strict=False):
            x = x + attn(norm(x))
            x = x + mlp(norm(x))
        return self.lm_head(t["ln"][-1](x))


def language(model: Any, batch: Any) -> Tensor:
    logits, targets = model(batch[0][:, :-1]), batch[0][:, 1:]
    flat = F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1), reduction="none")
    return flat.view(targets.shape).mean(dim=1)


class TextCNN(nn.Module):
    """Kim (2014)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv2d(1, width, (k, width)) for k in (2, 3, 4)])
        self.dropout, self.fc = nn.Dropout(0.0), nn.Linear(3 * width, 3)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embed(x).unsqueeze(1)
        pooled = [F.relu(conv(e)).squeeze(3) for conv in self.convs]
        pooled = [F.max_pool1d(p, p.size(2)).squeeze(2) for p in pooled]
        return self.fc(self.dropout(torch.cat(pooled, 1)))


def classes(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


class Tagger(nn.Module):
    """A BiLSTM with attention over its states, and a score for each token and for the whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width // 2, num_layers=2, bidirectional=True, batch_first=True)
        self.query = nn.Parameter(torch.randn(width))
        self.hidden2tag, self.whole = nn.Linear(width, 5), nn.Linear(width, 5)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.lstm(self.embedding(tokens))
        weights = F.softmax((states @ self.query).masked_fill(tokens == 0, -1e9), dim=1)
        context = torch.bmm(weights.unsqueeze(1), states).squeeze(1)
        return self.hidden2tag(states), self.whole(context)


def tagging(model: Any, batch: Any) -> Tensor:
    tokens, label = batch
    tags, whole = model(tokens)
    mask = (tokens != 0).to(tags.dtype)
    each = F.cross_entropy(tags.transpose(1, 2), tokens % 5, reduction="none")
    return (each * mask).sum(1) / mask.sum(1).clamp(min=1) + F.cross_entropy(whole, label, reduction="none")


class Recommender(nn.Module):
    """Embeddings of categories, their products, and two towers of layers (Naumov et al. 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(n, width, mode="sum") for n in (10, 20, VOCABULARY)])
        self.bottom = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 6, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        ly = [bag(sparse[:, k : k + 1] % bag.num_embeddings) for k, bag in enumerate(self.bags)]
        T = torch.stack([x, *ly], dim=1)
        Z = torch.bmm(T, T.transpose(1, 2))
        li, lj = torch.tril_indices(4, 4, offset=-1)
        return self.top(torch.cat([x, Z[:, li, lj]], dim=1)).squeeze(1)


def clicks(model: Any, batch: Any) -> Tensor:
    dense, sparse, y = batch
    return F.binary_cross_entropy_with_logits(model(dense, sparse), y, reduction="none")


class PointNet(nn.Module):
    """Points, a learned rotation, layers shared by the points, the largest of each feature (Qi et al. 2017)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Conv1d(3, width, 1), nn.ReLU(), nn.Conv1d(width, width, 1))
        self.rotation = nn.Linear(width, 9)
        self.features = nn.Sequential(nn.Conv1d(3, width, 1), nn.ReLU(), nn.Conv1d(width, 2 * width, 1))
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, points: Tensor) -> Tensor:
        x = points.transpose(2, 1)
        r = self.rotation(torch.max(self.local(x), 2)[0])
        r = r.view(-1, 3, 3) + torch.eye(3, dtype=x.dtype, device=x.device)
        x = torch.bmm(points, r).transpose(2, 1)
        return self.head(torch.max(self.features(x), 2, keepdim=True)[0].view(len(points), -1))


class GraphAttention(nn.Module):
    """Two layers of graph attention on a dense adjacency matrix (Velickovic et al. 2018)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.W = nn.ParameterList([nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(2)])
        self.a = nn.ParameterList([nn.Parameter(torch.randn(2 * width, 1) / width**0.5) for _ in range(2)])
        self.head = nn.Linear(width, 1)
        self.width = width

    def forward(self, h: Tensor, adj: Tensor) -> Tensor:
        for W, a in zip(self.W, self.a, strict=True):
            Wh = torch.matmul(h, W)
            left, right = torch.matmul(Wh, a[: self.width]), torch.matmul(Wh, a[self.width :])
            e = F.leaky_relu(left + right.transpose(-1, -2), 0.2)
            attention = torch.where(adj > 0, e, -9e15 * torch.ones_like(e)).softmax(dim=-1)
            h = F.elu(torch.matmul(attention, Wh))
        return self.head(h.mean(dim=1)).squeeze(-1)


def graph_value(model: Any, batch: Any) -> Tensor:
    return (model(batch[0], batch[1]) - batch[2]) ** 2


class VAE(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1), nn.ReLU()
        )
        self.mu, self.logvar = nn.Linear(4 * width, 4), nn.Linear(4 * width, 4)
        self.expand = nn.Linear(4, 4 * width)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width, 3, 2, 1, output_padding=1), nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 3, 2, 1, output_padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor, eps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x).flatten(1)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + (0.5 * logvar).exp() * eps
        return self.decoder(self.expand(z).view(len(x), -1, 2, 2)), mu, logvar


def elbo(model: Any, batch: Any) -> Tensor:
    x, eps = batch
    out, mu, logvar = model(x.sigmoid(), eps)
    rec = F.binary_cross_entropy(out, x.sigmoid(), reduction="none").sum(dim=(1, 2, 3))
    return rec - 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(dim=1)


class TCN(nn.Module):
    """Dilated causal convolutions with gates and normalised weights (Bai et al. 2018)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        norm = torch.nn.utils.parametrizations.weight_norm
        self.start = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList([norm(nn.Conv1d(width, 2 * width, 2, dilation=2**k)) for k in range(3)])
        self.skips = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(3)])
        self.end = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, total = self.start(x.unsqueeze(1)), 0
        for k, (layer, skip) in enumerate(zip(self.layers, self.skips, strict=True)):
            a, b = layer(F.pad(h, (2**k, 0))).chunk(2, dim=1)
            out = torch.tanh(a) * torch.sigmoid(b)
            total = total + skip(out)
            h = h + out
        return self.end(F.relu(total)).squeeze(1)


def next_value(model: Any, batch: Any) -> Tensor:
    (x,) = batch
    return F.smooth_l1_loss(model(x[:, :-1]), x[:, 1:], reduction="none").mean(1)


class SelectiveScan(nn.Module):
    """A state-space layer whose transition depends on the input (Gu and Dao 2023), scanned in a loop."""

    def __init__(self, width: int, state: int = 4) -> None:
        super().__init__()
        self.embed, self.in_proj = nn.Embedding(VOCABULARY, width), nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.x_proj, self.dt_proj = nn.Linear(width, 2 * state + 2, bias=False), nn.Linear(2, width)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, state + 1).float()).repeat(width, 1))
        self.D, self.out = nn.Parameter(torch.ones(width)), nn.Linear(width, 3)
        self.state = state

    def forward(self, tokens: Tensor) -> Tensor:
        x, z = self.in_proj(self.embed(tokens)).chunk(2, dim=-1)
        b, length, d = x.shape
        x = F.silu(self.conv(x.transpose(1, 2))[..., :length].transpose(1, 2))
        dt, B, C = self.x_proj(x).split([2, self.state, self.state], dim=-1)
        dt, A = F.softplus(self.dt_proj(dt)), -torch.exp(self.A_log)
        dA = torch.exp(torch.einsum("bld,dn->bldn", dt, A))
        dBx = torch.einsum("bld,bln,bld->bldn", dt, B, x)
        h = torch.zeros(b, d, self.state, dtype=x.dtype, device=x.device)
        ys = torch.empty(b, length, d, dtype=x.dtype, device=x.device)
        for t in range(length):
            h = dA[:, t] * h + dBx[:, t]
            ys[:, t] = torch.einsum("bdn,bn->bd", h, C[:, t])
        y = (ys + self.D * x) * F.silu(z)
        return self.out(y.mean(dim=1))


# --- data ------------------------------------------------------------------------------------------------------------


def tokens(s: Size) -> Tensor:
    return torch.randint(0, VOCABULARY, (s.rows, s.length))


def labels(s: Size) -> Tensor:
    return torch.arange(s.rows) % 3


def pictures(s: Size, dtype: torch.dtype) -> Tensor:
    return torch.randn(s.rows, 1, 8, 8, dtype=dtype)


def graph(s: Size, dtype: torch.dtype) -> tuple[Tensor, ...]:
    edges = torch.eye(s.length).expand(s.rows, -1, -1) + (torch.rand(s.rows, s.length, s.length) > 0.5)
    return torch.randn(s.rows, s.length, s.width, dtype=dtype), edges.to(dtype), torch.randn(s.rows, dtype=dtype)


NETWORKS = {
    "U-Net, denoising": (
        lambda s: UNet(s.width),
        lambda s, d: (pictures(s, d), pictures(s, d), torch.rand(s.rows, dtype=d)), denoising,
    ),
    "GPT, tied": (lambda s: GPT(s.width, s.length), lambda s, d: (tokens(s),), language),
    "text CNN": (lambda s: TextCNN(s.width), lambda s, d: (tokens(s), labels(s)), classes),
    "BiLSTM tagger": (lambda s: Tagger(s.width), lambda s, d: (tokens(s), labels(s)), tagging),
    "recommender": (
        lambda s: Recommender(s.width),
        lambda s, d: (torch.randn(s.rows, 4, dtype=d), tokens(s)[:, :3], torch.rand(s.rows, dtype=d)), clicks,
    ),
    "PointNet": (
        lambda s: PointNet(s.width), lambda s, d: (torch.randn(s.rows, s.length, 3, dtype=d), labels(s)), classes,
    ),
    "graph attention": (lambda s: GraphAttention(s.width), graph, graph_value),
    "variational autoencoder": (
        lambda s: VAE(s.width), lambda s, d: (pictures(s, d), torch.randn(s.rows, 4, dtype=d)), elbo,
    ),
    "temporal CNN, weight_norm": (
        lambda s: TCN(s.width), lambda s, d: (torch.randn(s.rows, s.length, dtype=d),), next_value,
    ),
    "selective scan": (lambda s: SelectiveScan(s.width), lambda s, d: (tokens(s), labels(s)), classes),
}  # fmt: skip
