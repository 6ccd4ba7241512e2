"""Sums on a grid: exact norms in rationals, equal bits whatever the physical batch, hostile rows."""

from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacita.clipping import AutomaticClipper, FlatClipper, PerLayerClipper
from tacita.gradients import GivenEngine, GivenSource, NetworkSource
from tacita.hardened.grid import grid_sums, truncated_sum

GROUPS = {"all": ("theta",)}
SUBNORMAL = 2.0**-1060


def one_row(row, clipper, step, dtype=torch.float64):
    engine = GivenEngine(torch.tensor([row], dtype=dtype))
    return grid_sums(engine, clipper.weights, GROUPS, {"all": step}).values[0]["theta"]


def exact_square(integers, step):
    return sum((Fraction(k) * Fraction(step)) ** 2 for k in integers.tolist())


# -- identities


def test_it_is_truncation_toward_zero_of_the_weighted_rows():
    grads = torch.tensor([[0.9, -0.9, 0.26], [0.5, 1.25, -0.24]], dtype=torch.float64)
    weights = torch.tensor([1.0, 0.5], dtype=torch.float64)
    assert truncated_sum(grads, weights, 0.25).tolist() == [3 + 0, -3 + 2, 1 - 0]


@pytest.mark.parametrize("clipper", [FlatClipper(max_grad_norm=0.7), AutomaticClipper(max_grad_norm=0.7, gamma=0.01)])
def test_it_is_within_a_step_a_record_of_the_clipped_sum(clipper):
    grads = torch.randn(40, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    engine, step = GivenEngine(grads), 2.0**-20
    found = grid_sums(engine, clipper.weights, GROUPS, {"all": step}).values[0]["theta"] * step
    plain = engine.weighted_sums(clipper.weights, GROUPS).values[0]["theta"]
    assert (found - plain).abs().max() <= 40 * step


def test_leading_axes_are_runs():
    grads = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(3, 5, generator=torch.Generator().manual_seed(2)) < 0.5
    rule = FlatClipper(max_grad_norm=1.0).weights
    together = grid_sums(GivenEngine(grads, mask=mask), rule, GROUPS, {"all": 2.0**-10}).values[0]["theta"]
    for run in range(3):
        alone = GivenEngine(grads[run][mask[run]])
        assert torch.equal(together[run], grid_sums(alone, rule, GROUPS, {"all": 2.0**-10}).values[0]["theta"])


def test_an_empty_batch_is_zero():
    source = GivenSource({"a": torch.zeros(0, 3), "b": torch.zeros(0, 2)})
    engine = source.engine({}, torch.arange(0).numpy())
    found = grid_sums(engine, FlatClipper(max_grad_norm=1.0).weights, {"all": ("a", "b")}, {"all": 0.5})
    assert {name: x.tolist() for name, x in found.values[0].items()} == {"a": [0, 0, 0], "b": [0, 0]}
    assert found.values[0]["a"].dtype == torch.int64


# -- the guarantee, in rationals


def hostile_entries():
    huge = st.sampled_from([1e30, -1e30, 1e300, 3e-320, -SUBNORMAL, 2.0**-1074, 0.0, -0.0])
    return st.one_of(st.floats(-1e3, 1e3), st.floats(-1e-12, 1e-12), huge)


@given(
    st.lists(hostile_entries(), min_size=1, max_size=12),
    st.sampled_from([0.1, 0.7, 1.0, 1 / 3, 12345.678]),
    st.sampled_from([FlatClipper, partial(AutomaticClipper, gamma=1e-9)]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_record_adds_more_than_the_bound_exactly(row, threshold, kind, dtype):
    clipper, step = kind(max_grad_norm=threshold), 2.0**-21 * 2.0 ** round(threshold).bit_length()
    whole = one_row(row, clipper, step, dtype)
    assert exact_square(whole, step) <= Fraction(threshold) ** 2


@pytest.mark.parametrize("numerator", range(3, 40))
def test_products_that_round_up_to_a_whole_step_stay_below(numerator):
    """A row of norm just above C whose scaled entry would round to the next step."""
    threshold = numerator / 7
    for entry in (threshold * (1 + 2.0**-52), threshold * 3, threshold * (1 + 2.0**-50)):
        step = 2.0**-24
        assert (
            exact_square(one_row([entry], FlatClipper(max_grad_norm=threshold), step), step) <= Fraction(threshold) ** 2
        )


def test_a_whole_step_reached_by_rounding_alone_is_not_taken():
    """weight * entry is below 1 in real numbers and 1 in float64: truncation must give 0."""
    found = 0
    for entry in map(float, range(3, 400)):
        weight = 1 / entry
        if Fraction(weight) * Fraction(entry) < 1 and weight * entry == 1.0:
            row, weights = torch.tensor([[entry]], dtype=torch.float64), torch.tensor([weight], dtype=torch.float64)
            assert truncated_sum(row, weights, 1.0).tolist() == [0]
            found += 1
    assert found > 50


@pytest.mark.parametrize("hostile", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_adds_nothing(hostile):
    rows = torch.tensor([[0.5, 0.25], [hostile, 0.0], [0.0, -0.5]])
    found = grid_sums(GivenEngine(rows), FlatClipper(max_grad_norm=1.0).weights, GROUPS, {"all": 0.25})
    assert found.values[0]["theta"].tolist() == [2, -1]


def test_groups_have_steps_of_their_own():
    rows = {"a": torch.tensor([[0.9]]), "b": torch.tensor([[0.9]])}
    found = grid_sums(GivenEngine(rows), torch.ones_like, {"x": ("a",), "y": ("b",)}, {"x": 0.5, "y": 0.125})
    assert (found.values[0]["a"].item(), found.values[0]["b"].item()) == (1, 7)


def test_per_layer_blocks_are_bounded_each():
    clipper = PerLayerClipper(max_grad_norm={"a": 1.0, "b": 0.1})
    rows = {"a.w": torch.full((1, 5), 3.0), "b.w": torch.full((1, 4), 7.0)}
    engine, step = GivenEngine(rows), 2.0**-20
    found = grid_sums(engine, clipper.weights, clipper.groups(engine.shapes), {"a": step, "b": step}).values[0]
    assert exact_square(found["a.w"], step) <= 1
    assert exact_square(found["b.w"], step) <= Fraction(0.1) ** 2
    assert exact_square(found["b.w"], step) > Fraction(0.0999) ** 2


# -- the order of summation does not show


def network(method, rows=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    data = (torch.randn(37, 6), torch.randint(3, (37,)))
    return NetworkSource(
        model,
        lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        data,
        method=method,
        max_physical_batch_size=rows,
    )


def bits(source, order=None):
    indices = torch.arange(37) if order is None else order
    params = {name: p for name, p in source.model.named_parameters()}
    engine = source.engine(params, indices.numpy())
    found = grid_sums(engine, FlatClipper(max_grad_norm=0.5).weights, {"all": tuple(params)}, {"all": 2.0**-22})
    return torch.cat([x.flatten() for x in found.values[0].values()])


@pytest.mark.parametrize("rows", [1, 2, 5, 36])
def test_physical_batches_give_the_same_bits(rows):
    assert torch.equal(bits(network("loop", rows)), bits(network("loop")))


def test_a_program_that_runs_one_record_at_a_time_shows_no_companions():
    """Whatever the order, and whoever else is there: the sum is that of the single records."""
    source = network("program", 1)
    order = torch.randperm(37, generator=torch.Generator().manual_seed(3))
    assert torch.equal(bits(source), bits(source, order))
    singles = [bits(source, torch.tensor([row])) for row in range(37)]
    assert torch.equal(bits(source), torch.stack(singles).sum(0))


@pytest.mark.parametrize("method", ["program"])
def test_other_engines_agree_but_for_what_kernels_round(method):
    """Their kernels may show a record in its companions' last bits, so that no equality of bits is claimed."""
    expected = bits(network("loop"))
    for rows in (None, 5):
        assert (bits(network(method, rows)) - expected).abs().max() <= 37 * 4


def test_the_order_of_records_does_not_show():
    order = torch.randperm(37, generator=torch.Generator().manual_seed(3))
    assert torch.equal(bits(network("loop", 5)), bits(network("loop", 7), order))


def test_given_rows_give_the_same_bits_in_every_order_where_float_sums_do_not():
    rows = torch.randn(999, 4, generator=torch.Generator().manual_seed(4))
    rule = FlatClipper(max_grad_norm=1.0).weights
    whole = [
        grid_sums(GivenEngine(x), rule, GROUPS, {"all": 2.0**-24}).values[0]["theta"] for x in (rows, rows.flip(0))
    ]
    floats = [GivenEngine(x).weighted_sums(rule, GROUPS).values[0]["theta"] for x in (rows, rows.flip(0))]
    assert torch.equal(*whole)
    assert not torch.equal(*floats)
