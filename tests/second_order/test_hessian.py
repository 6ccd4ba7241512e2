"""Hessian products against dense Hessians; the eigen-solver against dense ones and SciPy's, and its error bound."""

import math
from functools import cache

import numpy as np
import pytest
import scipy.sparse.linalg
import scipy.stats
import torch
from torch import nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tacita.gradients.functional import losses_at
from tacita.gradients.program.hessian_products import HessianProducts
from tacita.second_order.hessian import BatchHessian, Hessian, hessian_products
from tacita.second_order.lanczos import lanczos, lanczos_error, lanczos_steps
from tacita.second_order.stationarity import is_second_order_stationary, public_stationarity

ROWS = 7


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


# -- networks


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(2, 2, batch_first=True)
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True, activation="gelu")
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.layer(x).mean(dim=1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.table(x)).mean(dim=1))


NETWORKS = {
    "linear": (lambda: nn.Linear(3, 1), lambda: normals(ROWS, 3)),
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), lambda: normals(ROWS, 3)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 1)
        ),
        lambda: normals(ROWS, 1, 6, 6),
    ),
    "lstm": (Recurrent, lambda: normals(ROWS, 3, 2)),
    "attention": (Attentive, lambda: normals(ROWS, 3, 4)),
    "embedding": (Words, lambda: torch.randint(5, (ROWS, 4), generator=generator())),
}


def squared(model, batch):
    return (model(batch[0]).squeeze(-1) - batch[1]).square() + torch.cos(model(batch[0]).squeeze(-1))


def network(kind, chunk=None, device="cpu", dtype=torch.float64):
    """(source, params) of a small network in double precision."""
    torch.manual_seed(3)
    build, features = NETWORKS[kind]
    x = features()
    x = x.to(dtype) if x.is_floating_point() else x
    model = build().to(device, dtype)
    data = (x, normals(ROWS, seed=1).to(dtype))
    source = NetworkSource(model, squared, data, method="loop", max_physical_batch_size=chunk)
    return source, {name: p.detach() for name, p in model.named_parameters()}


@cache
def products(kind, device="cpu", dtype=torch.float64):
    """What is traced of a network; the sources of other chunks have equal models."""
    source, params = network(kind, device=device, dtype=dtype)
    return HessianProducts(source.model, squared, params, source.trial_row)


def hessian(kind, chunk=None, rows=None, *, indices=None, way="loop", **place):
    source, params = network(kind, chunk, **place)
    indices = np.arange(ROWS) if indices is None else indices
    by_program = products(kind, **place) if way == "program" else None
    return BatchHessian(source.engine(params, indices), divisor=10.0, rows=rows, products=by_program)


def dense(kind, rows=slice(None)):
    """The definition: torch's own Hessian of the summed loss, at one flat vector of parameters."""
    source, params = network(kind)
    model, (x, y) = source.model, source._rows._arrays
    flat = torch.cat([p.flatten() for p in params.values()])

    def total(vector):
        parts = vector.split([p.numel() for p in params.values()])
        named = {name: part.view(p.shape) for (name, p), part in zip(params.items(), parts, strict=True)}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return losses_at(model, squared, named, (x[rows], y[rows]), len(x[rows])).sum() / 10

    return torch.autograd.functional.hessian(total, flat)


WAYS = [(kind, way) for kind in NETWORKS for way in ("loop", "program") if (kind, way) != ("embedding", "program")]
both_ways = pytest.mark.parametrize("way", ["loop", "program"])
every_way = pytest.mark.parametrize(("kind", "way"), WAYS)


@every_way
@pytest.mark.parametrize("chunk", [None, 4], ids=["whole", "chunks"])
def test_products_are_those_of_the_dense_hessian(kind, way, chunk):
    expected, operator = dense(kind), hessian(kind, chunk, way=way)
    vector = normals(operator.dim, seed=8)
    torch.testing.assert_close(operator.product(vector), expected @ vector, rtol=1e-9, atol=1e-10)


