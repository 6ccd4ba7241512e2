"""Which tests ``make quick`` leaves out: those that take long, unless they alone see a planted bug; and planting.

Of a test whose cases together take more than a few seconds ``make test`` runs every k-th; ``make audit``, and pytest
for a file, all of them.

``tests/slow.txt`` names those that take long, a file or a test a line, with the seconds that it took. Of the tests that
see a planted bug (``tests/planted``) at least one is quick: where all of them take long, the cheapest one *stays*, and
its line ends with that word. Every substitution is seen so. Of the bugs that are patches, those are whose test costs
little.

``python -m tests.slow`` runs every test and writes the list again. ``python -m tests.slow tests/federated`` runs these
alone, and keeps the times of all other files; ``python -m tests.slow --no-run`` only chooses again which tests stay. A
test that is not in the list runs, so a list that is out of date costs only time.
"""

import json
import math
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "slow.txt"
TIMES = ROOT / ".pytest_cache" / "times.jsonl"
LONG = 0.2  # seconds of CPU time of a test, all its cases together
STAYS = " stays"  # ends the line of a test that takes long and runs all the same
SHORT = 0.05  # seconds of a test that does not take long, about
FEWEST = 8  # of so many cases of a long test at least one runs in ``make test``
WORTH = 0.3  # seconds that a test may take for each planted patch that no quicker test sees
PLANTING = "tests/planted/test_planted.py"  # many times the other tests


def left_out() -> frozenset[str]:
    """Return the files and tests that ``make quick`` leaves out."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[0] for line in lines if not line.endswith(STAYS))


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


def listed(seconds: Mapping[str, float], bugs: Iterable[tuple[Sequence[str], bool]]) -> str:
    """Return the list for the seconds of tests; ``bugs`` are the tests that see each, and whether it must be seen."""
    stay = staying(seconds, bugs)
    lines = [f"{name} {one:.1f}{STAYS * (name in stay)}" for name, one in seconds.items()]
    return "\n".join([*sorted(lines), PLANTING]) + "\n"


def staying(seconds: Mapping[str, float], bugs: Iterable[tuple[Sequence[str], bool]]) -> set[str]:
    """Choose, of tests that take long, those that stay: greedily the least time for a bug that is not seen yet."""
    unseen = {
        number: (tests, must) for number, (tests, must) in enumerate(bugs) if all(test in seconds for test in tests)
    }
    found: set[str] = set()
    while unseen:
        sees: dict[str, set[int]] = defaultdict(set)
        for number, (tests, _) in unseen.items():
            for test in tests:
                sees[test].add(number)
        test = min(sees, key=lambda one: seconds[one] / len(sees[one]))
        if seconds[test] <= WORTH * len(sees[test]) or any(unseen[number][1] for number in sees[test]):
            found.add(test)
        unseen = {number: bug for number, bug in unseen.items() if number not in sees[test]}
    return found


def times(lines: Iterable[str]) -> dict[str, float]:
    """Return the seconds that the list has for tests."""
    fields = (line.removesuffix(STAYS).split() for line in lines)
    return {name: float(seconds) for name, *rest in fields for seconds in rest}


def seconds_of(test: str, seconds: Mapping[str, float]) -> float:
    """Return the seconds of a test or one of its cases, by its own name or its file's; 0 if it does not take long."""
    return seconds.get(test_of(test), seconds.get(test.split("::", maxsplit=1)[0], 0.0))


def cheapest(tests: Sequence[str], seconds: Mapping[str, float]) -> str:
    """Return the test that takes least; of those that do not take long, the first."""
    return min(tests, key=lambda test: seconds_of(test, seconds))


def share(nodeids: Sequence[str], seconds: Mapping[str, float], enough: float) -> list[str]:
    """Return what ``make test`` runs: of a test whose cases together take longer than ``enough``, every k-th case.

    k is the least number with which the test takes no longer, and at most ``FEWEST``.
    The first case is always among them.
    """
    cases: dict[str, list[str]] = defaultdict(list)
    for nodeid in nodeids:
        cases[test_of(nodeid)].append(nodeid)
    step = {test: min(FEWEST, max(1, math.ceil(seconds.get(test, 0) / enough))) for test in cases}
    kept = ({*some[:: step[test]]} for test, some in cases.items())
    chosen = set[str]().union(*kept)
    return [nodeid for nodeid in nodeids if nodeid in chosen]


def longest_first(nodeids: Iterable[str], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return a number for each file of ``nodeids``, by which the files that take longest come first."""
    total: dict[str, float] = defaultdict(float)
    for test in dict.fromkeys(map(test_of, nodeids)):
        file = test.split("::", maxsplit=1)[0]
        total[file] -= float("inf") if file == PLANTING else max(seconds_of(test, seconds), SHORT)
    return total


def measured(paths: Sequence[str]) -> dict[str, float]:
    """Run the tests of ``paths``, or every test but planting, and return the seconds of those that take long."""
    TIMES.parent.mkdir(exist_ok=True)
    TIMES.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.slow", "--ignore", "tests/planted", *paths]
    subprocess.run(command, cwd=ROOT, check=False)
    total: dict[str, float] = defaultdict(float)
    for nodeid, seconds in map(json.loads, TIMES.read_text().splitlines()):
        total[test_of(nodeid)] += seconds
    before = times(LIST.read_text().splitlines()) if paths else {}
    timed = {name.split("::", maxsplit=1)[0] for name in total}
    kept = {name: one for name, one in before.items() if name.split("::", maxsplit=1)[0] not in timed}
    return kept | {name: one for name, one in total.items() if one >= LONG}


def main(arguments: list[str]) -> None:
    """Write the list again; see the module."""
    from tests.planted.bugs import BUGS
    from tests.planted.substitutions import load

    must, before = load(), times(LIST.read_text().splitlines())
    seconds = before if arguments == ["--no-run"] else measured(arguments)
    bugs = [(one.caught_by, one.name in must and not must[one.name].slow) for one in (*must.values(), *BUGS.values())]
    bugs = [([test_of(test) for test in tests], seen) for tests, seen in bugs]
    LIST.write_text(listed(seconds, bugs), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
