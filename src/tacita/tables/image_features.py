"""Features of images in a table: fixed, public transforms, applied to each row alone."""

import math
from collections.abc import Sequence

import numpy as np

from tacita.tables.extraction import extracted
from tacita.tables.features import Piece, arrays_of, check_array
from tacita.tables.table import Column
from tacita.tables.wavelets import Scattering

GROUPS = 27  # groups of channels that are normalised; it divides the channels of 1, 3 or 4 colours


class ScatteringPiece(Piece, frozen=True, tag="scattering"):
    """Scattering features of the image in a row (:class:`~tacita.tables.Scattering`), rounded to float16.

    Values are clamped to [lower, upper] and mapped to [0, 1] first; what is not finite counts as lower.

    Attributes:
        shape: The shape of an image.
        lower, upper: Public bounds of its values.
        num_scales, num_orientations: Settings of the transform.
        groups: Number of groups of channels that each get mean 0 and variance 1 by the row alone; ``None`` for none.
        mirrored: Whether features are the mean of those of the image and of its mirror image.
    """

    shape: tuple[int, ...]
    lower: float
    upper: float
    num_scales: int = 2
    num_orientations: int = 8
    groups: int | None = GROUPS
    mirrored: bool = False

    def __post_init__(self):
        check_array(self.shape, self.lower, self.upper)
        self.transform  # noqa: B018 - raises if a setting is wrong

    @property
    def transform(self) -> Scattering:
        """The transform of one image."""
        return Scattering(
            shape=self.shape,
            num_scales=self.num_scales,
            num_orientations=self.num_orientations,
            groups=self.groups,
            mirrored=self.mirrored,
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column} scattering[{i}]" for i in range(self.width))

    @property
    def width(self) -> int:
        return math.prod(self.transform.feature_shape)

    def fill(self, column: Column, missing: Sequence[str], out: np.ndarray) -> None:
        images, first = arrays_of(column, self.column, self.shape), 0
        for part in extracted(self.transform, images, self.lower, self.upper):
            out[first : first + len(part)] = part.reshape(len(part), -1)
            first += len(part)