@both_ways
def test_the_whole_matrix_is_the_dense_one(way):
    found = hessian("mlp", 4, way=way).dense()
    torch.testing.assert_close(found, dense("mlp"), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found, found.T, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_the_smallest_eigenvalue_is_the_dense_one(kind):
    operator = hessian(kind, way="program")
    found = lanczos(operator, normals(operator.dim, seed=5), operator.dim)
    values = torch.linalg.eigvalsh(dense(kind))
    assert found.smallest == pytest.approx(values[0].item(), rel=1e-8, abs=1e-10)
    assert found.largest == pytest.approx(values[-1].item(), rel=1e-8, abs=1e-10)
    assert found.error(1e-12) == 0


@both_ways
def test_a_batch_is_the_hessian_of_its_rows(way):
    for rows in ([1, 4, 5], [3]):
        expected = dense("mlp", rows=np.array(rows))
        found = hessian("mlp", 2, indices=np.array(rows), way=way).dense()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_the_rows_of_a_chunk_are_taken_a_few_at_a_time(monkeypatch):
    """A program has one product a record in memory."""
    expected = hessian("mlp", way="program").dense()
    monkeypatch.setattr("tacita.second_order.hessian.GRADIENT_BYTES", 2 * 8 * 21)
    torch.testing.assert_close(hessian("mlp", way="program").dense(), expected, rtol=1e-12, atol=1e-12)


@both_ways
def test_rows_that_do_not_count_are_not_there(way):
    rows = torch.tensor([True, False, True, True, False, False, True])
    expected = dense("mlp", rows=rows)
    for chunk in (None, 1, 2):  # a chunk without rows is skipped
        torch.testing.assert_close(hessian("mlp", chunk, rows=rows, way=way).dense(), expected, rtol=1e-9, atol=1e-10)


@both_ways
def test_a_row_of_nan_that_does_not_count_leaves_the_others_alone(way):
    source, params = network("mlp")
    x, y = source._rows._arrays
    x[2] = torch.nan
    hostile = NetworkSource(source.model, squared, (x, y), method="loop")
    rows = torch.arange(ROWS) != 2
    by_program = products("mlp") if way == "program" else None
    found = BatchHessian(hostile.engine(params, np.arange(ROWS)), divisor=10.0, rows=rows, products=by_program)
    torch.testing.assert_close(found.dense(), dense("mlp", rows=rows), rtol=1e-9, atol=1e-10)


def test_no_rows_are_a_hessian_of_zeros():
    operator = hessian("mlp", indices=np.arange(0))
    assert not operator.product(torch.ones(operator.dim)).any()
    assert lanczos(operator, normals(operator.dim), 5).smallest == 0


def test_a_linear_loss_has_no_curvature():
    point = {"x": torch.ones(3, dtype=torch.float64), "unused": torch.ones(2, dtype=torch.float64)}
    assert not Hessian(lambda p: p["x"].sum(), point).product(torch.ones(5)).any()
    assert not Hessian(lambda p: torch.tensor(1.0), point).product(torch.ones(5)).any()
    mixed = Hessian(lambda p: p["x"].square().sum() + p["unused"].sum(), point)
    assert mixed.product(torch.ones(5)).tolist() == [2.0, 2.0, 2.0, 0.0, 0.0]


def test_dropout_is_the_same_in_every_product():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1)).double()
    source = NetworkSource(model, squared, (normals(ROWS, 3), normals(ROWS, seed=1)), max_physical_batch_size=3)
    params, before = dict(model.named_parameters()), torch.get_rng_state()
    by_program = hessian_products(source)
    assert by_program is not None
    for made in (None, by_program):
        engines = [source.engine(params, np.arange(ROWS), seed=s) for s in (1, 2)]
        one, two = (BatchHessian(engine, divisor=1.0, products=made) for engine in engines)
        vector = normals(one.dim)
        assert torch.equal(one.product(vector), one.product(vector))
        assert not torch.allclose(one.product(vector), two.product(vector))
    assert torch.equal(before, torch.get_rng_state())


def test_neither_model_nor_point_is_touched():
    source, params = network("mlp")
    before = {name: p.clone() for name, p in params.items()}
    for made in (None, products("mlp")):
        BatchHessian(source.engine(params, np.arange(ROWS)), divisor=1.0, products=made).dense()
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in params.items())
    assert all(p.grad is None for p in source.model.parameters())


