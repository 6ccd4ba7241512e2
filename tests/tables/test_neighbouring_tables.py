"""Nothing but the releases depends on the rows.

Two tables, one fixed key. The second run is *played back*: it does all its own work on its own rows, but wherever it
releases something it hands out what the first run released. If all else is a function of releases and public settings,
standard output, standard error, exit code and every file are then equal, to the byte. That holds for any two tables, so
in particular for neighbours. Masked are times, and the keyed fingerprints in the ledger, whose key is deleted.
"""

import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tacita.ledger.registry as registry_module
import tacita.oracles.gate as gate_module
import tacita.tables.purchases as purchases_module
import tacita.tables.table_task as task_module
from tacita.oracles.gate import ReleaseGate
from tacita.random import Key, Randomness
from tacita.tables.purchases import TablePurchases
from tests.conftest import SCHEMA as SCHEMA_OF_X

AUDIT = bool(os.environ.get("TACITA_AUDIT"))
ROWS = [
    f"{0.1 * i - 3:.2f},{(7 * i) % 50},{('red', 'green', 'blue')[i % 3]},p{i // 3},{('no', 'yes')[(i // 2) % 2]}"
    for i in range(90)
]
HEADER = "x,y,kind,patient,label"
FLAGS = ["--target", "label", "--epsilon", "20", "--delta", "1e-3", "--sample-rate", "0.5", "--queries", "3"]
BARE = [*FLAGS, "--drop", "patient"]
UNITS = [*FLAGS, "--unit-column", "patient", "--max-rows-per-unit", "2"]
SCHEMA = [*FLAGS, "--schema", "schema.toml"]
HEADERLESS = [*BARE, "--columns", HEADER]
REGRESSION = [*BARE[:1], "x", *BARE[2:], "--model", "mlp"]
KINDS = {"bare": BARE, "units": UNITS, "schema": SCHEMA, "headerless": HEADERLESS, "regression": REGRESSION}
SCHEMA_TOML = (
    SCHEMA_OF_X.replace("400", "90") + '[columns.kind]\nkind = "category"\nvalues = ["red", "green", "blue"]\n'
)

SECRET = "SECRET,SECRET,SECRET,SECRET,SECRET"
HOSTILE: dict[str, Callable[[list[str]], list[str]]] = {
    "one row removed": lambda rows: rows[1:],
    "the last row removed": lambda rows: rows[:-1],
    "an ordinary row added": lambda rows: [*rows, "1.0,3,red,p9,yes"],
    "a row of secrets, last": lambda rows: [*rows, SECRET],
    "a row of secrets, first": lambda rows: [SECRET, *rows],
    "not a number": lambda rows: [*rows, "nan,NaN,red,p1,yes"],
    "overflow": lambda rows: [*rows, "1e999,-1e999,red,p1,yes"],
    "huge": lambda rows: [*rows, "1e300,-1e300,red,p1,yes"],
    "tiny": lambda rows: [*rows, "1e-320,-0.0,red,p1,yes"],
    "a category nobody has seen": lambda rows: [*rows, "1.0,3,ultraviolet,p1,yes"],
    "a label nobody has seen": lambda rows: [*rows, "1.0,3,red,p1,perhaps"],
    "too narrow": lambda rows: [*rows, "1.0,3"],
    "too wide": lambda rows: [*rows, "1.0,3,red,p1,yes,and,more"],
    "an empty line": lambda rows: [*rows[:40], "", *rows[40:]],
    "empty cells": lambda rows: [*rows, ",,,,"],
    "an open quote, first": lambda rows: ['"1.0,3,red,p1,yes', *rows],
    "quotes in quotes": lambda rows: [*rows, '"1.0","3","r""e""d","p1","yes"'],
    "commas in quotes": lambda rows: [*rows, '1.0,3,"a,b,c",p1,yes'],
    "a zero byte": lambda rows: [*rows, "1.0,3,\x00,p\x00,yes"],
    "a carriage return": lambda rows: [*rows, "1.0,3,re\rd,p1,yes"],
    "letters of everywhere": lambda rows: [*rows, "\uff11,\u0663,κόκκινο\U0001f7e5\u202e,p1,ja"],
    "half a character": lambda rows: [*rows, "1.0,3,\udcff\udcc3,p1,yes"],
    "a cell of a megabyte": lambda rows: [*rows, f"1.0,3,{'r' * 10**6},p1,yes"],
    "a formula": lambda rows: [*rows, "=1+1,3,%s{}%d,p1,yes"],
    "markup": lambda rows: [*rows, "1.0,3,[bold red]x[/],p1,yes"],
    "an existing row doubled": lambda rows: [*rows, rows[0]],
    "a row replaced": lambda rows: [SECRET, *rows[1:]],
    "one class only": lambda rows: [row.replace("yes", "no") for row in rows],
    "a constant column": lambda rows: ["1.0," + row.split(",", 1)[1] for row in rows],
    "one row": lambda rows: rows[:1],
    "no rows": lambda rows: [],
    "other rows altogether": lambda rows: [f"x{i},{i},{i},{i},{i}" for i in range(200)],
}


