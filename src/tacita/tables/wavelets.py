r"""The scattering transform: fixed features of an image, which no data were used to make.

Place: images -> [features.scattering] -> tables, or the data of an oracle. The features of private images are private.
Source: Bruna and Mallat (2013), https://arxiv.org/abs/1203.1513; Tramèr and Boneh (2021), "Differentially Private
Learning Needs Better Features", https://arxiv.org/abs/2011.11660, for private training and for the normalisation by
groups. The coefficients and their order are those of kymatio (Andreux et al., 2020) and are tested against its numbers.

The filters are Morlet wavelets in Fourier space, and the Gaussian average as matrices: Section 2.1 of Bruna and Mallat,
with the settings of Oyallon and Mallat (2015), https://arxiv.org/abs/1412.8659. Typical sizes of the coefficients come
from pictures that no data set holds: the amplitude of a natural picture falls with its frequency f as 1 / f (Field,
1987, "Relations between the statistics of natural images and the response properties of cortical cells").
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tacita import _validate

LARGEST_SIDE = 1024  # pixels
EPSILON = 1e-5  # added to the variance of a group, as in torch.nn.GroupNorm


@dataclass(frozen=True, kw_only=True)
class Scattering:
    r"""Map an image to averages of wavelet moduli, over windows of about 2^J pixels. Nothing in it is learned.

    .. math:: S x = \big(x * \phi_J, \; |x * \psi_{\lambda_1}| * \phi_J, \;
        ||x * \psi_{\lambda_1}| * \psi_{\lambda_2}| * \phi_J\big), \quad j_1 < j_2 < J,

    with Morlet wavelets :math:`\psi_\lambda` of J scales and L angles and a Gaussian :math:`\phi_J`. There are
    :math:`1 + JL + L^2 J (J - 1) / 2` channels for each channel of the image: 81 for J = 2 and L = 8.

    Guarantee: each image is transformed alone, by the same operations on arrays of the same shape. So no other image of
    a data set shows in the features of one, not even in their last bits.

    Attributes:
        shape: Shape of an image: (height, width), (channels, height, width) or (height, width, channels), with 1, 3 or
            4 channels.
        num_scales: J, >= 1.
        num_orientations: L, >= 1.
        groups: Normalise each of so many groups of the image's channels to mean 0 and variance 1 over the group's
            coefficients, as ``torch.nn.GroupNorm`` does: a rule for one record, which costs no privacy. It must divide
            the number of channels; ``None`` leaves the coefficients as they are.
        mirrored: Take the mean of the coefficients of the image and of its mirror image, left and right exchanged,
            before groups are normalised: again a rule for one record. For pictures whose meaning stays the same in a
            mirror: photographs, not digits.

    Raises:
        ValueError: A setting is wrong, or the image is too small for the scales.

    Example:
        >>> transform = Scattering(shape=(28, 28), groups=27)
        >>> transform.feature_shape
        (81, 7, 7)
        >>> transform(torch.zeros(28, 28)).shape
        torch.Size([81, 7, 7])
    """

    shape: tuple[int, ...]
    num_scales: int = 2
    num_orientations: int = 8
    groups: int | None = None
    mirrored: bool = False

    def __post_init__(self) -> None:
        _validate.count("num_scales", self.num_scales)
        _validate.count("num_orientations", self.num_orientations)
        object.__setattr__(self, "shape", tuple(_validate.count("shape", side) for side in self.shape))
        _, height, width = self.channels_first
        smallest = 2**self.num_scales + 1
        if not smallest <= min(height, width) <= max(height, width) <= LARGEST_SIDE:
            raise ValueError(
                f"shape must have sides of {smallest} to {LARGEST_SIDE} pixels for {self.num_scales} scales, "
                f"got {list(self.shape)}."
            )
        if self.groups is not None and self.feature_shape[0] % _validate.count("groups", self.groups):
            raise ValueError(f"groups must divide the {self.feature_shape[0]} channels, got {self.groups}.")

    @property
    def channels_first(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        if len(self.shape) == 2:
            return (1, *self.shape)
        if len(self.shape) == 3 and self.shape[0] in (1, 3, 4):
            return self.shape
        if len(self.shape) == 3 and self.shape[2] in (1, 3, 4):
            return (self.shape[2], *self.shape[:2])
        raise ValueError(
            "shape must be that of an image, (height, width), or with 1, 3 or 4 channels first or last, got "
            f"{list(self.shape)}."
        )

    @property
    def feature_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the features."""
        channels, *sides = self.channels_first
        scales, angles = self.num_scales, self.num_orientations
        each = 1 + scales * angles + angles**2 * scales * (scales - 1) // 2
        height, width = ((_padded(side, scales) >> scales) - 2 for side in sides)
        return channels * each, height, width

    def __call__(self, image: Tensor) -> Tensor:  # *shape -> feature_shape
        """Return the features of one image, float32, in the layout of :attr:`feature_shape`."""
        channels, height, width = self.channels_first
        pixels = image.to(torch.float32)
        if tuple(self.shape) != (channels, height, width):
            pixels = pixels[None] if len(self.shape) == 2 else pixels.permute(2, 0, 1)
        bank = _filters((height, width), self.num_scales, self.num_orientations)
        pixels = pixels.contiguous()
        found = bank(pixels)
        if self.mirrored:
            found = (found + bank(pixels.flip(-1))) / 2
        features = found.reshape(self.feature_shape)
        return features if self.groups is None else group_normalised(features, self.groups)


