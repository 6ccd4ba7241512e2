"""What a statement says of its run beside the guarantee: a name, the day, and the versions. All of it is public."""

import hashlib
import hmac
import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta

from tacita.random import Randomness

PACKAGES = ("tacita", "dp-accounting")
Day = Annotated[str, Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")]


def run_id(randomness: Randomness) -> str:
    """Return the run's public name: a resumed run keeps it, every other run has another. It tells nothing of the key.

    Example:
        >>> run_id(Randomness.insecure(0)) == run_id(Randomness.insecure(0)) != run_id(Randomness.insecure(1))
        True
    """
    return randomness.session_key("public name of the run").tag("id", parts=[])


def run_facts(randomness: Randomness) -> dict[str, Any]:
    """Return the statement's field ``run``: a public name for the run of this key, the day, and the versions.

    For :func:`tacita.statement` after a loop of your own.

    Args:
        randomness: The run's key. The name tells nothing of it.

    Example:
        >>> sorted(run_facts(Randomness.insecure(0)))
        ['date', 'id', 'versions']
    """
    versions = {name.replace("-", "_"): _version(name) for name in PACKAGES}
    versions |= {"torch": str(torch.__version__), "python": platform.python_version()}
    return {
        "id": run_id(randomness),
        "date": today(),
        "versions": versions,
    }


def today() -> str:
    """Return the day by the machine's clock, in UTC; an hour would tell more about how long a run took.

    As for other programs, ``SOURCE_DATE_EPOCH`` (seconds since 1970) takes the place of the clock where a file has to
    come out the same again.
    """
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def tacita_version() -> str:
    """Return the version of tacita that runs, as a statement names it."""
    return _version("tacita")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # the source is used without having been installed
        return "unknown"


SHORTEST_KEY = 32  # bytes


def fingerprint_secret(path: str | Path) -> bytes:
    """Return the key of a fingerprint from its file.

    Raises:
        ValueError: It has fewer than 32 bytes.
    """
    secret = Path(path).read_bytes()
    if len(secret) < SHORTEST_KEY:
        raise ValueError(
            f"fingerprint_key must be a file of {SHORTEST_KEY} random bytes or more, got {len(secret)}. Make one with: "
            "openssl rand -out data.key 32"
        )
    return secret


def data_fingerprint(key: str | Path, run: str, data: str | Path) -> str:
    """Return a keyed fingerprint of a data file, which only holders of the key can compare with anything.

    It is HMAC-SHA256 of the run's name and the file's SHA-256. Without the key it looks like random bits, whatever the
    data are; and since every run has another name, two fingerprints of one file have nothing in common.
    Proof: docs/derivations/tables.md, section 7.

    Raises:
        ValueError: As :func:`fingerprint_secret`.
    """
    secret = fingerprint_secret(key)
    with Path(data).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return hmac.new(secret, b"tacita data 1\n" + run.encode() + b"\n" + digest, "sha256").hexdigest()
