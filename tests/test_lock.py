"""Locks: one holder among processes and within one, forked children, killed holders; with and without ``fcntl``."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tacita import _lock
from tacita._lock import HeldLock

ROOT = Path(__file__).parents[1]
LOAD = (  # the module alone: importing the package takes seconds
    "import importlib.util as u; spec = u.spec_from_file_location('lock', "
    f"{str(ROOT / 'src' / 'tacita' / '_lock.py')!r}); module = u.module_from_spec(spec); "
    "spec.loader.exec_module(module); HeldLock = module.HeldLock"
)
WITHOUT = "import sys; sys.modules['fcntl'] = None\n"


def python(code, *, fcntl=True, **more):
    """A process of its own, with the tree that is tested; ``fcntl`` may be taken away."""
    return subprocess.Popen(
        [sys.executable, "-c", ("" if fcntl else WITHOUT) + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finished(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    found = tmp_path / "thing"
    found.mkdir() if request.param == "folder" else found.touch()
    return found


@pytest.fixture(params=[True, False], ids=["fcntl", "without"])
def everywhere(request, monkeypatch):
    """Here as elsewhere: with the locks of this system, and with those of one that has none."""
    if not request.param:
        from filelock import SoftFileLock

        monkeypatch.setattr(_lock, "has_fcntl", False)
        monkeypatch.setattr(_lock, "FileLock", SoftFileLock)
    return request.param


def test_one_holder_at_a_time(path, everywhere) -> None:
    first = HeldLock(path, wait=False)
    with pytest.raises(BlockingIOError, match="thing is locked"):
        HeldLock(path, wait=False)
    first.release()
    HeldLock(path, wait=False).release()
    HeldLock(path, wait=True).release()


def test_nothing_is_left_behind(path, everywhere) -> None:
    HeldLock(path, wait=False).release()
    assert list(path.parent.iterdir()) == [path]
    assert path.is_file() or not list(path.iterdir())


@pytest.mark.parametrize("fcntl", [True, False], ids=["fcntl", "without"])
def test_a_process_that_is_killed_leaves_no_lock(path, fcntl) -> None:
    """A lock file names its process, and is taken over; a second process is refused as long as it lives."""
    holder = python(
        f"""
        import pathlib, time
        {LOAD}
        lock = HeldLock(pathlib.Path({str(path)!r}), wait=False)
        print("held", flush=True)
        time.sleep(600)
        """,
        fcntl=fcntl,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    tries = f"""
        import pathlib
        {LOAD}
        try:
            HeldLock(pathlib.Path({str(path)!r}), wait=False).release()
            print("taken")
        except BlockingIOError:
            print("refused")
        """
    assert finished(python(tries, fcntl=fcntl)) == "refused\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert finished(python(tries, fcntl=fcntl)) == "taken\n"


LEDGER = """
    import os, pathlib
    from tacita.accounting import FullBatchLaw, GaussianSumEvent
    from tacita.ledger import Ledger
    from tacita.errors import LedgerError

    words = dict(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
    path = pathlib.Path("ledger/ledger.jsonl")
    noise = dict(max_contribution=(1.0,), noise_std=(5.0,))
    event = GaussianSumEvent(relation="add_or_remove_one", sampling=FullBatchLaw(), **noise)
    ledger = Ledger(path, **words)
    session = ledger.register(event, planned_queries=4)
    session.open()

    def refused(add):
        try:
            add()
        except LedgerError as error:
            return str(error)
        raise AssertionError("it was allowed")

    assert "another writer" in refused(lambda: Ledger(path, **words))
    child = os.fork()
    if child == 0:
        assert "forked from" in refused(lambda: session.reserve(0, 1))
        assert "another writer" in refused(lambda: Ledger(path, **words))
        ledger.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert "another writer" in refused(lambda: Ledger(path, **words))  # the child took nothing away
    session.reserve(0, 1)
    session.spend(0)
    assert Ledger.load(path).verify().ok
    sleeper = os.fork()
    if sleeper == 0:
        import time
        time.sleep(600)
    ledger.close()
    Ledger(path, **words).close()  # the child of before keeps nothing locked
    os.kill(sleeper, 9)
    os.waitpid(sleeper, 0)
    print(sorted(os.listdir("ledger")))
"""


TRAINING = """
    import sys, warnings
    warnings.simplefilter("error", RuntimeWarning)
    from tests.conftest import table_text
    from pathlib import Path
    import tacita, tacita.cli
    from tacita.cli.app import make_app, run
    from tacita.tables import check_run
    Path("table.csv").write_text(table_text())
    arguments = ["train", "table.csv", "--target", "label", "--epsilon", "20", "--delta", "1e-3", "--drop", "patient",
                 "--sample-rate", "0.5", "--queries", "4", "--output", "run", "--dataset-name", "toy", "--quiet"]
    assert run(lambda: make_app()(arguments, result_action="return_value")) == 0
    assert check_run("run").faults == ()
    arguments = ["predict", "run", "table.csv", "-o", "scored.csv"]
    assert run(lambda: make_app()(arguments, result_action="return_value")) == 0
    print(sorted(path.name for path in Path("run").iterdir()), sys.modules["fcntl"])
"""


def test_a_ledger_and_a_whole_training_without_fcntl(tmp_path) -> None:
    """As on Windows: nothing of the library needs what only POSIX has. A ledger takes one writer, no forked child."""
    (tmp_path / "ledger").mkdir()
    out = finished(python(LEDGER + TRAINING, fcntl=False, cwd=tmp_path)).splitlines()
    assert out[0] == "['ledger.head.json', 'ledger.jsonl']"
    names = (
        "config.toml ledger.head.json ledger.jsonl model.safetensors preprocessing.json statement.json statement.txt"
    )
    assert out[-1] == f"{names.split()} None"
    assert {path.name for path in tmp_path.iterdir()} == {
        "ledger",
        "run",
        "scored.csv",
        "table.csv",
        "tacita-runs.jsonl",
    }


def test_no_module_but_the_ground_asks_for_what_only_posix_has() -> None:
    """``fcntl`` is asked for in one place, a file's owner and the most memory held in others, and may miss there."""
    only = (
        "import fcntl",
        "import resource",
        "import pwd",
        "import grp",
        "O_CLOEXEC",
        "os.geteuid",
        "os.getuid",
        "os.fchmod",
    )
    found = {
        (path.name, name)
        for path in (ROOT / "src").rglob("*.py")
        for name in only
        if name in path.read_text(encoding="utf-8")
    }
    assert found == {("_files.py", "import fcntl"), ("compiled.py", "os.getuid"), ("looking.py", "import resource")}
