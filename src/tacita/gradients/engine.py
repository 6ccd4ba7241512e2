"""The interface of engines, which give an estimator norms, weighted sums and per-sample gradients of one batch.

Place: sampling -> [gradients] -> clipping, estimators. Everything here is private.
The interface is final: engines get faster behind it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tacita.gradients.processes import ALONE, Processes

Groups = Mapping[str, tuple[str, ...]]  # group name -> names of the parameters under one threshold
Rule = Callable[[Tensor], "Tensor | tuple[Tensor, ...]"]  # norms (..., batch, groups) -> weights, row by row
Shapes = Mapping[str, torch.Size]  # parameter name -> shape


class Sums:
    """Weighted sums of per-sample gradients, one mapping for each weight array, and the norms before weighting.

    Args:
        values: See the attribute.
        norms: See the attribute; or a function that computes them, so that a large batch's are not kept.

    Attributes:
        values: For each weight array, parameter name -> sum, shape (..., *param), float32 or better.
    """

    def __init__(self, *, values: tuple[dict[str, Tensor], ...], norms: Tensor | Callable[[], Tensor]) -> None:
        self.values, self._norms = values, norms

    @property
    def norms(self) -> Tensor:
        """Upper bounds of the per-sample L2 norms *before* weighting, shape (..., batch, groups). Private."""
        if not isinstance(self._norms, Tensor):
            self._norms = self._norms()
        return self._norms


class Engine(ABC):
    """The per-sample gradients of one batch at one point. They are shown as a whole only by :meth:`materialise`.

    Attributes:
        ranks: The processes that share the batch; an engine has the rows of this one.
    """

    ranks: Processes = ALONE

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """The shapes of the parameters, by name."""

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """A stable label of each record, shape (batch,), int64; never its position in the batch."""

    @abstractmethod
    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        r"""Return :math:`\sum_i w_{i,g} \, g_{i,g}` for each group g and each weight array :math:`w` of ``rule``.

        ``rule`` maps norms (..., batch, groups) to one weight array of that shape, or to a tuple of several. It is
        applied chunk by chunk and must act row by row. On an empty batch it sees zero rows. A weight of 0 means that
        the row is absent, even if it holds NaN.
        """

    @abstractmethod
    def norms(self, groups: Groups) -> Tensor:
        """Return upper bounds of the per-sample L2 norms, shape (..., batch, groups), float32 or better."""

    @abstractmethod
    def materialise(self) -> Iterator[dict[str, Tensor]]:
        """Yield the per-sample gradients in chunks: parameter name -> (..., chunk, *param)."""

    def labelled(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield the chunks of :meth:`materialise`, each with the labels of its rows, (chunk,)."""
        labels, start = self.labels, 0
        for grads in self.materialise():
            name, one = next(iter(grads.items()))
            rows = one.shape[-1 - len(self.shapes[name])]
            yield labels[start : start + rows], grads
            start += rows
        assert start == len(labels), "an engine's chunks are its batch, in order"

    def over_ranks(self, values: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Add up, over the ranks of a process group, what was computed from this engine's rows.

        With a group, norms, labels and materialised gradients are those of this rank's rows, while ``weighted_sums``
        are over all. Whoever adds up norms or gradients calls this.
        """
        return self.ranks.add_up(values)


class Schedule(Protocol):
    """What the queries to come will read: a pure function of the query's number, the same whenever it is asked."""

    def batch(self, query: int) -> np.ndarray:
        """Return the indices that :meth:`GradientSource.engine` will get; raise ``ValueError`` past the last query."""
        ...

    def seed(self, query: int) -> int | None:
        """Return the ``seed`` that :meth:`GradientSource.engine` will get."""
        ...


class GradientSource(ABC):
    """The maker of engines: a network with its loss and data, a linear model on a table, a client.

    Attributes:
        model: The module whose parameters a gradient is taken in; ``None`` if the source has none.
        ranks: The processes that share the rows of a batch; by default one.
        takes_row_numbers: Whether :meth:`engine` takes many indices as row numbers that are not in memory
            (:class:`tacita._row_numbers.RowNumbers`); by default it always gets an array.
        mixes_records: Whether an engine's rows are functions of several records, such as a client's update. Only an
            estimator of :attr:`~tacita.estimators.Estimator.any_change` may have such a source.
        rows_alone: Whether each record is computed alone, so that its bits depend on no other, as
            ``GridSum(together=False)`` needs it.
        digest: SHA-256 of the program that computes gradients, in hexadecimal; ``None`` if none was written down.
    """

    model: nn.Module | None = None
    ranks: Processes = ALONE
    takes_row_numbers: bool = False
    mixes_records: bool = False
    rows_alone: bool = False
    digest: str | None = None

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """The shapes of the parameters that a gradient is taken in, by name."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of records. Private under add_or_remove_one."""

    @abstractmethod
    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> Engine:
        """Return the engine of one batch.

        Args:
            params: The point, by parameter name; not modified.
            indices: Records of the batch, int64, maybe empty.
            query: Number of the batch's query, so that a loader can work ahead (see :meth:`follow`).
            seed: Secret seed (256 bits) of the draws that the model and the data set make themselves: dropout,
                augmentation. ``None``: the model draws from torch's generator, the data set from the system's entropy.
        """

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions of the guarantee that nobody enforces: the statement prints each, and then no epsilon."""
        return ()

    def retrace(self) -> None:  # noqa: B027 - optional
        """Look at the model and the loss anew at the next query, after a change that is meant; no data is used."""

    def follow(self, schedule: Schedule | None) -> None:  # noqa: B027 - optional
        """Take the schedule of the queries to come, so that workers can read ahead; ``None`` forgets it."""
