"""Fingerprints of settings and data, which must be equal when a run is resumed.

A fingerprint is keyed with the session's own key and stays in private files: an open hash would let anyone test a
guessed data set.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from tacita.gradients.arrays import arrays_in, is_arrays
from tacita.gradients.seeds import derived_seed, generators_kept, seed_generators
from tacita.gradients.views import SeveralViews
from tacita.oracles import GradientOracle
from tacita.oracles.records import as_records
from tacita.random import Key
from tacita.user_records import UserRecords

SAMPLED_ROWS = 64  # rows looked at of a Dataset whose rows have to be loaded one by one


@runtime_checkable
class ReadsItself(Protocol):
    """A data set that yields all of its bytes for a fingerprint, such as a file of encoded rows."""

    def parts(self) -> Iterator[bytes]:
        """Yield all that the rows depend on."""
        ...


def data_fingerprint(oracle: GradientOracle, dataset: Any) -> str:
    """Return a keyed tag of the oracle's public settings and the data.

    The optimizer is not covered, since it is below the line: a run may be resumed with another one. Arrays are covered
    whole; of any other ``Dataset``, its length and 64 rows that the key chooses. A change of any other row goes
    unnoticed here and is still safe, because a redone query whose values differ takes a new number.
    """
    settings = json.dumps(oracle.settings, sort_keys=True).encode()
    key = oracle.gate.session_key
    records = as_records(dataset)
    parts = data_parts(records.dataset, key)
    rows = [] if records.rows is None else [np.asarray(records.rows).tobytes()]
    return key.tag("run", parts=chain([hashlib.sha256(settings).digest()], rows, parts))


def data_parts(dataset: Any, key: Key) -> Iterator[Any]:
    """Yield what a tag under ``key`` covers of the data: arrays and files whole, else its length and a sample.

    A record that draws at random when it is read (augmentation) is read under the same seed each time.
    """
    if isinstance(dataset, SeveralViews):
        yield f"{dataset.views} views".encode()
        yield from data_parts(dataset.dataset, key)
        return
    if isinstance(dataset, UserRecords):
        yield repr((dataset.rows_per_query, dataset.names)).encode()
        yield dataset.codes
        yield from data_parts(dataset.dataset, key)
        return
    if is_arrays(dataset):
        if isinstance(dataset, Mapping):
            yield repr([*dataset]).encode()
        for array in arrays_in(dataset):
            yield np.ascontiguousarray(array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array)
        return
    if isinstance(dataset, ReadsItself):
        yield from dataset.parts()
        return
    count = len(dataset)
    yield str(count).encode()
    chosen: Iterable[int] = key.stream("rows").choice(count, min(count, SAMPLED_ROWS))
    for row in chosen:
        with generators_kept():
            seed_generators(derived_seed("fingerprint", int(row)))
            record = dataset[int(row)]
        yield repr(_plain(record)).encode()


def _plain(item: Any) -> Any:
    if isinstance(item, torch.Tensor | np.ndarray):
        array = np.ascontiguousarray(item.numpy() if isinstance(item, torch.Tensor) else item)
        return (str(array.dtype), array.shape, array.tobytes())
    if isinstance(item, Mapping):
        return [(key, _plain(value)) for key, value in item.items()]
    if isinstance(item, tuple | list):
        return [_plain(value) for value in item]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [(one.name, _plain(getattr(item, one.name))) for one in dataclasses.fields(item)]
    return item
