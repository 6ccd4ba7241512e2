"""Small networks of convolutions whose weights are parameters or are computed from them, and networks of views."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tacita.gradients.views import mean_over_views
from tests.gradients.layers import SMALL, Size

CLASSES = 10


class StandardisedConv2d(nn.Conv2d):
    """A convolution with standardised weights, as timm's ``StdConv2d`` and ``ScaledStdConv2d`` compute them.

    Source: Qiao et al. (2019), "Weight Standardization", https://arxiv.org/abs/1903.10520; used for private training by
    De et al. (2022), https://arxiv.org/abs/2204.13650.
    """

    def __init__(self, *args: Any, scaled: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.gain = nn.Parameter(torch.ones(self.out_channels)) if scaled else None

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        flat = F.batch_norm(flat, None, None, weight=self.gain, training=True, momentum=0.0, eps=1e-6)
        return self._conv_forward(x, flat.reshape_as(self.weight), self.bias)


class StandardisedByHand(nn.Conv2d):
    """The same by mean and standard deviation."""

    def forward(self, x: Tensor) -> Tensor:
        w, axes = self.weight, (1, 2, 3)
        return self._conv_forward(x, (w - w.mean(axes, keepdim=True)) / (w.std(axes, keepdim=True) + 1e-5), self.bias)


def scaled(*args: Any, **settings: Any) -> nn.Module:
    return StandardisedConv2d(*args, scaled=True, **settings)


def normed(*args: Any, **settings: Any) -> nn.Module:
    return parametrizations.weight_norm(nn.Conv2d(*args, **settings))


def images(size: Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    side = 8 if size == SMALL else 32
    return torch.randn(size.rows, 3, side, side, dtype=dtype), torch.arange(size.rows) % CLASSES


def several_views(views: int) -> Callable[[Size, torch.dtype], tuple[Tensor, Tensor]]:
    def data(size: Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        side = 8 if size == SMALL else 32
        x = torch.randn(size.rows, views, 3, side, side, dtype=dtype)
        return x, (torch.arange(size.rows) % CLASSES).unsqueeze(1).repeat(1, views)

    return data


def losses(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def cnn(conv: Callable[..., nn.Module]) -> Callable[[Size], nn.Module]:
    def block(before: int, width: int, stride: int) -> list[nn.Module]:
        return [conv(before, width, 3, stride=stride, padding=1), nn.GroupNorm(4, width), nn.ReLU()]

    def make(size: Size) -> nn.Module:
        width = size.width
        layers = [*block(3, width, 1), *block(width, width, 2), *block(width, 2 * width, 2)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES))

    return make


def mlp(size: Size) -> nn.Module:
    side = 8 if size == SMALL else 32
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, 256), nn.ReLU(), nn.Linear(256, CLASSES))


CONVOLUTIONS = {
    "Conv2d": nn.Conv2d,
    "StdConv2d": StandardisedConv2d,
    "ScaledStdConv2d": scaled,
    "standardised by hand": StandardisedByHand,
    "weight_norm": normed,
}
WIDTHS = (16, 32, 64)
ROWS = 128
NETWORKS = {
    f"{name}, width {width}": (cnn(conv), images, losses, Size(width, 1, ROWS))
    for name, conv in CONVOLUTIONS.items()
    for width in WIDTHS
}
VIEWS = {
    f"{name}, {views} views": (make, several_views(views), mean_over_views(losses), Size(16, 1, 32))
    for name, make in (("MLP", mlp), ("CNN of width 16", cnn(nn.Conv2d)))
    for views in (4, 8)
}
