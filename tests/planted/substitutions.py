"""Planted bugs as substitutions: a file of tacita, a text in it, what stands there instead, and tests that must fail.

``substitutions.toml`` holds them. A bug needs no internal name to patch, and moving code breaks no bug silently: a text
that does not stand in its file exactly once is an error. ``make test`` puts each into a fork of a process that has
imported everything (``live.py``). ``make audit`` and this module write each to a temporary copy of the source tree
that comes first on the import path, and run its tests in a process of their own, which imported torch beforehand but no
module of tacita.

    python -m tests.planted.substitutions                  # every bug with its tests: what kills it, and seconds
    python -m tests.planted.substitutions NAME NAME        # some of them
    python -m tests.planted.substitutions --quick          # does `make quick` kill each? the cheapest test that does
    python -m tests.planted.substitutions NAME --in tests/ledger/test_statement.py      # all tests of a file
"""

import argparse
import itertools
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.slow import is_slow, left_out

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tacita"
DATA = Path(__file__).with_suffix(".toml")
THIRD_PARTY = [
    *("torch", "torch._dynamo", "scipy.stats", "sklearn.linear_model", "dp_accounting", "mpmath", "pyarrow"),
    *("pytest", "hypothesis", "cyclopts", "cryptography.hazmat.primitives.ciphers.algorithms", "msgspec", "filelock"),
]
LONGEST = 600.0  # seconds after which the tests of a bug are taken to wait for ever
WRONG_REASON = ("TypeError", "AttributeError", "NameError", "ImportError", "ModuleNotFoundError", "SyntaxError")


@dataclass(frozen=True, kw_only=True)
class Substitution:
    """One way to go wrong, as a change of one text, and the tests that must see it.

    Attributes:
        name: A word for it, used once: the name of its table in the file.
        says: What goes wrong, in one sentence.
        file: Relative to ``src/tacita``.
        old: Stands in the file exactly once.
        new: What stands there instead.
        caught_by: Tests that must fail, the cheapest first; of a parametrised one, named without its brackets, at least
            one case.
        rows: Rows of the table of pitfalls.
        slow: Whether all tests of ``caught_by`` take long, and none is worth its time in ``make quick``.
    """

    name: str
    says: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]
    rows: tuple[int, ...] = ()
    slow: bool = False

    def applied(self, text: str) -> str:
        """Return the text of the file with the bug in it.

        Raises:
            ValueError: ``old`` does not stand in it exactly once, or is ``new``.
        """
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {text.count(self.old)} places in {self.file} read {self.old!r}.")
        return text.replace(self.old, self.new)


def load(path: Path = DATA) -> dict[str, Substitution]:
    """Return the substitutions of a file, by name."""
    found: dict[str, Substitution] = {}
    for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        fields: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in entry.items()}
        found[name] = Substitution(name=name, **fields)
    return found


@dataclass(frozen=True)
class Outcome:
    """What tests did, by test without its case.

    Attributes:
        failed: Why each test that failed did.
        seconds: How long each test took.
        trouble: Why there is no result; empty if there is one.
    """

    failed: dict[str, str]
    seconds: dict[str, float]
    trouble: str = ""

    def verdict(self, bug: Substitution) -> str:
        """Return what is wrong; empty if every test named for ``bug`` saw it for what it is."""
        if self.trouble:
            return f"{bug.name}: {self.trouble}"
        blind = [test for test in bug.caught_by if test.split("[", maxsplit=1)[0] not in self.failed]
        if blind or not bug.caught_by:
            return f"{bug.name} survived {', '.join(blind)}"
        tripped = [f"{test}: {why}" for test, why in self.failed.items() if why.startswith(WRONG_REASON)]
        return f"{bug.name} broke the code instead of being seen: {'; '.join(tripped)}" if tripped else ""


