"""Layers and ways to use them, each as a small network: what the coverage table lists and the coverage test checks.

A case takes rows (batch, length, width) of normal numbers. Its name tells what it shows; ``LAYERS`` groups the cases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

INDICES = 7  # vocabulary of the embeddings


@dataclass(frozen=True)
class Size:
    """How large a case is.

    Attributes:
        width: Numbers a position; a multiple of 4.
        length: Positions a record.
        rows: Records.
    """

    width: int
    length: int
    rows: int


SMALL = Size(8, 6, 5)


class Net(nn.Module):
    """Modules and parameters under a forward pass of the case's own: ``steps(net, x)``."""

    def __init__(self, steps: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.steps = steps
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.steps(self, x)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0]).flatten(1).square().mean(dim=1) - batch[1]


def data(size: Size, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(size.rows, size.length, size.width, dtype=dtype), torch.randn(size.rows, dtype=dtype)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / max(1, shape[-1]) ** 0.5 if shape else torch.tensor(1.5))


def tokens(x: Tensor) -> Tensor:
    return (2 * x[..., 0].abs()).long().clamp(max=INDICES - 1)


def of(steps: Callable[[Any, Tensor], Tensor], **shapes: tuple[int, ...]) -> Net:
    """A network of parameters of these shapes, and no modules."""
    return Net(steps, **{name: weight(*shape) for name, shape in shapes.items()})


def on_images(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Unflatten(1, (1, -1)), *layers)


def on_volumes(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Unflatten(2, (4, -1)), nn.Unflatten(1, (1, -1)), *layers)


def on_channels(*layers: nn.Module) -> Net:
    return Net(lambda m, x: m.layers(x.mT), layers=nn.Sequential(*layers))


def first(m: Any, x: Tensor) -> Tensor:
    return m.layer(x)[0]


# --- products --------------------------------------------------------------------------------------------------------


def two_products(m: Any, x: Tensor) -> Tensor:
    heads = torch.einsum("btd,hdk->bhtk", x, m.into)
    return torch.einsum("bhtk,hkd->btd", heads.tanh(), m.out)


def three_factors(m: Any, x: Tensor) -> Tensor:
    return torch.einsum("btd,edo,bte->bto", x, m.weight, m.gate(x).softmax(-1))


def lora_merged(m: Any, x: Tensor) -> Tensor:
    return F.linear(x, m.frozen.weight + m.up @ m.down)


def hand_cast(m: Any, x: Tensor) -> Tensor:
    return F.linear(x.double(), m.layer.weight.double(), m.layer.bias.double())


def one_weight_many_ways(m: Any, x: Tensor) -> Tensor:
    back = F.linear(F.linear(x, m.weight).tanh(), m.weight.t())
    return back + (x @ m.weight[:2].t()) @ m.weight[2:4]


PRODUCTS = {
    "linear": lambda s: nn.Linear(s.width, s.width),
    "linear, no sequence": lambda s: Net(lambda m, x: m.layer(x.mean(1)), layer=nn.Linear(s.width, s.width)),
    "x @ W": lambda s: of(lambda m, x: x @ m.weight, weight=(s.width, s.width)),
    "x @ W.t()": lambda s: of(lambda m, x: x @ m.weight.t(), weight=(s.width, s.width)),
    "W @ x": lambda s: of(lambda m, x: m.weight @ x, weight=(s.length, s.length)),
    "x @ vector": lambda s: of(lambda m, x: x @ m.weight, weight=(s.width,)),
    "einsum": lambda s: of(lambda m, x: torch.einsum("btd,df->btf", x, m.weight), weight=(s.width, s.width)),
    "einsum over heads": lambda s: of(two_products, into=(2, s.width, s.width // 2), out=(2, s.width // 2, s.width)),
    "einsum of three": lambda s: Net(three_factors, gate=nn.Linear(s.width, 3), weight=weight(3, s.width, s.width)),
    "tensordot": lambda s: of(lambda m, x: torch.tensordot(x, m.weight, dims=1), weight=(s.width, s.width)),
    "stack of matrices": lambda s: of(lambda m, x: x.unsqueeze(1) @ m.weight, weight=(3, s.width, s.width)),
    "parts of one matrix": lambda s: of(
        lambda m, x: torch.cat([F.linear(x, part) for part in m.weight.chunk(3)], -1), weight=(3 * s.width, s.width)
    ),
    "bilinear": lambda s: Net(lambda m, x: m.layer(x, x), layer=nn.Bilinear(s.width, s.width, 3)),
    "scaled weight": lambda s: Net(
        lambda m, x: F.linear(x, m.layer.weight * 0.1, m.layer.bias), layer=nn.Linear(s.width, s.width)
    ),
    "weight cast by hand": lambda s: Net(hand_cast, layer=nn.Linear(s.width, s.width)),
    "low-rank update, merged": lambda s: Net(
        lora_merged, frozen=nn.Linear(s.width, s.width, bias=False).requires_grad_(False), up=weight(s.width, 4),
        down=weight(4, s.width),
    ),
    "cosine": lambda s: of(lambda m, x: F.linear(F.normalize(x, dim=-1), F.normalize(m.w, dim=-1)), w=(5, s.width)),
    "prototypes": lambda s: of(lambda m, x: torch.cdist(x, m.centres), centres=(5, s.width)),
}  # fmt: skip


# --- shared and parametrised weights ---------------------------------------------------------------------------------


class Tied(nn.Module):
    """An embedding whose matrix is the output layer too."""

    def __init__(self, size: Size, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(vocabulary, size.width), nn.Linear(size.width, size.width)
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens(x))).tanh())


