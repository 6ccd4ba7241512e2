"""Rows come back from the file bit for bit and without gaps, whatever the number of features."""

import numpy as np
import pytest
import torch

from tacita.tables.encoded_file import EncodedFile
from tacita.tables.encoding import Encoder
from tacita.tables.features import CategoryPiece, ClassTarget, NumberPiece
from tacita.tables.table import NumberColumn, Table, TextColumn

ROWS = 1100  # more than are unpacked at once


@pytest.mark.parametrize("values", [6, 9, 14, 17])  # and two of the number: 8, 11, 16 and 19 features
@pytest.mark.parametrize("most", [0, 2**28])
def test_features_come_back(tmp_path, monkeypatch, values, most):
    rng = np.random.default_rng(values)
    names = tuple(f"v{i}" for i in range(values))
    number = NumberPiece(column="x", lower=-2, upper=2, centre=0, scale=1, steps=(0.5,))
    encoder = Encoder(
        pieces=(CategoryPiece(column="c", values=names), number),
        target=ClassTarget(column="y", classes=("no", "yes")),
        missing=("",),
    )
    table = Table(
        {
            "c": TextColumn.of(rng.choice(names, ROWS).tolist()),
            "x": NumberColumn(rng.normal(size=ROWS)),
            "y": TextColumn.of(rng.choice(["no", "yes"], ROWS).tolist()),
        }
    )
    monkeypatch.setattr("tacita.tables.mapped_rows.RESIDENT", most)
    encoded, file = encoder.encode(table), EncodedFile(encoder, tmp_path)
    assert encoded.target is not None
    file.append(encoded, np.ones(ROWS, bool))
    assert "bits" in (file._dtype.names or ())
    for rows in (np.arange(ROWS), rng.integers(0, ROWS, 700), np.zeros(0, np.int64)):
        features, target, _ = file.fetch(rows, 0)
        assert features.is_contiguous()  # a gap behind each row makes every product copy them first
        assert torch.equal(features, encoded.features[rows])
        assert torch.equal(target, encoded.target[rows])


def test_a_table_that_shows_nothing_has_a_column_of_zeros(tmp_path):
    """As where every column of a small table was lost in the noise."""
    encoder = Encoder(pieces=(), target=ClassTarget(column="y", classes=("no", "yes")), missing=("",))
    encoded = encoder.encode(Table({"y": TextColumn.of(["no", "yes", "no"])}))
    file = EncodedFile(encoder, tmp_path)
    file.append(encoded, np.array([True, False, True]))
    features, target, weight = file.fetch(np.array([0, 1]), 0)
    assert torch.equal(features, torch.zeros(2, 1))
    assert (target.tolist(), weight.tolist()) == ([0, 0], [1, 1])
    (chunk,) = file.chunks()
    assert chunk.features.shape == (2, 0)
