"""The published schema of statements: real ones follow it, others do not."""

import copy
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tacita.ledger import Ledger, statement
from tacita.ledger.statement_schema import check_statement
from tacita.tables import TableSettings, train_table
from tests.conftest import table_text
from tests.faults import runs

KEPT = sorted((Path(__file__).parent / "kept").glob("*.jsonl"))
PUBLISHED = json.loads((Path(__file__).parents[2] / "docs" / "statement.schema.json").read_text())


def check(fields):
    check_statement(fields)
    if find_spec("jsonschema"):  # another reader of the schema, where there is one
        from jsonschema import Draft202012Validator

        Draft202012Validator(PUBLISHED).validate(fields)


@pytest.fixture(scope="module")
def by_hand():
    path = next(path for path in KEPT if path.stem == "shares")
    return statement(Ledger.load(path), 1e-5).to_json()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_statements_of_every_event_follow_it(path):
    check(statement(Ledger.load(path), 1e-5, anything={"of": ["the", "caller"]}).to_json())


def test_runs_follow_it(tmp_path, monkeypatch):
    check(runs.train(tmp_path / "fit", about={"purpose": "to plan beds"}).statement.to_json())
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text(table_text())
    common = {"data": "table.csv", "target": "label", "delta": 1e-3, "queries": 4, "sample_rate": 0.5}
    for number, changes in enumerate(
        (
            {"epsilon": 20.0, "dataset_name": "patients", "chosen_among": 3},
            {"epsilon": 20.0, "non_private_holdout": True, "seed": 1},
            {"epsilon": 20.0, "target": "x", "task": "regression"},
        )
    ):
        train_table(TableSettings(**{**common, **changes, "output": f"run{number}"}))
        check(json.loads(Path(f"run{number}/statement.json").read_bytes()))


def test_what_is_no_statement_does_not(by_hand):
    check(by_hand)
    for name, value in {
        "epsilon": "1",
        "delta": 1.5,
        "verdict": "very private",
        "neighboring_relation": "add_two",
        "ledger_sha256": "0",
        "sessions": [{}],
        "caveats": "none",
    }.items():
        changed = {**copy.deepcopy(by_hand), name: value}
        with pytest.raises(ValueError, match="not a statement"):
            check_statement(changed)
        del changed[name]
        with pytest.raises(ValueError, match="not a statement"):
            check_statement(changed)
