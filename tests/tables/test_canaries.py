"""Rows that are canaries: of the schema's form, at its edges, and of nothing in the table."""

import numpy as np
import pytest

from tacita.random import Randomness
from tacita.tables.encoding import Encoder
from tacita.tables.features import ArrayPiece, CategoryPiece, ClassTarget, NumberPiece, NumberTarget
from tacita.tables.table_audit import crafted

AGE = NumberPiece(column="age", lower=18.0, upper=90.0, centre=50.0, scale=20.0, steps=(32.0, 64.0), indicator=True)
BORN = NumberPiece(column="born", lower=0.0, upper=9000.0, centre=0.0, scale=1e4, date_format="%Y-%m-%d")
KIND = CategoryPiece(column="kind", values=("red", "green"), indicator=True)
AGES = CategoryPiece(column="age", values=("18", "40"))  # frequent values of a number
IMAGE = ArrayPiece(column="image", shape=(2, 3), lower=0.0, upper=255.0)
ILL = ClassTarget(column="ill", classes=("no", "yes"))
COST = NumberTarget(column="cost", lower=-5.0, upper=10.0, centre=0.0, scale=5.0)


def encoded(*pieces, target, rows=600, seed=0):
    encoder = Encoder(pieces=pieces, target=target, missing=("",))
    stream = Randomness.insecure(seed).key.stream("rows")
    return encoder, encoder.encode(crafted(encoder, rows, stream))


def test_every_row_counts_and_lies_within_the_bounds():
    encoder, found = encoded(AGE, AGES, BORN, KIND, target=ILL)
    assert found.valid.all()
    ages = found.features[:, encoder.feature_names.index("age")].numpy()
    assert ages.min() == pytest.approx((18 - 50) / 20)
    assert ages.max() == pytest.approx((90 - 50) / 20)
    for edge in (ages.min(), ages.max()):
        assert 0.2 < np.mean(ages == edge) < 0.47  # a third each
    assert not found.features[:, encoder.feature_names.index("age is missing")].any()
    assert found.features[:, encoder.feature_names.index("age = 18")].any()  # the lower edge is a frequent value


def test_every_value_and_every_class_occurs():
    encoder, found = encoded(KIND, target=ILL)
    assert encoder.feature_names == ("kind = red", "kind = green", "kind is other")
    assert (found.features.sum(1) == 1).all()
    np.testing.assert_allclose(found.features.mean(0).numpy(), 1 / 3, atol=0.12)
    np.testing.assert_allclose(np.bincount(found.target.numpy()) / 600, 1 / 2, atol=0.12)


def test_images_and_regressions():
    _, found = encoded(IMAGE, target=COST)
    assert set(found.features.unique().tolist()) == {0.0, 1.0}
    assert set(found.target.unique().tolist()) == {-1.0, 2.0}


def test_without_a_class_no_row_counts():
    _, found = encoded(KIND, target=ClassTarget(column="ill", classes=()))
    assert not found.valid.any()


def test_rows_follow_from_their_stream_alone():
    one, again, other = (encoded(AGE, KIND, target=ILL, seed=seed)[1].features for seed in (0, 0, 1))
    assert one.equal(again)
    assert not one.equal(other)
