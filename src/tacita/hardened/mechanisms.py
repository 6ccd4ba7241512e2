r"""Integer noise on a grid, sampled exactly, so that floating-point rounding cannot weaken the guarantee.

Place: estimators on a grid -> [hardened.mechanisms] -> ┃ released. Proofs: docs/derivations/hardened-noise.md.
Source: Mironov (2012), https://doi.org/10.1145/2382196.2382264, for the attack; Canonne, Kamath and Steinke (2020),
https://arxiv.org/abs/2004.00010, for the discrete Gaussian.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from tacita.accounting import Event, HardenedEvent
from tacita.clipping import Clipper
from tacita.errors import UnsupportedEventError
from tacita.estimators import Estimator
from tacita.hardened.discrete_event import discrete
from tacita.hardened.grid_sums import CappedSum, GridSum
from tacita.hardened.integer_noise import LARGEST_SCALE, discrete_gaussians, rounded_normals, wrapped
from tacita.mechanisms.gaussian import GaussianMechanism
from tacita.mechanisms.mechanism import Blocks, Mechanism, Normals
from tacita.random import Stream


@dataclass(frozen=True, kw_only=True)
class _IntegerNoise(Mechanism):
    """A mechanism that adds whole steps to values in whole steps; float64 holds the release exactly, modulo 2^53."""

    steps: Mapping[str, float] | None = None

    on_grid: ClassVar[bool] = True

    @classmethod
    def clipped_sum(cls, clipper: Clipper, *, alone: bool) -> Estimator:
        return GridSum(clipper, together=False) if alone else CappedSum(clipper)

    def on(self, steps: Mapping[str, float] | None, noise_std: Mapping[str, float]) -> Self:
        if steps is None:
            raise ValueError(
                f"mechanism must fit the estimator: {type(self).__name__} adds integer noise to values on a grid, and "
                "this estimator has none. Use GridSum or CappedSum, or a GaussianMechanism."
            )
        for block, step in steps.items():
            if not noise_std[block] / step <= LARGEST_SCALE:
                raise ValueError(
                    f"noise_multiplier must be such that the noise of block {block!r} is at most 2^36 steps of its "
                    f"grid, got {self.noise_multiplier}. Use a smaller one, or a clipper with one group per layer."
                )
        return replace(self, steps=dict(steps))

    def __call__(
        self, values: Blocks, noise_std: Mapping[str, float], normals: Normals
    ) -> dict[str, dict[str, Tensor]]:
        """Add the noise; the values are float64 multiples of the steps, and so is the release."""
        if self.steps is None:
            raise ValueError(f"steps must be set before {type(self).__name__} is used: an oracle sets them.")
        return {
            block: _released(
                tensors, self.steps[block], noise_std[block] / self.steps[block], self._draw, normals.stream(block)
            )
            for block, tensors in values.items()
        }

    @staticmethod
    @abstractmethod
    def _draw(stream: Stream, count: int, scale: float) -> np.ndarray:
        """Draw ``count`` integers from the stream, with a standard deviation of about ``scale``."""


@dataclass(frozen=True, kw_only=True)
class RoundedGaussian(_IntegerNoise):
    r"""Release whole multiples of a step g with Gaussian noise that is rounded to the grid (hardened noise).

    Releases :math:`x + g \lfloor s z / g + 1/2 \rfloor`, where :math:`z \sim N(0, I)` are real numbers. Since x is a
    multiple of g, this equals :math:`g \lfloor (x + s z) / g + 1/2 \rfloor`, which is post-processing of
    :math:`x + s z`. So every guarantee of the Gaussian mechanism holds. It holds for the floating-point computation
    too: the rounded noise is sampled exactly, from as many random digits as it takes to decide each integer.

    Assumes: the values are whole multiples of the steps, and their sensitivity holds exactly; the stream is used
    nowhere else, and its words are uniform.

    Attributes:
        noise_multiplier: Noise standard deviation over sensitivity, before rounding; no unit; >= 0.
        allocation: How several blocks share the noise.
        steps: The step of each block's grid, a power of two. The oracle sets it, from its estimator.

    Example:
        >>> from tacita import ClippedGradientOracle, FlatClipper, Ledger, PoissonSampler
        >>> oracle = ClippedGradientOracle(
        ...     torch.nn.Linear(3, 1), lambda model, batch: model(batch[0]).squeeze(1), (torch.zeros(50, 3),),
        ...     ledger=Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        ...     sampler=PoissonSampler(sample_rate=0.1, num_records=50), clipper=FlatClipper(max_grad_norm=1.0),
        ...     mechanism=RoundedGaussian(noise_multiplier=1.0), planned_queries=5,
        ...     max_physical_batch_size=1)
        >>> step = oracle.mechanism.steps["all"]
        >>> steps = oracle.backward().released["all"]["weight"] / step
        >>> bool((steps == steps.round()).all())
        True
    """

    _draw = staticmethod(rounded_normals)

    def event(self, event: Event) -> Event:
        return event  # rounding to the grid is post-processing


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(_IntegerNoise):
    r"""Release whole multiples of a step g with discrete Gaussian noise (another kind of hardened noise).

    Releases :math:`x + g k`, :math:`P(k) \propto e^{-k^2 g^2 / 2 s^2}`, sampled exactly. Its Rényi divergences are at
    most those of the Gaussian, so that sessions without sampling cost what Gaussian noise costs when it is accounted by
    Rényi divergences. With Poisson sampling there is a bound at integer orders, under add_or_remove_one and
    zero_out_one only. :class:`RoundedGaussian` costs less, because it has the Gaussian's privacy loss distributions.

    Attributes:
        noise_multiplier: Parameter s over sensitivity; no unit; >= 0. If s is at least two steps, the standard
            deviation is s up to a relative difference below 1e-5.
        allocation: How several blocks share the noise.
        steps: The step of each block's grid, a power of two. The oracle sets it, from its estimator.

    Reference: Canonne, Kamath and Steinke (2020), https://arxiv.org/abs/2004.00010.
    """

    _draw = staticmethod(discrete_gaussians)

    def event(self, event: Event) -> Event:
        if not isinstance(event, HardenedEvent):
            raise UnsupportedEventError(
                f"{type(event).__name__}: no guarantee is proved with discrete Gaussian noise. Use RoundedGaussian."
            )
        return replace(event, inner=discrete(event.inner), noise="discrete")


def form_of(hardened: bool | str | None) -> type[Mechanism]:
    """Return the mechanism class for a front end's ``hardened`` setting; ``True`` means ``"rounded"``.

    Raises:
        ValueError: ``hardened`` is none of ``None``, ``True``, ``False``, ``"rounded"``, ``"discrete"``.
    """
    forms = {"rounded": RoundedGaussian, "discrete": DiscreteGaussian}
    if not hardened:
        return GaussianMechanism
    name = "rounded" if hardened is True else hardened
    if name not in forms:
        raise ValueError(f'hardened must be a bool, "rounded" or "discrete", got {hardened!r}.')
    return forms[name]


def _released(tensors: Mapping[str, Tensor], step: float, scale: float, draw, stream: Stream) -> dict[str, Tensor]:
    """Add noise of standard deviation ``scale`` steps to one block's tensors, with one stream for all of them."""
    sizes = [x.numel() for x in tensors.values()]
    noise = torch.from_numpy(draw(stream, sum(sizes), scale)).split(sizes)
    return {name: _in_steps(x, part, step) for (name, x), part in zip(tensors.items(), noise, strict=True)}


def _in_steps(values: Tensor, noise: Tensor, step: float) -> Tensor:
    """Add integer ``noise`` to ``values`` counted in steps; return the sum in the values' units, as float64."""
    whole = (values / step).to(torch.int64)  # exact: values are multiples of the step, a power of two
    whole += noise.to(values.device).view(values.shape)
    return wrapped(whole).double() * step
