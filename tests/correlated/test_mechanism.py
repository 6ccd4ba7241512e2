"""Correlated Gaussian noise: what it adds, what it draws again, and what it refuses."""

import pytest
import torch

import tacita
from tacita import accounting as acc
from tacita._stream import Noise
from tacita.correlated import CorrelatedEvent, recommended_power
from tacita.correlated.strategy import matrix_bands
from tacita.errors import LedgerError, UnsupportedEventError
from tacita.random import Key
from tacita.tables.selection_events import ComposedEvent
from tacita.testing import fidelity

SEEDS = range(200)
QUERIES, SIZES = 24, {"weight": (5, 8), "bias": (8,)}


def noise_of(query, seed=0, memory=None):
    key = Key.insecure(seed)
    return Noise(
        lambda block: key.stream("fresh", query, block),
        query,
        lambda lag, block, name: key.derive(query - lag).stream(block, name),
        {} if memory is None else memory,
    )


def session(mechanism, seed=0, std=2.0, names=tuple(SIZES), dtype=torch.float32):
    """What a session without records releases: (queries, coordinates)."""
    zeros, memory = {name: torch.zeros(SIZES[name], dtype=dtype) for name in names}, {}
    released = [mechanism({"g": zeros}, {"g": std}, noise_of(query, seed, memory))["g"] for query in range(QUERIES)]
    assert {x.dtype for one in released for x in one.values()} == {dtype}
    return torch.stack([torch.cat([one[name].flatten() for name in SIZES]) for one in released])


def correlated(bands=2, power=0.9, noise_multiplier=2.0, banded_matrix=False):
    return tacita.CorrelatedGaussian(
        noise_multiplier=noise_multiplier, bands=bands, power=power, banded_matrix=banded_matrix
    )


@pytest.fixture(scope="module", params=[(2, False), (3, False), (8, False), (3, True), (8, True)])
def sessions(request):
    bands, banded_matrix = request.param
    mechanism = correlated(bands, 0.6, banded_matrix=banded_matrix)
    return mechanism, torch.stack([session(mechanism, seed) for seed in SEEDS]).double() / 2.0


def test_whitened_noise_is_independent(sessions):
    """In every query, every pair of queries, and every entry of the covariance."""
    mechanism, over_noise = sessions
    white = mechanism.whitened(over_noise)
    fidelity.check_every_query(white, 1e-6)
    covariance = torch.einsum("sqc,spc->qp", white, white) / (len(white) * white.shape[-1])
    error = (len(white) * white.shape[-1]) ** -0.5
    assert (covariance - torch.eye(QUERIES)).abs().max() < 4.5 * 2**0.5 * error


def test_noise_that_is_not_whitened_fails_the_check(sessions):
    """A test of the test: it must see the correlation."""
    _, over_noise = sessions
    with pytest.raises(AssertionError, match="noise"):
        fidelity.check_every_query(over_noise, 1e-6)


def test_raw_products_are_those_of_the_coefficients(sessions):
    mechanism, over_noise = sessions
    weights = mechanism.factorization.weights(QUERIES)
    for lag in range(QUERIES - mechanism.bands):
        product = float((over_noise[:, -1] * over_noise[:, -1 - lag]).mean())
        stated = float((weights[lag:] * weights[: len(weights) - lag]).sum()) if lag < len(weights) else 0.0
        assert product == pytest.approx(stated, abs=5 * 2 / over_noise[:, 0].numel() ** 0.5)


