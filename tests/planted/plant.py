"""Run tests with a bug planted: each run in a fork of one process that has imported everything once.

Loaded as a pytest plugin (``pytest -p tests.planted.plant FILES``). Reads lines ``bug test test ...`` and answers each
with one line of JSON: test -> why it failed. Without a bug (``-``) an answer must be empty.
"""

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from _pytest.runner import runtestprotocol

import tacita
from tests.planted.live import Live, NeedsImportError
from tests.planted.substitutions import SOURCE, SourceCopy, Substitution, load

NONE = "-"  # the name of no bug
NEEDS_IMPORT = "needs import"  # in an answer: of a substitution that cannot be put into modules that are imported
WAITED = "waited"  # in an answer: the tests did not end, and where their threads stood
LONGEST, MAY_WAIT = 600, 60  # seconds after which tests are taken to wait for ever; of a bug that may make them
WRONG_REASON = ("TypeError", "AttributeError", "NameError", "ImportError", "ModuleNotFoundError")


@dataclass(frozen=True)
class Bug:
    """One way to go wrong, and the tests that must see it.

    Attributes:
        name: Of the function that plants it.
        says: What goes wrong, in one sentence: the function's docstring.
        rows: Rows of the table of pitfalls.
        caught_by: Tests that must fail; of a parametrised one named without its brackets, at least one case.
        plant: Patches one function or attribute of tacita, for the rest of the process.
        may_wait: Whether tests that take a minute have seen it. Eight threads that switch every microsecond and have no
            lock spend minutes in copying the states of generators, on two cores that others use too.
    """

    name: str
    says: str
    rows: tuple[int, ...]
    caught_by: tuple[str, ...]
    plant: Callable[[], None]
    may_wait: bool = False


BUGS: dict[str, Bug] = {}


def bug(
    *rows: int, caught_by: Iterable[str], may_wait: bool = False
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the decorated function as a bug."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name, says = plant.__name__, " ".join((plant.__doc__ or "").split())
        assert says, f"{name} does not say what goes wrong"
        assert name not in BUGS, f"two bugs are called {name}"
        BUGS[name] = Bug(name, says, rows, tuple(caught_by), plant, may_wait)
        return plant

    return register


def put(owner: Any, name: str, value: Any) -> Any:
    """Set an attribute that is there; returns what it was."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    return before


def swap(function: Any, other: Any) -> None:
    """Put ``other`` in the place of a module's function, in every module of ours that imported it."""
    places = [
        (module, name)
        for where, module in list(sys.modules.items())
        if where.split(".")[0] in ("tacita", "tests", "tacita_reproductions", "reproductions")
        for name, value in list(vars(module).items())
        if value is function
    ]
    assert places, f"{function} is nowhere"
    for module, name in places:
        setattr(module, name, other)


def reform(kind: Any, **forms: Callable[[Any, int], Any]) -> None:
    """Replace forms of the guarantee that events of ``kind`` give: each is a function of the event and its queries."""
    whole = kind._guarantee

    def reformed(self, queries):
        return replace(whole(self, queries), **{name: form(self, queries) for name, form in forms.items()})

    put(kind, "_guarantee", reformed)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """In place of running what was collected: answer requests until there are no more."""
    from tests.planted import bugs  # noqa: F401 - registers them

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # one for all forks
    _use_once()
    substitutions, live = load(), Live("tacita", SOURCE)
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy every page that holds an object
    with SourceCopy() as copy:
        for line in sys.stdin:
            name, *tests = line.split()
            if name in substitutions:
                with copy.with_bug(substitutions[name]):  # for processes that tests start
                    answer = _in_a_fork(session, _as_bug(substitutions[name], live, copy), tests)
            else:
                answer = _in_a_fork(session, BUGS.get(name), tests)
            print(json.dumps(answer), file=answers, flush=True)
    return True


def _as_bug(text: Substitution, live: Live, copy: SourceCopy) -> Bug:
    def plant() -> None:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(copy.path), os.environ.get("PYTHONPATH", "")])
        old = (SOURCE / text.file).read_text(encoding="utf-8")
        live.change(text.file, old, text.applied(old))

    return Bug(text.name, text.says, text.rows, text.caught_by, plant)


def _use_once() -> None:
    """Make a query, for what torch and tacita import at their first use takes longer than most tests."""
    model = torch.nn.Linear(2, 1)
    tacita.ClippedGradientOracle(
        model,
        lambda model, batch: model(batch[0]).squeeze(1),
        (torch.ones(4, 2),),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=4),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=1,
    ).backward()


def _in_a_fork(session: pytest.Session, planted: Bug | None, tests: list[str]) -> dict[str, str]:
    """Run the tests in a process of its own; what they started and left behind ends with it."""
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as threads:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            faulthandler.register(signal.SIGALRM, file=threads, chain=True)  # says where threads stand, then dies
            signal.alarm(MAY_WAIT if planted is not None and planted.may_wait else LONGEST)
            json.dump(_answer(session, planted, tests), answer)
            answer.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        answer.seek(0)
        if text := answer.read():
            return json.loads(text)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            threads.seek(0)
            return {WAITED: threads.read()}
        return {"planting": "the process died"}


def _answer(session: pytest.Session, planted: Bug | None, tests: list[str]) -> dict[str, str]:
    try:
        return _failures(session.items, planted, tests)
    except NeedsImportError as why:
        return {NEEDS_IMPORT: str(why)}
    except BaseException:
        return {"planting": traceback.format_exc()}


def _failures(items: list[pytest.Item], planted: Bug | None, tests: list[str]) -> dict[str, str]:
    chosen = {
        test: [item for item in items if item.nodeid == test or item.nodeid.startswith(f"{test}[")] for test in tests
    }
    missing = {test: "there is no such test" for test, cases in chosen.items() if not cases}
    if missing:
        return {"planting": json.dumps(missing)}
    if planted is not None:
        planted.plant()
    found: dict[str, str] = {}
    for test, cases in chosen.items():
        for item in cases:
            item.session._setupstate.teardown_exact(item)  # what the last test left and this one does not share
            for report in runtestprotocol(item, log=False, nextitem=item.parent):  # type: ignore[arg-type]
                if report.failed and found.get(test, WRONG_REASON[0]).startswith(WRONG_REASON):
                    found[test] = _reason(report)
            if not found.get(test, WRONG_REASON[0]).startswith(WRONG_REASON):
                break  # the bug is seen: no need of the other cases
    return found


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else str(report.longrepr)


def verdict(bug: Bug, answer: Mapping[str, str]) -> str:
    """What is wrong with an answer; empty if every test saw the bug for what it is."""
    if "planting" in answer:
        return f"{bug.name} could not be planted: {answer['planting']}"
    if WAITED in answer:
        return "" if bug.may_wait else f"{bug.name} made its tests wait for ever: {answer[WAITED]}"
    blind = [test for test in bug.caught_by if test not in answer]
    if blind:
        return f"{bug.name} survived {', '.join(blind)}"
    tripped = [f"{test}: {why}" for test, why in answer.items() if why.startswith(WRONG_REASON)]
    return f"{bug.name} broke the code instead of being seen: {'; '.join(tripped)}" if tripped else ""
