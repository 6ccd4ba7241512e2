"""The command line ``tacita``, with the commands that :mod:`tacita.cli.app` lists."""

from tacita.cli.app import main

__all__ = ["main"]
