"""A client's local training: the change of its model after several steps on its own data.

Place: gradients -> [federated.local_training] -> a clipped update. Everything here is private.
Source: McMahan et al. (2018), https://arxiv.org/abs/1710.06963, Algorithm 1.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from tacita import _validate
from tacita.federated.clipped_difference import mean_gradient
from tacita.gradients.engine import Engine, GradientSource, Groups, Rule, Shapes, Sums
from tacita.gradients.weighted_sums import group_norms, weight_arrays, weighted_sum

Tensors = Mapping[str, Tensor]


def updated(
    params: Tensors, gradient: Callable[[Tensors], Tensors], *, local_steps: int, local_lr: float
) -> dict[str, Tensor]:
    """Return how far several steps of gradient descent lead from ``params``: start minus end."""
    at: Tensors = params
    for _ in range(local_steps):
        direction = gradient(at)
        at = {name: x - local_lr * direction[name] for name, x in at.items()}
    return {name: params[name] - x for name, x in at.items()}


class LocalTraining(GradientSource):
    """Make engines whose one row is the update of a whole client, after several steps on its rows.

    Every record of the client is in that row, so only an estimator whose guarantee covers any change of the data may
    use it: :class:`~tacita.federated.ClippedMean` with divisor 1. An oracle refuses every other one.

    Args:
        source: Makes the engines of the client's records.
        local_steps: Number of steps in a round, >= 1; each is on the rows that the query has drawn.
        local_lr: Size of a step.
        divisor: Public divisor of the sum of the records' gradients.
    """

    mixes_records = True

    def __init__(self, source: GradientSource, *, local_steps: int, local_lr: float, divisor: float) -> None:
        self._source, self.model, self.digest = source, source.model, source.digest
        self._steps = _validate.count("local_steps", local_steps)
        self._lr = _validate.positive("local_lr", local_lr)
        self._divisor = _validate.positive("divisor", divisor)
        if source.ranks.size > 1:
            raise ValueError("process_group must be None for a client that trains locally.")

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

    def engine(
        self, params: Tensors, indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> "UpdateEngine":
        def gradient(at: Tensors) -> dict[str, Tensor]:
            engine = self._source.engine(at, indices, query=query, seed=seed)
            return mean_gradient(engine, self._divisor)

        start = {name: x.detach().double() for name, x in params.items()}
        dtypes = {name: x.dtype for name, x in params.items()}

        def in_dtype(at: Tensors) -> dict[str, Tensor]:
            return gradient({name: x.to(dtypes[name]) for name, x in at.items()})

        return UpdateEngine(updated(start, in_dtype, local_steps=self._steps, local_lr=self._lr))

    def __repr__(self) -> str:
        return f"LocalTraining({self._source!r}, local_steps={self._steps}, local_lr={self._lr})"


class UpdateEngine(Engine):
    """The engine over one row: the update of a client."""

    def __init__(self, update: Tensors) -> None:
        self._rows = {name: x.unsqueeze(0) for name, x in update.items()}

    @property
    def shapes(self) -> Shapes:
        return {name: x.shape[1:] for name, x in self._rows.items()}

    @property
    def labels(self) -> Tensor:
        return torch.zeros(1, dtype=torch.int64)

    def norms(self, groups: Groups) -> Tensor:
        return group_norms(self._rows, groups, 1)

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        norms = self.norms(groups)
        values = tuple(weighted_sum(self._rows, weights, groups) for weights in weight_arrays(rule, norms))
        return Sums(values=values, norms=norms)

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        yield dict(self._rows)