def test_the_graph_of_a_function_is_kept():
    """So that a product costs two backward passes and no forward one."""
    calls = []

    def function(params):
        calls.append(1)
        return params["x"].pow(4).sum()

    operator = Hessian(function, {"x": torch.ones(3, dtype=torch.float64)})
    assert [operator.product(torch.ones(3)).tolist() for _ in range(5)] == [[12.0] * 3] * 5
    assert len(calls) == 1


def test_a_linear_model_has_no_curvature_on_records_either():
    source = NetworkSource(
        nn.Linear(3, 1), lambda model, batch: model(batch[0]).squeeze(-1), (normals(ROWS, 3).float(),)
    )
    params, by_program = dict(source.model.named_parameters()), hessian_products(source)
    assert by_program is not None
    for made in (None, by_program):
        assert not BatchHessian(source.engine(params, np.arange(ROWS)), divisor=1.0, products=made).dense().any()


def test_what_a_program_cannot_say_is_refused_and_left_to_the_loop():
    tokens = torch.randint(5, (ROWS, 4), generator=generator())
    for method in ("auto", "loop"):
        source = NetworkSource(Words().double(), squared, (tokens, normals(ROWS, seed=1)), method=method)
        if method == "auto":
            with pytest.raises(
                UnsupportedModuleError,
                match=r'before records are read: .*numbers of rows.*method="loop"',
            ):
                hessian_products(source)
        else:
            assert hessian_products(source) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_way
@pytest.mark.parametrize("chunk", [None, 4], ids=["whole", "chunks"])
def test_on_a_gpu_it_is_the_same(kind, way, chunk):
    on_cpu = dense(kind)
    operator = hessian(kind, chunk, way=way, device="cuda")
    torch.testing.assert_close(operator.dense().cpu(), on_cpu, rtol=1e-7, atol=1e-9)
    start = normals(operator.dim, seed=5).cuda()
    found = lanczos(operator, start, operator.dim)
    assert found.smallest == pytest.approx(torch.linalg.eigvalsh(on_cpu)[0].item(), rel=1e-6, abs=1e-9)
    single = hessian(kind, chunk, way=way, device="cuda", dtype=torch.float32).dense().cpu()
    torch.testing.assert_close(single, on_cpu, rtol=1e-3, atol=1e-4)  # no TF32


# -- functions


def cubic(p):
    return p["x"] ** 2 * p["y"] + p["y"] ** 3


@pytest.mark.parametrize(
    ("at", "gradient", "matrix", "eigenvalues"),
    [
        ((1.0, 2.0), (4.0, 13.0), [[4.0, 2.0], [2.0, 12.0]], (3.52786, 12.4721)),
        ((1.0, -1.0), None, [[-2.0, 2.0], [2.0, -6.0]], (-6.82843, -1.17157)),
    ],
)
def test_a_cubic_in_two_variables(at, gradient, matrix, eigenvalues):
    point = {name: torch.tensor(value, dtype=torch.float64) for name, value in zip("xy", at, strict=True)}
    operator = Hessian(cubic, point)
    assert [operator.product(row).tolist() for row in torch.eye(2)] == matrix
    assert operator.product(torch.ones(2)).tolist() == [sum(row) for row in matrix]
    if gradient:
        assert operator.gradient().tolist() == list(gradient)
    found = lanczos(operator, normals(2), 2)
    assert (found.smallest, found.largest) == pytest.approx(eigenvalues, rel=1e-5)


def double_well(p):
    return (p["x"] ** 2 - 1) ** 2 / 4


WELL = [(0.0, 0.0, -1.0), (0.5, -0.375, -0.25), (1 / math.sqrt(3), -0.384900, 0.0), (1.0, 0.0, 2.0), (-1.0, 0.0, 2.0)]


@pytest.mark.parametrize(("x", "gradient", "curvature"), WELL)
@pytest.mark.parametrize(("alpha", "limit"), [(0.01, 0.244949), (0.1, 0.774597), (0.2, 1.09545)])
def test_the_checker_on_the_double_well(x, gradient, curvature, alpha, limit):
    """The saddle at 0 passes for the largest alpha only."""
    point = {"x": torch.tensor(x, dtype=torch.float64)}
    found = public_stationarity(double_well, point, alpha=alpha, hessian_lipschitz=6.0)
    assert Hessian(double_well, point).gradient().item() == pytest.approx(gradient, abs=1e-6)
    assert found.gradient_norm == pytest.approx(abs(gradient), abs=1e-6)
    assert found.eigenvalue == pytest.approx(curvature, abs=1e-6)
    assert math.sqrt(6.0 * alpha) == pytest.approx(limit, rel=1e-5)
    assert found.is_first_order == (abs(gradient) < alpha)
    assert found.is_second_order == (abs(gradient) < alpha and (x != 0 or alpha == 0.2))
    assert found.certified


