"""What the README says of Opacus, and of tacita in the same place. Skipped where Opacus is not installed."""

import importlib.util
import warnings

import pytest
import torch
from torch import Tensor, nn

import tacita
from tacita.sampling import Sampler

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        importlib.util.find_spec("opacus") is None,
        reason="Opacus is not installed: pip install -c constraints.txt '.[bench]'",
    ),
]

WIDTH, ROWS, BATCH, EPOCHS = 4, 200, 20, 3


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def table() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.arange(ROWS) % 2


def opacus_private(model: nn.Module, data: tuple[Tensor, Tensor], poisson: bool = True):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=BATCH, shuffle=True)
    import opacus  # two seconds, which collecting the tests need not wait for

    engine = opacus.PrivacyEngine()
    private = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=poisson,
    )
    return engine, *private


def opacus_epsilon(poisson: bool) -> float:
    """Epsilon that Opacus reports for a few epochs."""
    engine, model, optimizer, loader = opacus_private(nn.Linear(WIDTH, 2), table(), poisson)
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return engine.get_epsilon(1e-5)


def tacita_epsilon(sampler: Sampler) -> float:
    """Epsilon of the same plan here, under the relation for which a permutation has a proof."""
    ledger = tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row")
    tacita.ClippedGradientOracle(
        nn.Linear(WIDTH, 2),
        cross_entropy,
        table(),
        ledger=ledger,
        sampler=sampler,
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=EPOCHS * ROWS // BATCH,
    )
    return ledger.epsilon(1e-5)


def test_shuffled_batches_are_not_accounted_as_poisson():
    assert opacus_epsilon(poisson=False) == pytest.approx(opacus_epsilon(poisson=True), rel=1e-6)
    poisson = tacita_epsilon(tacita.PoissonSampler(sample_rate=BATCH / ROWS, num_records=ROWS))
    shuffled = tacita_epsilon(tacita.ShuffledEpochsSampler(batches_per_epoch=ROWS // BATCH, num_records=ROWS))
    assert shuffled > 1.5 * poisson


def cancelling_record() -> tuple[nn.Linear, Tensor, Tensor]:
    """A layer, two tokens of size 1e4 that hardly differ, and opposite output gradients: the Gram norm cancels."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 64, bias=False)
    for _ in range(10_000):
        token = torch.randn(64, generator=generator)
        token = 1e4 * token / token.norm()
        tokens = torch.stack([token, token + 0.3 * torch.randn(64, generator=generator)])[None]
        slope = 10 * torch.randn(64, generator=generator)
        slopes = torch.stack([slope, -slope])[None]
        if opacus_norm(layer, tokens, slopes) == 0.0 and true_norm(tokens, slopes) > 10:
            return layer, tokens, slopes
    raise AssertionError("no record found whose Gram norm cancels")


def opacus_norm(layer: nn.Linear, tokens: Tensor, slopes: Tensor) -> float:
    from opacus.grad_sample.linear import compute_linear_norm_sample

    return compute_linear_norm_sample(layer, [tokens], slopes)[layer.weight].item()


def true_norm(tokens: Tensor, slopes: Tensor) -> float:
    return torch.einsum("bti,btj->bij", slopes.double(), tokens.double()).norm().item()


@pytest.mark.parametrize("method", ["auto", "loop"])
def test_a_gram_norm_that_cancels_is_an_upper_bound_here(method: str):
    layer, tokens, slopes = cancelling_record()
    found = tacita.clipped_gradient_sum(
        layer,
        lambda model, batch: (model(batch[0]) * batch[1]).sum((1, 2)),
        (tokens, slopes),
        tacita.FlatClipper(max_grad_norm=1.0),
        method=method,
    )
    assert found.norms.item() >= true_norm(tokens, slopes) * (1 - 1e-5)
    assert found.sum["weight"].double().norm() <= 1 + 1e-5


def test_the_divisor_of_neighbouring_data_sets_is_the_same_here():
    x, y = table()
    sizes = [opacus_private(nn.Linear(WIDTH, 2), data)[2].expected_batch_size for data in ((x, y), (x[1:], y[1:]))]
    assert sizes == [BATCH, BATCH - 1]
    sampler = tacita.PoissonSampler(sample_rate=BATCH / ROWS, num_records=ROWS)
    assert (
        sampler.expected_batch_size == BATCH
    )  # known without data; tests/oracles/test_gradient_oracle.py has the release


def batch_norm_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].requires_grad_(False)  # frozen, but left in training mode
    return model.train()


def test_a_frozen_batch_norm_in_training_mode_is_refused():
    model = batch_norm_model()
    _, private, _, _ = opacus_private(model, table())
    before = model[1].running_mean.clone()
    private(table()[0])
    assert not torch.equal(before, model[1].running_mean)  # raw data, in a buffer that state_dict exports

    with pytest.raises(tacita.UnsupportedModuleError, match="BatchNorm"):
        tacita.clipped_gradient_sum(batch_norm_model(), cross_entropy, table(), tacita.FlatClipper(max_grad_norm=1.0))


def test_a_sample_of_nan_contributes_zero():
    images, labels = table()
    images[3] = torch.nan
    _, model, optimizer, _ = opacus_private(nn.Linear(WIDTH, 2), (images, labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.clip_and_accumulate()
    assert any(p.summed_grad.isnan().any() for p in model.parameters())

    found = tacita.clipped_gradient_sum(
        nn.Linear(WIDTH, 2), cross_entropy, (images, labels), tacita.FlatClipper(max_grad_norm=1.0)
    )
    assert all(value.isfinite().all() for value in found.sum.values())


class Centred(nn.Module):
    """A linear layer that sees each feature without its mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(dim=0, keepdim=True))


def far_away() -> tuple[Tensor, Tensor]:
    """Ten rows, the first of them far from the others."""
    x, y = (t[:10].clone() for t in table())
    x[0] += 1000
    return x, y


def opacus_clipped_sum(data: tuple[Tensor, Tensor]) -> Tensor:
    torch.manual_seed(0)
    from opacus import GradSampleModule

    model = GradSampleModule(Centred())
    cross_entropy(model, data).sum().backward()
    rows = torch.cat([p.grad_sample.flatten(1) for p in model.parameters()], dim=1)
    return (rows * (1 / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)


def test_a_model_that_centres_its_batch_lets_a_record_move_no_more_than_its_share():
    x, y = far_away()
    theirs = opacus_clipped_sum((x, y)) - opacus_clipped_sum((x[1:], y[1:]))
    assert theirs.norm() > 1.5, "one record moves the sum by more than the threshold"
    (reason,) = tacita.explain(Centred(), cross_entropy, (x, y)).refused
    assert "depends on other samples" in reason
