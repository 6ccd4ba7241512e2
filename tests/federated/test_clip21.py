"""Clip21-SGDM in formulas: reference values, Theorem 5 in simulation, where theory is silent."""

import math

import numpy as np
import pytest

from tacita.accounting import gaussian_delta, gaussian_epsilon, gaussian_mu
from tacita.federated import clip21, clip21_noise
from tests.theory.clipping import clip

DIGITS = 5e-6


# -- noise


@pytest.mark.parametrize(
    ("epsilon", "delta", "messages", "exact", "zcdp", "classic", "constant"),
    [
        (1, 1e-5, 100, 74.6126, 98.0111, 96.8961, 2.19897),
        (2, 1e-5, 1000, 126.100, 158.069, 153.206, 2.35045),
        (8, 1e-5, 1000, 37.9618, 43.6615, 38.3015, 2.83038),
        (1, 1e-6, 10_000, 844.936, 1069.996, 1059.761, 2.27321),
    ],
)
def test_noise_of_a_message(epsilon, delta, messages, exact, zcdp, classic, constant):  # noqa: PLR0917
    settings = {"epsilon": epsilon, "delta": delta, "max_grad_norm": 1.0, "messages": messages}
    found = clip21_noise.message_noise_std(**settings)
    assert found == pytest.approx(exact, rel=DIGITS)
    assert clip21_noise.zcdp_noise_std(**settings) == pytest.approx(zcdp, rel=DIGITS)
    assert clip21_noise.classic_noise_std(**settings) == pytest.approx(classic, rel=DIGITS)
    assert epsilon * found / math.sqrt(messages * math.log(1 / delta)) == pytest.approx(constant, rel=DIGITS)
    mu = clip21_noise.message_mu(max_grad_norm=1, noise_std=found, messages=messages)
    assert mu == pytest.approx(gaussian_mu(epsilon, delta))


def test_the_classic_formula_is_too_little_for_large_epsilon():
    noise = clip21_noise.classic_noise_std(epsilon=20, delta=1e-5, max_grad_norm=1, messages=100)
    assert noise < clip21_noise.message_noise_std(epsilon=20, delta=1e-5, max_grad_norm=1, messages=100)


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [(0.5, 1e-5, 0.142211), (3, 1e-5, 0.719117), (4, 1e-5, 0.924931), (10, 1e-5, 2.00045), (1, 1e-3, 0.388401),
     (2, 1e-6, 0.448335)],
)  # fmt: skip
def test_more_reference_mu(epsilon, delta, mu):
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=DIGITS)


def test_reference_epsilons():
    assert [gaussian_epsilon(mu, 1e-5) for mu in (1, 2, 4)] == pytest.approx([4.37718, 9.99726, 24.3816], rel=DIGITS)
    assert gaussian_delta(0.5015516892, 2) == pytest.approx(1e-5, rel=DIGITS)


@pytest.mark.parametrize(("ratio", "mu", "epsilon"), [(10, 20, 284.392), (1, 200, 20852.0), (0.1, 2000, 2.00853e6)])
def test_what_the_papers_ratios_mean(ratio, mu, epsilon):
    found = clip21_noise.message_mu(max_grad_norm=1, noise_std=ratio, messages=10_000)
    assert found == pytest.approx(mu)
    assert gaussian_epsilon(found, 1e-5) == pytest.approx(epsilon, rel=DIGITS)


@pytest.mark.parametrize(("shares", "mu"), [(1, 6.32456), (10, 2.0), (100, 0.632456)])
def test_secure_aggregation(shares, mu):
    found = clip21_noise.message_mu(max_grad_norm=1, noise_std=10, messages=1000, shares=shares)
    assert found == pytest.approx(mu, rel=DIGITS)
    absent = clip21_noise.message_mu(max_grad_norm=1, noise_std=10, messages=1000, shares=shares, replaced=False)
    assert absent == pytest.approx(mu / 2, rel=DIGITS)


def test_layers():
    mu = gaussian_mu(1, 1e-5)
    found = clip21_noise.layer_noise_stds([1, 1], [100, 1], messages=100, mu=mu)
    assert found == pytest.approx([78.2544, 247.462], rel=DIGITS)
    assert 100 * found[0] ** 2 + found[1] ** 2 == pytest.approx(673_612, rel=DIGITS)
    assert 100 * (4 / found**2).sum() == pytest.approx(mu**2)
    equal = clip21_noise.message_noise_std(epsilon=1, delta=1e-5, max_grad_norm=1, messages=100, blocks=2)
    assert 101 * equal**2 == pytest.approx(1.12454e6, rel=DIGITS)
    for change in (0.97, 1.03):  # no other split with the same mu has less power
        first = found[0] * change
        second = math.sqrt(4 / (mu**2 / 100 - 4 / first**2))
        assert 100 * first**2 + second**2 > 673_612


