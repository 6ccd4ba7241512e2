"""Linear models in blocks: the same sums as a loop over records, dense, mapped and sparse; hostile rows; rounding."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

from tacita.clipping import FlatClipper
from tacita.gradients import NetworkSource
from tacita.linear import row_blocks
from tacita.linear import source as linear_source
from tacita.linear.losses import (
    HuberLoss,
    LogisticLoss,
    MultinomialLoss,
    MultipliedLoss,
    QuantileLoss,
    SquaredHingeLoss,
    SquaredLoss,
)
from tacita.linear.source import LinearSource, table_rows

ROWS, COLUMNS = 41, 5
CLIP = FlatClipper(max_grad_norm=0.4).weights
GROUPS = [{"all": ("weight", "bias")}, {"w": ("weight",), "b": ("bias",)}, {"b": ("bias",)}]
functional = nn.functional


def pinball(z, y):
    """The pinball loss of quantile 0.3, convolved with a box of half width 0.5."""
    r = z - y
    inner = r.square() / 2 + r / 2 * 1.0 + 0.125 - 0.3 * r
    return torch.where(r < -0.5, -0.3 * r, torch.where(r > 0.5, 0.7 * r, inner))


def one_against_all(z, y):
    """The squared hinge losses of each class against all others, added up."""
    signs = 2.0 * (y.unsqueeze(-1) == torch.arange(3)) - 1
    return (1 - signs * z).clamp(min=0).square().sum(dim=-1) / 2


LOSSES = {
    "logistic": (LogisticLoss(), functional.binary_cross_entropy_with_logits),
    "multinomial": (MultinomialLoss(3), functional.cross_entropy),
    "squared": (SquaredLoss(), lambda z, y, reduction: (z - y).square() / 2),
    "huber": (HuberLoss(0.7), lambda z, y, reduction: functional.huber_loss(z, y, reduction="none", delta=0.7)),
    "quantile": (QuantileLoss(0.3, 0.5), lambda z, y, reduction: pinball(z, y)),
    "squared hinge": (SquaredHingeLoss(), lambda z, y, reduction: (1 - (2 * y - 1) * z).clamp(min=0).square() / 2),
    "one against all": (SquaredHingeLoss(3), lambda z, y, reduction: one_against_all(z, y)),
    "multiplied": (MultipliedLoss(SquaredLoss(), 3.0), lambda z, y, reduction: 1.5 * (z - y).square()),
}
FORMS = {
    "tensor": torch.from_numpy,
    "array": lambda x: x,
    "csr": scipy.sparse.csr_matrix,
    "coo": scipy.sparse.coo_array,
}


def problem(name, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((ROWS, COLUMNS)) * (rng.random((ROWS, COLUMNS)) < 0.6)).astype(dtype)
    loss, _ = LOSSES[name]
    outputs = loss.num_outputs()
    discrete = {"logistic": 2, "multinomial": 3, "squared hinge": 2, "one against all": 3}.get(name)
    y = rng.integers(discrete, size=ROWS) if discrete else rng.standard_normal(ROWS)
    params = {
        "weight": torch.from_numpy(rng.standard_normal((outputs, COLUMNS))),
        "bias": torch.from_numpy(rng.standard_normal(outputs)),
    }
    return x, y, params


def loop(name, x, y, params, *, scale, constant):
    """The engine of the loop over records for the same model."""
    model = nn.Linear(COLUMNS, len(params["bias"])).double()
    model.load_state_dict(params)
    _, function = LOSSES[name]

    def losses(model, batch):
        features, targets = batch
        z = features * scale @ model.weight.t() + constant * model.bias
        if LOSSES[name][0].num_outputs() > 1:
            return function(z, targets.long(), reduction="none")
        return function(z[:, 0], targets, reduction="none")

    data = torch.from_numpy(x).double(), torch.from_numpy(y).double()
    return NetworkSource(model, losses, data, method="loop")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_sums_and_norms_equal_those_of_the_loop(name, form, monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 16)
    x, y, params = problem(name)
    scale, constant = torch.linspace(0.5, 1.5, COLUMNS, dtype=torch.float64), 0.8
    source = LinearSource(FORMS[form](x), y, LOSSES[name][0], scale=scale, intercept=constant)
    slow = loop(name, x, y, params, scale=scale, constant=constant)
    for indices in (np.arange(ROWS), np.array([7, 3, 40])):
        fast, plain = source.engine(params, indices), slow.engine(params, indices)
        assert fast.labels.tolist() == indices.tolist()
        for groups in GROUPS[: 1 if form != "tensor" else None]:
            mine = fast.weighted_sums(lambda n: (CLIP(n), torch.ones_like(n)), groups)
            if "w" not in groups:  # the weight alone has the norm of the whole row
                torch.testing.assert_close(
                    mine.norms >= plain.norms(groups) * (1 - 1e-12), torch.ones_like(mine.norms) > 0
                )
            weights = CLIP(mine.norms)
            (each,) = plain.materialise()
            for group, (k, names) in zip(groups, enumerate(groups.values()), strict=True):
                assert group in groups
                for one in names:
                    grads = each[one].flatten(1)
                    expected = (weights[:, k, None] * grads).sum(0).view(params[one].shape)
                    torch.testing.assert_close(mine.values[0][one], expected, rtol=1e-9, atol=1e-12)
                    torch.testing.assert_close(mine.values[1][one].flatten(), grads.sum(0), rtol=1e-9, atol=1e-12)
        whole = GROUPS[0]
        torch.testing.assert_close(fast.norms(whole), plain.norms(whole), rtol=1e-12, atol=0)
        (theirs,) = plain.materialise()
        chunks = list(fast.materialise())
        mine_each = {name: torch.cat([chunk[name] for chunk in chunks]) for name in theirs}
        torch.testing.assert_close(mine_each, dict(theirs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_the_curvature_and_the_derivative_are_bounds(name):
    loss, _ = LOSSES[name]
    z = torch.linspace(-6, 6, 4001, dtype=torch.float64).unsqueeze(1).repeat(1, loss.num_outputs())
    z[:, 1:] *= 0.5
    for target in (0.0, 1.0):
        found = loss.derivative(z.clone(), torch.full((4001,), target, dtype=torch.float64))
        slopes = (found[1:] - found[:-1]).norm(dim=1) / (z[1:] - z[:-1]).norm(dim=1)
        assert slopes.max() <= loss.curvature * (1 + 1e-6)
        assert found.norm(dim=1).max() <= loss.max_derivative
    assert loss.derivative(z.clone(), torch.full((4001,), math.nan, dtype=torch.float64)).isnan().all(dim=1).all()


@pytest.mark.filterwarnings("error")  # a warning would tell what a row holds
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hostile", [math.nan, math.inf, 1e200, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_hostile_row_leaves_the_others_alone(form, hostile, dtype):
    x, y, params = problem("logistic", dtype)
    spoiled = x.copy()
    spoiled[7] = min(hostile, float(np.finfo(dtype).max)) if math.isfinite(hostile) else hostile

    def total(table, indices):
        engine = LinearSource(FORMS[form](table), y, LogisticLoss()).engine(params, indices)
        return torch.cat([part.flatten() for part in engine.weighted_sums(CLIP, GROUPS[0]).values[0].values()])

    moved = total(spoiled, np.arange(ROWS)) - total(x, np.delete(np.arange(ROWS), 7))
    assert moved.norm() <= 0.4 * (1 + 1e-5)
    if not np.isfinite(spoiled[7]).all():
        assert moved.norm() < 1e-5  # absent, up to the order of summation


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("target", [math.inf, -math.inf, math.nan])
def test_a_row_whose_target_is_not_finite_contributes_nothing(name, target):
    """A bounded loss has a derivative at infinity too."""
    loss, _ = LOSSES[name]
    source = LinearSource(torch.ones(1, 2), torch.tensor([target]), loss)
    engine = source.engine({name: torch.zeros(shape) for name, shape in source.shapes.items()}, np.arange(1))
    sums = engine.weighted_sums(CLIP, GROUPS[0]).values[0]
    assert all((part == 0).all() for part in sums.values())


def test_a_target_that_only_the_rows_dtype_cannot_hold_is_a_far_one():
    source = LinearSource(torch.ones(1, 2), torch.tensor([1e300], dtype=torch.float64), HuberLoss(1.0))
    engine = source.engine({name: torch.zeros(shape) for name, shape in source.shapes.items()}, np.arange(1))
    assert (engine.weighted_sums(CLIP, GROUPS[0]).values[0]["weight"] < 0).all()


@pytest.mark.parametrize("order", [(0, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, 0)])
def test_an_entry_that_is_stored_in_pieces_is_clipped_as_a_whole(order):
    """A CSR matrix may store an entry in several pieces, which its products add up: their squares are no norm."""
    pieces = np.array([3.0, 3.0, 3.0, 4.0])
    table = scipy.sparse.csr_matrix((pieces, np.array(order), np.array([0, 4])), shape=(1, 2))
    table.has_canonical_format = True  # SciPy believes whoever says so
    whole = np.zeros((1, 2))
    np.add.at(whole[0], np.array(order), pieces)
    found = []
    for features in (table, whole):
        source = LinearSource(features, np.array([0.0]), LogisticLoss(), intercept=None)
        engine = source.engine({"weight": torch.zeros(1, 2, dtype=torch.float64)}, np.arange(1))
        sums = engine.weighted_sums(CLIP, {"all": ("weight",)})
        assert float(sums.values[0]["weight"].norm()) <= 0.4
        found.append((sums.norms, *source._rows.dense(slice(0, 1))))
    assert all(map(torch.equal, found[0][1:], found[1][1:]))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-15, atol=0)  # a square may be rounded another way
    assert table.nnz == 4  # the caller's matrix is as it was


def test_targets_that_are_not_finite_are_absent():
    for name in LOSSES:
        x, y, params = problem(name)
        bad = y.astype(np.float64)
        bad[5] = math.nan
        loss = LOSSES[name][0]
        found = LinearSource(x, bad, loss).engine(params, np.arange(ROWS)).weighted_sums(CLIP, GROUPS[0])
        others = LinearSource(x, y, loss).engine(params, np.delete(np.arange(ROWS), 5))
        expected = others.weighted_sums(CLIP, GROUPS[0])
        for one in params:
            torch.testing.assert_close(found.values[0][one], expected.values[0][one], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["logistic", "multinomial", "squared"])
def test_rounding_carries_no_row_past_the_threshold(name, dtype):
    """A row alone: its term of the sum, exactly as it is computed, is at most C long, clipped or not."""
    rng = np.random.default_rng(1)
    _, _, params = problem(name)
    for size in (0.1, 1.0, 100.0):
        x = (size * rng.standard_normal((60, COLUMNS))).astype(dtype)
        source = LinearSource(x, rng.integers(2, size=60), LOSSES[name][0], scale=1 / 3)
        for row in range(60):
            engine = source.engine(params, np.array([row]))
            norm = max(1e-9, float(engine.norms(GROUPS[0])))  # 0 where a sigmoid saturates
            for threshold in (0.3, norm * 0.999, norm):
                rule = FlatClipper(max_grad_norm=threshold).weights
                sums = engine.weighted_sums(rule, GROUPS[0]).values[0]
                assert math.sqrt(sum(float(part.square().sum()) for part in sums.values())) <= threshold


@pytest.mark.parametrize("form", ["array", "csr"])
def test_a_very_long_row_is_not_carried_past_a_small_threshold(form):
    """A weight that is a normal number times a small error is subnormal: rounded, it moved a sum by 1.3 C."""
    params = {"weight": torch.zeros(1, 1, dtype=torch.float64), "bias": torch.full((1,), 16.0, dtype=torch.float64)}
    for threshold in (1e-12, 3e-7, 1e-4, 0.35):
        for x in np.geomspace(1e36, 3e38, 20):
            source = LinearSource(FORMS[form](np.array([[x]], np.float32)), np.array([1.0]), LogisticLoss())
            engine = source.engine(params, np.array([0]))
            sums = engine.weighted_sums(FlatClipper(max_grad_norm=threshold).weights, GROUPS[0]).values[0]
            assert math.hypot(*(float(part) for part in sums.values())) <= threshold


@pytest.mark.parametrize("form", ["array", "csr"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_rounding_of_a_float32_sum_hides_no_more_than_the_norms_pay_for(form, outputs):
    """One record moves a sum of 2^16 aligned terms by at most C: in one run over all rows it moves it by 1.005 C."""
    x = (1 + 0.3 * np.random.default_rng(1).random((2**16, 1))).astype(np.float32)
    loss = LogisticLoss() if outputs == 1 else MultinomialLoss(2)
    zeros = {"weight": torch.zeros(outputs, 1, dtype=torch.float64), "bias": torch.zeros(outputs, dtype=torch.float64)}

    def joint(y):
        engine = LinearSource(FORMS[form](x), y, loss).engine(zeros, np.arange(len(x)))
        sums = engine.weighted_sums(CLIP, GROUPS[0]).values[0]
        return torch.cat([sums["weight"].ravel(), sums["bias"]]).double()

    y = np.zeros(len(x))
    whole = joint(y)
    for row in (0, len(x) // 2, len(x) - 1):
        without = y.copy()
        without[row] = np.nan
        assert 0.999 * 0.4 < float((whole - joint(without)).norm()) <= 0.4


@pytest.mark.parametrize("size", [2.0e38, 2.5e38, 2.9e38])
@pytest.mark.parametrize("max_grad_norm", [1e-3, 1e-5, 3e-6])
def test_a_share_too_small_to_be_rounded_well_is_absent(size, max_grad_norm):
    """A share of 4e-44 of a row of 2e38: float32 rounds it by percents, and the row would add more than C."""
    x = torch.tensor([[size, 0.0]])
    source = LinearSource(x, torch.tensor([1.0]), LogisticLoss())
    engine = source.engine({"weight": torch.zeros(1, 2), "bias": torch.tensor([14.0])}, np.array([0]))
    weights = FlatClipper(max_grad_norm=max_grad_norm).weights
    found = engine.weighted_sums(weights, {"all": ("weight", "bias")}).values[0]
    assert torch.cat([one.flatten() for one in found.values()]).norm() <= max_grad_norm


def test_float32_sums_of_any_number_of_rows_are_those_of_float64():
    rng = np.random.default_rng(0)
    for rows in (1, row_blocks.RUN - 1, row_blocks.RUN, 3 * row_blocks.RUN + 5):
        x, factors = rng.standard_normal((rows, 3)), torch.from_numpy(rng.standard_normal((rows, 2)))
        for wide in (np.ascontiguousarray(x), np.asfortranarray(x)):
            narrow = row_blocks.DenseBlocks(wide.astype(np.float32))
            found = narrow.sums(slice(0, rows), factors.float())
            assert found.dtype == torch.float64
            torch.testing.assert_close(found, torch.from_numpy(x).t() @ factors, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_no_product_is_needed_at_the_start(name):
    """At weights of zero a pass leaves the first product out; a tiny weight does not, and answers the same."""
    x, y, params = problem(name)
    source = LinearSource(x, y, LOSSES[name][0])
    bias = params["bias"]
    found = [
        source.engine({"weight": torch.full_like(params["weight"], w), "bias": bias}, np.arange(ROWS))
        for w in (0.0, 1e-12)
    ]
    first, second = (engine.weighted_sums(CLIP, GROUPS[0]).values[0] for engine in found)
    for one in params:
        torch.testing.assert_close(first[one], second[one], rtol=1e-8, atol=1e-8)


def test_norms_under_one_scale_are_those_under_many():
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    x[3] = 1e200  # whose square overflows before it is scaled
    x[4, 1] = np.inf
    one = torch.full((COLUMNS,), 1e-60, dtype=torch.float64)
    many = one.clone()
    many[0] *= 1 + 1e-15
    found, expected = (row_blocks.DenseBlocks(x).norms(scale, 0.5) for scale in (one, many))
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    assert found[3] > 1e139
    assert found[4] == math.inf
    assert found.isfinite().sum() == ROWS - 1


def test_a_norm_counts_where_squares_underflow_before_they_are_scaled():
    x, scale = np.array([[1e-170, 0.0], [0.0, 2e-170]]), torch.full((2,), 1e170, dtype=torch.float64)
    found = row_blocks.DenseBlocks(x).norms(scale, 0.0)
    torch.testing.assert_close(found, torch.tensor([1.0, 2.0], dtype=torch.float64), rtol=1e-12, atol=0)


def test_an_empty_batch_and_a_model_without_bias():
    x, y, params = problem("multinomial")
    source = LinearSource(x, y, MultinomialLoss(3), intercept=None)
    assert list(source.shapes) == ["weight"]
    engine = source.engine(params, np.zeros(0, np.int64))
    sums = engine.weighted_sums(CLIP, {"all": ("weight",)})
    assert not sums.values[0]["weight"].any()
    assert engine.norms({"all": ("weight",)}).shape == sums.norms.shape == (0, 1)
    assert list(engine.materialise()) == []
    assert "41" not in repr(source)


def test_a_memory_map_is_read_and_never_written(tmp_path):
    x, y, params = problem("logistic")
    x[3] = math.nan
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    sums = [
        LinearSource(table, y, LogisticLoss()).engine(params, np.arange(ROWS)).weighted_sums(CLIP, GROUPS[0])
        for table in (x, mapped)
    ]
    assert torch.equal(sums[0].values[0]["weight"], sums[1].values[0]["weight"])
    assert np.isnan(x[3]).all()


@pytest.mark.parametrize("form", FORMS)
def test_what_the_caller_writes_later_changes_nothing(form):
    """Norms of rows are taken once, so the rows must stay what they were."""
    x, y, params = problem("squared")
    table = FORMS[form](x)
    source = LinearSource(table, y, SquaredLoss())

    def total():
        (values,) = source.engine(params, np.arange(ROWS)).weighted_sums(CLIP, GROUPS[0]).values
        return values["weight"]

    before = total()
    numbers = table.data if scipy.sparse.issparse(table) else table
    numbers[...] = 1000.0
    assert torch.equal(total(), before)


def test_a_memory_map_that_may_be_written_is_refused(tmp_path):
    x, y, _ = problem("squared")
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(ValueError, match="open for reading only"):
        LinearSource(np.load(tmp_path / "x.npy", mmap_mode="r+"), y, SquaredLoss())


@pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_matrix], ids=["dense", "sparse"])
def test_rows_that_one_source_forgets_stay_forgotten(convert):
    x, y, params = problem("squared")
    x[3, 0] = math.nan
    given = convert(x)
    rows = row_blocks.as_row_blocks(given)
    sources = [LinearSource(rows, y, SquaredLoss()) for _ in range(2)]
    for source in sources:
        (values,) = source.engine(params, np.arange(ROWS)).weighted_sums(CLIP, GROUPS[0]).values
        assert values["weight"].isfinite().all()
    (shown,) = table_rows(rows).engine({}, np.array([3])).materialise()
    assert shown["weight"].isnan().any()
    assert shown["bias"].isnan().all()  # and not zeros with a constant, which would count
    np.testing.assert_array_equal(given if convert is np.asarray else given.toarray(), x)  # the caller's own table


def test_rows_of_a_table_with_a_constant_and_more(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 16)
    x, y, _ = problem("squared")
    table = row_blocks.WithColumns(row_blocks.as_row_blocks(x), torch.from_numpy(y).unsqueeze(1))
    scale = torch.tensor([*[0.5] * COLUMNS, 1.0], dtype=torch.float64)
    source = table_rows(table, scale=scale, intercept=2.0)
    engine = source.engine({}, np.arange(ROWS))
    rows = torch.from_numpy(np.hstack([0.5 * x, y[:, None], np.full((ROWS, 1), 2.0)]))
    shown = [torch.cat([c["weight"][:, 0], c["bias"]], dim=1) for c in engine.materialise()]
    torch.testing.assert_close(torch.cat(shown), rows)
    torch.testing.assert_close(engine.norms(GROUPS[0])[:, 0], rows.norm(dim=1), rtol=1e-12, atol=0)
    sums = engine.weighted_sums(CLIP, GROUPS[0])
    (found,) = sums.values
    expected = (CLIP(sums.norms) * rows).sum(0)
    torch.testing.assert_close(torch.cat([found["weight"][0], found["bias"]]), expected, rtol=1e-9, atol=1e-12)
    empty = source.engine({}, np.zeros(0, np.int64)).weighted_sums(CLIP, GROUPS[0])
    assert not empty.values[0]["weight"].any()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, y: LinearSource(x, y[:3], LogisticLoss()), "targets must have shape"),
        (lambda x, y: LinearSource(x[0], y, LogisticLoss()), "a table must have two axes"),
        (lambda x, y: LinearSource(x, y, LogisticLoss(), intercept=0.0), "intercept must be"),
        (lambda x, y: MultinomialLoss(1), "classes must be an integer >= 2"),
        (lambda x, y: HuberLoss(0.0), "threshold must be"),
        (lambda x, y: QuantileLoss(1.0, 0.1), "quantile must be in"),
    ],
)
def test_wrong_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build(*problem("logistic")[:2])


@pytest.mark.parametrize("intercept", [None, 1.0])
def test_an_entry_that_is_stored_in_pieces_is_one_number(intercept):
    """A CSR matrix may hold several numbers for one place, which stand for their sum."""
    pieces, starts = np.full(17, 1.0), np.array([0, 16, 17])
    table = scipy.sparse.csr_matrix((pieces, np.zeros(17, np.int64), starts), shape=(2, 2))
    source = LinearSource(table, np.array([5.0, 0.0]), SquaredLoss(), intercept=intercept)
    params = {name: torch.zeros(shape) for name, shape in source.shapes.items()}
    engine, groups = source.engine(params, np.array([0])), {"all": tuple(source.shapes)}
    assert engine.norms(groups).item() == pytest.approx(5 * math.hypot(16, intercept or 0))
    (total,) = engine.weighted_sums(CLIP, groups).values
    assert math.sqrt(sum(float(x.square().sum()) for x in total.values())) <= 0.4
    assert table.nnz == 17  # the caller's matrix is as it was


@pytest.mark.parametrize("form", [torch.from_numpy, scipy.sparse.csr_matrix])
def test_norms_of_rows_are_upper_bounds(form):
    """Against exact squares: half of the rounded norms would be below."""
    x = np.random.default_rng(0).standard_normal((300, 3))
    found = row_blocks.as_row_blocks(form(x)).norms(torch.full((3,), 0.7, dtype=torch.float64), 0.3)
    for row, norm in zip(x.tolist(), found.tolist(), strict=True):
        square = sum((Fraction(entry) * Fraction(0.7)) ** 2 for entry in row) + Fraction(0.3) ** 2
        assert Fraction(norm) ** 2 >= square
        assert norm == pytest.approx(math.sqrt(square), rel=1e-14)


def test_the_room_pays_for_one_run_in_each_of_two_neighbouring_tables():
    """A sum of 64 terms of norm at most C passes 63 additions, each off by at most u times a partial sum of 64 C."""
    u = 2.0**-24
    room = linear_source._room(torch.float32) - 1
    assert room >= 16 * u + 2 * 64 * 64 * u
    assert room <= 2.0**-11 + 32 * u
    assert linear_source._room(torch.float64) - 1 >= 16 * 2.0**-53
