"""Records with named fields: no record decides for others in which order a model's code meets them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tacita.gradients import NetworkSource

ROWS = 6


class Named(Dataset):
    """Records of two fields; those in ``turned`` name them the other way round."""

    def __init__(self, turned=(), missing=()):
        generator = torch.Generator().manual_seed(1)
        self.x, self.z = torch.randn(2, ROWS, 4, generator=generator).unbind()
        self.turned, self.missing = turned, missing

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        record = {"x": self.x[index], "z": self.z[index]}
        if index in self.missing:
            del record["z"]
        return dict(reversed(record.items())) if index in self.turned else record


def one_by_one(items):
    (record,) = items
    return {name: value[None] for name, value in record.items()}


def difference(model, batch):
    """Takes the fields in the order in which they come."""
    first, second = batch.values()
    return (model(first) - 3 * model(second)).squeeze(1)


def sum_of(dataset, rows, collate_fn):
    torch.manual_seed(0)
    source = NetworkSource(nn.Linear(4, 1), difference, dataset, collate_fn=collate_fn)
    engine = source.engine(dict(source.model.named_parameters()), np.array(rows), seed=1)
    return engine.weighted_sums(torch.ones_like, {"all": tuple(engine.shapes)}).values[0]["weight"]


@pytest.mark.parametrize("collate_fn", [None, one_by_one])
@pytest.mark.parametrize("turned", [(1,), (2,), (1, 4), (1, 2, 3, 4, 5)])
def test_a_record_names_its_fields_in_an_order_of_its_own(turned, collate_fn):
    """The first record of a batch must not turn the fields of all others round."""
    expected = sum_of(Named(), range(1, ROWS), collate_fn)
    torch.testing.assert_close(sum_of(Named(turned), range(1, ROWS), collate_fn), expected)


@pytest.mark.parametrize("collate_fn", [None, one_by_one])
@pytest.mark.parametrize("missing", [(1,), (3,)])
def test_other_fields_are_refused_without_a_word_on_the_record(missing, collate_fn):
    with pytest.raises((ValueError, KeyError)) as error:
        sum_of(Named(missing=missing), range(1, ROWS), collate_fn)
    assert not any(sign in str(error.value) for sign in "0123456789")
