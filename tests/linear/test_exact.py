"""Rows computed alone: the closed forms of linear models, and bits that no companion changes."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tacita.clipping import FlatClipper
from tacita.gradients import LoopEngine, NetworkSource
from tacita.gradients.weighted_sums import group_norms
from tacita.hardened.grid import grid_sums
from tacita.hardened.row_arithmetic import exp_by_row, norms_by_row, tree_sum
from tacita.linear import LinearSource, MultinomialLoss, MultipliedLoss, SquaredLoss
from tacita.linear.losses import RowLoss

ROWS, FEATURES = 45, 7
GROUPS = {"all": ("weight", "bias")}


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none") * batch[2]


def squared_error(model, batch):
    return (model(batch[0]).squeeze(-1) - batch[1]).square() * batch[2]


def problem(loss, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=generator, dtype=dtype)
    weight = (torch.arange(ROWS) % 5 > 0).to(dtype)
    if loss == "cross_entropy":
        model, y = nn.Linear(FEATURES, 3), torch.randint(3, (ROWS,), generator=generator)
    else:
        model, y = nn.Linear(FEATURES, 1), torch.randn(ROWS, generator=generator, dtype=dtype)
    model = model.to(dtype)
    for p in model.parameters():
        nn.init.normal_(p, generator=generator)
    return model, (x, y, weight)


def exact(model, loss, data):
    """The source of a linear layer on features, targets and weights, each row computed alone."""
    x, y, weight = data
    of_outputs = {"cross_entropy": MultinomialLoss(3), "squared_error": MultipliedLoss(SquaredLoss(), 2.0)}[loss]
    return LinearSource(x, y, of_outputs, weights=weight, exact=True, model=model)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_closed_forms_equal_the_loop(loss):
    model, data = problem(loss)
    params = {name: p.detach() for name, p in model.named_parameters()}
    closed = exact(model, loss, data)
    loss_fn = {"cross_entropy": cross_entropy, "squared_error": squared_error}[loss]
    network = NetworkSource(model, loss_fn, data, method="loop")
    indices = np.array([3, 5, 40, 41])
    engines = closed.engine(params, indices), network.engine(params, indices)
    assert isinstance(engines[1], LoopEngine)
    found, expected = (next(iter(engine.materialise())) for engine in engines)
    for name in params:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-13)
    rule = FlatClipper(max_grad_norm=0.5).weights
    sums, others = (engine.weighted_sums(rule, GROUPS) for engine in engines)
    torch.testing.assert_close(sums.norms, others.norms, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(engines[0].norms(GROUPS), others.norms, rtol=1e-12, atol=1e-13)
    for name in params:
        torch.testing.assert_close(sums.values[0][name], others.values[0][name], rtol=1e-12, atol=1e-13)
    assert engines[0].labels.tolist() == indices.tolist()


def test_an_empty_batch():
    model, data = problem("cross_entropy")
    engine = exact(model, "cross_entropy", data).engine(dict(model.named_parameters()), np.zeros(0, np.int64))
    assert list(engine.materialise()) == []
    assert engine.norms(GROUPS).shape == (0, 1)
    found = grid_sums(engine, FlatClipper(max_grad_norm=1.0).weights, GROUPS, {"all": 2.0**-20}).values[0]
    assert not found["weight"].any()


@pytest.mark.parametrize("hostile", [torch.nan, torch.inf, 1e38])
def test_hostile_rows_leave_the_others_alone(hostile):
    model, (x, y, weight) = problem("cross_entropy", torch.float32)
    spoiled = x.clone()
    spoiled[7] = hostile
    rule, steps = FlatClipper(max_grad_norm=0.5).weights, {"all": 2.0**-22}
    params = dict(model.named_parameters())

    def total(x, rows):
        engine = exact(model, "cross_entropy", (x, y, weight)).engine(params, rows)
        return grid_sums(engine, rule, GROUPS, steps).values[0]["weight"]

    everyone, others = np.arange(ROWS), np.delete(np.arange(ROWS), 7)
    moved = total(spoiled, everyone) - total(x, others)
    assert moved.double().norm() * steps["all"] <= 0.5
    if not np.isfinite(hostile):
        assert not moved.any()


def test_targets_out_of_range_raise_nothing():
    model, (x, y, weight) = problem("cross_entropy")
    y = y.clone()
    y[0], y[1] = -1, 99
    engine = exact(model, "cross_entropy", (x, y, weight)).engine(dict(model.named_parameters()), np.arange(5))
    assert next(engine.materialise())["weight"].isfinite().all()


# -- no companion shows


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_has_the_same_bits_wherever_it_stands(loss, dtype):
    model, data = problem(loss, dtype)
    source, params = exact(model, loss, data), dict(model.named_parameters())
    alone = next(source.engine(params, np.array([9])).materialise())
    rng = np.random.default_rng(0)
    for size in (2, 3, 8, 17, 44):
        for _ in range(5):
            rows = rng.permutation(ROWS)[:size]
            place = rng.integers(size)
            rows[place] = 9
            together = next(source.engine(params, rows).materialise())
            assert all(torch.equal(together[name][place], alone[name][0]) for name in params)


def test_the_loop_gives_a_row_the_same_bits_wherever_it_stands():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    data = (torch.randn(ROWS, 6), torch.randint(3, (ROWS,)), torch.ones(ROWS))
    source = NetworkSource(model, cross_entropy, data, method="loop")
    params = dict(model.named_parameters())
    alone = next(iter(source.engine(params, np.array([9])).materialise()))
    together = next(iter(source.engine(params, np.array([1, 2, 30, 9, 5])).materialise()))
    assert all(torch.equal(together[name][3], alone[name][0]) for name in params)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 64, 1001])
def test_tree_sums_are_sums_in_an_order_of_their_own(length):
    terms = torch.randn(50, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    found = tree_sum(terms.clone())
    torch.testing.assert_close(found, terms.sum(-1), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(found[i], tree_sum(terms[i : i + 1].clone())[0]) for i in range(0, 50, 7))


def test_norms_alone_are_upper_bounds_like_the_others():
    grads = {"weight": torch.randn(30, 4, 5), "bias": torch.randn(30, 4)}
    found, others = norms_by_row(grads, GROUPS), group_norms(grads, GROUPS)
    torch.testing.assert_close(found, others, rtol=1e-12, atol=0)
    exact = torch.cat([g.double().flatten(1) for g in grads.values()], 1).norm(dim=1)
    assert (found[:, 0] >= exact * (1 - 1e-16)).all()
    runs = {name: torch.stack([g, 2 * g]) for name, g in grads.items()}
    assert torch.equal(
        norms_by_row(runs, GROUPS, lead=2)[1], norms_by_row({n: 2 * g for n, g in grads.items()}, GROUPS)
    )


def test_the_exponential_is_accurate_and_hostile_numbers_pass():
    x = -torch.rand(20_000, dtype=torch.float64) * torch.logspace(-12, 2.8, 20_000, dtype=torch.float64)
    assert ((exp_by_row(x) / x.exp() - 1).abs() < 1e-15).all()
    assert exp_by_row(torch.tensor([0.0], dtype=torch.float64)).item() == 1.0
    assert exp_by_row(torch.tensor([-torch.inf, -1e9], dtype=torch.float64)).max() < 1e-300
    assert exp_by_row(torch.tensor([torch.nan], dtype=torch.float64)).isnan().all()


def test_a_loss_without_exact_arithmetic_is_refused():
    with pytest.raises(ValueError, match="exact=True needs a loss that has an exact_derivative"):
        LinearSource(torch.ones(3, 1), torch.zeros(3), RowLoss(), exact=True)


def test_the_model_is_not_modified():
    model, data = problem("cross_entropy")
    before = copy.deepcopy(model.state_dict())
    source = exact(model, "cross_entropy", data)
    next(source.engine(dict(model.named_parameters()), np.arange(4)).materialise())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert source.num_rows == ROWS
    assert "rows" not in repr(source)
