"""Events of a client's messages: the exact Gaussian query, and the mixture over a record's draws, capped."""

import math

import pytest
from scipy import stats

from tacita import accounting as acc
from tacita import federated
from tacita.errors import UnsupportedEventError
from tacita.testing import check_event

DIGITS = 5e-6


def messages(noise_std, relation="add_or_remove_one", bound=1.0):
    return federated.ClientMessagesEvent(relation=relation, max_contribution=(bound,), noise_std=(noise_std,))


def samples(**change):
    settings = {
        "relation": "add_or_remove_one", "sampling": acc.PoissonLaw(0.1), "max_message_norm": 1.0,
        "max_sample_norm": 1.0, "momentum_weight": 0.5, "divisor": 2.0, "noise_std": 4.0,
    }  # fmt: skip
    return federated.ClippedSamplesEvent(**{**settings, **change})


def epsilon(event, queries, delta=1e-5):
    return acc.epsilon([acc.Spend(event, queries)], delta).epsilon


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize(
    ("at", "delta", "queries", "noise"),
    [(1, 1e-5, 100, 74.6126), (2, 1e-5, 1000, 126.100), (8, 1e-5, 1000, 37.9618), (1, 1e-6, 10_000, 844.936)],
)
def test_the_noise_of_messages_is_exact(relation, at, delta, queries, noise):
    """Spec 7.2: 2 C whatever the relation."""
    assert epsilon(messages(noise, relation), queries, delta) == pytest.approx(at, rel=1e-5)


@pytest.mark.parametrize(("ratio", "expected"), [(10, 284.392), (1, 20852.0), (0.1, 2.00853e6)])
def test_the_papers_ratios(ratio, expected):
    assert epsilon(messages(ratio), 10_000) == pytest.approx(expected, rel=DIGITS)


def test_blocks_add_up_in_squares():
    """Oracle 11: layers of thresholds 1 and 1, noises of least power."""
    event = federated.ClientMessagesEvent(
        relation="replace_one", max_contribution=(1.0, 1.0), noise_std=(78.2544, 247.462)
    )
    assert event.guarantee(100).mu == pytest.approx(0.268051, rel=1e-5)
    assert messages(0.0).guarantee(1).mu == math.inf
    assert messages(3.0).guarantee(0).mu == 0.0


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize("bound", [1.0, 0.06])  # the second caps records that are drawn three times or more
def test_delta_of_clipped_samples_is_the_mixture_over_draws(relation, bound):
    event, queries = samples(relation=relation, max_message_norm=bound), 30
    once = (4 if relation == "replace_one" else 2) * 0.5 / 2 * (1 + 1e-6) / 4
    most = 2 * bound * math.sqrt(queries) / 4
    for at in (0.0, 0.1, 1.0):
        expected = math.fsum(
            stats.binom.pmf(k, queries, 0.1) * acc.gaussian_delta(min(k * once, most), at) for k in range(queries + 1)
        )
        found = event.guarantee(queries).delta(at)
        assert found == pytest.approx(expected, rel=1e-6)
        assert found >= expected * (1 - 1e-12)


def test_clipped_samples_never_cost_more_than_messages():
    plain = epsilon(messages(4.0), 10)
    assert 0.9 * plain < epsilon(samples(max_sample_norm=1e6), 10) <= plain  # less, for it may never be drawn
    assert epsilon(samples(), 10) < plain
    epochs = samples(sampling=acc.ShuffledEpochsLaw(5, own_coin=True))
    assert epochs.guarantee(10).mu == pytest.approx(2 * 2 * 0.5 / 2 / 4, rel=2e-6)  # two draws, no factor T
    assert epochs.guarantee(11).mu == pytest.approx(3 * 2 * 0.5 / 2 / 4, rel=2e-6)


def test_many_draws_with_a_cap_have_a_finite_pair():
    """More than 300 numbers of draws, most of them at the cap: the nodes of the pair stay distinct."""
    event = samples(sampling=acc.PoissonLaw(0.5), max_message_norm=1e-3, max_sample_norm=0.001, momentum_weight=0.1)
    spend = acc.Spend(event, 4000)
    alone = acc.epsilon([spend], 1e-5).epsilon
    beside = acc.epsilon([spend, acc.Spend(messages(1e5), 1)], 1e-5).epsilon
    assert 0 < alone <= beside < 1.01 * alone + 1e-3


@pytest.mark.parametrize("event", [messages(4.0, "zero_out_one"), samples(), samples(max_message_norm=1e-3)])
def test_the_contract_of_events(event):
    check_event(event)


def test_what_is_not_proved_is_refused():
    with pytest.raises(UnsupportedEventError, match="messages of clipped samples"):
        samples(sampling=acc.FixedSizeLaw(batch_size=2, num_records=10), relation="add_or_remove_one")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"momentum_weight": 0.0}, "momentum_weight must be in"),
        ({"divisor": 0.0}, "divisor must be"),
        ({"max_sample_norm": math.inf}, "max_sample_norm must be"),
        ({"noise_std": -1.0}, "noise_std must be"),
    ],
)
def test_settings_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        samples(**change)
