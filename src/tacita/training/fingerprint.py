"""What a resumed run must have in common with the one it goes on from: public settings, and the same data.

Place: oracles -> [training.fingerprint]. The fingerprint of data is keyed with the session's own key and stays in
private files: an open hash would let anyone test a guessed data set.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from tacita.oracles import GradientOracle
from tacita.oracles.records import data_and_rows
from tacita.random import Key

SAMPLED_ROWS = 64  # of a Dataset whose rows have to be loaded one by one


def data_fingerprint(oracle: GradientOracle, dataset: Any) -> str:
    """Keyed tag over the oracle's public settings and the data.

    The optimizer is below the line: another one on resume is no error, but redoes no query. Arrays are covered whole;
    of any other ``Dataset`` its length and 64 rows, chosen by the key. A row that changed beyond these is not noticed
    here, and still safe: a redone query whose values differ takes a new number.
    """
    settings = json.dumps(oracle.settings, sort_keys=True).encode()
    key = oracle.randomness.session_key(oracle.session.id)
    data, taken = data_and_rows(dataset)
    parts = data_parts(data, key)
    rows = [] if taken["rows"] is None else [taken["rows"].tobytes()]
    return key.tag("run", parts=[hashlib.sha256(settings).digest(), *rows, *parts])


def data_parts(dataset: Any, key: Key) -> Iterator[Any]:
    """What stands for the data in a tag under ``key``: arrays whole, of a ``Dataset`` its length and a sample."""
    if isinstance(dataset, tuple | list):
        for array in dataset:
            yield np.ascontiguousarray(array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array)
        return
    count = len(dataset)
    yield str(count).encode()
    chosen: Iterable[int] = key.stream("rows").choice(count, min(count, SAMPLED_ROWS))
    for row in chosen:
        yield repr(_plain(dataset[int(row)])).encode()


def _plain(item: Any) -> Any:
    if isinstance(item, torch.Tensor | np.ndarray):
        array = np.ascontiguousarray(item.numpy() if isinstance(item, torch.Tensor) else item)
        return (str(array.dtype), array.shape, array.tobytes())
    if isinstance(item, dict):
        return [(key, _plain(value)) for key, value in item.items()]
    if isinstance(item, tuple | list):
        return [_plain(value) for value in item]
    return item
