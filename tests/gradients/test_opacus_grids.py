"""Opacus' own grids of layers: the program serves nine in ten of its examples, and gives no wrong value in any.

The grids are those of the tests that Opacus brings with it (``opacus.tests.grad_samples``), which compare each of its
layers with one record at a time. Here the same examples go to tacita's engine, in float64. Records of the examples with
packed sequences differ in length; they come padded, with their lengths.
"""

import importlib
import importlib.util
import os
import unittest
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not os.environ.get("TACITA_AUDIT"), reason="TACITA_AUDIT=1 runs Opacus' grids"),
    pytest.mark.skipif(
        importlib.util.find_spec("opacus") is None,
        reason="Opacus is not installed: pip install -c constraints.txt '.[bench]'",
    ),
]

GRIDS = (
    "linear", "embedding", "embedding_bag", "layer_norm", "group_norm", "instance_norm1d", "instance_norm2d",
    "instance_norm3d", "rms_norm", "conv1d", "conv2d", "conv3d", "dp_rnn", "dp_multihead_attention", "sequence_bias",
)  # fmt: skip


def summed_squares(model, batch):
    return model(*batch).flatten(1).square().sum(dim=1)


class OnRecords(nn.Module):
    """An Opacus example's module, on tensors that have the records first."""

    def __init__(self, module, call):
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *batch):
        return self.call(self.module, *batch)


def time_first(module, x):
    return module(x.transpose(0, 1)).transpose(0, 1)


def bags(module, rows, lengths):
    """One bag a record, and one of what its padding holds, which is dropped."""
    starts = torch.arange(len(rows)) * rows.shape[1]
    offsets = torch.stack([starts, starts + lengths], dim=1).flatten()
    return module(rows.flatten(), offsets)[::2]


def packed(batch_first):
    def call(module, x, lengths):
        x = x if batch_first else x.transpose(0, 1)
        given = pack_padded_sequence(x, lengths.cpu(), batch_first=batch_first, enforce_sorted=False)
        out, _ = pad_packed_sequence(module(given), batch_first=batch_first, total_length=x.shape[batch_first])
        return out if batch_first else out.transpose(0, 1)

    return call


def example(x, module, batch_first):
    """The network and its data for one of Opacus' examples."""
    if isinstance(x, PackedSequence):
        rows, lengths = pad_packed_sequence(x, batch_first=True)
        return OnRecords(module, packed(batch_first)), (rows.double(), lengths)
    if isinstance(x, tuple):
        indices, offsets = x
        parts = indices.tensor_split(offsets[1:])
        rows = nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
        return OnRecords(module, bags), (rows, torch.tensor([len(part) for part in parts]))
    x = x.double() if x.is_floating_point() else x
    if batch_first:
        return OnRecords(module, lambda module, x: module(x)), (x,)
    return OnRecords(module, time_first), (x.transpose(0, 1),)


def sums(network, data, method):
    source = NetworkSource(network, summed_squares, data, method=method)
    rows = torch.arange(len(data[0])).numpy()
    engine = source.engine(dict(network.named_parameters()), rows, seed=1)
    if source.method == "program":
        engine.rounding_margin = False  # type: ignore[attr-defined] # of the program
    return source.method, engine.weighted_sums(torch.ones_like, {name: (name,) for name in source.shapes})


def compare(x, module, batch_first, seen):
    network, data = example(x, module.double(), batch_first)
    try:
        method, found = sums(network, data, "auto")
    except UnsupportedModuleError:  # a layer that keeps the lengths of packed sequences
        seen["refused"] += 1
        return
    _, expected = sums(network, data, "loop")
    seen[method] += 1
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.values[0], dict(expected.values[0]), rtol=1e-10, atol=1e-10)


def run(grid):
    """Run one of Opacus' test files with our comparison in place of its own; count the examples by engine."""
    module, seen = importlib.import_module(f"opacus.tests.grad_samples.{grid}_test"), Counter()
    for case in list(vars(module).values()):
        if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__:
            for name in unittest.TestLoader().getTestCaseNames(case):
                instance = case(name)
                instance.run_test = lambda x, module, batch_first=True, **_: compare(x, module, batch_first, seen)
                getattr(instance, name)()
    return seen


def test_programs_serve_nine_in_ten(record_property):
    seen = {grid: run(grid) for grid in GRIDS}
    print(seen)
    record_property("examples", {grid: dict(counts) for grid, counts in seen.items()})
    total = sum(sum(counts.values()) for counts in seen.values())
    assert total > 500
    assert sum(counts["program"] for counts in seen.values()) >= 0.9 * total
