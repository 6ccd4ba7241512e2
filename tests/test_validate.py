"""Checks of settings name the argument, whatever is handed in."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tacita import _validate

CHECKS = [
    _validate.positive,
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
