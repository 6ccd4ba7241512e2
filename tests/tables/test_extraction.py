"""Features of many images: alone, in any company, in a file."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from tacita.tables import Scattering, scattering
from tacita.tables.extraction import IMAGES_AT_ONCE

ON_WINDOWS = os.name == "nt"


def images(rows: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, *(shape or (12, 12))), np.uint8)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def test_it_is_the_transform_of_each_image():
    found = scattering(images(3), groups=27)
    transform = Scattering(shape=(12, 12), groups=27)
    expected = [transform(torch.from_numpy(image / np.float32(255))).numpy() for image in images(3)]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, np.stack(expected), atol=2e-3, rtol=1e-3)  # 11 bits of a float16, up to 7


def test_no_other_image_shows_in_the_features_of_one():
    """Not in the last bit, whoever stands before it, and however many: neighbours must differ in one row alone."""
    given = images(IMAGES_AT_ONCE + 40)
    whole = scattering(given)
    for without in (0, 17, IMAGES_AT_ONCE):
        assert same_bits(scattering(np.delete(given, without, 0)), np.delete(whole, without, 0))
    hostile = given.copy()
    hostile[3] = 255
    assert same_bits(np.delete(scattering(hostile), 3, 0), np.delete(whole, 3, 0))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(threads: int):
    given, before = images(3 * IMAGES_AT_ONCE), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = scattering(given)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert same_bits(found, scattering(given))


def test_pixels_outside_the_range_are_clamped_and_others_count_as_zero():
    strange = np.zeros((4, 12, 12), np.float32)
    strange[0, 5, 5], strange[1, 5, 5], strange[2, 5, 5], strange[3, 5, 5] = np.nan, np.inf, -1e30, 1e30
    found = scattering(strange, lower=-1.0, upper=1.0)
    tame = np.zeros_like(strange)
    tame[0, 5, 5] = tame[1, 5, 5] = tame[2, 5, 5] = -1.0
    tame[3, 5, 5] = 1.0
    assert same_bits(found, scattering(tame, lower=-1.0, upper=1.0))


def test_no_images_are_an_ordinary_input(tmp_path: Path):
    assert scattering(images(0)).shape == (0, 81, 3, 3)
    assert scattering(images(0), cache=tmp_path / "features").shape == (0, 81, 3, 3)


@pytest.mark.parametrize("of", [torch.from_numpy, lambda array: array])
def test_a_tensor_is_taken_too(of):
    assert same_bits(scattering(of(images(2))), scattering(images(2)))


@pytest.mark.parametrize(
    "bounds", [{}, {"lower": 0.0}, {"lower": 1.0, "upper": 1.0}, {"lower": 0.0, "upper": float("inf")}]
)
def test_the_range_of_numbers_that_are_no_bytes_is_public_and_must_be_given(bounds: dict):
    with pytest.raises(ValueError, match="lower and upper"):
        scattering(images(2).astype(np.float32), **bounds)


def test_a_file_is_private_and_read_back_bit_for_bit(tmp_path: Path):
    path, given = tmp_path / "features.safetensors", images(IMAGES_AT_ONCE + 3, 12, 12, 3)
    written = scattering(given, cache=path)
    assert isinstance(written, np.memmap)
    assert not written.flags.writeable
    assert same_bits(written, scattering(given))
    assert ON_WINDOWS or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert same_bits(safetensors.numpy.load_file(path)["features"], written)


def test_a_file_is_used_again_only_for_the_same_images_and_settings(tmp_path: Path):
    path, given = tmp_path / "features", images(4)
    scattering(given, cache=path)
    first = path.stat().st_mtime_ns, path.stat().st_ino
    scattering(given, cache=path)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == first
    other = given.copy()
    other[3, 0, 0] ^= 255
    cases: tuple[tuple[np.ndarray, dict], ...] = (
        (other, {}),
        (given, {"groups": 27}),
        (given, {"lower": 0.0, "upper": 254.0}),
    )
    for changed, settings in cases:
        scattering(given, cache=path)
        assert same_bits(scattering(changed, cache=path, **settings), scattering(changed, **settings))


def test_a_torn_file_is_made_again(tmp_path: Path):
    path, given = tmp_path / "features", images(4)
    whole = np.array(scattering(given, cache=path))
    path.write_bytes(path.read_bytes()[:-5])
    assert same_bits(scattering(given, cache=path), whole)
