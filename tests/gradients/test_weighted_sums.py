import threading
from fractions import Fraction

import numpy as np
import pytest
import torch

from tacita.clipping import FlatClipper
from tacita.gradients.weighted_sums import (
    full_precision,
    group_norms,
    norm_over,
    round_down,
    round_up,
    weight_arrays,
    weighted_sum,
)


def test_norms_of_millions_of_values_are_upper_bounds_and_tight():
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(2, 3_100_000, generator=generator)
    exact = rows.double().square().sum(dim=1).sqrt()
    got = norm_over([rows])
    assert (got >= exact).all()
    torch.testing.assert_close(got, exact, rtol=1e-8, atol=0)


def test_a_norm_accumulated_in_float32_would_be_too_small():
    rows = torch.rand(1, 3_100_000, generator=torch.Generator().manual_seed(0))
    assert torch.linalg.vector_norm(rows).double() < norm_over([rows])[0] * (1 - 1e-5)


def test_an_upper_bound_in_exact_arithmetic():
    rows = torch.randn(50, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for row, norm in zip(rows.tolist(), norm_over([rows]).tolist(), strict=True):
        assert sum(Fraction(x) ** 2 for x in row) <= Fraction(norm) ** 2


@pytest.mark.parametrize("terms", [100, 10**4, 10**6])
def test_norms_are_rounded_up_by_what_the_worst_order_of_summation_loses(terms):
    """One after another, each square too small to show beside the first: the sum stays 1."""
    square = 0.99 * 2.0**-53
    summed = np.cumsum(np.array([1.0, *[square] * terms]))[-1]
    assert summed == 1.0
    found = round_up(torch.tensor(summed, dtype=torch.float64).sqrt(), terms + 1).item()
    assert Fraction(found) ** 2 >= 1 + terms * Fraction(square)
    assert found <= 1 + 2 * (terms + 20) * 2.0**-53


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (3,), (2, 3, 4, 5)])
def test_norms_of_unusual_shapes(shape):
    rows = torch.ones(shape)
    assert norm_over([rows]).shape == shape[:1]
    assert (norm_over([rows]) ** 2).tolist() == pytest.approx([float(rows[0].numel()) if shape[0] else 0.0] * shape[0])


def test_large_float32_values_do_not_overflow():
    norms = group_norms({"w": torch.full((1, 4), 3e38)}, {"all": ("w",)})
    assert norms.item() == pytest.approx(6e38, rel=1e-6)


def test_round_down_never_exceeds():
    weights = torch.rand(10_000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        narrow = round_down(weights, dtype)
        assert (narrow.double() <= weights).all()
        assert ((weights - narrow.double()) <= weights * torch.finfo(dtype).eps).all()
    assert (weights.float().double() > weights).any()  # plain rounding does exceed


def test_weights_may_have_more_leading_axes_than_the_rows():
    grads = torch.randn(5, 3, dtype=torch.float64)
    weights = torch.rand(4, 2, 5, 1, dtype=torch.float64)
    (total,) = weighted_sum({"w": grads}, weights, {"all": ("w",)}).values()
    torch.testing.assert_close(total, torch.einsum("abi,id->abd", weights[..., 0], grads))


def contributions(rows, threshold):
    """The exact norms of what each row adds alone, clipped at ``threshold``."""
    groups = {"all": ("w",)}
    weights = FlatClipper(max_grad_norm=threshold).weights(group_norms({"w": rows}, groups))
    sums = [weighted_sum({"w": rows[i : i + 1]}, weights[i : i + 1], groups)["w"] for i in range(len(rows))]
    return torch.stack(sums).double().square().sum(dim=1).sqrt()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_clipped_row_stays_within_the_threshold_in_its_own_dtype(dtype):
    generator = torch.Generator().manual_seed(4)
    rows = (torch.randn(300, 6, generator=generator) * torch.logspace(-1, 30, 300).unsqueeze(1)).to(dtype)
    for threshold in (0.1, 1.0, 3.0):
        got = contributions(rows, threshold)
        assert (got <= threshold).all()
        torch.testing.assert_close(got, rows.double().norm(dim=1).clamp(max=threshold), rtol=1e-6, atol=0)


def test_a_row_that_need_not_be_clipped_is_added_as_it_is():
    rows = torch.tensor([[0.6, 0.8], [0.5, 0.0], [2.0, 0.0]])
    norms = norm_over([rows])
    threshold = norms[0].item()
    weights = FlatClipper(max_grad_norm=threshold).weights(norms.unsqueeze(1))
    total = [weighted_sum({"w": rows[i : i + 1]}, weights[i : i + 1], {"all": ("w",)})["w"] for i in range(3)]
    assert torch.equal(torch.stack(total)[:2], rows[:2])
    assert total[2].norm() < threshold


def test_autocast_does_not_round_the_sum():
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(5))
    expected = contributions(rows, 10.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contributions(rows, 10.0), expected)


def test_a_row_that_is_absent_in_one_run_and_present_in_another():
    grads = torch.tensor([[1.0, 2.0], [torch.nan, 0.0]])
    weights = torch.tensor([[[1.0], [0.0]], [[1.0], [1.0]]])
    (total,) = weighted_sum({"w": grads}, weights, {"all": ("w",)}).values()
    assert total[0].tolist() == [1.0, 2.0]
    assert total[1, 0].isnan()
    assert total[1, 1] == 2.0


def test_a_rule_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"rule must return weights of shape \(3, 2\), got \(3,\)"):
        weight_arrays(lambda norms: norms[:, 0], torch.ones(3, 2))


def test_a_norm_is_of_all_parameters_of_its_group_and_a_weight_of_its_own_group():
    grads = {"a": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([[4.0], [1.0]]), "c": torch.tensor([[2.0], [5.0]])}
    groups = {"first": ("c",), "second": ("a", "b")}
    assert group_norms(grads, groups).tolist() == [pytest.approx([2.0, 5.0]), pytest.approx([5.0, 1.0])]
    weights = torch.tensor([[1.0, 0.5], [0.25, 0.0]])
    found = weighted_sum(grads, weights, groups)
    assert {name: x.item() for name, x in found.items()} == pytest.approx({"a": 1.5, "b": 2.0, "c": 3.25}, rel=1e-5)


def test_full_precision_holds_until_the_last_thread_is_through():
    """PyTorch has one switch in a process: the thread that ends first must not turn it back under the other."""
    switch, (first, second), seen = torch.backends.mkldnn.matmul, [threading.Event() for _ in range(2)], []
    before = switch.fp32_precision

    def early():
        with full_precision(torch.device("cpu")):
            first.set()
            second.wait()

    thread = threading.Thread(target=early)
    switch.fp32_precision = "bf16"
    try:
        thread.start()
        first.wait()
        with full_precision(torch.device("cpu")):
            second.set()
            thread.join()
            seen.append(switch.fp32_precision)
        seen.append(switch.fp32_precision)
    finally:
        switch.fp32_precision = before
    assert seen == ["ieee", "bf16"]
