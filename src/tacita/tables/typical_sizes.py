"""Typical sizes of scattering coefficients, from pictures that no data set holds.

Place: features.scattering -> [features.typical_sizes] -> tables.moments. Public: it follows from settings alone.
Source: Field (1987), "Relations between the statistics of natural images and the response properties of cortical
cells": the amplitude of a natural picture falls with its frequency f as 1 / f.
"""

import math

import numpy as np
import torch
from torch import Tensor

from tacita.tables.wavelets import Scattering

PICTURES = 64
SPREAD = 0.25  # standard deviation of their pixels around 0.5; images have values in [0, 1]


def typical_sizes(transform: Scattering) -> Tensor:  # (channels,)
    r"""Return the typical size of each channel of scattering features: a public scale, made without data.

    It is the root mean square of the channel over 64 synthetic grey pictures, whose amplitudes fall with the frequency
    f as 1 / f as those of photographs do, rounded to two digits. The channels of natural images have sizes that differ
    by a factor of some hundred; over these scales they are all of order 1, so that one threshold and one noise serve
    all: see ``scale`` of :class:`~tacita.MomentsOracle`.

    Guarantee: the numbers depend on the settings of the transform alone, so that they cost no privacy.

    Args:
        transform: The transform whose features are to be scaled.

    Returns:
        Shape (channels,), float32, above 0.

    Example:
        >>> sizes = typical_sizes(Scattering(shape=(28, 28)))
        >>> sizes.shape, bool((sizes > 0).all()), bool(sizes.max() > 100 * sizes.min())
        (torch.Size([81]), True, True)
    """
    channels, height, width = transform.channels_first
    squares = torch.zeros(transform.feature_shape[0], dtype=torch.float64)
    for picture in _pictures(height, width):
        grey = torch.from_numpy(picture).expand(channels, height, width)
        if len(transform.shape) == 2:
            image = grey[0]
        else:
            image = grey if transform.shape == (channels, height, width) else grey.permute(1, 2, 0)
        squares += transform(image).double().square().mean((1, 2))
    sizes = (squares / PICTURES).sqrt().tolist()
    return torch.tensor([float(f"{max(size, 1e-6):.2g}") for size in sizes])


def _pictures(height: int, width: int) -> np.ndarray:
    """Return synthetic pictures with values in [0, 1], float32, always the same ones."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :])
    frequency[0, 0] = 1 / math.sqrt(height * width)
    white = np.random.RandomState(0).standard_normal((PICTURES, height, width))  # a stream that NumPy keeps as it is
    pink = np.fft.ifft2(np.fft.fft2(white) / frequency).real
    return np.clip(0.5 + SPREAD * pink / pink.std(), 0, 1).astype(np.float32)
