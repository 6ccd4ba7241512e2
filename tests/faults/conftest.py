import os

import pytest

from tests.faults import calls, runs
from tests.faults.fuzzing import Outcomes


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Nothing here is held against a real disk, so that nothing depends on a real flush: those are only counted."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setitem(calls.REAL, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    runs.train(folder)
    return folder


@pytest.fixture
def outcomes():
    """Counts what became of a fuzz test's examples; at the end some must have been read, and some refused."""
    found = Outcomes()
    yield found
    found.check()
