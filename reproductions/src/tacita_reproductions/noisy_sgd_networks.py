"""The networks of the noisy SGD paper, with group normalisation, at any width; and a small transformer for CoLA.

The paper's networks have batch normalisation, which mixes records, so no per-sample gradient exists: one record changes
every gradient of the batch, and running statistics would be released without noise. Group normalisation replaces it.
Source: "Noise is All You Need: Private Second-Order Convergence of Noisy SGD", appendix A.
"""

import math

import torch
from torch import Tensor, nn

GROUPS = 32


class Residual(nn.Module):
    """A block whose input is added to its output."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Times(nn.Module):
    """Multiplication by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def normalised(channels: int) -> nn.Module:
    """Return group normalisation in at most 32 groups, of at least two channels each."""
    return nn.GroupNorm(math.gcd(GROUPS, channels // 2), channels)


def conv(inside: int, out: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> nn.Module:
    """Return a convolution without bias, group normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inside, out, kernel, stride, padding, bias=False), normalised(out), nn.ReLU(inplace=False)
    )


def convnet(width: float = 1.0, classes: int = 10) -> nn.Module:
    """Return the paper's convolutional network, of 2,274,880 parameters at width 1.

    Example:
        >>> sum(p.numel() for p in convnet().parameters())
        2274880
    """
    a, b, c = (max(4, round(width * channels)) for channels in (64, 128, 256))
    return nn.Sequential(
        conv(3, a),
        conv(a, b, 5, 2, 2),
        Residual(conv(b, b), conv(b, b)),
        conv(b, c),
        nn.MaxPool2d(2),
        Residual(conv(c, c), conv(c, c)),
        conv(c, b, padding=0),
        nn.AdaptiveMaxPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(b, classes, bias=False),
        Times(0.2),
    )


class BasicBlock(nn.Module):
    """A residual block of ResNet-18: two convolutions, and a projection where the shape changes."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            conv(inside, out, 3, stride), nn.Conv2d(out, out, 3, padding=1, bias=False), normalised(out)
        )
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), normalised(out))
            if stride != 1 or inside != out
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x) + self.shortcut(x))


def resnet18(width: float = 1.0, classes: int = 10) -> nn.Module:
    """Return ResNet-18 for images of 32 x 32 (a first convolution of 3 x 3, no first pooling), not pretrained.

    Example:
        >>> sum(p.numel() for p in resnet18().parameters())
        11173962
    """
    channels = [max(4, round(width * count)) for count in (64, 128, 256, 512)]
    blocks: list[nn.Module] = [conv(3, channels[0])]
    inside = channels[0]
    for place, out in enumerate(channels):
        blocks += [BasicBlock(inside, out, 1 if place == 0 else 2), BasicBlock(out, out, 1)]
        inside = out
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


class Transformer(nn.Module):
    """A transformer encoder on words, averaged over the words that are there; not pretrained.

    Args:
        vocabulary: Number of words; word 0 is padding.
        length: Largest number of words.
        dim: Width; the hidden layers are four times as wide.
        layers: Number of blocks.
        classes: Number of classes.
    """

    def __init__(self, vocabulary: int, length: int, dim: int, layers: int, classes: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.last = nn.Linear(dim, classes)

    def forward(self, words: Tensor) -> Tensor:
        there = (words != 0).to(self.words.weight.dtype)
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        hidden = torch.where(words == 0, -torch.inf, 0.0).to(x.dtype)  # added to the scores of attention
        for block in self.blocks:
            x = block(x, src_key_padding_mask=hidden)
        mean = (x * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
        return self.last(mean)
