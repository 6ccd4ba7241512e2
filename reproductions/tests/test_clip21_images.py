"""Figures 3 and 4: the networks, CIFAR-10 from a folder, layer-wise thresholds, and a small run of each."""

import numpy as np
import pytest
import torch

from tacita.clipping import FlatClipper, PerLayerClipper
from tacita_reproductions.catalogue import find
from tacita_reproductions.clip21_images import CLIPPINGS, LAYERS, REDUCED, SMALL, WHOLE, cifar, clipper, resnet20, vgg16
from tacita_reproductions.federated_grid import METHODS


def parameters(network):
    return sum(p.numel() for p in network.parameters())


def test_the_networks_have_the_published_sizes():
    """ResNet20 has 0.27 million parameters (He et al. 2016, Table 6); VGG16's convolutions 14.7 million."""
    assert 0.268e6 < parameters(resnet20(1)) < 0.274e6
    assert 14.71e6 < parameters(vgg16(1)) < 14.74e6
    x = torch.randn(2, 3, 32, 32)
    assert resnet20(1 / 4)(x).shape == vgg16(1 / 32)(x).shape == (2, 10)


def test_every_layer_has_the_threshold():
    network = resnet20(1 / 8)
    shapes = {name: p.shape for name, p in network.named_parameters()}
    found = clipper(LAYERS, 0.1, network)
    assert isinstance(found, PerLayerClipper)
    assert list(found.max_contribution(shapes).values()) == pytest.approx([0.1] * len(found.groups(shapes)))
    assert clipper(CLIPPINGS[0], 0.1, network) == FlatClipper(max_grad_norm=0.1)


def test_cifar_comes_from_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    subset = {"x_train": rng.integers(0, 256, (30, 3, 32, 32), np.uint8), "y_train": np.arange(30) % 10}
    np.savez(tmp_path / "cifar10_subset.npz", **subset, x_test=subset["x_train"][:9], y_test=np.arange(9))
    (images, labels), (tested, _) = cifar(tmp_path, REDUCED, full=False)
    assert (images.shape, tested.shape, labels[11]) == ((30, 3, 16, 16), (9, 3, 16, 16), 1)
    expected = subset["x_train"][3, 1, :2, :2].mean() / 127.5 - 1  # a pixel of 16 x 16 is the mean of four
    assert images[3, 1, 0, 0] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match=r"lacks cifar-10-batches-bin/data_batch_1\.bin"):
        cifar(tmp_path, REDUCED, full=True)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for part, name in enumerate(WHOLE):
        record = np.concatenate([[part], np.full(1024, 255), np.zeros(2048)]).astype(np.uint8)
        (tmp_path / name).write_bytes(record.tobytes() * 2)
    (images, labels), (_, test_labels) = cifar(tmp_path, SMALL, full=True)
    assert labels.tolist() == [part for part in range(5) for _ in range(2)]
    assert (images[0, :, 0, 0].tolist(), test_labels.tolist()) == ([1.0, -1.0, -1.0], [5, 5])


@pytest.mark.parametrize("name", ["clip21-resnet20", "clip21-vgg16"])
def test_a_small_run_shows_a_table_and_its_claims(name):
    result = find(name)()
    assert {(row["data"], row["method"]) for row in result.rows} == {(c, m) for c in CLIPPINGS for m in METHODS}
    assert all(0 <= row["test accuracy"] <= 1 for row in result.rows)
    assert len(result.checks) == 6
    pytest.importorskip("matplotlib")
    assert result.draw is not None
    result.draw()
