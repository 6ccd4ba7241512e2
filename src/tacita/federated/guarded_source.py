"""A source whose failures count as zero gradients, so that a client answers every broadcast alike.

Place: gradients -> [federated.guarded_source] -> estimators. Private.
A model, a loss or a data set is user code and may raise on some row. If the client then sent nothing, or an error, the
server would learn that such a row is there, and no noise hides that.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from tacita.gradients import GradientSource
from tacita.gradients.engine import Engine, Groups, Rule, Schedule, Shapes, Sums

Result = TypeVar("Result")


class GuardedSource(GradientSource):
    """Make the engines of another source, and count a batch whose gradient cannot be computed as an empty batch.

    Guarantee: whatever the model, the loss and the data set raise, but for ``KeyboardInterrupt``, a query is answered.
    A process that is killed or runs for ever is not covered.

    Args:
        source: Makes the engines.
        note: Is told the exceptions. They are private, and are not for a log that others read.

    Example:
        >>> from tacita.gradients import GivenSource
        >>> source = GuardedSource(GivenSource(torch.ones(2, 3)), lambda error: print(type(error).__name__))
        >>> engine = source.engine({}, np.array([7]))  # there is no such row
        >>> engine.weighted_sums(lambda norms: norms, {"all": ("theta",)}).values[0]["theta"]
        IndexError
        tensor([0., 0., 0.], dtype=torch.float64)
    """

    def __init__(self, source: GradientSource, note: Callable[[BaseException], None]) -> None:
        self._source, self._note = source, note
        self.model, self.ranks, self.mixes_records = source.model, source.ranks, source.mixes_records
        self.digest, self.rows_alone = source.digest, source.rows_alone

    @property
    def shapes(self) -> Shapes:
        return self._source.shapes

    @property
    def num_rows(self) -> int:
        return self._source.num_rows

    @property
    def conditions(self) -> tuple[str, ...]:
        return self._source.conditions

    def retrace(self) -> None:
        self._source.retrace()

    def follow(self, schedule: Schedule | None) -> None:
        self._source.follow(schedule)

    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> Engine:
        def make() -> Engine:
            return self._source.engine(params, indices, query=query, seed=seed)

        return _GuardedEngine(make, self.shapes, indices, self._note)

    def __repr__(self) -> str:
        return f"GuardedSource({self._source!r})"


class _GuardedEngine(Engine):
    """The engine that ``make`` returns, or that of an empty batch if it raises."""

    def __init__(
        self, make: Callable[[], Engine], shapes: Shapes, indices: np.ndarray, note: Callable[[BaseException], None]
    ) -> None:
        self._make, self._shapes, self._note = make, shapes, note
        self._indices = np.ascontiguousarray(indices, dtype=np.int64)

    @cached_property
    def _engine(self) -> Engine:
        return self._make()

    @property
    def shapes(self) -> Shapes:
        return self._shapes

    @property
    def labels(self) -> Tensor:
        return torch.from_numpy(self._indices)

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        nobody = torch.zeros(0, len(groups), dtype=torch.float64)

        def of_nobody() -> Sums:
            weights = rule(nobody)
            names = [name for group in groups.values() for name in group]
            arrays = len(weights) if isinstance(weights, tuple) else 1
            zeros = {name: torch.zeros(self._shapes[name], dtype=torch.float64) for name in names}
            return Sums(values=tuple(dict(zeros) for _ in range(arrays)), norms=nobody)

        return self._tried(lambda: self._engine.weighted_sums(rule, groups), of_nobody)

    def norms(self, groups: Groups) -> Tensor:
        nobody = torch.zeros(0, len(groups), dtype=torch.float64)
        return self._tried(lambda: self._engine.norms(groups), lambda: nobody)

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        yield from self._tried(lambda: list(self._engine.materialise()), list)

    def _tried(self, compute: Callable[[], Result], instead: Callable[[], Result]) -> Result:
        try:
            return compute()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a library may also call sys.exit
            self._note(error)
            return instead()
