"""Which tests ``make quick`` leaves out: those that take long, and the planted bugs.

``tests/slow.txt`` names them, a file or a test a line, with the seconds that it took. ``python -m tests.slow`` runs
every test and writes the list again. ``python -m tests.slow tests/federated`` runs these alone, and keeps the lines of
all other files. A test that is not in the list runs, so a list that is out of date costs only time.
"""

import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "slow.txt"
TIMES = ROOT / ".pytest_cache" / "times.jsonl"
LONG = 0.2  # seconds of CPU time of a test, all its cases together
PLANTED = "tests/planted/test_planted.py"  # many times the other tests


def names() -> frozenset[str]:
    """Return the files and tests that are left out."""
    return frozenset(line.split()[0] for line in LIST.read_text(encoding="utf-8").splitlines())


def test_of(nodeid: str) -> str:
    """Return the name of a test without its case."""
    return nodeid.split("[", maxsplit=1)[0]


def is_slow(nodeid: str, slow: frozenset[str]) -> bool:
    """Return whether a test is left out, by its own name or its file's."""
    return test_of(nodeid) in slow or nodeid.split("::", maxsplit=1)[0] in slow


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the CPU time of a test, with that of the processes it started (a plugin of ``main``'s run alone)."""
    before = _used()
    found = yield
    with TIMES.open("a", encoding="utf-8") as file:
        file.write(json.dumps([item.nodeid, _used() - before]) + "\n")
    return found


def listed(times: list[tuple[str, float]], kept: Iterable[str] = ()) -> str:
    """Return the list for the times of single cases; lines of ``kept`` stay for files that none of them is in."""
    total: dict[str, float] = defaultdict(float)
    for nodeid, seconds in times:
        total[test_of(nodeid)] += seconds
    timed = {name.split("::", maxsplit=1)[0] for name in total}
    lines = [f"{name} {seconds:.1f}" for name, seconds in total.items() if seconds >= LONG]
    lines += [line for line in kept if line.split("::", maxsplit=1)[0] not in timed | {PLANTED}]
    return "\n".join([*sorted(lines), PLANTED]) + "\n"


def main(paths: list[str]) -> None:
    """Run the tests of ``paths``, or every test but the planted bugs, and write the list."""
    TIMES.parent.mkdir(exist_ok=True)
    TIMES.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.slow", "--ignore", PLANTED, *paths]
    subprocess.run(command, cwd=ROOT, check=False)
    times = [tuple(json.loads(line)) for line in TIMES.read_text().splitlines()]
    LIST.write_text(listed(times, LIST.read_text().splitlines() if paths else ()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
