"""The event of sums on a grid with whole noise: that of the session inside, and what it says."""

import pytest

from tacita.accounting import Event, GaussianSumEvent, HardenedEvent, PoissonLaw, Spend, epsilon, hardening

INNER = GaussianSumEvent(
    relation="add_or_remove_one", sampling=PoissonLaw(0.1), max_contribution=(0.5,), noise_std=(1.0,)
)


def test_a_hardened_event_is_its_inner_event():
    event = HardenedEvent(relation="add_or_remove_one", inner=INNER, sums="capped", max_records=1000)
    assert epsilon([Spend(event, 20)], 1e-5) == epsilon([Spend(INNER, 20)], 1e-5)
    assert Event.from_dict(event.to_dict()) == event
    assert "hardened: rounded Gaussian" in event.describe()
    assert any("1,000 records" in text for text in event.assumptions)
    assert hardening(event) is event
    assert hardening(INNER) is None


@pytest.mark.parametrize(("name", "value"), [("sums", "fast"), ("relation", "replace_one")])
def test_a_hardened_event_is_checked(name, value):
    settings = dict(relation="add_or_remove_one", inner=INNER, sums="alone")
    with pytest.raises(ValueError, match="must be"):
        HardenedEvent(**{**settings, name: value})
