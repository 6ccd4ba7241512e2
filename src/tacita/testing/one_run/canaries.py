"""Canaries of one run: their fair coins, their records, and the data with the canaries that are in.

There are two kinds. *Planted* canaries have a parameter of their own, an embedding beside the model. The gradient of
canary i moves entry i by exactly the clipping threshold, and nothing else. No other record moves this entry, so its
release is the worst case that the accounting allows, and the model trains as it would without canaries. *Rows* are
records of the data's own form; they show how much such a record reveals.

The neighboring relation decides what a coin does. A canary that is left out is absent under add_or_remove_one and has
no gradient under zero_out_one. Under replace_one another record takes its place; for a planted canary, this is the
opposite one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from tacita import _validate
from tacita.accounting import NeighboringRelation, check_relation
from tacita.gradients.arrays import arrays_in, is_arrays, length
from tacita.gradients.batches import map_leaves
from tacita.gradients.functional import LossFn
from tacita.oracles import Records
from tacita.random import Randomness

STRENGTH = 1e4  # norm of a planted canary's gradient before clipping: more than any threshold
EMBEDDING = "canaries.weight"  # the planted canaries' parameter


@dataclass(frozen=True, kw_only=True)
class CanaryTrial:
    """A model, its loss and its data, with canaries among the records. Printing it shows no data.

    Attributes:
        model: The model; with planted canaries, their parameters are beside it.
        loss_fn: Its loss.
        records: The data of the run.
        included: The outcomes of the coins, bool, shape (canaries,).
        relation: How one coin changes the data.
    """

    model: nn.Module = field(repr=False)
    loss_fn: LossFn = field(repr=False)
    records: Records = field(repr=False)
    included: np.ndarray = field(repr=False)
    relation: NeighboringRelation


class PlantedModel(nn.Module):
    """A model with one more parameter for each planted canary.

    Args:
        model: The model, which stays as it is; its parameters get the prefix ``model.``.
        canaries: Number of canaries.

    Example:
        >>> [name for name, _ in PlantedModel(nn.Linear(2, 1), 3).named_parameters()]
        ['model.weight', 'model.bias', 'canaries.weight']
    """

    def __init__(self, model: nn.Module, canaries: int) -> None:
        super().__init__()
        self.model = model
        self.canaries = nn.Embedding(canaries + 1, 1)  # the last entry stands for all ordinary records
        nn.init.zeros_(self.canaries.weight)
        example = next(model.parameters(), torch.zeros(()))
        self.canaries.to(example.device, example.dtype)


def planted_loss(loss_fn: LossFn, canaries: int, *, like: Any = None) -> LossFn:
    """Return a loss that is ``loss_fn`` for ordinary records, and weight times own parameter for planted canaries.

    Args:
        loss_fn: The model's loss.
        canaries: Number of canaries, which is also the embedding index of ordinary records.
        like: For a data set of arrays, whose batches are ``(*arrays of the model's batch, own, weight)``: a container
            like that of the model's batch. ``None`` for a ``Dataset``, whose batches are ``(batch, own, weight)``.
    """
    return partial(_planted_loss, loss_fn, canaries, like)


def _planted_loss(loss_fn: LossFn, canaries: int, like: Any, model: Any, batch: Any) -> Tensor:
    *rest, own, weight = batch
    arrays = iter(rest)
    losses = loss_fn(model.model, rest[0] if like is None else map_leaves(lambda _: next(arrays), like))
    planted = STRENGTH * weight * model.canaries(own).squeeze(-1)
    return torch.where(own == canaries, losses, 0.0) + planted.to(losses.dtype)


def fair_coins(canaries: int, randomness: Randomness) -> np.ndarray:
    """Toss one independent fair coin per canary, bool, from a stream that nothing else draws from.

    Example:
        >>> int(fair_coins(1000, Randomness.insecure(0)).sum())
        497
    """
    words = randomness.session_key("canaries").stream("coins").words(_validate.count("canaries", canaries))
    return (words >> np.uint64(63)).astype(bool)


def plant(
    model: nn.Module,
    loss_fn: LossFn,
    dataset: Any,
    canaries: int,
    *,
    relation: NeighboringRelation,
    randomness: Randomness,
) -> CanaryTrial:
    """Plant canaries: return the model with their parameters, and the data with those that the coins chose.

    Args:
        model: Any model.
        loss_fn: Its loss.
        dataset: Map-style ``Dataset``, arrays, or :class:`~tacita.Records`. A canary has the form of a record (for a
            ``Dataset``, it is a copy of the first one), but the content of the record has no gradient.
        canaries: Number of canaries.
        relation: The ledger's relation.
        randomness: Randomness of the coins.
    """
    records, included = _as_records(dataset), fair_coins(canaries, randomness)
    size, flat = length(records.dataset), is_arrays(records.dataset)
    weights = _weights(included, relation)
    data: Any = records.dataset
    planted = _planted_arrays(arrays_in(data), weights) if flat else _PlantedItems(data, weights)
    like = map_leaves(lambda array: _tensor(array[:0]).clone(), data) if flat else None
    chosen = np.flatnonzero(included) if relation == "add_or_remove_one" else np.arange(canaries)
    return CanaryTrial(
        model=PlantedModel(model, canaries),
        loss_fn=planted_loss(loss_fn, canaries, like=like),
        records=_with_rows(records, planted, size + chosen),
        included=included,
        relation=relation,
    )


def insert(
    model: nn.Module,
    loss_fn: LossFn,
    dataset: Any,
    rows: Any,
    *,
    relation: NeighboringRelation,
    randomness: Randomness,
    substitutes: Any = None,
) -> CanaryTrial:
    """Insert rows as canaries: return the model unchanged, and the data with those of ``rows`` that the coins chose.

    Args:
        model: Any model.
        loss_fn: Its loss.
        dataset: Map-style ``Dataset``, arrays, or :class:`~tacita.Records`.
        rows: The canaries, in the same form.
        relation: The ledger's relation.
        randomness: Randomness of the coins.
        substitutes: One record for each canary, which takes its place if it is left out: under ``replace_one`` any
            other record, under ``zero_out_one`` a record without gradient (weight 0 in the loss).

    Raises:
        ValueError: ``substitutes`` are missing under ``replace_one`` or ``zero_out_one``, given under
            ``add_or_remove_one``, or not as many as ``rows``.
    """
    check_relation(relation)
    records, canaries = _as_records(dataset), length(rows)
    if (substitutes is None) != (relation == "add_or_remove_one"):
        raise ValueError(
            f"substitutes must be given under replace_one and zero_out_one, and only there: the relation is {relation}."
        )
    if substitutes is not None and length(substitutes) != canaries:
        raise ValueError(f"substitutes must be as many as the canaries, {canaries}, got {length(substitutes)}.")
    included, size = fair_coins(canaries, randomness), length(records.dataset)
    chosen = size + np.flatnonzero(included)
    if substitutes is not None:
        chosen = size + np.where(included, 0, canaries) + np.arange(canaries)
    joined = _joined([records.dataset, rows, *([] if substitutes is None else [substitutes])])
    return CanaryTrial(
        model=model,
        loss_fn=loss_fn,
        records=_with_rows(records, joined, chosen),
        included=included,
        relation=relation,
    )


def planted_collate(collate_fn: Callable[[list], Any]) -> Callable[[list], Any]:
    """Adapt your own ``collate_fn`` to a ``Dataset`` that has planted canaries among its records."""

    def collate(items: list) -> Any:
        inner, own, weight = zip(*items, strict=True)
        return collate_fn(list(inner)), default_collate(list(own)), default_collate(list(weight))

    return collate


class _PlantedItems(Dataset):
    """A data set of the ordinary records, then the canaries, each as ``(record, own, weight)``."""

    def __init__(self, dataset: Any, weights: Tensor) -> None:
        self._dataset, self._weights, self._size = dataset, weights, len(dataset)

    def __len__(self) -> int:
        return self._size + len(self._weights)

    def __getitem__(self, index: int) -> tuple[Any, int, Tensor]:
        if index < self._size:
            return self._dataset[index], len(self._weights), torch.zeros(())
        return self._dataset[0], index - self._size, self._weights[index - self._size]


def _planted_arrays(arrays: Sequence[Any], weights: Tensor) -> tuple[Tensor, ...]:
    """Return the same as arrays, ``(*record, own, weight)``; a canary's record is all ones, or class 0 if integer."""
    size, canaries = len(arrays[0]), len(weights)
    filled = [_tensor(array[:0]).new_full((canaries, *array.shape[1:]), _fill(array)) for array in arrays]
    own = torch.cat([torch.full((size,), canaries), torch.arange(canaries)])
    joined = [torch.cat([_tensor(array), more]) for array, more in zip(arrays, filled, strict=True)]
    return (*joined, own, torch.cat([torch.zeros(size), weights]))


def _fill(array: Any) -> int:
    return int(_tensor(array[:0]).is_floating_point())


def _tensor(value: Any) -> Tensor:
    return torch.as_tensor(value)


def _weights(included: np.ndarray, relation: NeighboringRelation) -> Tensor:
    """Return weight 1 for a canary that is in; if it is left out, -1 under replace_one and else 0."""
    check_relation(relation)
    return torch.where(torch.from_numpy(included), 1.0, -1.0 if relation == "replace_one" else 0.0)


def _with_rows(records: Records, dataset: Any, canaries: np.ndarray) -> Records:
    """Add the canaries' rows to the records; a canary is a unit with as many equal rows as ``max_rows_per_unit``."""
    assert records.rows is not None  # _as_records ensures it
    more = np.repeat(canaries, records.max_rows_per_unit - 1)
    copies = length(dataset) + np.arange(len(more))
    if len(more):
        dataset = _joined([dataset, _taken(dataset, more)])
    rows = np.concatenate([records.rows, canaries, copies])
    by_range = records.part is not None and records.part.kind == "range"  # whose positions the canaries do not have
    return replace(records, dataset=dataset, rows=rows, part=None if by_range else records.part)


def _taken(dataset: Any, rows: np.ndarray) -> Any:
    if is_arrays(dataset):
        return map_leaves(lambda array: _tensor(array)[torch.from_numpy(rows)], dataset)
    return Subset(dataset, rows.tolist())


def _as_records(dataset: Any) -> Records:
    records = dataset if isinstance(dataset, Records) else Records(dataset=dataset)
    return records if records.rows is not None else replace(records, rows=np.arange(length(records.dataset)))


def _joined(parts: Sequence[Any]) -> Any:
    if all(is_arrays(part) for part in parts):
        columns = zip(*(arrays_in(part) for part in parts), strict=True)
        return map_leaves(lambda _: torch.cat([_tensor(array) for array in next(columns)]), parts[0])
    return ConcatDataset(parts)
