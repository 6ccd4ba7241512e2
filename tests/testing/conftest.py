"""Contracts and audits build an oracle dozens of times."""

import pytest


@pytest.fixture(autouse=True)
def equal_networks_once(traced_once):
    """Tracing a network takes longer than most of what is asked of it here."""
