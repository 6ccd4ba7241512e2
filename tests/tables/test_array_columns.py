"""Array columns: scaled by public numbers or by each row alone, or replaced by fixed features of images."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tacita.tables import Encoder, Schema, make_encoder, scattering
from tacita.tables.encoded_file import EncodedFile
from tacita.tables.features import GROUPS, ArrayPiece, ScatteringPiece
from tacita.tables.table import ArrayColumn, NumberColumn, Table

SCHEMA = """
rows = 40
[target]
column = "digit"
classes = [0, 1]
[columns.image]
kind = "array"
shape = [10, 12]
lower = 0
upper = 255
"""


def images(rows: int = 40) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (rows, 10, 12), np.uint8)


def piece_of(line: str = "") -> ArrayPiece | ScatteringPiece:
    (piece,) = make_encoder(Schema.loads(SCHEMA + line)).pieces
    assert isinstance(piece, ArrayPiece | ScatteringPiece)
    return piece


def features(piece: ArrayPiece | ScatteringPiece, values: np.ndarray) -> np.ndarray:
    return piece.encode(ArrayColumn(values), ())


def test_public_numbers_centre_and_scale():
    found = features(piece_of("centre = 100.0\nscale = 50.0"), images())
    np.testing.assert_allclose(found, (images().reshape(40, -1).astype(float) - 100) / 50, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 3])
def test_groups_are_normalised_by_each_row_alone(groups: int):
    piece, given = piece_of(f"groups = {groups}"), images()
    found = features(piece, given)
    grouped = found.reshape(40, groups, -1).astype(float)
    np.testing.assert_allclose(grouped.mean(2), 0, atol=1e-5)
    np.testing.assert_allclose(grouped.std(2), 1, atol=1e-3)
    assert features(piece, np.delete(given, 3, 0)).tobytes() == np.delete(found, 3, 0).tobytes()


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((81, 7, 7), 27),
        ((64, 8, 8), 16),
        ((83, 7, 7), 1),  # no other divisor
        ((27, 4, 6), 9),  # 27 groups would have 24 numbers each
        ((6, 2, 5), None),  # 60 numbers in all
        ((28, 28), None),
        ((3, 32, 32), None),
        ((32, 32, 3), None),
        ((784,), None),
    ],
)
def test_feature_maps_are_normalised_by_default(shape: tuple[int, ...], groups: int | None):
    text = SCHEMA.replace("shape = [10, 12]", f"shape = {list(shape)}")
    (piece,) = make_encoder(Schema.loads(text)).pieces
    assert isinstance(piece, ArrayPiece)
    assert (piece.groups, piece.centre, piece.scale) == (groups, None, None)
    (declared,) = make_encoder(Schema.loads(text + "groups = 2" * (shape[0] % 2 == 0))).pieces
    assert isinstance(declared, ArrayPiece)
    assert declared.groups == (2 if shape[0] % 2 == 0 else groups)
    (scaled,) = make_encoder(Schema.loads(text + "centre = 0.0\nscale = 1.0")).pieces
    assert isinstance(scaled, ArrayPiece)
    assert (scaled.groups, scaled.centre, scaled.scale) == (None, 0.0, 1.0)


def test_a_map_of_features_far_from_the_middle_of_its_bounds_is_centred():
    text = SCHEMA.replace("shape = [10, 12]", "shape = [10, 5, 5]")
    (piece,) = make_encoder(Schema.loads(text)).pieces
    maps = np.random.default_rng(2).normal(200, 20, (40, 10, 5, 5)).astype(np.float32)
    grouped = piece.encode(ArrayColumn(maps), ()).reshape(40, 2, -1).astype(float)  # 125 numbers a group
    np.testing.assert_allclose(grouped.mean(2), 0, atol=1e-4)
    np.testing.assert_allclose(grouped.std(2), 1, atol=1e-2)


@pytest.mark.parametrize("line", ["", "centre = 9.0\nscale = 3.0", "groups = 3", 'features = "scattering"'])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_any_content_becomes_finite_numbers(line: str, value: float):
    strange = np.zeros((2, 10, 12), np.float32)
    strange[1, 3:] = value
    assert np.isfinite(features(piece_of(line), strange)).all()
    strange[:] = value
    assert np.isfinite(features(piece_of(line), strange)).all()


def test_scattering_takes_the_place_of_the_values():
    piece = piece_of('features = "scattering"')
    found = features(piece, images())
    expected = scattering(images(), groups=GROUPS).reshape(40, -1)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected.astype(np.float32))
    assert (piece.width, len(piece.names), piece.names[1]) == (found.shape[1], found.shape[1], "image scattering[1]")


def test_mirrored_features_are_declared_beside_them():
    found = features(piece_of('features = "scattering"\nmirrored = true'), images())
    expected = scattering(images(), groups=GROUPS, mirrored=True).reshape(40, -1)
    assert np.array_equal(found, expected.astype(np.float32))
    assert not np.array_equal(found, features(piece_of('features = "scattering"'), images()))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "centre = 9.0\nscale = 3.0",
        "groups = 3",
        'features = "scattering"',
        'features = "scattering"\nmirrored = true',
    ],
)
def test_what_is_encoded_is_read_back_exactly_and_so_is_the_encoder(tmp_path: Path, line: str):
    encoder = make_encoder(Schema.loads(SCHEMA + line))
    encoder.save(tmp_path / "encoder.json")
    assert Encoder.load(tmp_path / "encoder.json") == encoder
    encoded = encoder.encode(Table({"image": ArrayColumn(images()), "digit": NumberColumn(np.arange(40) % 2)}))
    file = EncodedFile(encoder, tmp_path)
    file.append(encoded, np.ones(40, bool))
    order = np.random.default_rng(2).permutation(40)
    assert torch.equal(file.fetch(order, 0)[0], encoded.features[order])
    (chunk,) = file.chunks()
    assert torch.equal(chunk.features, encoded.features)


def test_an_encoder_from_before_these_settings_is_read_as_it_was_meant():
    old = {"piece": "array", "column": "image", "shape": [10, 12], "lower": 0.0, "upper": 255.0}
    (piece,) = Encoder.from_dict({"pieces": [old], "missing": [""]}).pieces
    assert isinstance(piece, ArrayPiece)
    expected = images().reshape(40, -1).astype(np.float32) / np.float32(255)
    assert np.array_equal(features(piece, images()), expected)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("centre = 1.0", "centre and scale go together"),
        ("scale = 1.0", "centre and scale go together"),
        ("centre = 1.0\nscale = 0.0", "scale"),
        ("centre = 1.0\nscale = -1.0", "scale"),
        ("centre = 1.0\nscale = 1e-300", "scale must be larger"),
        ("centre = 1.0\nscale = 1.0\ngroups = 3", "groups normalise each row"),
        ("groups = 0", "groups must divide"),
        ("groups = 7", "groups must divide"),
        ('features = "wavelets"', "wavelets"),
        ('features = "scattering"\ncentre = 1.0\nscale = 1.0', "centre and scale belong to values"),
        ('features = "scattering"\ngroups = 10', "groups must divide the 81 channels"),
        ("mirrored = true", "mirrored belongs to features"),
        ('shape = [120]\nfeatures = "scattering"', "shape must be that of an image"),
    ],
)
def test_a_wrong_setting_is_named(line: str, named: str):
    text = SCHEMA.replace("shape = [10, 12]\n", "") if line.startswith("shape") else SCHEMA
    with pytest.raises(ValueError, match=named):
        Schema.loads(text + line)