class OneModuleTwice(nn.Module):
    """One module under two names, in two places."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.first = nn.Linear(size.width, size.width)
        self.rest = nn.ModuleDict({"again": self.first})

    def forward(self, x: Tensor) -> Tensor:
        return self.rest["again"](self.first(x).tanh())


def pruned(size: Size) -> nn.Module:
    return prune.l1_unstructured(nn.Linear(size.width, size.width), "weight", 0.5)


def standardised(m: Any, x: Tensor) -> Tensor:
    w = m.layer.weight
    w = (w - w.mean((1, 2), keepdim=True)) / (w.std((1, 2), keepdim=True) + 1e-5)
    return F.conv1d(x.mT, w, m.layer.bias)


SHARED = {
    "used twice": lambda s: Net(lambda m, x: m.layer(m.layer(x).tanh()), layer=nn.Linear(s.width, s.width)),
    "convolution used twice": lambda s: Net(
        lambda m, x: m.layer(m.layer(x.mT).tanh()), layer=nn.Conv1d(s.width, s.width, 3, padding=1)
    ),
    "normalisation used twice": lambda s: Net(
        lambda m, x: m.norm(m.layer(m.norm(x))), norm=nn.LayerNorm(s.width), layer=nn.Linear(s.width, s.width)
    ),
    "one module under two names": OneModuleTwice,
    "tied embedding and head": lambda s: Tied(s, 40 * s.width),
    "tied by hand": lambda s: Net(
        lambda m, x: m.layer(m.embedding(tokens(x))).tanh() @ m.embedding.weight.t(),
        embedding=nn.Embedding(40 * s.width, s.width), layer=nn.Linear(s.width, s.width),
    ),
    "tied autoencoder": lambda s: Net(
        lambda m, x: F.linear(m.layer(x).tanh(), m.layer.weight.t()), layer=nn.Linear(s.width, s.width // 2)
    ),
    "one matrix in four uses": lambda s: of(one_weight_many_ways, weight=(s.width, s.width)),
    "weight_norm": lambda s: parametrizations.weight_norm(nn.Linear(s.width, s.width)),
    "spectral_norm, eval": lambda s: parametrizations.spectral_norm(nn.Linear(s.width, s.width)).eval(),
    "orthogonal": lambda s: parametrizations.orthogonal(nn.Linear(s.width, s.width)),
    "pruned": pruned,
    "weight standardisation": lambda s: Net(standardised, layer=nn.Conv1d(s.width, s.width, 3)),
}  # fmt: skip


# --- convolutions, normalisations, embeddings ------------------------------------------------------------------------


def transposed(size: Size, **settings: int) -> Net:
    return on_channels(nn.ConvTranspose1d(size.width, size.width, 3, **settings))


CONVOLUTIONS = {
    "Conv1d": lambda s: on_channels(nn.Conv1d(s.width, s.width, 3, padding=1)),
    "Conv1d, stride and dilation": lambda s: on_channels(nn.Conv1d(s.width, 8, 2, stride=2, dilation=2)),
    "Conv2d": lambda s: on_images(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)),
    "Conv2d, groups": lambda s: on_images(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=4)),
    "Conv2d, depthwise": lambda s: on_images(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16)),
    **{
        f"Conv2d, padding {mode}": lambda s, mode=mode: on_images(
            nn.Conv2d(1, 8, 3, padding=1, padding_mode=mode), nn.Conv2d(8, 8, (2, 3), padding="same", padding_mode=mode)
        )
        for mode in ("zeros", "reflect", "replicate", "circular")
    },
    "Conv3d": lambda s: on_volumes(nn.Conv3d(1, 8, 2, padding=1)),
    "ConvTranspose1d": lambda s: transposed(s, stride=2, padding=1),
    "ConvTranspose1d, output padding": lambda s: transposed(s, stride=2, padding=1, output_padding=1),
    "ConvTranspose1d, output padding beyond the stride": lambda s: transposed(s, dilation=3, output_padding=2),
    "ConvTranspose2d, groups": lambda s: on_images(
        nn.Conv2d(1, 8, 3), nn.ConvTranspose2d(8, 8, 3, stride=2, groups=4, dilation=2, output_padding=1)
    ),
    "ConvTranspose3d": lambda s: on_volumes(nn.ConvTranspose3d(1, 4, 2, stride=2)),
    "Unfold and linear": lambda s: on_images(
        nn.Unfold(2, stride=2), Net(lambda m, x: m.layer(x.mT), layer=nn.Linear(4, 8))
    ),
}

NORMALISATIONS = {
    "LayerNorm": lambda s: nn.LayerNorm(s.width),
    "GroupNorm": lambda s: on_channels(nn.GroupNorm(4, s.width)),
    "InstanceNorm": lambda s: on_channels(nn.InstanceNorm1d(s.width, affine=True)),
    "RMSNorm": lambda s: nn.RMSNorm(s.width),
    "RMSNorm by hand": lambda s: of(
        lambda m, x: m.scale * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)), scale=(s.width,)
    ),
    "BatchNorm, eval": lambda s: on_channels(nn.BatchNorm1d(s.width), nn.Conv1d(s.width, 4, 1)).eval(),
}


def bags_by_offsets(m: Any, x: Tensor) -> Tensor:
    index = tokens(x)
    return m.layer(index.flatten(), torch.arange(0, index.numel(), 2)).view(len(x), -1, m.layer.embedding_dim)


EMBEDDINGS = {
    "Embedding": lambda s: Net(lambda m, x: m.layer(tokens(x)), layer=nn.Embedding(INDICES, s.width, padding_idx=0)),
    "EmbeddingBag": lambda s: Net(lambda m, x: m.layer(tokens(x)), layer=nn.EmbeddingBag(INDICES, s.width)),
    "EmbeddingBag, offsets": lambda s: Net(bags_by_offsets, layer=nn.EmbeddingBag(INDICES, s.width)),
    "EmbeddingBag, weighted sum": lambda s: Net(
        lambda m, x: m.layer(tokens(x), per_sample_weights=x[..., 1]),
        layer=nn.EmbeddingBag(INDICES, s.width, mode="sum"),
    ),
    "EmbeddingBag, max": lambda s: Net(
        lambda m, x: m.layer(tokens(x)), layer=nn.EmbeddingBag(INDICES, s.width, mode="max")
    ),
    "rows by index": lambda s: of(lambda m, x: m.table[tokens(x)], table=(INDICES, s.width)),
    "one-hot times matrix": lambda s: of(
        lambda m, x: F.one_hot(tokens(x), INDICES).to(x.dtype) @ m.table, table=(INDICES, s.width)
    ),
}

# --- parameters without a layer --------------------------------------------------------------------------------------


def class_token(m: Any, x: Tensor) -> Tensor:
    return m.layer(torch.cat([m.token.expand(len(x), -1, -1), x + m.places[:, : x.shape[1]]], dim=1))


def filtered(m: Any, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x, dim=1) * torch.view_as_complex(m.filter)
    return torch.fft.irfft(spectrum, n=x.shape[1], dim=1)


BARE = {
    "class token and positions": lambda s: Net(
        class_token, layer=nn.Linear(s.width, s.width), token=weight(1, 1, s.width),
        places=weight(1, s.length + 2, s.width),
    ),
    "layer scale": lambda s: Net(
        lambda m, x: x + m.scale * m.layer(x), layer=nn.Linear(s.width, s.width), scale=weight(s.width)
    ),
    "scalar of no axes": lambda s: Net(
        lambda m, x: m.scale.exp() * m.layer(x), layer=nn.Linear(s.width, s.width), scale=weight()
    ),
    "PReLU": lambda s: nn.Sequential(nn.Linear(s.width, s.width), nn.PReLU(s.length)),
    "learned filter": lambda s: of(filtered, filter=(s.length // 2 + 1, s.width, 2)),
}  # fmt: skip
