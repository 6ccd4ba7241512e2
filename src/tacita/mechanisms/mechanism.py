"""What every mechanism of additive noise promises: noise in proportion to the sensitivity, shared among blocks.

Place: estimators -> [mechanisms] -> ┃ released. ``noise_std`` is at the level of the sum.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

from torch import Tensor

from tacita import _validate
from tacita.accounting import Event
from tacita.random import Stream

Allocation = Literal["single", "least_power"]
Blocks = Mapping[str, Mapping[str, Tensor]]  # block -> name -> tensor


class Normals(Protocol):
    """The noise of one query."""

    def __call__(self, block: str, like: Mapping[str, Tensor], /) -> Mapping[str, Tensor]:
        """Fresh standard normals, shaped as ``like``."""
        ...

    def stream(self, block: str, /) -> Stream:
        """The block's own stream, for noise of another law."""
        ...


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    r"""Noise of standard deviation ``noise_multiplier`` x sensitivity.

    With blocks of sensitivity :math:`\Delta_l` and noise :math:`s_l`,
    :math:`1/\text{noise\_multiplier}^2 = \sum_l (\Delta_l / s_l)^2`. ``allocation`` says how the noise is shared:

    * ``"single"``: one :math:`s = \text{noise\_multiplier} \sqrt{\sum_l \Delta_l^2}` for all blocks;
    * ``"least_power"``: :math:`s_l^2 \propto \Delta_l / \sqrt{d_l}`, the least total noise :math:`\sum_l d_l s_l^2`
      (:math:`d_l` coordinates in block :math:`l`).

    Attributes:
        noise_multiplier: Noise standard deviation over sensitivity; no unit; >= 0.
        allocation: How several blocks share the noise.
    """

    noise_multiplier: float
    allocation: Allocation = "single"

    on_grid: ClassVar[bool] = False  # whether it needs values that are whole multiples of public steps
    in_stretches: ClassVar[bool] = False  # whether a block may get its noise some parameters at a time, in their order

    def __post_init__(self) -> None:
        _validate.non_negative("noise_multiplier", self.noise_multiplier)
        check_allocation(self.allocation)

    def noise_std(self, sensitivity: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
        """Standard deviation of the noise on each block.

        Args:
            sensitivity: L2 sensitivity by block.
            sizes: Number of coordinates by block.
        """
        if self.allocation == "single":
            joint = math.sqrt(sum(bound**2 for bound in sensitivity.values()))
            return dict.fromkeys(sensitivity, self.noise_multiplier * joint)
        total = sum(bound * math.sqrt(sizes[block]) for block, bound in sensitivity.items())
        return {
            block: self.noise_multiplier * math.sqrt(total * bound / math.sqrt(sizes[block]))
            for block, bound in sensitivity.items()
        }

    def event(self, event: Event) -> Event:
        """What a session with this noise spends, from the event of the same session with Gaussian noise.

        Raises:
            UnsupportedEventError: Nothing is proved for this noise.
        """
        return event

    @abstractmethod
    def on(self, steps: Mapping[str, float] | None, noise_std: Mapping[str, float]) -> Self:
        """This mechanism for values that are whole multiples of ``steps``, by block; ``None``: for any values.

        Args:
            steps: The estimator's grid, if it has one.
            noise_std: The noise that it will add, by block.

        Raises:
            ValueError: It is not made for such values.
        """

    @abstractmethod
    def __call__(self, values: Blocks, noise_std: Mapping[str, float], normals: Any) -> dict[str, dict[str, Tensor]]:
        """Add the noise; ``normals`` is a query's :class:`Normals`, used nowhere else."""


def check_allocation(allocation: str) -> None:
    """Raise ``ValueError`` for an unknown allocation."""
    if allocation not in get_args(Allocation):
        raise ValueError(f"allocation must be one of {', '.join(get_args(Allocation))}, got {allocation!r}.")
