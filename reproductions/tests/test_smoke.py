"""Every experiment starts: half a second of each at its reduced size, the short ones whole."""

import json
import os

import pytest

from tacita_reproductions import catalogue
from tacita_reproductions.cpu_seconds import CPU_SECONDS
from tacita_reproductions.result_files import as_json, as_record

SECONDS = 0.5
LONG = {f"noisy-sgd-figure-{one}" for one in ("1a", "1b", "2a", "3a")}  # as 2b and 3b, from other models; make audit
STARTED = [name for name in catalogue() if os.environ.get("TACITA_AUDIT") or name not in LONG]


class EnoughError(Exception):
    """The share of an experiment that a smoke test runs is done."""


@pytest.mark.parametrize("name", STARTED)
def test_it_starts_and_the_short_ones_end(name):
    experiment, whole = catalogue()[name], CPU_SECONDS[name][0]
    assert whole is not None

    def stop(share: float, what: str) -> None:
        assert 0 <= share <= 1
        assert what
        if share * whole > SECONDS:
            raise EnoughError

    try:
        result = experiment(progress=stop)
    except EnoughError:
        assert whole > SECONDS
        return
    assert result.rows
    assert result.checks
    json.loads(as_json(as_record(experiment, result, full=False, seed=0)))
