"""What an estimator may ask about one batch: norms, weighted sums, per-sample gradients.

Place: sampling -> [gradients] -> clipping, estimators. Everything here is private.
The interface is final: engines get faster behind it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Groups = Mapping[str, tuple[str, ...]]  # group name -> names of the parameters under one threshold
Rule = Callable[[Tensor], "Tensor | tuple[Tensor, ...]"]  # norms (..., batch, groups) -> weights, row by row
Shapes = Mapping[str, torch.Size]  # parameter name -> shape


@dataclass(frozen=True)
class Sums:
    """Weighted sums of per-sample gradients, one mapping for each weight array, and the norms they came from.

    Attributes:
        values: For each weight array, parameter name -> sum, shape (..., *param), float32 or better.
        norms: Upper bounds of the per-sample L2 norms *before* weighting, shape (..., batch, groups). Private.
    """

    values: tuple[dict[str, Tensor], ...]
    norms: Tensor


class Engine(ABC):
    """The per-sample gradients of one batch at one point, never shown as a whole unless asked."""

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """Shapes of the parameters, by name."""

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """A stable label of each record, shape (batch,), int64: never its position in the batch."""

    @abstractmethod
    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        r"""For each weight array :math:`w` that ``rule`` gives, :math:`\sum_i w_{i,g} \, g_{i,g}` for each group.

        ``rule`` maps norms (..., batch, groups) to one weight array of that shape, or a tuple of several; it is applied
        chunk by chunk and must act row by row. On an empty batch it sees zero rows. A weight of 0 means absent, even
        for a row that holds NaN.
        """

    @abstractmethod
    def norms(self, groups: Groups) -> Tensor:
        """Upper bounds of the per-sample L2 norms, shape (..., batch, groups), float32 or better."""

    @abstractmethod
    def materialise(self) -> Iterator[dict[str, Tensor]]:
        """Per-sample gradients in chunks: parameter name -> (..., chunk, *param)."""


class Source(ABC):
    """Makes engines: a network with its loss and data, a table under a linear model, a client."""

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """Shapes of the parameters a gradient is taken in, by name."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """How many records there are. Private under add_or_remove_one."""

    @abstractmethod
    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> Engine:
        """The engine of one batch.

        Args:
            params: The point, by parameter name; not modified.
            indices: Records of the batch, int64, maybe empty.
            query: Number of the query the batch belongs to, so that a loader can work ahead (see :meth:`follow`).
            seed: Secret seed (256 bits) of what the model and the data set draw themselves: dropout, augmentation.
                ``None``: the model draws from torch's generator, the data set from the system's entropy.
        """

    def follow(  # noqa: B027 - optional
        self, schedule: Callable[[int], np.ndarray] | None, seeds: Callable[[int], int] | None = None
    ) -> None:
        """Be told the indices and the seed of every query to come, so that workers can fetch ahead.

        Args:
            schedule: Query -> the indices that :meth:`engine` will get; ``None`` forgets the schedule.
            seeds: Query -> the ``seed`` that :meth:`engine` will get; ``None`` if it will get none.
        """