def test_random_walk():
    settings = {"lr": 0.1, "noise_std": 2.0, "num_clients": 4, "steps": 100}
    assert clip21_noise.random_walk_variance(**settings) == pytest.approx(3283.50, rel=DIGITS)
    rng, runs = np.random.default_rng(0), 5000
    x, g = np.zeros(runs), np.zeros(runs)
    for _ in range(100):
        x = x - 0.1 * g
        g = g + 2.0 / 2 * rng.standard_normal(runs)  # the mean of 4 noises
    assert np.square(x).mean() == pytest.approx(3283.5, rel=5 * math.sqrt(2 / runs))


def test_clipped_samples_hold_in_two_worlds():
    """One record in one batch, gradient difference D: the messages move by at most 2 beta D in all."""
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(200):
        beta, c, when = rng.uniform(0.05, 1), np.exp(rng.uniform(-3, 1)), rng.integers(0, 20)
        shared, extra = rng.standard_normal((40, 2)), clip(3 * rng.standard_normal(2), 1.0)
        worlds = []
        for record in (np.zeros(2), extra):
            v, g, sent = np.zeros(2), np.zeros(2), []
            for t in range(40):
                v = (1 - beta) * v + beta * (shared[t] + (record if t == when else 0))
                sent.append(clip(v - g, c))
                g = g + sent[-1]
            worlds.append(np.array(sent))
        moved = math.sqrt(np.square(worlds[0] - worlds[1]).sum())
        limit = clip21_noise.clipped_samples_sensitivity(
            participations=1, momentum_weight=beta, max_sample_norm=1, divisor=1, max_grad_norm=c, messages=40
        )
        assert moved <= limit * (1 + 1e-12)
        largest = max(largest, moved / limit)
    assert largest > 0.3  # within reach


def test_clipped_samples_never_exceed_the_plain_sensitivity():
    found = clip21_noise.clipped_samples_sensitivity(
        participations=np.array([1, 10**6]), momentum_weight=1, max_sample_norm=1, divisor=1, max_grad_norm=1,
        messages=100,
    )  # fmt: skip
    assert found.tolist() == [2.0, 20.0]


# -- convergence


def rule(corrected=True, steps=2000):
    lyapunov = clip21.lyapunov_bound(initial_gap=1.125, smoothness=1, mean_square_grad=(1.5**2 + 4.5**2) / 2)
    return clip21.deterministic_rule(
        smoothness=1, max_grad_norm=1, largest_grad=4.5, lyapunov=lyapunov, steps=steps, corrected=corrected
    ), lyapunov


def test_theorem_5():
    found, lyapunov = rule()
    assert lyapunov == pytest.approx(5.51333, rel=DIGITS)
    limits = {"smooth": 0.0833333, "lyapunov": 0.00887262, "clipped": 0.00952381, "contraction": 0.0160265}
    assert found.limits == {name: pytest.approx(limit, rel=DIGITS) for name, limit in limits.items()}
    assert rule(corrected=False)[0].limits["contraction"] == pytest.approx(0.0261415, rel=DIGITS)
    assert (found.lr, found.momentum_weight) == pytest.approx((0.00887262, 0.0354905), rel=DIGITS)
    assert found.value == pytest.approx(0.621386, rel=DIGITS)


def test_theorem_5_in_simulation():
    """Two clients at 3 and -3, from 1.5: the Lyapunov function falls as stated, and clipping never acts."""
    found, bound = rule()
    lr, beta, eta, targets = found.lr, found.momentum_weight, 1 / 4.5, np.array([3.0, -3.0])
    x = 1.5
    grads = x - targets
    v = beta * grads
    shift = np.clip(v, -1, 1)
    squares, falls, active, phi = [], [], False, None
    for _ in range(2000):
        grad = grads.mean()
        now = (
            x**2 / 2
            + lr / eta * np.square(shift - v).mean()
            + 4 * lr * beta / eta**2 * np.square(v - grads).mean()
            + lr / beta * (v.mean() - grad) ** 2
        )
        if phi is None:
            assert now == pytest.approx(1.91522, rel=DIGITS)
            assert now <= bound
        else:
            falls.append(now - phi + lr / 2 * squares[-1])
        phi = now
        squares.append(grad**2)
        x = x - lr * shift.mean()
        grads = x - targets
        v = (1 - beta) * v + beta * grads
        active |= bool(np.any(np.abs(v - shift) > 1))
        shift = shift + np.clip(v - shift, -1, 1)
    assert max(falls) < 1e-12
    assert np.mean(squares) == pytest.approx(0.0789666, rel=DIGITS)
    assert np.mean(squares) < found.value
    assert not active  # "clipping is off after 2B / C rounds" is then no statement


