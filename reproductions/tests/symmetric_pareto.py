"""A heavy-tailed law of the tests: symmetric, so that clipping leaves no bias, with moments in closed form."""

from dataclasses import dataclass

import numpy as np

from tacita_reproductions.heavy_tails import HeavyTail


@dataclass(frozen=True, kw_only=True)
class SymmetricPareto(HeavyTail):
    r"""A Pareto variable with a random sign along the diagonal: :math:`E|\xi|^\alpha = a/(a - \alpha)`."""

    def _draw(self, generator: np.random.Generator, shape: tuple[int, ...], dim: int) -> np.ndarray:
        sign = generator.integers(0, 2, shape) * 2 - 1
        return (sign * (1 - generator.random(shape)) ** (-1 / self.tail))[..., None] * np.full(dim, dim**-0.5)

    def _moment(self, order: float, dim: int) -> float:
        return self.tail / (self.tail - order)
