r"""Filters of the scattering transform: Morlet wavelets in Fourier space, and the Gaussian average as matrices.

Place: [features.morlet] -> features.scattering. Public: the filters follow from the size of an image alone.
Source: Bruna and Mallat (2013), "Invariant Scattering Convolution Networks", Section 2.1,
https://arxiv.org/abs/1203.1513, with the settings of Oyallon and Mallat (2015), https://arxiv.org/abs/1412.8659.
"""

import math
from collections.abc import Callable

import numpy as np

WIDTH = 0.8  # standard deviation of the finest wavelet, in pixels
FREQUENCY = 3 * math.pi / 4  # its centre frequency, in radians a pixel
PERIODS = range(-2, 3)  # repetitions of a filter that are added up: a Fourier transform sees an image as periodic


def morlet(shape: tuple[int, int], scale: int, angle: float, slant: float) -> np.ndarray:
    r"""Return the Fourier transform of a Morlet wavelet, real, of the given shape.

    .. math:: \psi(u) = \frac{s}{2 \pi \sigma^2} e^{-u^T K u} (e^{i \xi \cdot u} - \beta), \quad
        \sigma = 0.8 \cdot 2^j, \quad |\xi| = \tfrac{3 \pi}{4} 2^{-j},

    where :math:`K` has the eigenvalues :math:`1 / 2 \sigma^2` along ``angle`` and :math:`s^2 / 2 \sigma^2` across it,
    and :math:`\beta` makes the mean of the wavelet zero.

    Args:
        shape: Height and width in pixels.
        scale: The scale j; the wavelet is about 2^j pixels wide.
        angle: Direction of the wave, in radians.
        slant: The ratio s of the two widths.
    """
    sigma, frequency = WIDTH * 2**scale, FREQUENCY / 2**scale
    cos, sin = math.cos(angle), math.sin(angle)

    def envelope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        along, across = cos * x + sin * y, cos * y - sin * x
        return slant * np.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)

    wave = _periodic(shape, lambda x, y: envelope(x, y) * np.exp(1j * frequency * (cos * x + sin * y)))
    mean = _periodic(shape, envelope)
    return np.fft.fft2(wave - wave.sum() / mean.sum() * mean).real


def at_resolution(transform: np.ndarray, halvings: int) -> np.ndarray:
    """Return the Fourier transform of a filter for an image whose sides were halved: its low frequencies."""
    for axis, size in enumerate(transform.shape):
        positive = size >> (halvings + 1)
        negative = (size >> halvings) - positive
        kept = np.r_[0:positive, size - negative : size]
        transform = transform.take(kept, axis)
    return transform


def average(size: int, num_scales: int, halvings: int) -> np.ndarray:
    """Return the matrix that averages one side of an image over about 2^``num_scales`` pixels, and thins it out.

    Shape (size / 2^num_scales - 2, size / 2^halvings), for a padded side of ``size`` pixels that was halved
    ``halvings`` times; the two outermost averages are left out, because they are of the padding. The average of an
    image in both directions is ``rows @ image @ columns.T``, since a round Gaussian is a product.
    """
    sigma = WIDTH * 2 ** (num_scales - 1)
    places = np.arange(size)
    bell = sum(np.exp(-((places + period * size) ** 2) / (2 * sigma**2)) for period in PERIODS)
    kernel = np.fft.ifft(at_resolution(np.fft.fft(bell / (math.sqrt(2 * math.pi) * sigma)), halvings)).real
    small = size >> halvings
    step = 1 << (num_scales - halvings)
    rows = np.arange(step, small - step, step)
    return kernel[(rows[:, None] - np.arange(small)[None, :]) % small]


def _periodic(shape: tuple[int, int], value: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the sum of ``value`` over all repetitions of a grid of pixels."""
    x, y = np.meshgrid(*map(np.arange, shape), indexing="ij")
    return sum((value(x + i * shape[0], y + k * shape[1]) for i in PERIODS for k in PERIODS), np.zeros(shape))
