r"""Clipped sums in whole steps of a public grid, for mechanisms whose noise is a whole number too.

Place: gradients, clipping -> [hardened.grid_sums] -> mechanisms. Proof: docs/derivations/hardened-noise.md.

The step of a block of d coordinates with contributions of norm C or less is the power of two in
:math:`(C / 2^{13}\sqrt d,\; C / 2^{12}\sqrt d\,]`: truncation takes at most :math:`\text{step}\,\sqrt d \le C / 4096`
off a record's contribution, and a sum of :math:`2^{39}/\sqrt d` records stays within 2^52 steps.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, HardenedEvent, NeighboringRelation, gaussian_sum_event, moved
from tacita.clipping.clipper import Clipper
from tacita.estimators.clipped_sum import ClippedSum
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import Engine, Groups, Shapes
from tacita.gradients.program import ProgramEngine
from tacita.gradients.program.capped_sums import capped_sums, summation_error
from tacita.hardened.grid import MOST_STEPS, grid_sums
from tacita.hardened.integer_noise import wrapped
from tacita.sampling import Sampler

RESOLUTION = 2.0**12  # truncation takes at most 1 / RESOLUTION of max_contribution off a record
LEAST_STEP = 2.0**-900  # far from the subnormal numbers
LARGEST_SUM = 2.0**52  # in steps: half of what a float64 holds exactly


def grid_step(max_contribution: float, size: int) -> float:
    """Return the grid step of a block of ``size`` coordinates to which a record adds at most ``max_contribution``.

    Raises:
        ValueError: The block is too large, or the contribution too small, for integers to hold.

    Example:
        >>> grid_step(1.0, 100) == 2.0**-16
        True
    """
    step = 2.0 ** math.floor(math.log2(max_contribution / (RESOLUTION * math.sqrt(size))))
    if not (step >= LEAST_STEP and max_contribution / step <= MOST_STEPS):
        raise ValueError(
            f"no grid holds {size:,} coordinates with contributions of {max_contribution:g}: use a clipper with one "
            "group a layer, or a max_grad_norm above 1e-250."
        )
    return step


@dataclass(frozen=True)
class _OnGrid(Estimator):
    """The common part of sums on a grid; blocks and events follow from those of a clipped sum."""

    clipper: Clipper

    @property
    @abstractmethod
    def contribution_factor(self) -> float:
        """How much larger a contribution counts than the clipper's ``max_contribution``."""

    @abstractmethod
    def hardened(self, inner: Event) -> HardenedEvent:
        """Return the event of the session, from that of a clipped sum with Gaussian noise."""

    def contributions(self, shapes: Shapes) -> dict[str, float]:
        """Return the largest norm by which one record moves each block."""
        bounds = self.clipper.max_contribution(shapes)
        return {block: bound * self.contribution_factor for block, bound in bounds.items()}

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return {block: moved(relation) * bound for block, bound in self.contributions(shapes).items()}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        bounds = self.contributions(shapes)
        noise = tuple(noise_std[block] for block in bounds)
        return self.hardened(gaussian_sum_event(sampler.law, tuple(bounds.values()), noise, relation))

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return ClippedSum(self.clipper).block_sizes(shapes)

    def steps(self, shapes: Shapes) -> dict[str, float]:
        sizes = self.block_sizes(shapes)
        bounds = self.clipper.max_contribution(shapes)
        return {block: grid_step(bound, sizes[block]) for block, bound in bounds.items()}

    def check_batch(self, expected_batch_size: float, shapes: Shapes) -> None:
        for block, step in self.steps(shapes).items():
            most = LARGEST_SUM * step / self.clipper.max_contribution(shapes)[block]
            if expected_batch_size > most:
                raise ValueError(
                    f"expected_batch_size must be at most {most:.0f} for the sum of block {block!r} to stay within "
                    f"2^52 steps of the grid, got {expected_batch_size:g}. Use a smaller sample rate, or a clipper "
                    "with one group a layer."
                )

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return ClippedSum(self.clipper).gradient(released, divisor)