@pytest.mark.parametrize(
    ("gradient_norm", "eigenvalue", "answer"),
    [(0.0999, -0.9486, True), (0.1, 0.0, False), (0.0, -0.948683298, True), (0.0, -math.sqrt(0.9), False)],
)
def test_both_inequalities_are_strict(gradient_norm, eigenvalue, answer):
    assert is_second_order_stationary(gradient_norm, eigenvalue, alpha=0.1, hessian_lipschitz=9.0) == answer


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_wrong_settings_of_the_checker(bad):
    with pytest.raises(ValueError, match="alpha must be"):
        is_second_order_stationary(0.0, 0.0, alpha=bad, hessian_lipschitz=1.0)
    with pytest.raises(ValueError, match="hessian_lipschitz must be"):
        is_second_order_stationary(0.0, 0.0, alpha=0.1, hessian_lipschitz=bad)


def test_too_few_steps_certify_nothing():
    point = {"x": torch.zeros(2000, dtype=torch.float64)}
    weights = torch.linspace(-1, 1, 2000, dtype=torch.float64)
    found = public_stationarity(
        lambda p: (weights * p["x"].square()).sum() / 2,
        point,
        alpha=0.9,
        hessian_lipschitz=1.0,
        steps=3,
        generator=generator(),
    )
    assert found.is_second_order  # the saddle of curvature -1 < -0.949 is not seen
    assert not found.certified
    more = public_stationarity(
        lambda p: (weights * p["x"].square()).sum() / 2, point, alpha=0.9, hessian_lipschitz=1.0, steps=60
    )
    assert not more.is_second_order
    assert more.certified


# -- the solver


class Diagonal:
    """A matrix with a spectrum of our choice; products of a random basis are no different."""

    def __init__(self, values):
        self.values = torch.as_tensor(values, dtype=torch.float64)
        self.dim = len(self.values)

    def product(self, vector):
        return self.values * vector


def test_a_diagonal_of_three():
    found = lanczos(Diagonal([3.0, 1.0, -2.0]), normals(3), 3)
    assert (found.smallest, found.largest) == pytest.approx((-2.0, 3.0), abs=1e-12)
    assert 3.0 - found.smallest == pytest.approx(5.0)  # the top of 3 I - H
    assert found.vector.abs().tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-9)


def test_few_distinct_eigenvalues_are_exact_in_few_steps():
    found = lanczos(Diagonal([-1.0] + [0.0] * 500 + [2.0] * 3), normals(504), 100)
    assert (found.smallest, found.largest) == pytest.approx((-1.0, 2.0), abs=1e-10)
    assert found.error(1e-12) == 0


def test_a_ritz_value_is_an_upper_bound_and_its_residual_true():
    spectrum = normals(300, seed=2)
    for steps in (1, 2, 5, 20, 100):
        found = lanczos(Diagonal(spectrum), normals(300, seed=steps), steps)
        assert found.smallest >= spectrum.min() - 1e-12
        assert found.largest <= spectrum.max() + 1e-12
        assert found.vector.norm().item() == pytest.approx(1.0)
        assert (found.vector * spectrum) @ found.vector == pytest.approx(found.smallest, abs=1e-10)
        residual = (spectrum * found.vector - found.smallest * found.vector).norm().item()
        assert residual == pytest.approx(found.residual, abs=1e-9)


def linear_operator(operator):
    """The operator as SciPy takes it."""

    def product(vector):
        return operator.product(torch.from_numpy(np.asarray(vector, float).ravel())).cpu().numpy()

    return scipy.sparse.linalg.LinearOperator((operator.dim, operator.dim), matvec=product, dtype=np.float64)


