"""What a statement says of its run beside the guarantee: a name, the day, and the versions. All of it is public."""

import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from tacita.random import Randomness

PACKAGES = ("tacita", "dp-accounting")


def run_id(randomness: Randomness) -> str:
    """Return the run's public name: a resumed run keeps it, every other run has another. It tells nothing of the key.

    Example:
        >>> run_id(Randomness.insecure(0)) == run_id(Randomness.insecure(0)) != run_id(Randomness.insecure(1))
        True
    """
    return randomness.session_key("public name of the run").tag("id", parts=[])


def run_facts(randomness: Randomness) -> dict[str, Any]:
    """Return the statement's field ``run``.

    The day is that of the machine's clock, in UTC; an hour would tell more about how long the run took. As for other
    programs, ``SOURCE_DATE_EPOCH`` (seconds since 1970) takes the place of the clock where a file has to come out the
    same again.
    """
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    versions = {name.replace("-", "_"): _version(name) for name in PACKAGES}
    versions |= {"torch": str(torch.__version__), "python": platform.python_version()}
    return {
        "id": run_id(randomness),
        "date": datetime.fromtimestamp(seconds, UTC).date().isoformat(),
        "versions": versions,
    }


def tacita_version() -> str:
    """Return the version of tacita that runs, as a statement names it."""
    return _version("tacita")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # the source is used without having been installed
        return "unknown"
