import numpy as np
import pytest
import torch

from tacita.gradients.given import GivenEngine, GivenSource

GROUPS = {"all": ("theta",)}


def clip(norms):
    return torch.where(norms.isfinite(), (1 / norms).clamp(max=1), 0.0)


@pytest.fixture
def grads():
    return torch.randn(3, 2, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_leading_axes_are_runs_of_their_own(grads):
    sums = GivenEngine(grads).weighted_sums(clip, GROUPS)
    assert sums.norms.shape == (3, 2, 6, 1)
    assert sums.values[0]["theta"].shape == (3, 2, 4)
    alone = GivenEngine(grads[2, 1]).weighted_sums(clip, GROUPS)
    torch.testing.assert_close(sums.values[0]["theta"][2, 1], alone.values[0]["theta"])
    torch.testing.assert_close(sums.norms[2, 1], alone.norms)


def test_groups_have_norms_and_weights_of_their_own():
    engine = GivenEngine({"a": torch.tensor([[3.0, 4.0]]), "b": torch.tensor([[0.6]])})
    sums = engine.weighted_sums(clip, {"first": ("a",), "second": ("b",)})
    torch.testing.assert_close(sums.norms, torch.tensor([[5.0, 0.6]]).double())
    torch.testing.assert_close(sums.values[0], {"a": torch.tensor([0.6, 0.8]), "b": torch.tensor([0.6])})


@pytest.mark.parametrize("hostile", [torch.nan, torch.inf, 1e30, 0.0])
def test_a_masked_row_is_absent_whatever_it_holds(grads, hostile):
    grads[:, :, 3] = hostile
    mask = torch.ones(3, 2, 6, dtype=torch.bool)
    mask[..., 3] = False
    rest = [0, 1, 2, 4, 5]
    for rule in (clip, torch.ones_like):  # the second does not look at the norm
        got = GivenEngine(grads, mask=mask).weighted_sums(rule, GROUPS)
        expected = GivenEngine(grads[:, :, rest]).weighted_sums(rule, GROUPS)
        torch.testing.assert_close(got.values[0]["theta"], expected.values[0]["theta"])
        torch.testing.assert_close(got.norms[:, :, rest], expected.norms)
        assert got.norms[:, :, 3].isnan().all()


def test_one_batch_serves_many_masks(grads):
    batch = grads[0, 0]
    masks = torch.rand(1000, 6, generator=torch.Generator().manual_seed(1)) < 0.5
    got = GivenEngine(batch, mask=masks).weighted_sums(clip, GROUPS)
    clipped = batch * clip(batch.norm(dim=1, keepdim=True))
    torch.testing.assert_close(got.values[0]["theta"], masks.double() @ clipped)
    (rows,) = GivenEngine(batch, mask=masks).materialise()
    assert rows["theta"].shape == (1000, 6, 4)
    assert torch.equal(rows["theta"][..., 0].isnan(), ~masks)


def test_an_empty_batch(grads):
    engine = GivenEngine(grads[:, :, :0])
    sums = engine.weighted_sums(clip, GROUPS)
    assert sums.norms.shape == (3, 2, 0, 1)
    assert torch.equal(sums.values[0]["theta"], torch.zeros(3, 2, 4, dtype=torch.float64))
    assert list(engine.materialise()) == []


def test_the_source_takes_rows_by_index_and_labels_them(grads):
    source = GivenSource(grads)
    assert source.num_rows == 6
    assert source.shapes == {"theta": torch.Size([4])}
    engine = source.engine({"theta": torch.zeros(4)}, np.array([1, 4]))
    assert engine.labels.tolist() == [1, 4]
    (rows,) = engine.materialise()
    assert torch.equal(rows["theta"], grads[:, :, [1, 4]])
    assert source.engine({}, np.array([], dtype=np.int64)).norms(GROUPS).shape == (3, 2, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(grads=torch.ones(3)), "grads must be floating-point"),
        (dict(grads=torch.ones(3, 2, dtype=torch.int64)), "grads must be floating-point"),
        (dict(grads={}), "at least one tensor"),
        (dict(grads={"a": torch.ones(3, 2), "b": torch.ones(4, 2)}), "same axes"),
        (dict(grads=torch.ones(3, 2), labels=torch.arange(2)), "labels must have shape"),
        (dict(grads=torch.ones(3, 2), mask=torch.ones(3)), "mask must be bool"),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        GivenEngine(**arguments)