class SourceCopy:
    """A temporary copy of the source tree, into which one bug at a time is put. A context manager.

    Processes are forked from a server that has imported what tacita imports, so that a run costs only tacita's own
    import, a second or so.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tacita-planted-")
        self.path = Path(self._folder.name)
        shutil.copytree(SOURCE, self.path / "tacita", ignore=shutil.ignore_patterns("__pycache__"))
        self._moments = itertools.count(10**9)  # bytecode is taken for a file's if time and size agree
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(THIRD_PARTY)

    def run(self, bug: Substitution | None, tests: Sequence[str], *, first: bool = False) -> Outcome:
        """Run ``tests``, files or single tests, with a bug (``None``: without); ``first``: stop when one fails."""
        with nullcontext() if bug is None else self.with_bug(bug):
            return self._in_a_process([*tests, *(["-x"] if first else [])])

    @contextmanager
    def with_bug(self, bug: Substitution) -> Iterator[None]:
        """Have the bug in the copy for as long as this lasts."""
        text = (SOURCE / bug.file).read_text(encoding="utf-8")
        self._write(bug.file, bug.applied(text))
        try:
            yield
        finally:
            self._write(bug.file, text)

    def _write(self, file: str, text: str) -> None:
        path, moment = self.path / "tacita" / file, next(self._moments)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (moment, moment))

    def _in_a_process(self, arguments: list[str]) -> Outcome:
        reader, writer = self._processes.Pipe(duplex=False)
        process = self._processes.Process(target=_run_tests, args=(self.path, arguments, writer))
        process.start()
        writer.close()
        try:
            if not reader.poll(LONGEST):
                return Outcome({}, {}, "the tests did not end")
            return reader.recv()
        except EOFError:
            return Outcome({}, {}, "the process died")
        finally:
            process.kill()
            process.join()

    def __enter__(self) -> "SourceCopy":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._folder.cleanup()


class _Notes:
    """A plugin that notes which tests fail, why, and how long each takes."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.split("[", maxsplit=1)[0]
        self.seconds[test] = self.seconds.get(test, 0.0) + report.duration
        if report.failed and self.failed.get(test, WRONG_REASON[0]).startswith(WRONG_REASON):
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed[test] = crash.message if crash is not None else str(report.longrepr)


def _run_tests(copy: Path, arguments: list[str], answer: Connection) -> None:
    os.environ["PYTHONPATH"] = str(copy)  # for processes that tests start
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.chdir(ROOT)
    notes = _Notes()
    code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[notes])
    import tacita

    ours = Path(tacita.__file__).is_relative_to(copy)
    trouble = "" if code in (0, 1) and ours else f"pytest ended with {code!r}, on {tacita.__file__}"
    answer.send(Outcome(notes.failed, notes.seconds, trouble))


# --- from the command line -----------------------------------------------------------------------------------------


def killed(bugs: Iterable[Substitution], files: Sequence[str], *, quick: bool) -> Iterator[tuple[Substitution, str]]:
    """Yield each bug with what is wrong about it, and print which tests kill it, the quickest first."""
    slow = left_out()
    with SourceCopy() as copy:
        for bug in bugs:
            tests = [test for test in bug.caught_by if not (quick and is_slow(test, slow))]
            tests = [*files, *["--quick"] * quick] if files else tests
            start = time.perf_counter()
            found = copy.run(bug, tests) if tests else Outcome({}, {}, "make quick leaves out all its tests")
            print(f"{bug.name}: {time.perf_counter() - start:.1f} s")
            for test in sorted(found.failed, key=lambda test: found.seconds[test]):
                print(f"    {found.seconds[test]:6.2f} s {'(slow) ' * is_slow(test, slow)}{test}", flush=True)
                print(f"             {found.failed[test].splitlines()[0][:100]}")
            survived = "" if found.failed else f"{bug.name} survived: {found.trouble or 'all tests pass'}"
            yield bug, survived if files or quick else found.verdict(bug)


def main(arguments: list[str]) -> int:
    """Plant bugs, and say what is wrong; the exit status is 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="bugs; without any, all of them")
    parser.add_argument("--in", dest="files", nargs="+", default=[], help="run all of these tests")
    parser.add_argument("--quick", action="store_true", help="run only tests that make quick runs")
    asked = parser.parse_args(arguments)
    bugs = load()
    chosen = [bugs[name] for name in asked.names] or list(bugs.values())
    wrong = [why for _, why in killed(chosen, asked.files, quick=asked.quick) if why]
    print("\n".join([f"{len(chosen)} planted, {len(wrong)} not as they should be", *wrong]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