CONSTANTS = {
    "smoothness": 1.0, "lyapunov": 1.0, "max_grad_norm": 1.0, "largest_grad": 1.0, "gradient_noise": 0.5,
    "num_clients": 4, "steps": 1000, "failure_probability": 0.05, "dim": 10, "noise_std": 0.2,
}  # fmt: skip


def test_constants():
    k = clip21.StochasticConstants(**CONSTANTS)
    assert (k.a, k.b, k.c, k.b1) == pytest.approx((132.614, 2.62447, 6.63068, 6.13438), rel=DIGITS)
    assert clip21.StochasticConstants(**CONSTANTS, corrected=False).b == pytest.approx(2.55759, rel=DIGITS)


def constants(**change):
    quiet = {"gradient_noise": 0.1, "steps": 10_000, "dim": 1, "noise_std": 0.0}
    return clip21.StochasticConstants(**{**CONSTANTS, **quiet, **change})


def test_theorem_7():
    k, found = constants(), clip21.stochastic_rule(constants())
    assert (k.b, k.B, k.eta) == pytest.approx((0.567052, 1.56705, 0.638141), rel=DIGITS)
    limits = {
        "(59) 1": 0.0321001, "(59) 2": 0.0479285, "(59) 3": 0.00568008, "(60)": 0.0433159, "(61)": 0.0903639,
        "(62)": 0.179210, "(63)": 0.0490095, "(64)": 0.113260, "(65)": 1.44537e-4, "(66)": 0.0201018,
        "contraction": 0.183194,
    }  # fmt: skip
    assert {name: found.limits[name] for name in limits} == {
        name: pytest.approx(limit, rel=DIGITS) for name, limit in limits.items()
    }
    assert found.binding == "(65)"
    assert (found.momentum_weight, found.lr, found.value) == pytest.approx(
        (1.44537e-4, 3.61341e-5, 11.0699), rel=DIGITS
    )


def test_theorem_6():
    k = constants(dim=10, noise_std=0.01)
    found = clip21.private_rule(k)
    assert k.a == pytest.approx(22.7285, rel=DIGITS)
    assert found.binding == "lyapunov"
    assert found.momentum_weight == 0.03125
    assert found.limits["Lemma 15"] == pytest.approx(0.246853, rel=DIGITS)
    assert (found.lr, found.value) == pytest.approx((1.22643e-10, 3.26149e6), rel=DIGITS)


def test_the_missing_term_of_theorem_6():
    """Where T gamma a^2 > Delta the bound is unproven, and 2 a^2 is added."""
    k = constants(dim=10, noise_std=1e6, max_grad_norm=1.0)
    found = clip21.private_rule(k)
    proven = k.steps * found.lr * k.a**2 <= k.lyapunov
    plain = 4 * k.lyapunov / (found.lr * k.steps)
    assert found.value == pytest.approx(plain + (0 if proven else 2 * k.a**2))


def test_theorem_6_without_noise_has_no_limit_of_noise():
    assert not any(name.endswith(" a") or name == "Lemma 15" for name in clip21.private_rule(constants()).limits)


def test_where_the_theory_says_nothing():
    """The start is within 2 L f(x^0) = 2: the bound of Theorem 6 is a million times that."""
    assert clip21.private_rule(constants(dim=10, noise_std=0.01)).value > 1e6 * 2
    assert clip21.stochastic_rule(constants(steps=10**14)).value < 2  # Theorem 7 does say something, in the end


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda: clip21.deterministic_rule(smoothness=1, max_grad_norm=1, largest_grad=3, lyapunov=1, steps=10),
            "largest_grad must be > 3 max_grad_norm = 3, got 3",
        ),
        (
            lambda: constants(max_grad_norm=5.0),
            "max_grad_norm must be < .*, which is largest_grad plus its noise, got 5.0",
        ),
        (lambda: constants(failure_probability=0), r"failure_probability must be in \(0, 1\], got 0"),
        (
            lambda: clip21_noise.message_mu(max_grad_norm=1, noise_std=0, messages=10),
            "noise_std must be finite and > 0, got 0",
        ),
    ],
)
def test_settings_are_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()
