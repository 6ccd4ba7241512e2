"""Noise in whole steps: what is released, what is refused, and the attack on low bits that it closes."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from tacita._stream import Noise
from tacita.accounting import GaussianSumEvent, HardenedEvent, PoissonLaw, Spend, epsilon
from tacita.hardened import RoundedGaussian
from tacita.hardened.integer_noise import rounded_normals
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism
from tacita.random import Key

FALSE_ALARM = 1e-6
STEP = 2.0**-20


def noise(seed):
    return Noise(lambda block: Key.insecure(seed).stream("noise", block))


def ready(steps=None, multiplier=1.0):
    steps = steps or {"g": STEP}
    return RoundedGaussian(noise_multiplier=multiplier).on(steps, dict.fromkeys(steps, 1.0))


def test_a_release_is_the_value_plus_whole_steps():
    values = {"g": {"w": torch.arange(6.0, dtype=torch.float64).view(2, 3), "b": torch.tensor([-1.5]).double()}}
    released = ready()(values, {"g": 0.75}, noise(0))
    expected = rounded_normals(Key.insecure(0).stream("noise", "g"), 7, 0.75 / STEP)
    steps = torch.cat([(released["g"][name] - values["g"][name]).flatten() for name in ("w", "b")]) / STEP
    assert steps.tolist() == expected.tolist()
    assert released["g"]["w"].dtype == torch.float64
    assert released["g"]["w"].shape == (2, 3)


def test_it_has_the_stated_scale_in_each_block():
    count = 200_000
    values = {block: {"w": torch.zeros(count, dtype=torch.float64)} for block in ("a", "b")}
    released = ready({"a": STEP, "b": 2.0**-10})(values, {"a": 0.5, "b": 3.0}, noise(1))
    for block, std in (("a", 0.5), ("b", 3.0)):
        low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=count)
        square = released[block]["w"].square().sum().item()
        assert low < square / std**2 < high
        assert not low < square / (1.03 * std) ** 2 < high
    assert not torch.equal(released["a"]["w"] / 0.5, released["b"]["w"] / 3.0)


def test_large_sums_wrap_after_the_noise_as_before_it():
    """(x mod 2^53) + k and x + k, both modulo 2^53, are equal: a sum that wraps is post-processed, no more."""
    edges = [2**52 - 3, -(2**52)] * 50
    values = torch.tensor(edges, dtype=torch.float64) * STEP
    released = ready()({"g": {"w": values}}, {"g": 1000 * STEP}, noise(2))["g"]["w"] / STEP
    drawn = rounded_normals(Key.insecure(2).stream("noise", "g"), 100, 1000.0)
    for found, x, k in zip(released.tolist(), edges, drawn.tolist(), strict=True):
        assert (int(found) - x - k) % 2**53 == 0
        assert -(2**52) <= found < 2**52


def test_no_noise_is_the_value_itself():
    values = {"g": {"w": torch.tensor([3.0, -0.5], dtype=torch.float64)}}
    assert torch.equal(ready(multiplier=0.0)(values, {"g": 0.0}, noise(0))["g"]["w"], values["g"]["w"])


# -- the attack on low bits (Mironov 2012)


def multiples(released, step):
    """The share of releases in (0, 1/4) that are whole multiples of ``step``."""
    inside = released[(released > 0) & (released < 0.25)].double() / step
    return (inside == inside.round()).double().mean().item()


def worlds(mechanism, normals, dtype, count=100_000):
    for value in (0.0, 1.0):
        x = torch.full((count,), value, dtype=dtype)
        yield mechanism({"g": {"w": x}}, {"g": 1.0}, normals)["g"]["w"]


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 2.0**-24), (torch.float64, 2.0**-53)])
def test_floating_point_noise_shows_which_world_it_is(dtype, step):
    """1 + z in (0, 1/4) is a multiple of the spacing of floats near 1/2; 0 + z hardly ever is."""
    without, with_one = worlds(GaussianMechanism(noise_multiplier=1.0), noise(3), dtype)
    assert multiples(with_one, step) == 1.0
    assert multiples(without, step) < 0.9


def test_whole_steps_look_alike_in_both_worlds():
    without, with_one = worlds(ready(), noise(4), torch.float64)
    assert multiples(with_one, STEP) == multiples(without, STEP) == 1.0
    for bits in (1, 4):
        counts = [np.bincount((x / STEP).long() % 2**bits, minlength=2**bits) for x in (without, with_one)]
        for found in counts:
            assert scipy.stats.chisquare(found).pvalue > FALSE_ALARM


def test_the_supports_of_both_worlds_are_equal():
    """With a noise of 2 steps, every whole number within 8 steps of either value occurs in both worlds."""
    mechanism = ready({"g": 0.5})
    found = [set((x / 0.5).long().tolist()) for x in worlds(mechanism, noise(5), torch.float64, count=10**6)]
    assert set(range(-5, 8)) <= found[0] & found[1]


# -- what is refused, and calibration


def test_steps_come_from_the_estimator():
    mechanism = RoundedGaussian(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="steps must be set before"):
        mechanism({"g": {"w": torch.zeros(2).double()}}, {"g": 1.0}, noise(0))
    with pytest.raises(ValueError, match="Use GridSum or CappedSum"):
        mechanism.on(None, {"g": 1.0})
    with pytest.raises(ValueError, match=r"at most 2\^36 steps"):
        mechanism.on({"g": 2.0**-40}, {"g": 1.0})
    assert mechanism.on({"g": STEP}, {"g": 1.0}).steps == {"g": STEP}


def test_floating_point_noise_is_not_added_to_whole_steps():
    mechanism = GaussianMechanism(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="use RoundedGaussian"):
        mechanism.on({"g": STEP}, {"g": 1.0})
    assert mechanism.on(None, {"g": 1.0}) is mechanism


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, True])
def test_settings_raise_when_built(wrong):
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        RoundedGaussian(noise_multiplier=wrong)


def test_blocks_share_one_noise_multiplier():
    sensitivity, sizes = {"a": 1.0, "b": 0.5}, {"a": 10, "b": 1000}
    noise_std = RoundedGaussian(noise_multiplier=1.3, allocation="least_power").noise_std(sensitivity, sizes)
    assert sum((sensitivity[b] / noise_std[b]) ** 2 for b in sizes) == pytest.approx(1 / 1.3**2)


def hardened(inner):
    return HardenedEvent(relation=inner.relation, inner=inner, sums="alone")


def poisson(noise_multiplier, relation="add_or_remove_one"):
    return GaussianSumEvent(
        sampling=PoissonLaw(0.02), max_contribution=(1.0,), noise_std=(noise_multiplier,), relation=relation
    )


def test_calibration_meets_the_target_with_its_own_event():
    def event_at(noise_multiplier):
        return RoundedGaussian(noise_multiplier=noise_multiplier).event(hardened(poisson(noise_multiplier)))

    target = CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5, form=RoundedGaussian)
    assert target.on_grid
    mechanism = target.resolve(event_at, "add_or_remove_one", 150)
    assert isinstance(mechanism, RoundedGaussian)
    assert 1.99 <= epsilon([Spend(event_at(mechanism.noise_multiplier), 150)], 1e-5).epsilon <= 2.0
    plain = CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5).resolve(poisson, "add_or_remove_one", 150)
    assert mechanism.noise_multiplier == plain.noise_multiplier


def test_a_kind_of_noise_is_a_class():
    with pytest.raises(ValueError, match="form must be a class of mechanisms"):
        CalibratedGaussian(target_epsilon=1.0, target_delta=1e-5, form="rounded")  # type: ignore[arg-type]