@dataclass(frozen=True)
class GridSum(_OnGrid):
    r"""The clipped sum, each record truncated toward zero on the grid: :math:`\sum_i \operatorname{trunc}(w_i g_i)`.

    Guarantee: one record adds whole steps to block :math:`l`, a vector of L2 norm at most :math:`C_l` exactly, and
    whole numbers are added without rounding. So the sensitivity is that of :class:`~tacita.ClippedSum` in exact
    arithmetic, and neither the order of summation nor the physical batch shows in the bits.

    Attributes:
        clipper: The weight rule.
        together: Whether the engine computes several records in one kernel call (a program). Then a record
            shows in the last bits of its companions' gradients, and the statement makes the weaker claim. Engines that
            compute each row alone: a physical batch of 1, given rows, an exact :class:`~tacita.linear.LinearSource`.
    """

    together: bool = True

    @property
    def contribution_factor(self) -> float:
        return 1.0

    @property
    def needs_rows_alone(self) -> bool:
        return not self.together

    def hardened(self, inner: Event) -> HardenedEvent:
        sums = "together" if self.together else "alone"
        return HardenedEvent(relation=inner.relation, inner=inner, sums=sums)

    def __call__(self, engine: Engine, state: None) -> tuple[Values, None]:
        groups, steps = self.clipper.groups(engine.shapes), self.steps(engine.shapes)
        (whole,) = grid_sums(engine, self.clipper.weights, groups, steps).values
        return _in_steps(whole, groups, steps), state


@dataclass(frozen=True)
class CappedSum(_OnGrid):
    r"""The clipped sum of a program in float64, rounded to the grid once, with its rounding in the sensitivity.

    Weights also cap :math:`w_i S_i \le` ``slack`` x C, :math:`S_i = \sum_t \lVert a_t \rVert \lVert d_t \rVert`. So a
    sum of at most ``max_records`` records is off by at most E in norm, whatever the order, and neighbouring sums differ
    by at most :math:`C + 2 E + \text{step}\,\sqrt d`. Weaker than :class:`GridSum`: it needs a largest number of
    records in a query, and assumes that a record does not show in its companions' gradients and that the same batch
    gives the same bits.

    Attributes:
        clipper: The weight rule.
        max_records: The largest number of records in a query; public.
        slack: How much larger than C the sum of one record's products may be. It caps canaries, not ordinary records.
    """

    max_records: int = 2**16
    slack: float = 64.0

    def __post_init__(self) -> None:
        _validate.count("max_records", self.max_records)
        _validate.positive("slack", self.slack)
        if not self.slack >= 1:
            raise ValueError(f"slack must be >= 1, got {self.slack!r}.")
        if not summation_error(self.max_records, self.slack) <= 1 / 64:
            raise ValueError(
                f"with max_records = {self.max_records:,} and slack = {self.slack:g} the sum's rounding may exceed "
                "C / 64. Use smaller ones, or GridSum (max_physical_batch_size=1)."
            )

    @property
    def contribution_factor(self) -> float:
        """1 + 2 E / C + step sqrt(d) / C, both ends of a move being off by the rounding of the sum and of the grid."""
        return (1 + 2 * summation_error(self.max_records, self.slack) + 1 / RESOLUTION) * (1 + 2.0**-40)

    def hardened(self, inner: Event) -> HardenedEvent:
        return HardenedEvent(relation=inner.relation, inner=inner, sums="capped", max_records=self.max_records)

    def check_batch(self, expected_batch_size: float, shapes: Shapes) -> None:
        if expected_batch_size > self.max_records / 2:
            raise ValueError(
                f"expected_batch_size must be at most half of max_records = {self.max_records:,}, got "
                f"{expected_batch_size:g}. Use CappedSum with a larger max_records, or max_physical_batch_size=1."
            )
        super().check_batch(expected_batch_size, shapes)

    def __call__(self, engine: Engine, state: None) -> tuple[Values, None]:
        if not isinstance(engine, ProgramEngine):
            raise TypeError(f"CappedSum needs the engine of a program, got {type(engine).__name__}: use GridSum.")
        groups, steps = self.clipper.groups(engine.shapes), self.steps(engine.shapes)
        caps = {block: self.slack * bound for block, bound in self.clipper.max_contribution(engine.shapes).items()}
        (sums,) = capped_sums(engine, self.clipper.weights, groups, caps).values
        whole = {name: torch.round(sums[name] / steps[block]) for block, names in groups.items() for name in names}
        return _in_steps(whole, groups, steps), state


def _in_steps(whole: Mapping[str, Tensor], groups: Groups, steps: Mapping[str, float]) -> Values:
    """Return whole numbers, modulo 2^53, as float64 multiples of the steps, which is exact."""
    return {
        block: {name: wrapped(whole[name].to(torch.int64)).double() * steps[block] for name in names}
        for block, names in groups.items()
    }
