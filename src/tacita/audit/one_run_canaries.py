"""Canaries of one run: fair coins, records that are theirs alone, and the data with those that are in.

Place: oracles -> [audit.one_run_canaries] -> attack, training. Two kinds. *Planted* canaries have a parameter of their
own: an embedding beside the model, of which canary i's gradient moves entry i and nothing else, by just the clipping
threshold. No other record moves it, so that its release is the worst case that the accounting allows, and the model
trains as it would without. *Rows* are records of the data's own form, and show what such a record gives away.

How a coin changes the data is what the relation says: a canary that is left out is absent under add_or_remove_one, has
no gradient under zero_out_one, and under replace_one another record stands in its place: the opposite one, for a
planted canary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, default_collate

from tacita import _validate
from tacita.accounting import NeighboringRelation, check_relation
from tacita.gradients.functional import LossFn
from tacita.oracles import Records
from tacita.oracles.records import length
from tacita.random import Randomness

STRENGTH = 1e4  # norm of a planted canary's gradient before clipping: more than any threshold
EMBEDDING = "canaries.weight"  # the planted canaries' parameter


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is trained, with canaries among its records. Printing it shows no data.

    Attributes:
        model: The model, or the model with the planted canaries' parameters beside it.
        loss_fn: Its loss.
        records: The data of the run.
        included: What the coins said, bool, shape (canaries,).
        relation: How one coin changes the data.
    """

    model: nn.Module = field(repr=False)
    loss_fn: LossFn = field(repr=False)
    records: Records = field(repr=False)
    included: np.ndarray = field(repr=False)
    relation: NeighboringRelation


class PlantedModel(nn.Module):
    """A model, and one parameter a canary beside it.

    Args:
        model: Left as it is; its parameters get the prefix ``model.``.
        canaries: How many.

    Example:
        >>> [name for name, _ in PlantedModel(nn.Linear(2, 1), 3).named_parameters()]
        ['model.weight', 'model.bias', 'canaries.weight']
    """

    def __init__(self, model: nn.Module, canaries: int) -> None:
        super().__init__()
        self.model = model
        self.canaries = nn.Embedding(canaries + 1, 1)  # the last one is nobody's: that of ordinary records
        nn.init.zeros_(self.canaries.weight)
        example = next(model.parameters(), torch.zeros(()))
        self.canaries.to(example.device, example.dtype)


def planted_loss(loss_fn: LossFn, canaries: int, *, flat: bool) -> LossFn:
    """The loss of an ordinary record is its own, that of a planted canary its weight times its own parameter.

    Args:
        loss_fn: Of the model.
        canaries: How many; the number of nobody's entry.
        flat: Whether a batch is ``(*batch of the model, own, weight)``, as of arrays, or ``(batch, own, weight)``.
    """

    def loss(model: Any, batch: Any) -> Tensor:
        *rest, own, weight = batch
        losses = loss_fn(model.model, tuple(rest) if flat else rest[0])
        planted = STRENGTH * weight * model.canaries(own).squeeze(-1)
        return torch.where(own == canaries, losses, 0.0) + planted.to(losses.dtype)

    return loss


