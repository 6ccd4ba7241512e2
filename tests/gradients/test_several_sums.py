"""Several weighted sums of one pass: each is what it would be alone; weight 0 masks a row only where it must."""

import pytest
import torch
from torch import nn

from tacita.gradients import NetworkSource
from tacita.gradients.rules.uses import row_weights


def losses(model, batch):
    return (model(batch[0]) - batch[1]).square().sum(1)


def weights(norms):
    share = (1.0 / norms).clamp(max=1.0)
    return share, torch.where(norms.isfinite(), 1 - share, 0.0), (norms > 2).to(norms.dtype)


@pytest.mark.parametrize("outputs", [1, 3, 40])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hostile", [None, torch.nan, torch.inf])
def test_together_or_one_by_one(outputs, bias, hostile):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    if hostile is not None:
        x[3, 1] = hostile
    model = nn.Linear(5, outputs, bias=bias).double()
    source = NetworkSource(model, losses, (x, torch.zeros(12, outputs, dtype=torch.float64)), method="program")
    engine = source.engine(dict(model.named_parameters()), torch.arange(12).numpy())
    groups = {"all": tuple(name for name, _ in model.named_parameters())}

    def rule(norms):
        return tuple(torch.where(norms.isfinite(), w, 0.0) for w in weights(norms))

    together = engine.weighted_sums(rule, groups).values
    for index, sums in enumerate(together):
        (alone,) = engine.weighted_sums(lambda norms, index=index: rule(norms)[index], groups).values
        for name in groups["all"]:
            assert sums[name].isfinite().all()
            torch.testing.assert_close(sums[name], alone[name], rtol=1e-12, atol=1e-12)
            assert sums[name].untyped_storage().nbytes() == sums[name].nbytes  # holds no other sum in memory


@pytest.mark.parametrize(
    ("values", "norms", "plain"),
    [
        ([1.0, 0.5], [1.0, 2.0], True),
        ([1.0, 0.0], [1.0, 2.0], True),  # absent by its weight alone: its row is finite
        ([1.0, 0.0], [1.0, torch.nan], False),
        ([1.0, 0.0], [1.0, torch.inf], False),
        ([1.0, 1.5], [1.0, 2.0], False),  # may overflow
    ],
)
def test_rows_are_masked_where_they_must_be(values, norms, plain):
    given = [torch.tensor(x).unsqueeze(-1) for x in (values, norms)]
    (found,) = row_weights(given[0], torch.float32, given[1])
    assert found.plain == plain
    (cautious,) = row_weights(given[0], torch.float32)
    assert cautious.plain == (min(values) > 0 and max(values) <= 1)