def test_the_first_query_has_fresh_noise_alone(sessions):
    _, over_noise = sessions
    alone = torch.stack([session(correlated(2, 0.5), seed)[0] for seed in SEEDS]).double() / 2.0
    assert torch.equal(over_noise[:, 0], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("banded_matrix", [False, True])
def test_order_stretches_and_precision_of_parameters_change_nothing(dtype, banded_matrix):
    mechanism = correlated(3, 0.6, banded_matrix=banded_matrix)
    whole = session(mechanism, dtype=torch.float64)
    assert torch.allclose(session(mechanism, names=("bias", "weight"), dtype=dtype).double(), whole, atol=1e-6)
    one_by_one = [
        mechanism({"g": {"bias": torch.zeros(8, dtype=torch.float64)}}, {"g": 2.0}, noise_of(query))["g"]["bias"]
        for query in range(QUERIES)
    ]
    assert torch.equal(torch.stack(one_by_one), whole[:, -8:])


@pytest.mark.parametrize("banded_matrix", [False, True])
def test_noise_that_is_made_again_has_the_same_bits(banded_matrix):
    """Without what the process remembered, and after a step back."""
    mechanism, zeros, memory = correlated(3, 0.6, banded_matrix=banded_matrix), {"w": torch.zeros(7)}, {}

    def released(query, memory=None):
        return mechanism({"g": zeros}, {"g": 2.0}, noise_of(query, memory=memory))["g"]["w"]

    whole = [released(query, memory) for query in range(10)]
    for query in (9, 4, 5, 5, 8, 0):
        assert torch.equal(released(query), whole[query])
        assert torch.equal(released(query, memory), whole[query])


def test_memory_holds_no_more_than_the_bands_before_the_next_query():
    mechanism, memory = correlated(4, 0.6, banded_matrix=True), {}
    released = [
        mechanism({"g": {"w": torch.zeros(5, dtype=torch.float64)}}, {"g": 1.0}, noise_of(query, memory=memory))
        for query in range(9)
    ]
    ((key, (made, last)),) = memory.items()
    assert (key, made) == (("g", "w"), 9)
    assert torch.equal(torch.stack(last), torch.stack([released[query]["g"]["w"] for query in (8, 7, 6)]))


def test_a_banded_matrix_takes_back_the_last_noises():
    bands = matrix_bands(3, 0.6)
    w = [session(correlated(3, 0.6, banded_matrix=True), dtype=torch.float64)[query] / 2.0 for query in range(4)]
    z = [session(correlated(2, 0.6), dtype=torch.float64)[0] / 2.0]
    assert bands == pytest.approx([1.0, 0.6, 0.48])
    assert torch.equal(w[0], z[0])
    draws = [
        torch.cat([noise_of(query).lagged(0, "g", {name: torch.zeros(SIZES[name])})[name].flatten() for name in SIZES])
        for query in range(4)
    ]
    assert torch.allclose(w[3], draws[3] - 0.6 * w[2] - 0.48 * w[1], rtol=1e-12)


def test_one_band_is_refused():
    with pytest.raises(ValueError, match=r"bands must be an integer >= 2, got 1\. One band is independent noise"):
        correlated(bands=1)


def test_many_sessions_of_one_query_do_not_pay_for_one_of_many():
    """Their noises would be one chain, and so would what it takes back."""
    inner = acc.gaussian_sum_event(acc.CyclicLaw(4, own_coin=False), (1.0,), (8.0,), "zero_out_one")
    event = CorrelatedEvent(relation="zero_out_one", inner=inner, bands=2, power=0.9)
    correlated().check_paid(event, {"g": 8.0})
    several = ComposedEvent(parts=(event,), part_queries=(1,), relation="zero_out_one")
    with pytest.raises(LedgerError, match="promises other noise"):
        correlated().check_paid(several, {"g": 8.0})


def test_blocks_have_noise_of_their_own():
    zeros = {"w": torch.zeros(50)}
    released = [correlated()({"a": zeros, "b": zeros}, {"a": 1.0, "b": 1.0}, noise_of(query)) for query in range(2)]
    assert not any((one["a"]["w"] == one["b"]["w"]).any() for one in released)


def test_values_are_added():
    value = {"w": torch.arange(6.0).reshape(2, 3)}
    noisy, alone = (correlated()({"g": x}, {"g": 1.0}, noise_of(3))["g"]["w"] for x in (value, {"w": 0 * value["w"]}))
    assert torch.allclose(noisy - alone, value["w"], atol=1e-6)
    still = correlated(noise_multiplier=0.0)({"g": value}, {"g": 0.0}, noise_of(3))["g"]["w"]
    assert torch.equal(still, value["w"])


def plain_event(law, relation="add_or_remove_one", noise_std=2.0):
    return acc.GaussianSumEvent(relation=relation, sampling=law, max_contribution=(1.0,), noise_std=(noise_std,))


def test_the_event_is_that_of_the_strategy():
    inner = plain_event(acc.CyclicLaw(5, own_coin=True))
    assert correlated(3, 0.6).event(inner) == CorrelatedEvent(
        relation="add_or_remove_one", inner=inner, bands=3, power=0.6
    )
    with pytest.raises(UnsupportedEventError, match="two queries in a row"):
        correlated().event(plain_event(acc.PoissonLaw(0.1)))


def test_the_noise_is_held_against_what_is_paid_for():
    inner = plain_event(acc.CyclicLaw(5, own_coin=True))
    paid = acc.ConditionalEvent(relation=inner.relation, inner=correlated(3, 0.6).event(inner), condition_text="all")
    correlated(3, 0.6).check_paid(paid, {"g": 2.0})
    with pytest.raises(LedgerError, match="promises 2"):
        correlated(3, 0.6).check_paid(paid, {"g": 1.9})
    for other, event in (
        (correlated(3, 0.6, banded_matrix=True), paid),
        (correlated(2, 0.6), paid),
        (correlated(3, 0.7), paid),
        (correlated(3, 0.6), inner),
    ):
        with pytest.raises(LedgerError, match="promises other noise"):
            other.check_paid(event, {"g": 2.0})


def test_a_form_that_has_settings_of_its_own_is_given_with_them():
    with pytest.raises(ValueError, match=r"CorrelatedGaussian\(noise_multiplier=\.\.\., bands=\.\.\., power=\.\.\.\)"):
        tacita.CalibratedGaussian(target_epsilon=4, target_delta=1e-5, form=tacita.CorrelatedGaussian)


def test_hardened_values_are_refused():
    with pytest.raises(ValueError, match="no proved form"):
        correlated().on({"g": 0.5}, {"g": 2.0})
    assert correlated().on(None, {"g": 2.0}) == correlated()


@pytest.mark.parametrize(("bands", "power"), [(0, 0.5), (2, 1.0), (2, 0.0)])
def test_wrong_settings_are_refused(bands, power):
    with pytest.raises(ValueError, match="must be"):
        correlated(bands, power)


@pytest.mark.parametrize(
    ("batches", "queries", "power", "epsilon"),
    [(50, 200, recommended_power(200, separation=50), 2.0), (100, 100, 0.5, 1.0)],
)
def test_a_target_gives_the_least_noise(batches, queries, power, epsilon):
    """Also where another number of classes becomes the best one: epsilon does not jump there."""
    target = tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=1e-5, form=correlated(2, power))

    def event_at(noise_multiplier):
        inner = plain_event(acc.CyclicLaw(batches, own_coin=True), noise_std=noise_multiplier)
        return target.at(noise_multiplier).event(inner)

    found = target.resolve(event_at, "add_or_remove_one", queries)
    assert (found.bands, found.power) == (2, power)
    reached = acc.epsilon([acc.Spend(event_at(found.noise_multiplier), queries)], 1e-5).epsilon
    assert 0.994 * epsilon <= reached <= epsilon
