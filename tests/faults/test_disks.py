"""Disks that are full, broken or read-only, from any call on: one clear line, nothing lost, and a rerun goes on."""

import errno
import os
from pathlib import Path

import pytest

import tacita
from tests.faults import runs
from tests.faults.calls import GROWS, Counting, Failing, watched

AUDIT = bool(os.environ.get("TACITA_AUDIT"))
DISKS = {
    "full": (errno.ENOSPC, dict(names=GROWS), 11),
    "read-only": (errno.EROFS, {}, 29),
    "fails once": (errno.EIO, dict(once=True), 19),
}


@pytest.mark.parametrize("disk", DISKS)
def test_a_run_on_a_bad_disk_goes_on_when_it_is_mended(whole, tmp_path, disk):
    number, settings, step = DISKS[disk]
    first, failed = 0, True
    while failed:
        folder = tmp_path / str(first) / "run"
        folder.parent.mkdir()
        failed = fails(folder, Failing(first, number, **settings), disk)
        if not runs.finished(folder):
            runs.train(folder)
        runs.check_finished(folder, whole)
        first += 1 if AUDIT else step
    assert first > 100


def fails(folder, failing, disk):
    """Run until the disk stops it; whether any call failed. What it says is one line that names a file."""
    told = [0]
    error = None
    with watched(folder.parent, failing), runs.telling(lambda number: told.__setitem__(0, number)):
        try:
            runs.train(folder)
        except (tacita.TacitaError, OSError) as raised:
            error = raised
    if error is not None:
        assert "\n" not in str(error)
        assert os.strerror(failing.number) in str(error) or isinstance(error, tacita.LedgerError), str(error)
        assert "run" in str(error) or "ledger" in str(error), str(error)
    else:
        assert failing.times == 0 or disk == "fails once"
    runs.check_covers(folder, told[0])
    return failing.times > 0


def test_a_folder_that_is_read_only_is_named(tmp_path):
    """As root no mode of a folder is read-only: the calls are made to fail."""
    with (
        watched(tmp_path, Failing(0, errno.EROFS)),
        pytest.raises(OSError, match=r"Read-only file system: '.*/run'"),
    ):
        runs.train(tmp_path / "run")
    (tmp_path / "there").mkdir()
    with watched(tmp_path, Failing(0, errno.EROFS)), pytest.raises(OSError, match=r"Read-only file system: '.*there"):
        runs.train(tmp_path / "there")
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="run"):
        runs.train(tmp_path / "run")
    tmp_path.chmod(0o700)


def test_the_clock_is_not_looked_at(whole, tmp_path, monkeypatch):
    """A clock that goes backwards, an hour a call, changes no bit and stops nothing."""
    now = [2e9]

    def backwards(*_):
        now[0] -= 3600.0
        return now[0]

    with monkeypatch.context() as patch:
        patch.setattr("time.time", backwards)
        patch.setattr("time.time_ns", lambda: int(backwards() * 1e9))
        runs.train(tmp_path / "run", progress=True)
    runs.check_finished(tmp_path / "run", whole)


def test_no_file_of_ours_asks_for_the_time():
    source = Path(tacita.__file__).parent
    asked = [
        (path.relative_to(source).as_posix(), word)
        for path in source.rglob("*.py")
        for word in ("time.time", "datetime.now", "datetime.today", "utcnow", "localtime", "gmtime")
        if word in path.read_text()
    ]
    assert asked == [("runs/run_facts.py", "time.time")]  # the day of a statement, an edit, a signature


def test_the_count_of_calls_is_that_of_the_tests(tmp_path):
    counting = Counting()
    with watched(tmp_path, counting):
        runs.train(tmp_path / "run")
    assert 100 < len(counting.names) < 250
