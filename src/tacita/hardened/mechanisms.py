r"""Integer noise on a grid, sampled exactly, so that floating-point rounding cannot weaken the guarantee.

Place: estimators on a grid -> [hardened.mechanisms] -> ┃ released. Proofs: docs/derivations/hardened-noise.md.
Source: Mironov (2012), https://doi.org/10.1145/2382196.2382264, for the attack.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from tacita.accounting import Event
from tacita.clipping import Clipper
from tacita.estimators import Estimator
from tacita.hardened.grid_sums import CappedSum, GridSum
from tacita.hardened.integer_noise import LARGEST_SCALE, rounded_normals, wrapped
from tacita.mechanisms.mechanism import Blocks, Mechanism, Normals
from tacita.random import Stream


@dataclass(frozen=True, kw_only=True)
class RoundedGaussian(Mechanism):
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

    steps: Mapping[str, float] | None = None

    on_grid: ClassVar[bool] = True

    def event(self, event: Event) -> Event:
        return event  # rounding to the grid is post-processing

    @classmethod
    def clipped_sum(cls, clipper: Clipper, *, alone: bool) -> Estimator:
        return GridSum(clipper, together=False) if alone else CappedSum(clipper)

    def on(self, steps: Mapping[str, float] | None, noise_std: Mapping[str, float]) -> Self:
        if steps is None:
            raise ValueError(
                "mechanism must fit the estimator: RoundedGaussian adds integer noise to values on a grid, and "
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
            raise ValueError("steps must be set before RoundedGaussian is used: an oracle sets them.")
        return {
            block: _released(tensors, self.steps[block], noise_std[block] / self.steps[block], normals.stream(block))
            for block, tensors in values.items()
        }


def _released(tensors: Mapping[str, Tensor], step: float, scale: float, stream: Stream) -> dict[str, Tensor]:
    """Add noise of standard deviation ``scale`` steps to one block's tensors, with one stream for all of them."""
    sizes = [x.numel() for x in tensors.values()]
    noise = torch.from_numpy(rounded_normals(stream, sum(sizes), scale)).split(sizes)
    return {name: _in_steps(x, part, step) for (name, x), part in zip(tensors.items(), noise, strict=True)}


def _in_steps(values: Tensor, noise: Tensor, step: float) -> Tensor:
    """Add integer ``noise`` to ``values`` counted in steps; return the sum in the values' units, as float64."""
    whole = (values / step).to(torch.int64)  # exact: values are multiples of the step, a power of two
    whole += noise.to(values.device).view(values.shape)
    return wrapped(whole).double() * step
