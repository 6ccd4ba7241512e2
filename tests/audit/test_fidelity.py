"""Noise that is not what is stated, or used twice, is seen; noise that is, is not."""

import pytest
import torch

from tacita.audit.fidelity import check_noise, check_noise_or_dropped, check_precision

SHAPE = (60, 2, 4)
FALSE_ALARM = 1e-6


def normals(seed, shape=SHAPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(20))
def test_independent_normals_pass(seed):
    check_noise(normals(seed), FALSE_ALARM)
    check_precision(normals(seed))


@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_another_standard_deviation_is_seen(scale):
    with pytest.raises(AssertionError, match="stated standard deviation"):
        check_noise(scale * normals(0), FALSE_ALARM)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("where", ["two sessions", "two queries", "two coordinates"])
def test_noise_used_twice_is_seen(where, sign):
    noise = normals(0)
    if where == "two sessions":
        noise[30:] = sign * noise[:30]
    if where == "two queries":
        noise[:, 1] = sign * noise[:, 0]
    if where == "two coordinates":
        noise[..., 3] = sign * noise[..., 1]
    with pytest.raises(AssertionError, match=f"noise of {where} is not independent"):
        check_noise(noise, FALSE_ALARM)


def test_values_that_are_not_the_estimators_are_seen():
    with pytest.raises(AssertionError, match="values are not the estimator's"):
        check_noise(normals(0) + 0.8, FALSE_ALARM)


def test_a_huge_gradient_is_clipped_or_dropped():
    shift = 3 * torch.ones(SHAPE)
    for residual in (normals(0), normals(1) + shift):
        check_noise_or_dropped(residual, shift, FALSE_ALARM)
    with pytest.raises(AssertionError, match="neither clipped nor dropped"):
        check_noise_or_dropped(normals(2) + 2 * shift, shift, FALSE_ALARM)


def test_noise_of_half_precision_is_seen():
    with pytest.raises(AssertionError, match="less than float32's precision"):
        check_precision(normals(0).bfloat16().float())
