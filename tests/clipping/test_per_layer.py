"""Per-layer clipping: how layers are found and thresholds shared, and settings that are refused."""

import math

import pytest
import torch

from tacita.clipping import PerLayerClipper

SHAPES = {
    "body.0.weight": torch.Size([2, 3]),
    "body.0.bias": torch.Size([2]),
    "body.10.weight": torch.Size([2, 3]),
    "head.weight": torch.Size([2, 3]),
}


def test_a_number_is_split_so_that_the_whole_is_bounded_by_it():
    clipper = PerLayerClipper(max_grad_norm=3.0)
    assert clipper.groups(SHAPES) == {
        "body.0": ("body.0.weight", "body.0.bias"),
        "body.10": ("body.10.weight",),
        "head": ("head.weight",),
    }
    bounds = clipper.max_contribution(SHAPES).values()
    assert math.sqrt(sum(c * c for c in bounds)) == pytest.approx(3.0, rel=1e-15)


def test_each_layer_has_its_own_threshold_in_the_order_of_groups():
    clipper = PerLayerClipper(max_grad_norm={"head": 1.0, "body": 2.0})
    assert list(clipper.groups(SHAPES)) == ["head", "body"]
    weights = clipper.weights(torch.tensor([[4.0, 4.0]], dtype=torch.float64))
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.5]], dtype=torch.float64), rtol=1e-14, atol=0)


def test_the_longest_prefix_wins_and_ends_at_a_dot():
    clipper = PerLayerClipper(max_grad_norm={"": 1.0, "body.1": 2.0, "body.0": 3.0, "body": 4.0})
    with pytest.raises(ValueError, match=r"max_grad_norm\['body.1'\] names no parameter"):
        clipper.groups(SHAPES)
    groups = PerLayerClipper(max_grad_norm={"": 1.0, "body.0": 3.0, "body": 4.0}).groups(SHAPES)
    assert groups == {"": ("head.weight",), "body.0": ("body.0.weight", "body.0.bias"), "body": ("body.10.weight",)}


def test_a_layer_without_threshold_is_refused():
    with pytest.raises(ValueError, match=r"no entry for the parameter 'head.weight'"):
        PerLayerClipper(max_grad_norm={"body": 1.0}).groups(SHAPES)


def test_a_later_change_of_the_mapping_changes_nothing():
    thresholds = {"body": 1.0, "head": 2.0}
    clipper = PerLayerClipper(max_grad_norm=thresholds)
    thresholds["body"] = 100.0
    assert clipper.max_contribution(SHAPES) == {"body": 1.0, "head": 2.0}


@pytest.mark.parametrize("wrong", [0.0, float("nan"), {"body": -1.0}, {}])
def test_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="max_grad_norm"):
        PerLayerClipper(max_grad_norm=wrong)
