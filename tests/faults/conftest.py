import os

import pytest

from tests.faults import calls, runs


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