class Tape:
    """What a run released, in order; recorded by the first run, handed out in every other."""

    def __init__(self) -> None:
        self.recorded: list[Any] = []
        self.position: int | None = None  # None: recording

    def rewind(self) -> None:
        self.position = 0

    def pass_through(self, value: Any) -> Any:
        if self.position is None:
            self.recorded.append(value)
            return value
        self.position += 1
        return self.recorded[self.position - 1]


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Fixes the key and the fingerprints, and plays releases back."""
    tape = Tape()
    noisy, survey = ReleaseGate.release, TablePurchases.columns_and_target

    def taped_noisy(self: ReleaseGate, *dtypes: Any) -> Any:
        released = noisy(self, *dtypes)
        # a survey names the texts it found; it is taped below, where only the released ones are left
        return released if self.session.purpose == "survey" else tape.pass_through(released)

    monkeypatch.setattr(gate_module.ReleaseGate, "release", taped_noisy)
    monkeypatch.setattr(TablePurchases, "columns_and_target", lambda *a, **k: tape.pass_through(survey(*a, **k)))
    monkeypatch.setattr(Randomness, "system", classmethod(lambda cls: Randomness.insecure(0)))
    # Each ledger has a random name, which is drawn without a look at the rows.
    monkeypatch.setattr(registry_module, "secrets", SimpleNamespace(token_hex=lambda size: "0" * 2 * size))
    tag = Key.tag
    monkeypatch.setattr(Key, "tag", lambda self, *labels, parts: tag(self, *labels, parts=parts) and "0" * 32)
    return tape


@pytest.fixture
def observe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tacita_command) -> Callable[..., dict[str, Any]]:
    """Run the command on rows, in a folder of its own under the same relative names; return all there is to see."""
    count = 0

    def run(rows: list[str], flags: list[str]) -> dict[str, Any]:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        monkeypatch.chdir(folder)
        lines = rows if "--columns" in flags else [HEADER, *rows]
        Path("table.csv").write_text("".join(line + "\n" for line in lines), "utf-8", "surrogateescape", newline="")
        Path("schema.toml").write_text(SCHEMA_TOML)
        with warnings.catch_warnings(record=True) as warned:  # pytest keeps them from the error stream
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of what other tests left to the garbage collector
            outcome = tacita_command("train", "table.csv", *flags, "--output", "run")
        seen: dict[str, Any] = {"code": outcome.code, "out": outcome.out, "err": _timeless(outcome.err)}
        seen["warnings"] = [str(warning.message) for warning in warned]
        for path in sorted(Path("run").rglob("*")):
            seen[str(path)] = path.read_bytes() if path.is_file() else "folder"
        return seen

    return run


def _timeless(text: str) -> str:
    return re.sub(r"\d+:\d\d:\d\d|-:--:--", "TIME", text)


# Of tables that are no bare ones every second change, each with two of them; make audit has all.
@pytest.mark.parametrize("kind", KINDS)
def test_all_but_the_releases_is_a_function_of_the_releases(tape: Tape, observe, kind: str) -> None:
    flags = KINDS[kind]
    first = observe(ROWS, flags)
    assert first["code"] == 1  # trained, and not private: the key is fixed
    assert {"run/model.safetensors", "run/statement.json", "run/ledger.jsonl", "run/config.toml"} < set(first)
    assert not any("private" in name for name in first if name.startswith("run"))
    every, at = [*HOSTILE.items()], [*KINDS].index(kind)
    for name, change in every if AUDIT or kind == "bare" else every[at % 2 :: 2]:
        tape.rewind()
        second = observe(change(list(ROWS)), flags)
        assert tape.position == len(tape.recorded), name
        assert not _differences(first, second), name


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def test_the_secret_reaches_nothing(tape: Tape, observe) -> None:
    """Not even without playback: no text of a single row is in any file or message."""
    seen = observe([SECRET, *ROWS, SECRET], BARE)
    for name, content in seen.items():
        assert "SECRET" not in str(content), name


# What a leak would look like: each is planted, and must be found.


def _say_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    register = task_module.TableTask.register

    def leaky(self: Any) -> Any:
        self.say(f"{self.source.table.num_rows} rows read")
        return register(self)

    monkeypatch.setattr(task_module.TableTask, "register", leaky)


def _divide_by_true_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        task_module.TableTask,
        "_num_records",
        lambda self, preprocessing, records: max(task_module.num_rows(records), 1),
    )


def _raise_on_content(monkeypatch: pytest.MonkeyPatch) -> None:
    count = purchases_module.survey_counts

    def leaky(table: Any, *rest: Any, **more: Any) -> Any:
        if "SECRET" in table.whole().column("kind").texts()[1]:
            raise ValueError("could not convert 'SECRET'")
        return count(table, *rest, **more)

    monkeypatch.setattr(purchases_module, "survey_counts", leaky)


def _warn_of_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = task_module.TableTask.encoded

    def leaky(self: Any, *rest: Any) -> Any:
        np.array([float(self.source.table.num_rows - 90)]) / np.array([0.0])  # 0 / 0 says another thing than 1 / 0
        return encoded(self, *rest)

    monkeypatch.setattr(task_module.TableTask, "encoded", leaky)


def _name_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    write = task_module.TableTask.write

    def leaky(self: Any, *rest: Any) -> None:
        (self.folder.path / "values.json").write_text(json.dumps(self.source.table.whole().column("kind").texts()[1]))
        write(self, *rest)

    monkeypatch.setattr(task_module.TableTask, "write", leaky)


@pytest.mark.parametrize(
    ("plant", "where"),
    [
        (_say_rows, "err"),
        (_divide_by_true_count, "run/model.safetensors"),
        (_raise_on_content, "code"),
        (_warn_of_overflow, "warnings"),
        (_name_texts, "run/values.json"),
    ],
)
def test_a_planted_leak_is_found(
    tape: Tape, observe, monkeypatch: pytest.MonkeyPatch, plant: Callable, where: str
) -> None:
    plant(monkeypatch)
    first = observe(ROWS, BARE)
    tape.rewind()
    assert where in _differences(first, observe([*ROWS, SECRET], BARE))


RELEASED = {
    *("purchases", "holdout_score", "rows", "columns", "task", "files", "ledger_sha256", "caveats", "chosen_by_tacita"),
    "num_units",
}


@pytest.mark.parametrize(
    "name", ["a row of secrets, first", "overflow", "an existing row doubled", "a constant column"]
)
def test_the_statement_lists_what_may_differ(tape: Tape, observe, monkeypatch, name: str) -> None:
    """Without playback, under the same key: the public fields of the statement are equal all the same."""
    monkeypatch.setattr(Tape, "pass_through", lambda self, value: value)
    first, second = observe(ROWS, BARE), observe(HOSTILE[name](list(ROWS)), BARE)
    assert first["code"] == second["code"] == 1  # the key is fixed
    assert {key for key in first if key.startswith("run")} == {key for key in second if key.startswith("run")}
    one, two = (json.loads(seen["run/statement.json"]) for seen in (first, second))
    assert one.keys() == two.keys()
    assert {key for key in one if one[key] != two[key]} <= RELEASED
    assert one["private_releases"]
    assert one["secure_randomness"] is False
