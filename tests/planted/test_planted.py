"""Every planted bug is seen by the tests that are named for it; without a bug the same tests pass.

``make test`` asks the cheapest test of each bug, where that takes at most 0.3 s; ``make audit`` plants every bug for
every test.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.planted import table
from tests.planted.bugs import BUGS
from tests.planted.pitfalls import ITSELF, PITFALLS, SECTIONS
from tests.planted.plant import NEEDS_IMPORT, NONE, WAITED, verdict
from tests.planted.refuted import BEYOND, CONTRACT, FEW, REFUTED
from tests.planted.substitutions import SourceCopy, load
from tests.slow import LIST, cheapest, seconds_of, times

ROOT = Path(__file__).parents[2]
SUBSTITUTIONS = load()
AUDIT = bool(os.environ.get("TACITA_AUDIT"))
SECONDS, LONGEST = times(LIST.read_text().splitlines()), 0.3
ALL = (*BUGS.values(), *SUBSTITUTIONS.values())
EVERY = [
    bug if AUDIT else replace(bug, caught_by=(cheapest(bug.caught_by, SECONDS),))
    for bug in ALL
    if AUDIT or seconds_of(cheapest(bug.caught_by, SECONDS), SECONDS) <= LONGEST
]
BY_CONTRACT = [
    replace(bug, caught_by=(f"{CONTRACT}[{REFUTED[bug.name]}]",))
    for bug in ALL
    if bug.name in (REFUTED if AUDIT else FEW)
]
TESTS = sorted({test for bug in (*EVERY, *BY_CONTRACT) for test in bug.caught_by})


class Planted:
    """A process that has collected the files of ``tests``, and runs some of their tests at a time."""

    def __init__(self, tests):
        files = sorted({test.split("::")[0] for test in tests})
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "tests.planted.plant", "-p", "no:cacheprovider", "-s", *files],
            cwd=ROOT,
            env={**kept, "OMP_NUM_THREADS": "1"},  # a fork must not inherit a pool of threads
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, bug, tests):
        self._process.stdin.write(" ".join([bug, *tests]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="module")
def planted(request):
    """With ``-k``, only what the chosen bugs need is collected."""
    cases = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = [params["bug"] for params in cases if "bug" in params]
    alone = len(request.session.items) == len(chosen)  # the other checks of this module may ask for any test
    process = Planted({test for bug in chosen for test in bug.caught_by} if alone else TESTS)
    yield process
    process.close()


@pytest.fixture(scope="module")
def copy():
    with SourceCopy() as copy:
        yield copy


@pytest.mark.parametrize("bug", EVERY, ids=[bug.name for bug in EVERY])
def test_a_planted_bug_is_seen(planted, copy, bug):
    answer = planted.run(bug.name, bug.caught_by)
    if NEEDS_IMPORT in answer or (AUDIT and bug.name in SUBSTITUTIONS):
        assert not copy.run(bug, bug.caught_by).verdict(bug)
    else:
        assert not verdict(bug, answer)


@pytest.mark.parametrize("bug", BY_CONTRACT, ids=[bug.name for bug in BY_CONTRACT])
def test_the_contract_of_oracles_refutes_it(planted, bug):
    answer = planted.run(bug.name, bug.caught_by)
    assert not verdict(bug, answer)
    assert answer[bug.caught_by[0]].startswith("AssertionError")


def test_every_bug_of_noise_and_sensitivity_is_refuted_or_beyond_the_contract():
    patched = ("noise_bugs", "gradient_bugs", "sampling_bugs")
    rooms = ("clipping", "gradients", "mechanisms", "oracles", "sampling")
    here = [bug for bug in BUGS.values() if bug.plant.__module__.split(".")[-1] in patched]
    here += [bug for bug in SUBSTITUTIONS.values() if bug.file.split("/")[0] in rooms]
    assert {bug.name for bug in here if {20, 21} & set(bug.rows)} <= REFUTED.keys() | BEYOND.keys()
    assert REFUTED.keys() | BEYOND.keys() <= BUGS.keys() | SUBSTITUTIONS.keys()
    assert not REFUTED.keys() & BEYOND.keys()


@pytest.mark.skipif(not AUDIT, reason="the suite itself runs them; make audit, in a fork too")
def test_without_a_bug_the_same_tests_pass(planted):
    assert planted.run(NONE, TESTS) == {}


def test_every_row_has_a_bug_or_waits_for_its_part():
    numbers = [pitfall.row for pitfall in PITFALLS]
    assert numbers == sorted({number for section in SECTIONS.values() for number in section} & set(numbers))
    planted_rows = {row for bug in ALL for row in bug.rows} | {ITSELF}
    assert not [pitfall.row for pitfall in PITFALLS if not pitfall.later and pitfall.row not in planted_rows]


def test_the_page_is_up_to_date():
    assert table.PAGE.read_text() == table.page(), "run python -m tests.planted.table"


# -- the check can fail


def survivor(**changes):
    return replace(next(iter(BUGS.values())), **changes)


def test_a_bug_that_survives_is_reported(planted):
    test = "tests/mechanisms/test_gaussian.py::test_zero_noise_is_the_value_itself"
    blind = survivor(name="sensitivity_forgotten", caught_by=(test,))
    assert "survived" in verdict(blind, planted.run(blind.name, blind.caught_by))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({}, "survived"),
        ({"a": "TypeError: got an unexpected keyword"}, "broke the code"),
        ({"planting": "AttributeError"}, "could not be planted"),
        ({"a": "AssertionError"}, ""),
        ({WAITED: "Thread 1"}, "wait for ever: Thread 1"),
    ],
)
def test_the_verdict(answer, says):
    found = verdict(survivor(caught_by=("a",)), answer)
    assert says in found if says else not found


def test_waiting_for_ever_has_seen_a_bug_that_may_wait():
    assert not verdict(survivor(may_wait=True), {WAITED: "Thread 1"})


def test_a_test_that_is_not_there_is_reported(planted):
    assert "no such test" in planted.run(NONE, ["tests/mechanisms/test_gaussian.py::test_nothing"])["planting"]
