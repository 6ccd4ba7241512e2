"""The recipes of docs/how-good.md, on a few hundred images: they run, spend what they say, and learn."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tacita.tables import scattering

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("records")


def images(rows: int, seed: int) -> tuple[np.ndarray, torch.Tensor]:
    """Return two classes of noisy stripes, of which one lies and one stands."""
    coins = np.random.default_rng(seed)
    labels = coins.integers(0, 2, rows)
    stripes = np.where(np.arange(12) % 4 < 2, 60, 180)
    drawn = np.where(labels[:, None, None] == 1, stripes[:, None], stripes) + coins.integers(-40, 40, (rows, 12, 12))
    return drawn.astype(np.uint8), torch.from_numpy(labels)


@pytest.mark.parametrize(("name", "ceiling_lr"), [("mnist-groups", 3e-4), ("mnist-moments", 3e-4), ("cifar-cnn", 3e-3)])
def test_a_recipe_learns_within_its_budget(records: ModuleType, name: str, ceiling_lr: float):
    recipe = replace(records.RECIPES[name], image=(12, 12), batch=100, epochs=4, lr=2)
    recipe = replace(recipe, ceiling_lr=ceiling_lr, ceiling_epochs=6)
    pixels, labels = images(400, 0)
    features = scattering(pixels, groups=recipe.groups or None)
    model, told = records.private(recipe, features, labels, 8.0)
    assert 7 < told["epsilon"] <= 8
    assert told["steps"] == 16
    fresh, truth = images(200, 1)
    test = scattering(fresh, groups=recipe.groups or None)
    assert records.accuracy(model, test, truth) > 0.8
    assert records.accuracy(records.without_privacy(recipe, features, labels), test, truth) > 0.95
    with pytest.raises(AssertionError):
        assert (
            records.accuracy(records.Head(features.shape[1:], None), test, truth) > 0.8
        )  # a model that learned nothing


def test_mirrored_features_are_the_same_for_an_image_and_its_mirror_image(
    records: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    colours = np.random.default_rng(3).integers(0, 256, (5, 12, 12, 3), np.uint8)
    recipe = replace(records.RECIPES["cifar-mirrored"], image=(12, 12, 3))
    found = []
    for shown in (colours, colours[:, :, ::-1]):
        monkeypatch.setattr(records, "cifar", lambda part, shown=shown: (shown, np.arange(5)))
        found.append(records.load(recipe, tmp_path, "train")[0])
    np.testing.assert_array_equal(*found)
    once = records.load(replace(recipe, mirrored=False), tmp_path, "train")[0].astype(np.float32)
    other = scattering(colours).astype(np.float32)  # `once` is of the mirror images
    np.testing.assert_allclose(found[0], (once + other) / 2, rtol=1e-3)
    assert np.abs(once - other).max() > 0.01


def test_the_small_network_is_that_of_the_paper(records: ModuleType):
    network = records.small_network((243, 8, 8))
    assert sum(p.numel() for p in network.parameters()) == 187_210  # (243 + 64) 64 9 + 128, and 1024 10 + 10


def test_exact_moments_are_those_of_the_data(records: ModuleType):
    features = scattering(images(30, 2)[0])
    layer, wide = records.exact_moments(features), features.astype(np.float64)
    np.testing.assert_allclose(layer.mean, wide.mean((0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(layer.std, wide.std((0, 2, 3)), rtol=1e-2, atol=1e-5)


def test_the_figure_shows_every_run(records: ModuleType, tmp_path: Path):
    pytest.importorskip("matplotlib")
    figure = importlib.import_module("records_figure")
    runs = [{"recipe": "mnist-groups", "epsilon": e, "test_accuracy": a} for e, a in ((2.93, 0.98), (None, 0.99))]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    figure.draw(figure.read(tmp_path / "runs.jsonl"), tmp_path / "drawn.svg")
    first = (tmp_path / "drawn.svg").read_bytes()
    assert first.startswith(b"<?xml")
    figure.draw(runs, tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_bytes() == first
    figure.draw(runs[1:], tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_bytes() != first
