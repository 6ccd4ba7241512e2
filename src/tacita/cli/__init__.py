"""The command line: tacita train, predict, statement, schema, check."""

from tacita.cli.app import main

__all__ = ["main"]
