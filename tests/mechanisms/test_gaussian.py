"""The Gaussian mechanism: its scale by the exact law, allocation over blocks, calibration."""

import math

import pytest
import scipy.stats
import torch

from tacita.accounting import GaussianSumEvent, PoissonLaw, Spend, epsilon
from tacita.hardened import RoundedGaussian
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism, Mechanism
from tacita.second_order.above_threshold import AboveThreshold

N = 10**6  # standard error of the estimated std: 1 / sqrt(2 N) = 0.07 %


def normals_from(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda block, like: {name: torch.randn(x.shape, generator=generator) for name, x in like.items()}


def assert_normal_scale(draws, std, false_alarm=1e-6):
    """Fail unless draws have the scale of N(0, std^2): sum(draws^2) / std^2 is chi-square(n)."""
    n = draws.numel()
    low, high = scipy.stats.chi2.ppf([false_alarm / 2, 1 - false_alarm / 2], df=n)
    ratio = draws.double().square().sum().item() / std**2
    assert low < ratio < high, f"std is {(ratio / n) ** 0.5:.4f} x the stated one (n = {n})"


def test_noise_std_is_multiplier_times_sensitivity():
    mechanism = GaussianMechanism(noise_multiplier=0.7)
    noise_std = mechanism.noise_std({"gradient": 3.0}, {"gradient": N})
    assert noise_std == {"gradient": pytest.approx(2.1)}
    released = mechanism({"gradient": {"w": torch.zeros(N)}}, noise_std, normals_from(0))
    assert_normal_scale(released["gradient"]["w"], std=0.7 * 3.0)


@pytest.mark.parametrize("wrong", [0.994, 1.006])
def test_the_scale_check_can_fail(wrong):
    draws = torch.randn(N, generator=torch.Generator().manual_seed(1))
    with pytest.raises(AssertionError, match="the stated one"):
        assert_normal_scale(wrong * draws, std=1.0)


@pytest.mark.parametrize("allocation", ["single", "least_power"])
def test_blocks_share_one_noise_multiplier(allocation):
    sensitivity, sizes = {"a": 1.0, "b": 0.5, "c": 2.0}, {"a": 10, "b": 1000, "c": 7}
    noise_std = GaussianMechanism(noise_multiplier=1.3, allocation=allocation).noise_std(sensitivity, sizes)
    assert sum((sensitivity[b] / noise_std[b]) ** 2 for b in sizes) == pytest.approx(1 / 1.3**2)


def test_least_power_has_no_more_noise_than_any_other_allocation():
    sensitivity, sizes = {"a": 1.0, "b": 0.5}, {"a": 10, "b": 1000}

    def power(noise_std):
        return sum(sizes[b] * noise_std[b] ** 2 for b in sizes)

    least = power(GaussianMechanism(noise_multiplier=1.0, allocation="least_power").noise_std(sensitivity, sizes))
    for share in torch.linspace(0.01, 0.99, 50).tolist():  # share of 1 / noise_multiplier^2 that block a gets
        other = {"a": 1.0 / math.sqrt(share), "b": 0.5 / math.sqrt(1 - share)}
        assert least <= power(other) * (1 + 1e-12)
    assert least < power(GaussianMechanism(noise_multiplier=1.0).noise_std(sensitivity, sizes))


def test_each_block_gets_its_own_noise():
    mechanism = GaussianMechanism(noise_multiplier=1.0)
    values = {"a": {"w": torch.zeros(N)}, "b": {"w": torch.zeros(N)}}
    released = mechanism(values, {"a": 1.0, "b": 5.0}, normals_from(2))
    assert_normal_scale(released["a"]["w"], 1.0)
    assert_normal_scale(released["b"]["w"], 5.0)


def test_half_precision_noise_is_never_added_in_half_precision():
    values = {"g": {"w": torch.zeros(8, dtype=torch.float32)}}
    released = GaussianMechanism(noise_multiplier=1.0)(values, {"g": 1.0}, normals_from(0))
    assert released["g"]["w"].dtype == torch.float32


def test_zero_noise_is_the_value_itself():
    values = {"g": {"w": torch.arange(5.0)}}
    released = GaussianMechanism(noise_multiplier=0.0)(values, {"g": 0.0}, normals_from(0))
    assert torch.equal(released["g"]["w"], values["g"]["w"])


def test_calibrated_never_overshoots_beside_other_sessions():
    def event_at(noise_multiplier):
        return GaussianSumEvent(
            sampling=PoissonLaw(0.02),
            max_contribution=(1.0,),
            noise_std=(noise_multiplier,),
            relation="add_or_remove_one",
        )

    beside = [Spend(event_at(3.0), 100)]
    target = CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5)
    mechanism = target.resolve(event_at, "add_or_remove_one", 150, beside)
    found = epsilon([Spend(event_at(mechanism.noise_multiplier), 150), *beside], 1e-5).epsilon
    assert 2.0 * 0.995 <= found <= 2.0
    alone = target.resolve(event_at, "add_or_remove_one", 150)
    assert alone.noise_multiplier < mechanism.noise_multiplier


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, True])
def test_settings_raise_when_built(wrong):
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        GaussianMechanism(noise_multiplier=wrong)


@pytest.mark.parametrize(
    ("target_epsilon", "target_delta", "name"),
    [
        (0.0, 1e-5, "target_epsilon"),
        (math.inf, 1e-5, "target_epsilon"),
        (1.0, 0.0, "target_delta"),
        (1.0, 1.0, "target_delta"),
    ],
)
def test_targets_raise_when_built(target_epsilon, target_delta, name):
    with pytest.raises(ValueError, match=name):
        CalibratedGaussian(target_epsilon=target_epsilon, target_delta=target_delta)


def test_an_unknown_allocation_is_refused():
    with pytest.raises(ValueError, match="allocation must be one of"):
        GaussianMechanism(noise_multiplier=1.0, allocation="equal")  # type: ignore[arg-type]


def test_noise_of_another_law_inherits_no_guarantee():
    """A mechanism has to say what a session with its noise spends: there is no answer that it gets for nothing."""

    class Uniform(Mechanism):
        def on(self, steps, noise_std):
            return self

        def __call__(self, values, noise_std, normals):
            return values

    with pytest.raises(TypeError, match=r"abstract method '?event"):
        Uniform(noise_multiplier=1.0)  # type: ignore[abstract]


@pytest.mark.parametrize("kind", [GaussianMechanism, RoundedGaussian])
def test_a_mechanism_that_adds_other_noise_inherits_no_event(kind):
    with pytest.raises(TypeError, match=f"Quiet cannot be derived from {kind.__name__}.*state its own event"):

        class Quiet(kind):
            def __call__(self, values, noise_std, normals):
                return values


def test_answers_with_other_noise_inherit_no_event():
    with pytest.raises(TypeError, match=r"Quiet cannot be derived from AboveThreshold.*state its own event"):

        class Quiet(AboveThreshold):
            query_scale = 0.0
