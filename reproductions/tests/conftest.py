"""Runs of the command line inside the process, as in the tests of tacita."""

from tests.cli.test_working import log
from tests.conftest import tacita_command

__all__ = ["log", "tacita_command"]
