"""Splits over clients: every row once, as unlike as asked for, and the padded tensors."""

import numpy as np
import pytest
import torch

from tacita.federated import split_by_label, split_by_owner, split_dirichlet, split_evenly, stacked

LABELS = np.repeat(np.arange(5), 40)


@pytest.mark.parametrize(
    "split",
    [
        lambda rng: split_evenly(200, 7, rng),
        lambda rng: split_by_label(LABELS, 7, rng),
        lambda rng: split_dirichlet(LABELS, 7, rng, concentration=0.1),
        lambda rng: split_by_owner(rng.integers(0, 9, 200)),
    ],
)
def test_every_row_has_one_client(split):
    parts = split(np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    again = split(np.random.default_rng(0))
    assert [part.tolist() for part in parts] == [part.tolist() for part in again]


def labels_of_clients(split):
    return np.mean([len(np.unique(LABELS[part])) for part in split if len(part)])


def test_clients_differ_as_much_as_asked_for():
    rng = np.random.default_rng(0)
    assert labels_of_clients(split_evenly(200, 5, rng)) == 5
    assert labels_of_clients(split_by_label(LABELS, 5, rng, shards=1)) == 1
    alike, unlike = (split_dirichlet(LABELS, 5, rng, concentration=c) for c in (1e4, 0.05))
    assert labels_of_clients(alike) == 5
    assert labels_of_clients(unlike) < 3.5
    assert {len(part) for part in alike} <= set(range(36, 45))


def test_stacked_rows_are_a_mean():
    data = torch.arange(6.0)
    (rows,), weights = stacked((data,), [np.array([1, 2, 5]), np.array([0]), np.array([], dtype=int)])
    assert rows.shape == weights.shape == (3, 3)
    assert (weights * rows).sum(dim=1).tolist() == pytest.approx([8 / 3, 0.0, 0.0])
    assert weights[1].tolist() == [1.0, 0.0, 0.0]


def test_a_row_that_pads_holds_nothing_of_another_client():
    data = torch.tensor([[torch.nan], [1.0], [2.0]])
    (rows,), weights = stacked((data,), [np.array([0]), np.array([1, 2])])
    assert rows[0, 1].item() == weights[0, 1].item() == 0
    (rows,), _ = stacked((data,), [np.array([1, 2]), np.array([], dtype=int)])
    assert rows[1].isfinite().all()


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (lambda rng: split_evenly(3, 4, rng), "num_clients must be at most"),
        (lambda rng: split_dirichlet(LABELS, 4, rng, concentration=0.0), "concentration must be"),
        (lambda rng: split_by_label(LABELS, 4, rng, shards=0), "shards must be"),
    ],
)
def test_settings_are_refused(split, says):
    with pytest.raises(ValueError, match=says):
        split(np.random.default_rng(0))