def test_it_agrees_with_arpack_and_lobpcg():
    operator = hessian("cnn", way="program")
    ours = lanczos(operator, normals(operator.dim, seed=5), operator.dim).smallest
    start = normals(operator.dim, seed=6).numpy()
    (arpack,) = scipy.sparse.linalg.eigsh(linear_operator(operator), k=1, which="SA", v0=start)[0]
    block = normals(operator.dim, 3, seed=7).numpy()
    preconditioned, _ = scipy.sparse.linalg.lobpcg(
        linear_operator(operator), block, largest=False, maxiter=400, tol=1e-9
    )
    assert arpack == pytest.approx(ours, rel=1e-8)
    assert preconditioned.min() == pytest.approx(ours, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_product_that_is_not_finite_is_no_error(bad):
    found = lanczos(Diagonal([1.0, bad, 2.0]), normals(3), 3)
    assert found.smallest == -math.inf
    assert found.largest == math.inf


FALSE_ALARM = 1e-6
DIM, P, RUNS = 400, 0.05, 1500


def misses(share, steps):
    """Of how many random starts the smallest eigenvalue is missed by more than ``share`` of the spread.

    The spectrum is the worst there is: one eigenvalue at the end, the others crowded from ``share`` of the spread on.
    """
    nodes = (1 - np.cos(np.pi * (2 * np.arange(1, DIM) - 1) / (2 * DIM - 2))) / 2
    spectrum = np.concatenate([[0.0], share + (1 - share) * nodes])
    operator, starts = Diagonal(spectrum), normals(RUNS, DIM, seed=steps)
    return sum(lanczos(operator, start, steps).smallest > share * spectrum.max() for start in starts)


@pytest.mark.parametrize("steps", [4, 8])
def test_the_error_bound_holds_with_its_probability(steps):
    """Exact: misses are binomial with at most the stated chance (here they have 0.9 of it)."""
    found = misses(lanczos_error(DIM, steps, P), steps)
    assert scipy.stats.binom.sf(found - 1, RUNS, P) > FALSE_ALARM


@pytest.mark.parametrize(
    ("steps", "forgotten"),
    [(4, "dimension"), (8, "dimension"), (8, "a third of the error")],
)
def test_a_smaller_error_bound_does_not_hold(steps, forgotten):
    share = (
        lanczos_error(DIM, steps, P) * 2 / 3
        if "third" in forgotten
        else math.tanh(math.acosh(1 / P) / (2 * steps - 1)) ** 2
    )
    found = misses(share, steps)
    assert scipy.stats.binom.sf(found - 1, RUNS, P) < FALSE_ALARM


@pytest.mark.parametrize("dim", [1, 2, 3, 50, 10**6])
@pytest.mark.parametrize("p", [0.5, 1e-3, 1e-12])
def test_the_length_of_the_start_along_one_direction(dim, p):
    """The bound rests on P(|b_1| <= t) <= sqrt(2 d / pi) t for a uniform direction: b_1^2 ~ Beta(1/2, (d - 1) / 2)."""
    t = p / math.sqrt(2 * dim / math.pi)
    exact = scipy.stats.beta.cdf(t**2, 0.5, (dim - 1) / 2) if dim > 1 else 0.0
    assert exact <= p * (1 + 1e-9)
    if dim > 10:
        assert exact > 0.9 * p or p == 0.5


@pytest.mark.parametrize("error", [0.5, 0.01, 1e-4])
def test_steps_are_the_least_that_suffice(error):
    steps = lanczos_steps(10**6, error, 1e-9)
    assert lanczos_error(10**6, steps, 1e-9) <= error < lanczos_error(10**6, steps - 1, 1e-9)
    assert lanczos_steps(5, error, 1e-9) <= 5


@pytest.mark.parametrize(
    "call",
    [
        lambda: lanczos_error(0, 5, 0.1),
        lambda: lanczos_error(5, 0, 0.1),
        lambda: lanczos_error(5, 5, 0.0),
        lambda: lanczos_steps(5, 0.0, 0.1),
        lambda: lanczos_steps(5, 1.0, 0.1),
        lambda: lanczos_steps(5, math.nan, 0.1),
        lambda: lanczos(Diagonal([1.0]), torch.ones(1), 0),
    ],
)
def test_wrong_settings(call):
    with pytest.raises(ValueError, match="must be"):
        call()
