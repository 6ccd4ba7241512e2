"""Fixtures that the tests of error feedback share with those of accounting and of oracles."""

from tests.accounting.conftest import events
from tests.oracles.conftest import device, make_oracle, problem

__all__ = ["device", "events", "make_oracle", "problem"]
