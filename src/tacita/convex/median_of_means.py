r"""The coordinate-wise clipped median of means, :math:`\mathrm{median}_i \frac ms \sum_{l \in G_i} \mathrm{clip}(x_l)`.

Place: gradients -> [estimators.median_of_means] -> mechanisms.
Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Algorithm 12.
Differs from it in three points: the noise is drawn once, after all coordinates; the noise is that of the sensitivity
proved in docs/derivations/heavy-tailed-sco.md, section 8 (Lemma 52 of the paper adds 18 times its variance); the values
are at the level of the sum.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, moved
from tacita.convex.median_event import MedianOfMeansEvent
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import Engine, Shapes
from tacita.sampling import Sampler

BLOCK = "all"
LEVELS = 2**20  # steps of a coordinate's range on each side, so that sums of up to 2^33 records are exact
SMALLEST = 1e-250  # thresholds for which neither a step nor a sum leaves the range of float64
ROUNDED_UP = 1 + 2**-18  # turning whole steps into values rounds, relatively by 2^-52 a record of a batch of 2^33


@dataclass(frozen=True, kw_only=True)
class MedianOfMeans(Estimator):
    r"""Sum of a batch as m times the coordinate-wise median of the sums of m groups; a heavy tail moves few groups.

    Every coordinate of every record is clamped to :math:`[-\tau, \tau]`. Row i of the data set is in group
    :math:`i \bmod m`, in every batch. Dividing by the public batch size s gives the median of the group means, if
    groups have s / m records each: choose batches of whole multiples of m, of consecutive rows
    (``DisjointSampler``, full batches). A row that is not finite counts as zero.

    Guarantee: one record moves each group sum by at most :math:`\tau` in every coordinate when it is zeroed out, and
    each coordinate of the values by at most :math:`m \tau`; so the sensitivity is :math:`\tau m \sqrt d`, and twice
    that when the record is replaced. For an even m the median is the midpoint of the two middle values, which moves
    half as far: the sensitivity is half of it. Sums are exact, because coordinates are rounded to whole steps of
    :math:`\tau / 2^{20}`.

    Under add_or_remove_one there is no guarantee: one more row moves all that follow it to other groups.

    Attributes:
        max_coordinate: tau in [1e-250, 1e250], in the gradient's units.
        num_groups: m >= 1; 1 is the mean of clamped coordinates.

    Example:
        >>> from tacita.gradients.given import GivenEngine
        >>> rows = torch.tensor([[0.1], [0.2], [9.0], [0.2], [0.1], [0.3]])
        >>> values, _ = MedianOfMeans(max_coordinate=1.0, num_groups=3)(GivenEngine(rows), None)
        >>> values["all"]["theta"].round(decimals=3)  # of groups {0, 3}, {1, 4}, {2, 5} the sums are .3, .3, 1.3
        tensor([0.9000], dtype=torch.float64)
    """

    max_coordinate: float
    num_groups: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_coordinate", _validate.positive("max_coordinate", self.max_coordinate))
        object.__setattr__(self, "num_groups", _validate.count("num_groups", self.num_groups))
        if not SMALLEST <= self.max_coordinate <= 1 / SMALLEST:  # a step or a sum is rounded otherwise
            raise ValueError(f"max_coordinate must be in [{SMALLEST}, {1 / SMALLEST}], got {self.max_coordinate}.")

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return {BLOCK: moved(relation) * self._contribution(shapes)}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        return MedianOfMeansEvent(
            relation=relation,
            sampling=sampler.law,
            max_contribution=(self._contribution(shapes),),
            noise_std=(noise_std[BLOCK],),
            num_groups=self.num_groups,
        )

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return {BLOCK: sum(shape.numel() for shape in shapes.values())}

    def check_batch(self, expected_batch_size: float, shapes: Shapes) -> None:
        if expected_batch_size < self.num_groups:
            raise ValueError(
                f"num_groups must be at most the expected batch size, {expected_batch_size:g}, got {self.num_groups}: "
                "use fewer groups or larger batches."
            )

    def __call__(self, engine: Engine, state: None) -> tuple[Values, None]:
        (sums,) = engine.over_ranks([self._group_sums(engine)])
        step = self.max_coordinate / LEVELS * self.num_groups
        medians = {name: _median(sums[name], -1 - len(shape)) * step for name, shape in engine.shapes.items()}
        return {BLOCK: medians}, state

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return {name: noisy / divisor for name, noisy in released[BLOCK].items()}

    def _contribution(self, shapes: Shapes) -> float:
        """Return how far one record, present or zeroed out, moves the values: tau m sqrt(d), half for an even m."""
        root = math.sqrt(self.block_sizes(shapes)[BLOCK])
        half = 0.5 if self.num_groups % 2 == 0 else 1.0
        return half * self.max_coordinate * self.num_groups * root * ROUNDED_UP

    def _group_sums(self, engine: Engine) -> dict[str, Tensor]:
        """Return the sum of each group in whole steps, exactly: (..., groups, *param)."""
        sums: dict[str, Tensor] = {}
        for labels, chunk in engine.labelled():
            finite = _finite_rows(chunk, engine.shapes)
            group = (labels % self.num_groups).to(finite.device)
            for name, grads in chunk.items():
                steps = self._steps(grads, finite, len(engine.shapes[name]))
                axis = -1 - len(engine.shapes[name])
                if name not in sums:
                    sums[name] = _no_sums(steps, axis, self.num_groups)
                sums[name].index_add_(steps.ndim + axis, group, steps)
        return sums or {
            name: torch.zeros(self.num_groups, *shape, dtype=torch.float64) for name, shape in engine.shapes.items()
        }

    def _steps(self, grads: Tensor, finite: Tensor, param_axes: int) -> Tensor:
        """Return clamped coordinates in whole steps of tau / 2^20, and zeros for rows that are not finite."""
        kept = torch.where(finite[(..., *[None] * param_axes)], grads.double(), 0.0)
        return kept.div(self.max_coordinate).clamp(-1.0, 1.0).mul(LEVELS).round()


def _finite_rows(chunk: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """Return which rows hold only finite numbers, in every parameter: (..., rows)."""
    found = None
    for name, grads in chunk.items():
        axes = tuple(range(-len(shapes[name]), 0))
        finite = grads.isfinite().all(dim=axes) if axes else grads.isfinite()
        found = finite if found is None else found & finite
    assert found is not None, "a model has parameters"
    return found


def _no_sums(like: Tensor, axis: int, groups: int) -> Tensor:
    shape = list(like.shape)
    shape[axis] = groups
    return torch.zeros(shape, dtype=torch.float64, device=like.device)


def _median(sums: Tensor, axis: int) -> Tensor:
    """Return the middle value along an axis, or the midpoint of the two middle ones."""
    ordered = sums.sort(dim=axis).values
    size = sums.shape[axis]
    return (ordered.select(axis, (size - 1) // 2) + ordered.select(axis, size // 2)) / 2
