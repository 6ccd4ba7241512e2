"""Norms of sums of outer products: cancellation is never hidden, and the term that sees to it is small."""

import pytest
import torch
from torch import nn

from tacita.gradients import NetworkSource
from tacita.gradients.rules import outer, rule
from tacita.gradients.rules.rounding import gamma, measure, of_norms, squared_row_norms, totals
from tacita.gradients.weighted_sums import full_precision


def exact(a, d):
    return (d.double().mT @ a.double()).flatten(1).norm(dim=1)


def squares_of(a, d):
    return totals([[outer.squares_of(a, d)]])[0]


def cancelling(rows, positions, in_width, out_width, size):
    """Nearly equal inputs of norm ``size`` and opposite output gradients."""
    base = torch.randn(rows, 1, in_width)
    a = size * base / base.norm(dim=2, keepdim=True) + torch.randn(rows, positions, in_width)
    sign = 1.0 - 2.0 * (torch.arange(positions) % 2)
    return a, sign.view(1, -1, 1) * torch.randn(rows, 1, out_width)


def naive_gram(a, d):
    return ((a @ a.mT) * (d @ d.mT)).sum(dim=(1, 2)).clamp(min=0).sqrt().double()


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
@pytest.mark.parametrize("positions", [2, 16])
def test_gram_norms_are_upper_bounds_where_positions_cancel(size, positions):
    torch.manual_seed(0)
    a, d = cancelling(50, positions, 64, 48, size)
    assert outer.gram_is_cheaper(positions, 64, 48)
    bounds = squares_of(a, d).sqrt()
    assert (bounds >= exact(a, d)).all()
    if size == 1e4:
        assert (bounds <= 2 * exact(a, d)).all(), "a loose row is computed again from its gradient"


def test_the_naive_gram_norm_is_not():
    """Row 47 of the pitfalls, as it was seen: two tokens at 1e4, true norm 8, Gram norm 0."""
    torch.manual_seed(0)
    a, d = cancelling(200, 2, 64, 48, 1e4)
    assert (naive_gram(a, d) < 0.5 * exact(a, d)).any()


@pytest.mark.parametrize(("in_width", "out_width"), [(512, 512), (512, 2048), (2048, 512)])
def test_the_term_is_a_tenth_of_a_percent_for_ordinary_records(in_width, out_width):
    torch.manual_seed(0)
    a, d = torch.randn(4, 256, in_width), torch.randn(4, 256, out_width)
    radius = outer.radius(256, a.dtype)
    direct = outer.direct_squares(outer.direct_norms(a, d), measure(a), measure(d), radius, a.dtype)
    for squares in (totals([[direct]])[0], totals([[outer.gram_squares(a, d)]])[0]):
        excess = squares / exact(a, d).square() - 1
        assert (excess > 0).all()
        assert (excess < 2e-3).all()


def test_a_single_long_block_would_not_do():
    """The same width without blocks: the worst case of one sum is far above a percent."""
    assert gamma(512 + 512 + 4, torch.float32) * 256 > 0.01


def test_gram_and_direct_agree_without_the_margin():
    torch.manual_seed(0)
    a, d = torch.randn(5, 6, 40).double(), torch.randn(5, 6, 30).double()
    both = [[outer.gram_squares(a, d)], [of_norms(outer.direct_norms(a, d))]]
    gram, direct = totals(both, rounding_margin=False)
    torch.testing.assert_close(gram, direct, rtol=1e-12, atol=0)
    torch.testing.assert_close(direct.sqrt(), exact(a, d), rtol=1e-12, atol=0)


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("scores", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("rows", [1e-6, 1e-3, 1.0, 1e6])
def test_a_head_that_meets_its_embedding_is_bounded_and_only_rows_that_cancel_are_computed_again(rows, scores, cancels):
    """Scores have tiny gradients beside the ones of an embedding: their inputs must not meet those ones in the term."""
    torch.manual_seed(0)
    d, a = scores * torch.randn(6, 20, 300), 8 * torch.randn(6, 20, 64)
    index, e = torch.randint(40, (6, 20)), rows * torch.randn(6, 20, 64)
    if cancels:  # at all positions nearly the same, with opposite signs
        sign = (1.0 - 2.0 * (torch.arange(20) % 2)).unsqueeze(1)
        a, index = a[:, :1] + 1e-4 * a, index[:, :1].expand(-1, 20)
        d, e = sign * (d[:, :1] + 1e-4 * d), sign * (e[:, :1] + 1e-4 * e)
    at = (torch.arange(6)[:, None].expand(-1, 20), index)
    whole = (d.double().mT @ a.double()).index_put(at, e.double(), accumulate=True)
    again = []

    def exactly(loose):
        again.append(loose)
        return measure(whole[loose])

    parts = [rule.Factors(d, a), rule.Factors(index, e)]
    bounds = totals([[outer.squares_of_factors(parts, exactly)]])[0].sqrt()
    norms = whole.flatten(1).norm(dim=1)
    assert (bounds >= norms).all()
    if not cancels and rows <= 1e3 * scores:
        assert not again
        assert (bounds <= 1.002 * norms).all()


def test_a_row_whose_partial_sums_overflow_is_not_finite():
    a = torch.full((1, 2, 3), 1e25)
    d = torch.tensor([[[1e15], [-1e15]]])
    assert squares_of(a, d).isinf().all()


def test_squares_that_underflow_are_not_lost():
    """Activations of 1e-25 square to zero in float32, and with output gradients of 1e26 the gradient has norm 17."""
    a, d = torch.full((1, 1, 3), 1e-25), torch.full((1, 1, 1), 1e17)
    assert squares_of(a, 1e9 * d).sqrt() >= exact(a, 1e9 * d)
    assert (squared_row_norms(torch.full((1, 3), 1e-25)) > 0).all()


def test_long_rows_are_summed_in_float64():
    rows = torch.full((1, 2**22), 0.1)
    truth = rows.double().square().sum()
    bound = squared_row_norms(rows)[0]
    assert truth <= bound <= truth * (1 + 1e-5)


@pytest.fixture
def low_precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("low_precision")
def test_products_are_exact_to_float32_whatever_the_user_allows():
    before = torch.backends.mkldnn.matmul.fp32_precision
    with full_precision(torch.device("cpu")):
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_autocast_is_off_inside():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with full_precision(torch.device("cpu")):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("method", ["program", "loop"])
def test_a_layer_that_meets_no_position_has_gradients_of_zero(method):
    def loss_fn(model, batch):
        return model(batch[0]).sum(dim=(1, 2))

    source = NetworkSource(nn.Linear(3, 2), loss_fn, (torch.zeros(4, 0, 3),), method=method)
    engine = source.engine(dict(source.model.named_parameters()), torch.arange(4).numpy(), seed=1)
    found = engine.weighted_sums(torch.ones_like, {"all": ("weight", "bias")})
    assert (found.norms <= 1e-15).all()
    assert not any(value.any() for value in found.values[0].values())
