"""A layer that normalises features by numbers which were released, or are public."""

import torch
from torch import Tensor, nn


class FixedNormalization(nn.Module):
    r"""Map each channel to :math:`(x - \mu_c) / \sigma_c`, float32. The two are buffers, and nothing trains them.

    Until they are set, :math:`\mu = 0` and :math:`\sigma = 1`. :class:`~tacita.MomentsOracle` sets them from a private
    release; public numbers may be set by hand.

    Args:
        num_channels: The length of the axis after the batch.

    Example:
        >>> layer = FixedNormalization(3)
        >>> layer.set(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 2.0]))
        >>> layer(torch.ones(5, 3, 4))[0, :, 0]
        tensor([ 0.0000, -0.5000, -1.0000])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_channels))
        self.register_buffer("std", torch.ones(num_channels))

    def set(self, mean: Tensor, std: Tensor) -> None:
        """Set mean and standard deviation, shape (channels,) each."""
        if mean.shape != self.mean.shape or std.shape != self.std.shape:
            raise ValueError(f"mean and std must have the shape {tuple(self.mean.shape)}.")
        if not (mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
            raise ValueError("mean must be finite, and std finite and above 0.")
        self.mean.copy_(mean)
        self.std.copy_(std)

    def forward(self, features: Tensor) -> Tensor:  # (batch, channels, ...)
        shape = (1, -1, *(1,) * (features.ndim - 2))
        return (features.to(self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)
