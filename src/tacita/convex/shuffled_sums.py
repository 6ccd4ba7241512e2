"""The sums of a shuffle oracle: what users send, in whole steps, and what is made of the counts of ones.

Place: gradients, accounting, oracles.shuffle_round -> [oracles.shuffled_sums] -> oracles.shuffled.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tacita._binomials import binomials
from tacita.accounting.events.event import Event, parts_of
from tacita.convex.shuffle_calibration import (
    Calibration,
    NoiseBits,
    least_noise_bits,
    paper_median_split,
    scalar_noise_bits,
    vector_noise_bits,
    vector_rho,
    with_failures,
)
from tacita.convex.shuffle_round import bounded, in_steps, uniforms
from tacita.convex.shuffled_sum_event import ShuffledSumEvent
from tacita.errors import LedgerError
from tacita.gradients.engine import Engine, Shapes
from tacita.oracles.gate import Blocks, Noise
from tacita.random import Stream
from tacita.sampling import Sampler, as_sampler


@dataclass(frozen=True, kw_only=True)
class ShuffledSums:
    """What users send, and what is made of it: the public settings of a shuffle oracle.

    Attributes:
        half_range: C; coordinates are in [-C, C], in the gradient's units.
        l2_bounded: Whether a user's gradient is scaled to an L2 norm of at most C.
        num_groups: Number m of groups of users, each with a sum of its own; their median is taken.
        users: Number of users of a group, s / m.
        bits: Grid and noise bits.
        honest_fraction: Share of a group's users whose noise the guarantee counts on.
    """

    half_range: float
    l2_bounded: bool
    num_groups: int
    users: int
    bits: NoiseBits
    honest_fraction: float

    @property
    def step(self) -> float:
        """The width of a grid step, in the gradient's units."""
        return 2 * self.half_range / self.bits.grid

    @property
    def noise_std(self) -> float:
        """Standard deviation of the users' noise in a group's sum, times the number of groups."""
        return self.num_groups * math.sqrt(self.bits.variance(self.users, 2 * self.half_range))

    def steps(self, engine: Engine, coins: Stream) -> dict[str, Tensor]:
        """Return the sum of each group in whole steps, without noise: by name (groups, *param), int64.

        A user's group follows from the place in the batch. Batches have a public size and no user is ever absent, so
        that no record moves another one's place.
        """
        shapes = engine.shapes
        dim = sum(shape.numel() for shape in shapes.values())
        sums, start = np.zeros((self.num_groups, dim), np.int64), 0
        for chunk in engine.materialise():
            parts = [chunk[name].detach().cpu().double().flatten(1) for name in shapes]
            rows = bounded(torch.cat(parts, dim=1).numpy(), self.half_range, l2=self.l2_bounded)
            drawn = uniforms(coins.words(rows.size, start * dim)).reshape(rows.shape)
            steps = in_steps(rows, self.half_range, self.bits.grid, drawn)
            for group in range(self.num_groups):
                sums[group] += steps[(group - start) % self.num_groups :: self.num_groups].sum(axis=0)
            start += len(rows)
        if start != self.num_groups * self.users:
            raise RuntimeError("the chunks of an engine must be exactly the rows of its batch, whose size is public.")
        pieces = torch.from_numpy(sums).split([shape.numel() for shape in shapes.values()], dim=1)
        return {name: piece.reshape(-1, *shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}

    def estimate(self, counts: Tensor) -> Tensor:
        """Return the sum over all users that counts of ones stand for; (groups, *param) -> (*param), float64."""
        noise = self.bits.bit_prob * self.bits.noise_bits * self.users
        sums = self.step * (counts.double() - noise) - self.users * self.half_range
        ordered = sums.sort(dim=0).values
        return self.num_groups * (ordered[(self.num_groups - 1) // 2] + ordered[self.num_groups // 2]) / 2


class UserNoise:
    """The noise bits of all users of a query, in the place of a mechanism on the line."""

    in_stretches: ClassVar[bool] = False

    def __init__(self, sums: ShuffledSums) -> None:
        self._sums = sums

    def check_paid(self, event: Event, _noise_std: Any, _contribution: Any) -> None:
        """Raise ``LedgerError`` unless ``event`` is one of sums in the shuffle model, with noise bits like these."""
        bits, users = self._sums.bits, self._sums.users
        for part in parts_of(event):
            if not isinstance(part, ShuffledSumEvent) or (part.users, _bits_of(part)) != (users, bits):
                raise LedgerError(
                    f"{users} users add {bits.noise_bits} noise bits each to {bits.grid} steps, and the session's "
                    f"event promises something else: {part.describe()}."
                )

    def __call__(self, values: Blocks, _noise_std: Any, noise: Noise) -> dict[str, dict[str, Tensor]]:
        bits, users = self._sums.bits, self._sums.users
        counts: dict[str, dict[str, Tensor]] = {}
        for block, steps in values.items():
            sizes = [x.numel() for x in steps.values()]
            drawn = binomials(noise.stream(block), sum(sizes), users * bits.noise_bits, bits.bit_prob)
            parts = torch.from_numpy(drawn).split(sizes)
            counts[block] = {name: x + n.view(x.shape) for (name, x), n in zip(steps.items(), parts, strict=True)}
        return counts


def _bits_of(event: ShuffledSumEvent) -> NoiseBits:
    return NoiseBits(grid=event.grid, noise_bits=event.noise_bits, bit_prob=event.bit_prob)


def dim_of(shapes: Shapes) -> int:
    """Return the number of coordinates of all parameters together."""
    return sum(shape.numel() for shape in shapes.values())


def group_size(sampler: Sampler, num_groups: int) -> int:
    """Return the number of users of a group.

    Raises:
        ValueError: Batches do not all have the same size, or it is no multiple of ``num_groups``.
    """
    size = as_sampler(sampler).expected_batch_size
    if not size.is_integer() or size % num_groups:
        raise ValueError(
            f"sampler must draw batches of one size that is a multiple of {num_groups}, got {size:g} records a query. "
            "Choose num_records as a multiple of the number of batches."
        )
    return int(size) // num_groups


def calibrated(
    event: ShuffledSumEvent, *, queries: int, epsilon: float, delta: float, calibration: Calibration
) -> ShuffledSumEvent:
    """Return ``event`` with the noise bits for ``queries`` queries.

    Raises:
        ValueError: The calibration is for users who are asked once, or does not fit; the message says the way out.
    """
    if calibration == "least":
        return least_noise_bits(event, queries=queries, epsilon=epsilon, delta=delta)
    if event.sampling.most_draws(queries) > 1:
        raise ValueError(
            f'calibration="{calibration}" is for users who are asked once: use "least", or a DisjointSampler.'
        )
    users, dim, grid = event.honest_users, event.coordinates, event.grid
    if event.l2_bounded:
        bits = vector_noise_bits(users, dim, epsilon=epsilon, delta=delta, calibration=calibration, grid=grid)
    else:
        each, share = math.sqrt(2 * vector_rho(epsilon, delta) / dim), delta / (2 * dim)
        if calibration == "paper":
            each, share = paper_median_split(dim, epsilon=epsilon, delta=delta)
        bits = scalar_noise_bits(users, grid=grid, epsilon=each, delta=share, calibration=calibration)
    event = with_failures(event, queries=queries, delta=delta)
    return replace(event, noise_bits=bits.noise_bits, bit_prob=bits.bit_prob)
