"""The end of a message about an unknown name."""

import pytest

from tacita._near_names import did_you_mean

KNOWN = ("epsilon", "delta", "sample_rate", "sample_rates", "rounds", "clients_per_round")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("epsilom", " Did you mean 'epsilon'?"),
        ("rate", " Did you mean 'sample_rate'?"),
        ("sample-rate", " Did you mean 'sample_rate' or 'sample_rates'?"),
        ("round", " Did you mean 'rounds' or 'clients_per_round'?"),
        ("lines", ""),
        ("", ""),
        ("epsilon" * 10**5, ""),
    ],
)
def test_names_that_are_near_are_said(name: str, said: str) -> None:
    assert did_you_mean(name, KNOWN) == said
