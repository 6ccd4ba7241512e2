"""Noise that is not what is stated, or used twice, is seen; noise that is, is not."""

import pytest
import torch

from tacita.testing.fidelity import check_every_query, check_fresh, check_noise, check_noise_or_dropped, check_precision

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


LONG = (6, 100, 4)


@pytest.mark.parametrize("seed", range(20))
def test_long_sessions_of_independent_normals_pass(seed):
    check_every_query(normals(seed, LONG), FALSE_ALARM)
    check_fresh(normals(seed, LONG))


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
def test_one_query_of_many_with_other_noise_is_seen(scale):
    noise = normals(0, LONG)
    noise[:, 70] *= scale
    with pytest.raises(AssertionError, match="in query 71 of 100"):
        check_every_query(noise, FALSE_ALARM)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_pair_of_queries_with_the_same_noise_is_seen(sign):
    noise = normals(0, LONG)
    noise[:, 70] = sign * noise[:, 3]
    with pytest.raises(AssertionError, match="two queries is not independent: 4 and 71"):
        check_every_query(noise, FALSE_ALARM)


def test_one_query_of_many_without_noise_is_seen():
    released = normals(0, LONG)
    released[:, 70] = 1.0
    with pytest.raises(AssertionError, match="query 71 releases the same in 6 sessions"):
        check_fresh(released)
