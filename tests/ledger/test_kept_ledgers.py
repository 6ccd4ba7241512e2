"""Ledgers that earlier versions wrote: each still verifies, and its records are read and written to the same bytes."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec import to_builtins

from tacita.ledger import Ledger, verify_file
from tacita.ledger.hash_chain import canonical, read
from tacita.ledger.records import Register, read_record

KEPT = sorted((Path(__file__).parent / "kept").glob("*.jsonl"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_it_verifies_and_every_record_would_be_written_so_again(path):
    assert verify_file(path).ok
    chain = read(path.read_bytes())
    for line in chain.lines:
        entry = json.loads(line)
        record = read_record(entry)
        if isinstance(record, Register):
            record = Register.of(record.ledger, record.terms, record.registration)
        place = {name: entry[name] for name in ("v", "seq", "prev")}
        assert canonical({**place, **to_builtins(record)}) == line


@pytest.mark.parametrize("path", [path for path in KEPT if path.stem != "run"], ids=lambda path: path.stem)
def test_it_goes_on_where_it_stopped(path, tmp_path):
    for file in (path, path.with_suffix(".head.json")):
        shutil.copy(file, tmp_path)
    whole = path.read_bytes().rsplit(b"\n", 1)[0] + b"\n"  # without the torn record
    with Ledger.load(tmp_path / path.name, read_only=False) as ledger:
        assert ledger.anchor.count == whole.count(b"\n")
        first = next(one for one in ledger.sessions if not one.closed)
        first.close() if first.opened else first.withdraw()
    after = (tmp_path / path.name).read_bytes()
    assert after.startswith(whole)
    assert json.loads(after.splitlines()[-1])["kind"] in ("close", "withdraw")
    assert verify_file(tmp_path / path.name).ok


def test_the_kept_ledgers_hold_every_kind_of_record_and_of_setting():
    entries = [entry for path in KEPT for entry in map(json.loads, read(path.read_bytes()).lines)]
    kinds = {entry["kind"] for entry in entries}
    assert kinds == {"register", "open", "withdraw", "reserve", "give_back", "query", "close", "seal"}
    registered = [entry for entry in entries if entry["kind"] == "register"]
    assert {entry.get("filter") for entry in registered} == {None, "gaussian"}
    for name in ("part", "share", "max_epsilon", "filter_order"):
        assert any(entry[name] is not None for entry in registered), name
    assert len({json.dumps(entry["event"]["event"]) for entry in registered}) > 20


def test_what_was_spent_by_a_process_that_stopped_is_all_that_it_had_reserved():
    (session,) = Ledger.load(next(path for path in KEPT if path.stem == "stopped")).sessions
    assert (session.queries_made, session.queries_spent) == (2, 1024)
