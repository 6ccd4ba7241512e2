"""Several views a record: the record is clipped once, whatever their number; draws belong to the record alone."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tacita
from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource, SeveralViews, mean_over_views
from tacita.gradients.views import score_over_views
from tests.containers import HOLDERS, Items, columns

C, VIEWS = 0.5, 4
METHODS = ["program", "loop"]


def loss_fn(model, batch):
    x, y = columns(batch)
    return F.cross_entropy(model(x), y, reduction="none")


def noisy(record):
    """An augmentation that draws from every generator there is."""
    x, y = record
    return x + 0.3 * torch.randn(x.shape, dtype=x.dtype) + 0.1 * np.random.rand(), y


def table(rows=12):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 2, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.arange(rows) % 3


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    return model.double()


def engine_of(dataset, loss, rows, method="auto", seed=1, **more):
    source = NetworkSource(network(), loss, dataset, method=method, **more)
    return source.engine(dict(source.model.named_parameters()), np.asarray(rows), query=0, seed=seed)


def clipped(engine):
    groups = {"all": tuple(engine.shapes)}
    (sums,) = engine.weighted_sums(tacita.FlatClipper(max_grad_norm=C).weights, groups).values
    return torch.cat([value.flatten() for value in sums.values()])


@pytest.mark.parametrize("method", METHODS)
def test_a_record_enters_with_the_clipped_mean_gradient_of_its_views(method):
    """By plain autograd: mean over views, then clipping, then the sum over records."""
    views = SeveralViews(table(), VIEWS, noisy)
    torch.manual_seed(3)
    x, y = (torch.stack(column) for column in zip(*(views[row] for row in range(12)), strict=True))
    found = clipped(engine_of((x, y), mean_over_views(loss_fn), range(12), method))
    model, expected = network(), torch.zeros(())
    for row in range(12):
        model.zero_grad()
        loss_fn(model, (x[row], y[row])).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert gradient.norm() > C
        expected = expected + gradient * C / gradient.norm()
    assert torch.allclose(
        found, expected, rtol=1e-6 if method == "program" else 1e-9, atol=1e-9
    )  # a program has its margin


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_of_the_users_that_takes_the_views_by_itself(method):
    def own(model, batch):
        x, y = batch
        losses = F.cross_entropy(model(x.flatten(0, 1)), y.flatten(), reduction="none")
        return losses.view(y.shape).mean(1)

    records = [SeveralViews(table(), VIEWS, noisy)[row] for row in range(9)]
    data = [torch.stack(column) for column in zip(*records, strict=True)]
    found, expected = (
        clipped(engine_of(tuple(data), loss, range(9), method)) for loss in (own, mean_over_views(loss_fn))
    )
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)


def hostile(record):
    """Views whose gradients are long, and point the same way."""
    x, y = record
    return 1e3 * (1 + torch.rand(())) * x, y


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("views", [1, 8])
def test_one_record_moves_the_sum_by_one_threshold_whatever_its_views(method, views):
    """The whole oracle, without noise, on two data sets that differ in the last record."""
    x, y = table()
    x[-1] = 1.0

    def released(rows):
        model = network()
        oracle = tacita.ClippedGradientOracle(
            model, mean_over_views(loss_fn), SeveralViews((x[:rows], y[:rows]), views, hostile), method=method,
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one image"),
            sampler=tacita.FullBatchSampler(num_records=12), clipper=tacita.FlatClipper(max_grad_norm=C),
            mechanism=tacita.GaussianMechanism(noise_multiplier=0.0), planned_queries=1,
            randomness=tacita.Randomness.insecure(0),
        )  # fmt: skip
        found = oracle.query(dict(model.named_parameters())).released["all"]
        return torch.cat([value.flatten() for value in found.values()])

    moved = (released(12) - released(11)).norm()
    assert 0.9 * C < moved <= C * (1 + 1e-9)


@pytest.mark.parametrize("hold", [HOLDERS["tuple"], HOLDERS["nested dict"], HOLDERS["dataclass"]])
def test_views_in_any_container(hold):
    x, y = table()

    def doubled(record):
        a, b = columns(record)
        return hold(2 * a, b)

    plain = clipped(engine_of((2 * x, y), loss_fn, range(12)))
    for dataset in (hold(x, y), Items(x, y, hold)):
        found = clipped(engine_of(SeveralViews(dataset, 3, doubled), mean_over_views(loss_fn), range(12)))
        assert torch.allclose(found, plain, rtol=1e-6)


def test_what_a_record_draws_depends_on_the_query_and_the_record_alone():
    """Neither physical batches nor other records change it; another query does. Norms may differ by a rounding."""
    data = SeveralViews(table(), VIEWS, noisy)

    def norms(rows, **more):
        engine = engine_of(data, mean_over_views(loss_fn), rows, "loop", **more)
        before = torch.get_rng_state()
        found = engine.norms({"all": tuple(engine.shapes)})
        assert torch.equal(torch.get_rng_state(), before)
        return found

    found = norms(range(12))
    torch.testing.assert_close(norms(range(12), max_physical_batch_size=5), found, rtol=1e-12, atol=0)
    torch.testing.assert_close(norms([3, 7]), found[[3, 7]], rtol=1e-12, atol=0)
    assert ((norms(range(12), seed=2) - found).abs() > 1e-6).all()


def test_workers_change_no_bit():
    def released(num_workers):
        model = network()
        oracle = tacita.ClippedGradientOracle(
            model, mean_over_views(loss_fn), SeveralViews(table(), VIEWS, noisy), num_workers=num_workers,
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one image"),
            sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=12),
            clipper=tacita.FlatClipper(max_grad_norm=C), mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=3, randomness=tacita.Randomness.insecure(0),
        )  # fmt: skip
        return [oracle.query(dict(model.named_parameters())).gradient["4.weight"] for _ in range(3)]

    for one, other in zip(released(0), released(1), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("method", METHODS)
def test_views_that_the_loss_draws_come_from_the_querys_own_stream(method):
    """Augmentation on the device: a redone query draws the same, another one does not; views differ."""

    def drawn(model, batch):
        x, y = batch
        several = x.repeat_interleave(VIEWS, 0)
        several = several + 0.3 * torch.randn_like(several)
        losses = F.cross_entropy(model(several), y.repeat_interleave(VIEWS), reduction="none")
        return losses.view(-1, VIEWS).mean(1)

    found, again, other = (clipped(engine_of(table(), drawn, range(12), method, seed)) for seed in (1, 1, 2))
    assert torch.equal(found, again)
    assert not torch.allclose(found, other, atol=1e-3)


def test_a_loss_that_is_a_mean_is_refused():
    def mean(model, batch):
        return loss_fn(model, batch).mean()

    with pytest.raises(UnsupportedModuleError, match=r"returns shape \(\), torch.float64 for 3 samples"):
        NetworkSource(network(), mean_over_views(mean), SeveralViews(table(), 2, noisy))


def test_records_without_an_axis_of_views_are_refused():
    for batch in ((torch.zeros(5, 2), torch.zeros(5)), (torch.zeros(5, 2), torch.zeros(5, 3)), ()):
        with pytest.raises(ValueError, match=r"\(records, views, ...\)"):
            mean_over_views(loss_fn)(None, batch)


def test_equal_views_are_refused():
    with pytest.raises(ValueError, match="arrays give the same row each time"):
        SeveralViews(table(), 2)
    with pytest.raises(ValueError, match="views must be"):
        SeveralViews(table(), 0, noisy)
    assert len(SeveralViews(Items(*table(), HOLDERS["tuple"]), 2)) == 12  # a data set that may draw by itself


def test_a_score_leaves_out_the_views_that_do_not_count():
    """One line without a target among a person's takes nothing from the others."""
    losses = torch.tensor([[1.0, torch.nan, 3.0], [torch.nan] * 3, [0.0, 0.0, 6.0]])
    found = score_over_views(lambda model, batch: batch[0].flatten())(None, (losses,))
    assert torch.equal(found.nan_to_num(-1.0), torch.tensor([2.0, -1.0, 2.0]))