def group_normalised(features: Tensor, groups: int) -> Tensor:
    """Give each of ``groups`` equal runs of one record's features mean 0 and variance 1."""
    grouped = features.reshape(groups, -1)
    variance, mean = torch.var_mean(grouped, dim=1, correction=0, keepdim=True)
    return ((grouped - mean) * torch.rsqrt(variance + EPSILON)).reshape(features.shape)


def _padded(side: int, num_scales: int) -> int:
    """Return the length of a side with its padding, a multiple of 2^J with room for half a window at each end."""
    window = 2**num_scales
    return ((side + window) // window + 1) * window


@lru_cache(maxsize=8)
def _filters(sides: tuple[int, int], num_scales: int, num_orientations: int) -> "_FilterBank":
    return _FilterBank(sides, num_scales, num_orientations)


class _FilterBank:
    """The filters for images of one size, and the transform by them.

    A product in Fourier space is a convolution; adding up the corners of a Fourier transform thins out an image.
    """

    def __init__(self, sides: tuple[int, int], num_scales: int, num_orientations: int):
        shape: Sequence[int] = [_padded(side, num_scales) for side in sides]
        self.scales = num_scales
        self.padding = [(size - side) // 2 for size, side in zip(shape, sides, strict=True)]
        self.places = [
            torch.from_numpy(_reflected(np.arange(-before, size - before), side))
            for before, size, side in zip(self.padding, shape, sides, strict=True)
        ]
        # kymatio's order of the angles
        first = int(num_orientations - num_orientations / 2 - 1)
        angles = [(first - i) * math.pi / num_orientations for i in range(num_orientations)]
        self.wavelets = {}  # (scale, halvings) -> (angles, height, width), for an image of which both sides were halved
        for scale in range(num_scales):
            full = np.stack([morlet((shape[0], shape[1]), scale, a, 4 / num_orientations) for a in angles])
            for halvings in range(max(scale, 1)):
                kept = np.stack([at_resolution(one, halvings) for one in full])
                self.wavelets[scale, halvings] = torch.from_numpy(kept.astype(np.float32))
        self.averages = [
            [torch.from_numpy(average(size, num_scales, halvings).astype(np.float32)) for size in shape]
            for halvings in range(num_scales)
        ]

    def __call__(self, image: Tensor) -> Tensor:  # (channels, height, width) -> (channels, coefficients, h, w)
        rows, columns = self.places
        padded = image[:, rows][:, :, columns]
        transform = torch.fft.fft2(padded)
        first, second = [], []
        for scale in range(self.scales):
            modulus = self._modulus(transform, scale, 0)  # (channels, angles, ...)
            first.append(self._averaged(modulus, scale))
            if scale + 1 < self.scales:
                inner = torch.fft.fft2(modulus)
                finer = [self._second(inner, scale, coarser) for coarser in range(scale + 1, self.scales)]
                second.append(torch.cat(finer, dim=2).flatten(1, 2))
        return torch.cat([self._averaged(padded, 0)[:, None], *first, *second], dim=1)

    def _second(self, inner: Tensor, scale: int, coarser: int) -> Tensor:
        return self._averaged(self._modulus(inner, coarser, scale), coarser)

    def _modulus(self, transform: Tensor, scale: int, halvings: int) -> Tensor:
        """Return ``|x * psi|`` for all angles, thinned out to the wavelet's own resolution."""
        filtered = transform.unsqueeze(-3) * self.wavelets[scale, halvings]
        return torch.fft.ifft2(_thinned(filtered, 1 << (scale - halvings))).abs()

    def _averaged(self, modulus: Tensor, halvings: int) -> Tensor:
        rows, columns = self.averages[halvings]
        return rows @ modulus @ columns.T


def _reflected(places: np.ndarray, side: int) -> np.ndarray:
    """Return places within ``side`` pixels, mirrored at the first and the last pixel."""
    period = 2 * (side - 1)
    within = places % period
    return np.minimum(within, period - within)


def _thinned(transform: Tensor, every: int) -> Tensor:
    """Return the Fourier transform of an image that keeps every ``every``-th pixel in both directions."""
    if every == 1:
        return transform
    *lead, height, width = transform.shape
    return transform.reshape(*lead, every, height // every, every, width // every).mean((-4, -2))


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
