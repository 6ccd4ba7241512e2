"""Sums of discrete Gaussians against their exact masses, and the epsilon of secure sums against the exact one."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tacita.errors import UnsupportedEventError
from tacita.federated import secure_sum
from tacita.federated.clip21_noise import message_mu
from tacita.federated.secure_sum import discrete_sum_gap, secure_sum_contribution, secure_sum_epsilon

FAR = 60  # whole numbers on each side, beyond which no mass matters here
GIVEN = {"max_grad_norm": 1.0, "step": 2**-12, "noise_std": 1.0, "size": 10_000, "rounds": 100, "delta": 1e-5}


def masses(variance):
    """The discrete Gaussian on -FAR, ..., FAR."""
    found = np.exp(-(np.arange(-FAR, FAR + 1.0) ** 2) / (2 * variance))
    return found / found.sum()


def mass_of_sum(scale, messages):
    """The law of a sum of discrete Gaussians, by convolution."""
    one = whole = masses(scale**2)
    for _ in range(messages - 1):
        whole = np.convolve(whole, one)
    middle = len(whole) // 2
    return whole[middle - FAR : middle + FAR + 1]


def apart(scale, messages):
    """How far the sum is from the discrete Gaussian of its variance, where masses are accurate."""
    near = slice(FAR - 8, FAR + 9)
    return np.abs(np.log(mass_of_sum(scale, messages)[near] / masses(messages * scale**2)[near])).max()


@pytest.mark.parametrize("scale", [0.5, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("messages", [1, 2, 3, 8])
def test_the_gap_bounds_the_ratio_of_masses(scale, messages):
    assert apart(scale, messages) <= discrete_sum_gap(scale, messages) + 1e-12


@pytest.mark.parametrize("scale", [0.5, 0.6, 0.8])
def test_for_two_messages_the_gap_is_within_a_factor_of_three(scale):
    assert apart(scale, 2) > discrete_sum_gap(scale, 2) / 3


def test_with_the_scale_of_one_message_in_the_exponent_the_gap_would_be_too_small():
    """The first sum has the exponent of half the variance: the check above can fail."""
    assert apart(0.6, 2) > 2 * math.atanh(2 * math.exp(-2 * math.pi**2 * 0.36))


def delta_of(scale, messages, shift, epsilon):
    """The exact delta of one sum whose messages move by ``shift`` steps: the hockey-stick divergence."""
    law = mass_of_sum(scale, messages)
    return np.maximum(law[: len(law) - shift] - math.exp(epsilon) * law[shift:], 0).sum()


@pytest.mark.parametrize(("scale", "messages"), [(0.5, 2), (0.7, 3), (2.0, 4)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_the_epsilon_of_one_sum_is_an_upper_bound(scale, messages, delta):
    """One coordinate, a threshold of a step and a half: a message that is rounded is -2, ..., 2 and moves by 4."""
    found = secure_sum_epsilon(
        max_grad_norm=1.5, step=1.0, noise_std=scale, size=1, honest_messages=messages, rounds=1, delta=delta,
        neighboring_relation="replace_one",
    )  # fmt: skip
    assert delta_of(scale, messages, 4, found) <= delta


def test_many_messages_have_the_noise_of_their_sum():
    """With a fine grid it is the Gaussian's epsilon, up to the Rényi accounting and the rounding of messages."""
    from tacita.accounting import gaussian_epsilon

    for relation, replaced in (("replace_one", True), ("zero_out_one", False)):
        found = secure_sum_epsilon(**GIVEN, honest_messages=100, neighboring_relation=relation)
        mu = message_mu(max_grad_norm=1.0, noise_std=1.0, messages=100, shares=100, replaced=replaced)
        assert gaussian_epsilon(mu, 1e-5) < found < 1.1 * gaussian_epsilon(mu, 1e-5)


def at(**change):
    return secure_sum_epsilon(**{**GIVEN, "honest_messages": 10, "neighboring_relation": "replace_one", **change})


def test_more_of_what_costs_costs_more():
    for change in ({"rounds": 200}, {"size": 10**6}, {"honest_messages": 9}, {"step": 2**-6}, {"noise_std": 0.9}):
        assert at(**change) > at()


def test_a_number_of_single_precision_is_rounded_nowhere():
    """NumPy's float32 keeps products in float32, where rounding would make the noise larger than it is."""
    for honest in range(2, 20):
        assert at(noise_std=np.float32(1.1), honest_messages=honest) == at(
            noise_std=float(np.float32(1.1)), honest_messages=honest
        )


def test_the_gap_is_paid_for_in_every_coordinate_and_round(monkeypatch):
    coarse = {"step": 1.0, "noise_std": 1.2, "size": 10, "rounds": 10}
    gap, found = 100 * discrete_sum_gap(1.2, 10), at(**coarse)
    assert at(**{**coarse, "size": 10**9}) == math.inf
    monkeypatch.setattr(secure_sum, "discrete_sum_gap", lambda noise_scale, messages: 0.0)
    assert found == pytest.approx(at(**coarse, delta=1e-5 * math.exp(-gap)) + 2 * gap, rel=1e-9)


@pytest.mark.parametrize("messages", [2, 3, 7, 1000])
def test_what_is_accounted_for_is_rounded_against_the_claim(monkeypatch, messages):
    """Floating point rounds to nearest: less noise and a larger contribution are accounted for than there are."""
    event, seen = secure_sum.gaussian_sum_event, []
    monkeypatch.setattr(
        secure_sum, "gaussian_sum_event", lambda law, *numbers: seen.append(numbers) or event(law, *numbers)
    )
    at(honest_messages=messages, noise_std=1.1, size=10, step=2**-4)
    (((contribution,), (noise,), _),) = seen
    assert Fraction(noise) ** 2 < messages * Fraction(1.1) ** 2
    assert (Fraction(contribution) - 1) ** 2 > 10 * Fraction(2**-4) ** 2 / 4
    assert (contribution, noise) == pytest.approx((1 + 2**-5 * math.sqrt(10), 1.1 * math.sqrt(messages)), rel=1e-8)


@pytest.mark.parametrize(("scale", "messages"), [(0.5, 2), (1.0, 10)])
def test_the_gap_is_the_formula_that_is_proved(scale, messages):
    """It is no smaller, even where the masses of a few messages would allow that."""
    q = math.exp(-((math.pi * scale) ** 2))
    proved = 2 * (messages - 1) * math.atanh(2 * q / (1 - q**3))
    assert proved < discrete_sum_gap(scale, messages) < proved * (1 + 1e-8)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"noise_scale must be >= 0\.5"):
        discrete_sum_gap(0.4, 2)
    with pytest.raises(UnsupportedEventError, match="zero_out_one, where it sends noise alone"):
        secure_sum_epsilon(**GIVEN, honest_messages=2, neighboring_relation="add_or_remove_one")
    for change in ({"honest_messages": 0}, {"size": 0}, {"rounds": 0}, {"delta": 0.0}, {"step": math.nan}):
        with pytest.raises(ValueError, match=next(iter(change)).replace("honest_", "")):
            secure_sum_epsilon(**{**GIVEN, "honest_messages": 2, **change}, neighboring_relation="replace_one")
    assert secure_sum_contribution(1.0, 1.0, 4) == pytest.approx(2.0)
    assert secure_sum.SMALLEST_SCALE == 0.5
