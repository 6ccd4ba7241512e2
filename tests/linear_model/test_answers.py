"""What one record holds changes neither the dtype of labels and targets, nor what is raised."""

import math
from typing import Any

import numpy as np
import pytest

from tacita.linear_model import PrivateLinearSVC, PrivateRidge
from tacita.linear_model.answers import named_classes, read_labels, read_targets


class Raises:
    """An object whose conversions all raise, with a message that quotes it."""

    def __float__(self):
        raise RuntimeError("secret")

    def __str__(self):
        raise RuntimeError("secret")


HOSTILE: tuple[Any, ...] = (None, "x", math.nan, 10**5000, Raises(), 1j, [1, 2], b"\xff", np.datetime64("NaT"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("entry", HOSTILE, ids=lambda entry: type(entry).__name__)
def test_one_entry_leaves_the_others_alone(entry):
    """In a list, and in an array of objects, which NumPy makes of both."""
    usual = [0, 1, 1, 0]
    spoiled = [0, 1, 1, entry]
    array = np.empty(4, object)
    array[:] = spoiled
    for y in (spoiled, array):
        assert read_targets(y, 4)[:3].tolist() == read_targets(usual, 4)[:3].tolist() == [0, 1, 1]
        assert not np.isfinite(read_targets(y, 4)[3])
        assert read_labels(y, 4, [0, 1])[:3].tolist() == [0, 1, 1]
        assert read_labels(y, 4, [0, 1])[3] not in (0, 1)
    labels = read_labels(spoiled, 4, None)
    assert labels[:3].tolist() == read_labels(usual, 4, None)[:3].tolist()
    assert named_classes(spoiled, np.unique(labels[:3]))[0].tolist() == [0, 1]


def test_classes_of_a_list_keep_their_kind_and_order():
    found = np.array(["int 10", "int 9", "int -1"])
    classes, known = named_classes([9, 10], found)
    assert (classes.tolist(), known.tolist()) == ([-1, 9, 10], ["int -1", "int 9", "int 10"])
    mixed, _ = named_classes(["b", 1], np.array(["text b", "int 1"]))
    assert mixed.tolist() == ["1", "b"]
    texts, _ = named_classes(["a", "int 1"], np.array(["text a", "text int 1"]))
    assert texts.tolist() == ["a", "int 1"]


def test_a_missing_answer_in_a_list_is_one_row_that_contributes_nothing():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 2))
    labels, numbers = (X[:, 0] > 0).astype(int).tolist(), X[:, 0].tolist()
    settings = {"epsilon": 1.0, "delta": 1e-6, "data_norm": 3.0, "insecure_seed": 0}
    for classes in ([0, 1], None):
        usual = PrivateLinearSVC(classes=classes, **settings).fit(X, labels)
        spoiled = PrivateLinearSVC(classes=classes, **settings).fit(X, [None, *labels[1:]])
        assert spoiled.coef_ == pytest.approx(usual.coef_, rel=0.05, abs=0.05)
        assert spoiled.classes_.tolist() == [0, 1]
        assert usual.score(X, labels) > 0.9
    usual = PrivateRidge(target_range=(-3.0, 3.0), **settings).fit(X, numbers)
    spoiled = PrivateRidge(target_range=(-3.0, 3.0), **settings).fit(X, [None, *numbers[1:]])
    assert spoiled.coef_ == pytest.approx(usual.coef_, rel=0.05, abs=0.05)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: read_targets(["a"] * 3, 2), "one number for each of 2 rows, got 3"),
        (lambda: read_labels([1, 2], 3, None), "one label for each of 3 rows, got 2"),
        (lambda: read_targets(np.array(["a", "b"]), 2), "y must hold numbers, got dtype"),
        (lambda: read_labels(np.array([1.5, 2.0]), 2, None), "Unknown label type"),
    ],
)
def test_shapes_and_dtypes_raise(read, message):
    with pytest.raises(ValueError, match=message):
        read()
