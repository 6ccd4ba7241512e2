"""The grid of runs against the pure functions, the gradients of the table, and each experiment at its small size."""

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

import tacita
from tacita.federated import Clip21SGDM, ClipSGD
from tacita_reproductions import find
from tacita_reproductions.client_tables import LAMBDA, ClientTable, stochastic, tables
from tacita_reproductions.federated_grid import (
    CLIP21_SGD,
    CLIP21_SGDM,
    CLIP_SGD,
    METHODS,
    Cell,
    best,
    cells,
    iterates,
    record_ratio,
)

TABLE = tables(None)[0]


@pytest.mark.parametrize("method", METHODS)
def test_the_grid_is_the_pure_functions(method):
    """Two cells in one grid, each equal to the algorithm of the library, over rounds with and without clipping."""
    grid = [
        Cell(method, lr, bound, 0.3 if method == CLIP21_SGDM else 1.0, 0.0, 0) for lr, bound in ((0.5, 0.01), (2, 1))
    ]
    gradients = stochastic(TABLE, "exact", 1, 0)
    shapes = {"x": torch.Size([TABLE.dim])}
    found = [x for x, _ in zip(iterates(grid, gradients, TABLE.dim, clients=4, seed=0), range(30), strict=False)]
    for place, cell in enumerate(grid):
        clipper = tacita.FlatClipper(max_grad_norm=cell.bound)
        algorithm = (
            ClipSGD(clipper=clipper, lr=cell.lr)
            if method == CLIP_SGD
            else Clip21SGDM(clipper=clipper, lr=cell.lr, momentum_weight=cell.weight)
        )
        server = algorithm.start({"x": torch.zeros(TABLE.dim)})
        state = algorithm.client_start(shapes, (4,), torch.float32)
        for t in range(30):
            server = algorithm.broadcast(server)
            assert torch.allclose(found[t][place], server.params["x"], atol=2e-5)
            messages, state = algorithm.message(
                state, server.params, lambda p: {"x": gradients(p["x"].unsqueeze(0), torch.tensor([0]))[:, 0]}, shapes
            )
            server = algorithm.receive(server, {"x": messages["x"].mean(dim=0)})
    assert not torch.allclose(found[-1][0], found[-1][1])


def test_the_gradients_are_those_of_the_loss():
    x = torch.randn(1, TABLE.dim, generator=torch.Generator().manual_seed(0)).requires_grad_()
    margins = TABLE.labels * (TABLE.features @ x[0])
    loss = softplus(-margins).mean() + LAMBDA * (x**2 / (1 + x**2)).sum()
    (expected,) = torch.autograd.grad(loss, x)
    assert torch.allclose(TABLE.full(x.detach()), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["minibatch", "Gaussian"])
def test_noisy_gradients_are_unbiased_and_of_the_stated_size(kind):
    gradients, x = stochastic(TABLE, kind, 1, 3), torch.zeros(1, TABLE.dim)
    draws = torch.stack([gradients(x, torch.tensor([0]))[:, 0] for _ in range(400)])
    exact = stochastic(TABLE, "exact", 1, 0)(x, torch.tensor([0]))[:, 0]
    apart = draws - exact
    assert float(apart.mean(dim=0).norm()) < 4 * float(apart.norm(dim=(1, 2)).mean()) / 400**0.5
    if kind == "Gaussian":
        assert float(apart.std()) == pytest.approx(TABLE.noise, rel=0.01)
    else:
        assert len({tuple(row) for row in draws[:, 0, :2].tolist()}) > 100


def test_cells_share_what_a_seed_draws():
    grid = [Cell(CLIP_SGD, 0.1, 1.0, 1.0, noise, seed) for noise, seed in ((1.0, 0), (1.0, 0), (1.0, 1), (2.0, 1))]
    runs = iterates(grid, lambda x, seeds: torch.zeros(4, *x.shape), 3000, clients=4, seed=0)
    next(runs)
    x = next(runs)
    assert torch.equal(x[0], x[1])
    assert not torch.equal(x[0], x[2])
    assert torch.allclose(2 * x[2], x[3])
    assert float(x[0].std()) == pytest.approx(0.1 / 2, rel=0.06)  # a step of the mean of four noises


def test_a_grid_has_weights_for_momentum_alone():
    grid = cells(METHODS, lrs=(1.0, 2.0), bounds=(0.1,), weights=(0.1, 0.5), ratios=(10.0,), seeds=2)
    assert len(grid) == (1 + 1 + 2) * 2 * 2
    assert {cell.weight for cell in grid if cell.method == CLIP21_SGD} == {1.0}
    assert {cell.noise for cell in grid} == {1.0}


def test_the_best_row_of_each_group():
    rows = [{"a": 1, "b": 3.0}, {"a": 1, "b": 2.0}, {"a": 2, "b": 5.0}]
    assert best(rows, "b", of=("a",)) == rows[1:]


def test_the_ratio_of_one_record_is_smaller_than_that_of_a_client():
    whole = tacita.federated.clip21_noise.message_noise_std(epsilon=8, delta=1e-5, max_grad_norm=1, messages=100)
    assert record_ratio(8.0, 1.0, 100, 1e-5) == pytest.approx(whole, rel=0.01)
    assert record_ratio(8.0, 0.25, 100, 1e-5) < whole / 2


def test_a_table_is_dealt_and_normalised():
    rng = np.random.default_rng(1)
    table = ClientTable.of("x", 7 * rng.standard_normal((11, 3)), np.arange(11) % 2, 0.1, 0.5)
    assert table.features.shape == (4, 2, 3)
    assert torch.allclose(table.features.norm(dim=2), torch.ones(4, 2))


@pytest.mark.parametrize("name", ["clip21-thresholds", "clip21-ratios", "clip21-epsilons", "clip21-cnn"])
def test_small_runs_show_a_table_and_their_claims(name):
    result = find(name)()
    assert {row["method"] for row in result.rows} >= set(METHODS)
    held = {check.says: check.held for check in result.checks}
    if name == "clip21-thresholds":
        assert held["synthetic, minibatch: Clip-SGD needs a large threshold"]
        assert held["synthetic, Gaussian: Clip-SGD needs a large threshold"]
    if name == "clip21-epsilons":
        shown = {(row["method"], row["epsilon"]): row["ratio"] for row in result.rows}
        assert shown["Clip-SGD, one record", 8.0] < shown["Clip-SGD", 8.0] == shown["Clip21-SGDM", 8.0]
    pytest.importorskip("matplotlib")
    assert result.draw is not None
    result.draw()


def test_data_come_from_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    one = {"x": rng.standard_normal((44, 5)), "y": np.sign(rng.standard_normal(44))}
    np.savez(tmp_path / "duke.npz", **one)
    np.savez(tmp_path / "leukemia.npz", x_train=one["x"][:38], y_train=one["y"][:38])
    duke, leukemia = tables(tmp_path)
    assert (duke.features.shape, leukemia.features.shape) == ((4, 11, 5), (4, 9, 5))
    with pytest.raises(ValueError, match="data must be a folder"):
        find("clip21-ratios")(data=tmp_path / "none")
    with pytest.raises(ValueError, match="lacks mnist/train-images"):
        find("clip21-mlp")(data=tmp_path)
    with pytest.raises(ValueError, match="makes its own data"):
        find("clip21-example")(data=tmp_path)
