"""The scattering transform against kymatio's numbers, and each image against the others."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tacita.tables import Scattering

REFERENCE = np.load(Path(__file__).with_name("kymatio.npz"))  # kymatio 0.3.0, images of random bytes divided by 255
CASES = [name.removeprefix("image_") for name in REFERENCE.files if name.startswith("image_")]
NEAR = 3e-5  # kymatio writes 3.1415 for pi in the norm of its filters: 3e-5 of a coefficient, which is at most 1


def reference(case: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, int]]:
    _, scales, orientations = case.split("_")
    image = torch.from_numpy(REFERENCE[f"image_{case}"]) / 255
    settings = {"num_scales": int(scales), "num_orientations": int(orientations)}
    return image, torch.from_numpy(REFERENCE[f"scattering_{case}"]), settings


@pytest.mark.parametrize("case", CASES)
def test_the_coefficients_are_those_of_kymatio(case: str):
    image, expected, settings = reference(case)
    transform = Scattering(shape=tuple(image.shape), **settings)
    assert transform.feature_shape == tuple(expected.shape)
    torch.testing.assert_close(transform(image), expected, atol=NEAR, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_the_comparison_sees_the_order_of_the_channels(case: str):
    image, expected, settings = reference(case)
    found = Scattering(shape=tuple(image.shape), **settings)(image)
    assert (found.roll(1, 0) - expected).abs().max() > 100 * NEAR


@pytest.mark.parametrize("last", [True, False])
def test_each_channel_of_an_image_is_transformed_alone(last: bool):
    image = torch.rand(3, 16, 20)
    channels = [Scattering(shape=(16, 20))(one) for one in image]
    given = image.permute(1, 2, 0) if last else image
    found = Scattering(shape=tuple(given.shape))(given)
    torch.testing.assert_close(found, torch.cat(channels))


def test_groups_are_those_of_torch():
    image = torch.rand(28, 28)
    plain, grouped = (Scattering(shape=(28, 28), groups=groups)(image) for groups in (None, 27))
    expected = torch.nn.functional.group_norm(plain[None], 27, eps=1e-5)[0]
    torch.testing.assert_close(grouped, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("shape", "width"), [((16, 20), 1), ((3, 16, 20), 2), ((16, 20, 3), 1)])
@pytest.mark.parametrize("groups", [None, 27])
def test_an_image_and_its_mirror_image_have_the_same_mirrored_features(shape, width, groups):
    transform = Scattering(shape=shape, groups=groups, mirrored=True)
    image = torch.rand(shape)
    assert transform(image).equal(transform(image.flip(width)))
    assert not transform(image).equal(transform(image.flip(1 - width % 2)))  # upside down
    plain = Scattering(shape=shape)
    expected = (plain(image) + plain(image.flip(width))) / 2
    if groups is not None:
        expected = torch.nn.functional.group_norm(expected[None], groups, eps=1e-5)[0]
    torch.testing.assert_close(transform(image), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_image_of_one_grey_is_an_ordinary_image(value: float):
    found = Scattering(shape=(28, 28), groups=27)(torch.full((28, 28), value))
    assert found.isfinite().all()
    plain = Scattering(shape=(28, 28))(torch.full((28, 28), value))
    torch.testing.assert_close(plain[0], torch.full((7, 7), value), atol=1e-5, rtol=0)  # the average of a constant
    assert plain[1:].abs().max() < 1e-6  # and wavelets have mean zero


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"shape": (28,)}, "shape"),
        ({"shape": (2, 28, 28)}, "shape"),
        ({"shape": (4, 28)}, "shape"),
        ({"shape": (28, 2048)}, "shape"),
        ({"shape": (28, 28), "groups": 10}, "groups"),
        ({"shape": (28, 28), "groups": 0}, "groups"),
        ({"shape": (28, 28), "num_scales": 0}, "num_scales"),
        ({"shape": (28, 28), "num_orientations": 0}, "num_orientations"),
        ({"shape": (28, 0)}, "shape"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict, named: str):
    with pytest.raises(ValueError, match=named):
        Scattering(**settings)
