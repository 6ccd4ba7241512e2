"""Fixtures that the tests of the ledger share with those of accounting."""

from tests.accounting.conftest import events

__all__ = ["events"]
