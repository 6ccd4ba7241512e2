"""Checks of settings name the argument, whatever is handed in."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tacita import (
    GaussianMechanism,
    Ledger,
    MomentsOracle,
    StationarityQuery,
    _validate,
    clipping,
    error_feedback,
    linear,
)
from tacita.accounting import gaussian_epsilon
from tacita.linear_model import PrivateLogisticRegression
from tacita.tables.settings import TableSettings

QUERY: dict[str, Any] = {
    "alpha": 0.1, "hessian_lipschitz": 1.0, "max_grad_norm": 1.0, "declared_max_hessian_norm": 1.0, "num_records": 9,
}  # fmt: skip
MOMENTS: dict[str, Any] = {
    "num_records": 9, "mechanism": GaussianMechanism(noise_multiplier=1.0), "max_mean_norm": 1.0,
    "max_square_norm": 1.0, "ledger": Ledger(neighboring_relation="zero_out_one", privacy_unit="one row"),
}  # fmt: skip

CHECKS = [
    _validate.positive,
    _validate.threshold,
    _validate.non_negative,
    _validate.probability,
    _validate.below_one,
    _validate.inside,
    _validate.delta,
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", ["0.5", None, True, [], {}, math.nan, -1.0, 2j])
def test_what_is_no_such_number_is_refused_by_name(check, value):
    with pytest.raises(ValueError, match="target_epsilon must be"):
        check("target_epsilon", value)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [0.5, np.float32(0.5), torch.tensor(0.5), Fraction(1, 2)])
def test_numbers_of_any_kind_are_taken(check, value):
    assert check("target_epsilon", value) == 0.5


@pytest.mark.parametrize("value", [Fraction(1, 10**400), np.longdouble("1e-4000"), 10**400])
def test_a_number_that_no_float_holds_is_refused_by_name(value):
    """As a float it would be 0, or no number at all, after a check of the value that was given."""
    with pytest.raises(ValueError, match="lr must be a finite number > 0"):
        _validate.positive("lr", value)


@pytest.mark.parametrize("value", [5e-324, 1e-310, np.nextafter(1e-300, 0), Fraction(1, 10**400)])
def test_a_delta_too_small_for_float64_is_refused(value):
    with pytest.raises(ValueError, match="delta must be >= 1e-300"):
        _validate.delta("delta", value)
    assert gaussian_epsilon(1.0, _validate.delta("delta", 1e-300)) > 30


@pytest.mark.parametrize("value", [5e-324, 1e-45, 1e-39, 2.0**-126, 2.0**-100, np.nextafter(2.0**-40, 0)])
def test_a_threshold_too_small_for_float32_is_refused(value):
    with pytest.raises(ValueError, match=r"max_grad_norm must be >= 2\^-40"):
        _validate.threshold("max_grad_norm", value)


def test_the_least_threshold_leaves_room_for_subnormal_coordinates():
    """Room 2 u C of a clip weight, against half a step of the subnormal grid in each of d coordinates of T products."""
    least, u, half_step = _validate.threshold("C", 2.0**-40), 2.0**-24, 2.0**-150
    longest = 2.0**63  # of what multiplies the coordinates; a longer row counts as infinite
    assert half_step * longest * 2.0**24 <= 2 * u * least  # T sqrt(d) = 2^24
    assert half_step * longest * 2.0**24 > 2 * u * least / 2  # half the threshold would not do


@pytest.mark.parametrize(
    "build",
    [
        lambda c: clipping.FlatClipper(max_grad_norm=c),
        lambda c: clipping.AutomaticClipper(max_grad_norm=c, gamma=0.01),
        lambda c: clipping.PerLayerClipper(max_grad_norm=c),
        lambda c: clipping.PerLayerClipper(max_grad_norm={"": c}),
        lambda c: linear.SecondMoment(max_row_norm=c),
        lambda c: error_feedback.ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=c),
        lambda c: error_feedback.BoundedFeedback(max_feedback_norm=1.0, max_residual_norm=c),
        lambda c: StationarityQuery(**{**QUERY, "max_grad_norm": c}),
        lambda c: MomentsOracle(torch.ones(9, 2), **{**MOMENTS, "max_mean_norm": c}),
        lambda c: MomentsOracle(torch.ones(9, 2), **{**MOMENTS, "max_square_norm": c}),
        lambda c: TableSettings(data="a", output="b", epsilon=1.0, delta=1e-6, max_grad_norm=c),
        lambda c: PrivateLogisticRegression(epsilon=1.0, delta=1e-6, max_grad_norm=c).fit(np.zeros((9, 1)), [0] * 9),
    ],
)
def test_whatever_clips_refuses_a_threshold_that_float32_cannot_serve(build):
    for tiny in (1e-39, 5e-324):
        with pytest.raises(ValueError, match=r"must be >= 2\^-40"):
            build(tiny)