def fair_coins(canaries: int, randomness: Randomness) -> np.ndarray:
    """One independent fair coin a canary, bool, from a stream that nothing else draws from.

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
) -> Trial:
    """The model with planted canaries, and the data with those that the coins chose.

    Args:
        model: Any.
        loss_fn: Its loss.
        dataset: Map-style ``Dataset``, a tuple of arrays, or :class:`~tacita.Records`. A canary has the form of a
            record (of a ``Dataset``: a copy of the first), whose content has no gradient there.
        canaries: How many.
        relation: The ledger's.
        randomness: Of the coins.
    """
    records, included = _as_records(dataset), fair_coins(canaries, randomness)
    size, flat = length(records.dataset), isinstance(records.dataset, tuple | list)
    weights = _weights(included, relation)
    data: Any = records.dataset
    planted = _planted_arrays(data, weights) if flat else _PlantedItems(data, weights)
    chosen = np.flatnonzero(included) if relation == "add_or_remove_one" else np.arange(canaries)
    return Trial(
        model=PlantedModel(model, canaries),
        loss_fn=planted_loss(loss_fn, canaries, flat=flat),
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
) -> Trial:
    """The model as it is, and the data with those of ``rows`` that the coins chose.

    Args:
        model: Any.
        loss_fn: Its loss.
        dataset: Map-style ``Dataset``, a tuple of arrays, or :class:`~tacita.Records`.
        rows: Canaries of the same form.
        relation: The ledger's.
        randomness: Of the coins.
        substitutes: As many records, each in the place of a canary that is left out: under ``replace_one`` any others,
            under ``zero_out_one`` such as have no gradient (a weight of 0 in the loss).

    Raises:
        ValueError: ``substitutes`` are missing under those two relations, given under the third, or not as many.
    """
    check_relation(relation)
    records, canaries = _as_records(dataset), length(rows)
    if (substitutes is None) != (relation == "add_or_remove_one"):
        raise ValueError(
            f"substitutes must be given under replace_one and zero_out_one, and only there: the relation is {relation}."
        )
    if substitutes is not None and length(substitutes) != canaries:
        raise ValueError("substitutes must be as many as the canaries.")
    included, size = fair_coins(canaries, randomness), length(records.dataset)
    chosen = size + np.flatnonzero(included)
    if substitutes is not None:
        chosen = size + np.where(included, 0, canaries) + np.arange(canaries)
    joined = _joined([records.dataset, rows, *([] if substitutes is None else [substitutes])])
    return Trial(
        model=model,
        loss_fn=loss_fn,
        records=_with_rows(records, joined, chosen),
        included=included,
        relation=relation,
    )


def planted_collate(collate_fn: Callable[[list], Any]) -> Callable[[list], Any]:
    """A ``collate_fn`` of one's own, for a ``Dataset`` with planted canaries among its records."""

    def collate(items: list) -> Any:
        inner, own, weight = zip(*items, strict=True)
        return collate_fn(list(inner)), default_collate(list(own)), default_collate(list(weight))

    return collate


class _PlantedItems(Dataset):
    """Ordinary records, then the canaries, each ``(record, own, weight)``."""

    def __init__(self, dataset: Any, weights: Tensor) -> None:
        self._dataset, self._weights, self._size = dataset, weights, len(dataset)

    def __len__(self) -> int:
        return self._size + len(self._weights)

    def __getitem__(self, index: int) -> tuple[Any, int, Tensor]:
        if index < self._size:
            return self._dataset[index], len(self._weights), torch.zeros(())
        return self._dataset[0], index - self._size, self._weights[index - self._size]


def _planted_arrays(arrays: Sequence[Any], weights: Tensor) -> tuple[Tensor, ...]:
    """The same as arrays, ``(*record, own, weight)``: a canary's own record is of ones, or of the class 0."""
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
    """1 for a canary that is in; for one that is left out what stands in its place, if anything does."""
    check_relation(relation)
    return torch.where(torch.from_numpy(included), 1.0, -1.0 if relation == "replace_one" else 0.0)


def _with_rows(records: Records, dataset: Any, canaries: np.ndarray) -> Records:
    """The records' rows and the canaries': a canary is a unit with as many rows as the cap allows, all the same."""
    rows = np.concatenate([records.rows, np.repeat(canaries, records.max_rows_per_unit)])
    return replace(records, dataset=dataset, rows=rows)


def _as_records(dataset: Any) -> Records:
    return dataset if isinstance(dataset, Records) else Records(dataset=dataset, rows=np.arange(length(dataset)))


def _joined(parts: Sequence[Any]) -> Any:
    if all(isinstance(part, tuple | list) for part in parts):
        return tuple(torch.cat([_tensor(array) for array in arrays]) for arrays in zip(*parts, strict=True))
    return ConcatDataset(parts)
