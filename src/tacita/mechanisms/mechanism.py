"""The interface of mechanisms: additive noise in proportion to the sensitivity, shared among blocks.

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
from tacita.mechanisms.paid_noise import check_gaussian_noise
from tacita.random import Stream

Allocation = Literal["single", "least_power"]
Blocks = Mapping[str, Mapping[str, Tensor]]  # block -> name -> tensor


class Normals(Protocol):
    """The source of one query's noise."""

    def __call__(self, block: str, like: Mapping[str, Tensor], /) -> Mapping[str, Tensor]:
        """Draw fresh standard normals with the names and shapes of ``like``."""
        ...

    @property
    def query(self) -> int:
        """The number of the query."""
        ...

    def stream(self, block: str, /) -> Stream:
        """Return the block's own stream, for noise of another law."""
        ...

    def lagged(self, lag: int, block: str, like: Mapping[str, Tensor], /) -> Mapping[str, Tensor]:
        """Draw standard normals that belong to the query ``lag`` before; the same in each query that draws them."""
        ...

    @property
    def memory(self) -> dict[Any, Any]:
        """What a mechanism keeps for later queries: secret, never written, and empty in a process that resumes."""
        ...


class AddsNoise(Protocol):
    """Turns bounded values into released ones, as every :class:`Mechanism` does."""

    in_stretches: ClassVar[bool]  # whether the parameters of a block may get their noise a few at a time, in order

    def check_paid(
        self, event: Event, noise_std: Mapping[str, float], contribution: Mapping[str, float] | None, /
    ) -> None:
        """Raise ``LedgerError`` if its noise is less than what the session's ``event`` promises."""
        ...

    def __call__(self, values: Blocks, noise_std: Mapping[str, float], normals: Any, /) -> dict[str, dict[str, Tensor]]:
        """Add the noise; ``normals`` is the query's :class:`Normals`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    r"""Base of the mechanisms, whose noise has standard deviation ``noise_multiplier`` x sensitivity.

    With several blocks, of sensitivity :math:`\Delta_l` and noise :math:`s_l`, the noise satisfies
    :math:`1/\text{noise\_multiplier}^2 = \sum_l (\Delta_l / s_l)^2`. ``allocation`` says how it is shared:

    * ``"single"``: one :math:`s = \text{noise\_multiplier} \sqrt{\sum_l \Delta_l^2}` for all blocks;
    * ``"least_power"``: :math:`s_l^2 \propto \Delta_l / \sqrt{d_l}`, which gives the least total noise
      :math:`\sum_l d_l s_l^2` (:math:`d_l` coordinates in block :math:`l`).

    No mechanism can be derived from another one, whose guarantee it would inherit; a mechanism of your own derives from
    this class.

    Attributes:
        noise_multiplier: Noise standard deviation over sensitivity; no unit; >= 0.
        allocation: How several blocks share the noise.
    """

    noise_multiplier: float
    allocation: Allocation = "single"

    on_grid: ClassVar[bool] = False  # whether the values must be whole multiples of public steps (a grid)
    in_stretches: ClassVar[bool] = False  # whether it may be called for some parameters of a block at a time, in order

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _validate.check_no_promise_inherited(
            cls, "Derive it from tacita.mechanisms.Mechanism, and state its own event."
        )

    def __post_init__(self) -> None:
        _validate.non_negative("noise_multiplier", self.noise_multiplier)
        check_allocation(self.allocation)

    def noise_std(self, sensitivity: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
        """Return the standard deviation of the noise on each block.

        Args:
            sensitivity: L2 sensitivity of each block.
            sizes: Number of coordinates of each block.
        """
        if self.allocation == "single":
            joint = math.sqrt(sum(bound**2 for bound in sensitivity.values()))
            return dict.fromkeys(sensitivity, self.noise_multiplier * joint)
        total = sum(bound * math.sqrt(sizes[block]) for block, bound in sensitivity.items())
        return {
            block: self.noise_multiplier * math.sqrt(total * bound / math.sqrt(sizes[block]))
            for block, bound in sensitivity.items()
        }

    @property
    def lags(self) -> float:
        """How many earlier queries have a part in the noise of a query; infinite if all have."""
        return 0

    def whitened(self, over_noise: Tensor) -> Tensor:
        """Return releases over their noise, (runs, queries, ...), with what makes the noise independent; for audits."""
        return over_noise

    @abstractmethod
    def event(self, event: Event) -> Event:
        """Return the event of a session with this noise, given the event of the same session with Gaussian noise.

        Every mechanism defines it: noise of another law must not inherit the guarantee of the Gaussian.

        Raises:
            UnsupportedEventError: No guarantee is proved for this noise.
        """

    @classmethod
    def clipped_sum(cls, clipper: Any, *, alone: bool) -> Any:
        """Return the estimator of clipped sums that this noise needs; ``None`` if :class:`~tacita.ClippedSum` will do.

        Args:
            clipper: Bounds each sample's gradient.
            alone: Whether each record is computed alone, so that its bits depend on no other.
        """
        return None

    def check_paid(
        self, event: Event, noise_std: Mapping[str, float], contribution: Mapping[str, float] | None = None
    ) -> None:
        """Raise ``LedgerError`` if ``noise_std`` is less than what the session's ``event`` promises.

        Args:
            event: What the session pays for.
            noise_std: Standard deviation of the noise that is about to be added to each block.
            contribution: Largest L2 norm that one record adds to each block, where it is not the event's.
        """
        check_gaussian_noise(event, noise_std, contribution)

    @abstractmethod
    def on(self, steps: Mapping[str, float] | None, noise_std: Mapping[str, float]) -> Self:
        """Return this mechanism, prepared for values on the grid of ``steps``.

        Args:
            steps: The step of each block, of which its values are whole multiples; ``None`` if the values are on no
                grid.
            noise_std: Standard deviation of the noise on each block.

        Raises:
            ValueError: The mechanism cannot be used for such values.
        """

    @abstractmethod
    def __call__(self, values: Blocks, noise_std: Mapping[str, float], normals: Any) -> dict[str, dict[str, Tensor]]:
        """Add the noise to ``values``; ``normals`` is the query's :class:`Normals`, used nowhere else."""


def check_allocation(allocation: str) -> None:
    """Raise ``ValueError`` for an unknown allocation."""
    if allocation not in get_args(Allocation):
        raise ValueError(f"allocation must be one of {', '.join(get_args(Allocation))}, got {allocation!r}.")
