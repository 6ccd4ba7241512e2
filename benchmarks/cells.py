"""The models that are timed: each a model, one fixed batch, and the physical facts the tables print.

Those like Llama have the size of the environment: TACITA_LLAMA=width,layers,heads,vocabulary,tokens,more tokens.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Cell:
    """A model and a batch size.

    Samples are random numbers, or tokens where ``vocabulary`` is set; language models predict the next token.

    Attributes:
        words: For the table.
        model: Makes the model.
        features: Shape of one sample.
        classes: Number of classes.
        batch: Samples in the batch.
        at_once: Samples whose gradients vmap is to hold at once, where fewer than all are faster.
    """

    words: str
    model: Callable[[], nn.Module]
    features: tuple[int, ...]
    classes: int
    batch: int
    vocabulary: int = 0
    language: bool = False
    at_once: int | None = None

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """``count`` random samples with labels, the same ones on every device."""
        device = torch.get_default_device()
        x, labels = self._drawn(count, torch.Generator("cpu").manual_seed(0))
        return x.to(device), labels.to(device)

    def _drawn(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn: dict = {"generator": generator, "device": "cpu"}
        if self.vocabulary:
            tokens = torch.randint(self.vocabulary, (count, *self.features), **drawn)
            if self.language:
                return tokens, tokens.roll(-1, dims=1)
            return tokens, torch.randint(self.classes, (count,), **drawn)
        x = torch.randn(count, *self.features, **drawn)
        return x, torch.randint(self.classes, (count,), **drawn)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def logistic() -> nn.Module:
    return nn.Linear(1000, 2)


class Residual(nn.Module):
    """A block of ResNet-20, with GroupNorm."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        stride = width // before if before > 3 else 1
        self.first = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(8, width), nn.GroupNorm(8, width)])
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(before, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(inner)) + self.short(x)).relu()


def resnet20() -> nn.Module:
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    blocks = [Residual(a, b) for a, b in pairwise(widths)]
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inward(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=self.causal)
        return self.outward(found.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer's block, normalised first."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads, causal)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.inner(self.norms[1](x))


class VisionTransformer(nn.Module):
    """Six layers over 8 x 8 patches of 4 x 4 pixels, and a class token."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 65, width))
        self.blocks = nn.Sequential(*(Block(width, 3) for _ in range(6)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.places
        return self.head(self.blocks(x)[:, 0])


class Transformer(nn.Module):
    """Token and place embeddings, six layers, and a head over tokens (``language``) or over the first position."""

    def __init__(self, vocabulary: int, length: int, language: bool, width: int = 384) -> None:
        super().__init__()
        self.language = language
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 6, causal=language) for _ in range(6)), nn.LayerNorm(width))
        self.head = nn.Linear(width, vocabulary if language else 2, bias=not language)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        return self.head(x if self.language else x[:, 0])


class Adapted(nn.Module):
    """A linear layer whose weight is frozen, and the adapter of LoRA beside it."""

    def __init__(self, inward: int, outward: int, rank: int = 16) -> None:
        super().__init__()
        self.frozen = nn.Linear(inward, outward, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(inward, rank, bias=False), nn.Linear(rank, outward, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


class LlamaBlock(nn.Module):
    """Attention with rotary places, then a gated layer, each after a root-mean-square norm."""

    def __init__(self, width: int, heads: int, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.heads, inner = heads, 8 * width // 3 // 8 * 8
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.queries, self.keys, self.values, self.outward = (linear(width, width) for _ in range(4))
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        given = self.norms[0](x)
        parts = [one(given).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.queries, self.keys)]
        values = self.values(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        found = nn.functional.scaled_dot_product_attention(*map(turned, parts), values, is_causal=True)
        x = x + self.outward(found.transpose(1, 2).flatten(2))
        given = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(given)) * self.up(given))


def turned(x: Tensor) -> Tensor:
    """Rotary places: (batch, heads, tokens, size), each pair of halves turned by an angle of its token."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[2], device=x.device)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Llama(nn.Module):
    """A language model like Llama; with ``lora`` all but its adapters is frozen. On a GPU in bfloat16."""

    def __init__(self, *, lora: bool) -> None:
        super().__init__()
        width, layers, heads, vocabulary = SIZE[:4]
        linear = Adapted if lora else lambda inward, outward: nn.Linear(inward, outward, bias=False)
        self.tokens = nn.Embedding(vocabulary, width).requires_grad_(not lora)
        self.blocks = nn.Sequential(*(LlamaBlock(width, heads, linear) for _ in range(layers)))
        self.norm = nn.RMSNorm(width).requires_grad_(not lora)
        self.head = nn.Linear(width, vocabulary, bias=False).requires_grad_(not lora)
        if lora:
            for block in self.blocks:
                block.norms.requires_grad_(False)
        if torch.get_default_device().type != "cpu":
            self.to(torch.bfloat16)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens)))).float()


SIZE = tuple(map(int, os.environ.get("TACITA_LLAMA", "2048,20,32,32000,1024,8192").split(",")))  # 1.1e9 parameters


def llama(lora: bool, tokens: int, batch: int) -> Cell:
    """The cell of one length."""
    width, layers, _, vocabulary, *_ = SIZE
    words = f"Llama-like, {layers} layers of {width}, {tokens} tokens of {vocabulary}, batch {batch}, "
    words += "LoRA of rank 16" if lora else "all parameters"
    words += "; bfloat16 on a GPU, and on it alone"
    return Cell(words, lambda: Llama(lora=lora), (tokens,), vocabulary, batch, vocabulary=vocabulary, language=True)


CELLS = {
    "a": Cell("MLP 784-256-10, batch 256", mlp, (784,), 10, 256, at_once=32),
    "b": Cell("CNN, two conv layers of 16 channels, 28x28, batch 256", cnn, (1, 28, 28), 10, 256),
    "c": Cell("ResNet-20 with GroupNorm, 3x32x32, batch 64", resnet20, (3, 32, 32), 10, 64),
    "d": Cell(
        "vision transformer, 6 layers of 192, 65 tokens, batch 64", VisionTransformer, (3, 32, 32), 10, 64, at_once=16
    ),
    "e": Cell(
        "GPT-like, 6 layers of 384, 128 tokens of 8192, batch 8",
        lambda: Transformer(8192, 128, language=True),
        (128,),
        8192,
        8,
        vocabulary=8192,
        language=True,
    ),
    "f": Cell(
        "BERT-like, 6 layers of 384, 64 tokens of 8192, batch 16",
        lambda: Transformer(8192, 64, language=False),
        (64,),
        2,
        16,
        vocabulary=8192,
    ),
    "g": Cell("logistic regression, 1000 features, batch 4096", logistic, (1000,), 2, 4096),
}
LARGE = {  # for a GPU
    f"llama, {'LoRA' if lora else 'full'}, {which}": llama(lora, tokens, batch)
    for which, tokens, batch in (("short", SIZE[4], 8), ("long", SIZE[5], 1))
    for lora in (True, False)
}
CELLS |= LARGE


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss a sample: the mean over its tokens, if it has several."""
    scores = model(batch[0])
    if scores.ndim == 3:
        return nn.functional.cross_entropy(scores.mT, batch[1], reduction="none").mean(dim=1)
    return nn.functional.cross_entropy(scores, batch[1], reduction="none")
