"""The power goes: whatever the disk may hold then, the run goes on to the same bits, and nothing is under-reported.

:mod:`tests.faults.disk` says what a disk may hold. A file alone, a ledger alone, then whole runs, in every such state.
"""

import os

import pytest

from tacita._files import replace_durably
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.errors import LedgerError
from tacita.ledger import Ledger, Reservations, verify_file
from tacita.random import Randomness
from tacita.tables import check_run, train_table
from tests.faults import runs
from tests.faults.calls import watched
from tests.faults.disk import Recorder, put

EVENT = GaussianSumEvent(
    sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
)
WORDS = {"neighboring_relation": "add_or_remove_one", "privacy_unit": "one row = one patient"}
AUDIT = bool(os.environ.get("TACITA_AUDIT"))


def states_of(tmp_path, job):
    """Every state that the disk may be left in while ``job(folder, released)`` runs, with what was released by then."""
    disk = Recorder(tmp_path)
    with watched(tmp_path, disk):
        job(tmp_path / "run", disk.released)
    return list(disk.states.values())


# --- a file --------------------------------------------------------------------------------------------------------


def test_a_replaced_file_is_the_old_one_or_the_new_one(tmp_path):
    """And once the call has returned, it is the new one."""

    def job(folder, released):
        folder.mkdir()
        for number in range(3):
            replace_durably(folder / "file", b"content %d" % number)
            released(number + 1)

    found = set()
    for tree, released in states_of(tmp_path, job):
        content = tree.get("run", {}).get("file")
        found.add((content, released))
        assert content in {None, b"content 0", b"content 1", b"content 2"}
        if "run" in tree and released:
            assert content is not None
            assert int(content[-1:]) >= released - 1
    assert {content for content, _ in found} == {None, b"content 0", b"content 1", b"content 2"}


@pytest.mark.parametrize("name", ["link", "symlink", "truncate"])
def test_a_call_that_the_model_of_the_disk_does_not_know_must_be_added_to_it(tmp_path, name):
    """Or every state that it leaves behind would be missing here, and nobody would notice."""
    (tmp_path / "file").write_bytes(b"content")
    second = 3 if name == "truncate" else tmp_path / "other"
    with watched(tmp_path, Recorder(tmp_path)), pytest.raises(AssertionError, match=rf"os\.{name}: add to Recorder"):
        getattr(os, name)(tmp_path / "file", second)


# --- a ledger ------------------------------------------------------------------------------------------------------


def spend(folder, released):
    with Ledger(folder / "deep" / "ledger.jsonl", **WORDS) as ledger:
        session = ledger.register(EVENT, planned_queries=6)
        session.open()
        for query in range(5):
            if not session.is_reserved(query):
                session.reserve(query, query + 1)
            session.spend(query, f"tag{query}")
            released(query + 1)
        session.close()


def test_a_ledger_covers_what_was_released_and_goes_on(tmp_path):
    states = states_of(tmp_path, spend)
    assert len(states) > 60
    for number, (tree, released) in enumerate(states):
        folder = tmp_path / f"state{number}"
        put(tree, folder)
        path = folder / "run" / "deep" / "ledger.jsonl"
        if released:
            assert Ledger.load(path).sessions[0].queries_spent >= released
        if path.exists():
            assert verify_file(path).ok
            Ledger(path, **WORDS).close()
            assert verify_file(path).ok


def live_in_rounds(folder, released):
    """A client that lives for one query, three times, and closes its ledger each time."""
    for query in range(3):
        with Ledger(folder / "ledger.jsonl", **WORDS) as ledger:
            session = ledger.sessions[0] if ledger.sessions else ledger.register(EVENT, planned_queries=64)
            if not session.opened:
                session.open()
            Reservations(session, 16).prepare(query)
            session.spend(query, f"tag{query}")
            released(query + 1)


def test_what_is_given_back_was_never_released(tmp_path):
    """In every state of the disk at least what was released is counted; at the end, no more."""
    states = states_of(tmp_path, live_in_rounds)
    assert len(states) > 30
    counted = []
    for number, (tree, released) in enumerate(states):
        put(tree, tmp_path / f"state{number}")
        path = tmp_path / f"state{number}" / "run" / "ledger.jsonl"
        if released:
            counted.append(Ledger.load(path).sessions[0].queries_spent)
            assert counted[-1] >= released
        if path.exists():
            Ledger(path, **WORDS).close()
            assert verify_file(path).ok
    assert {16, 17, 18} & set(counted)  # killed, a reservation counts
    assert Ledger.load(tmp_path / "run" / "ledger.jsonl").sessions[0].queries_spent == 3


def test_a_hole_among_lines_that_were_never_flushed_is_refused_and_left_alone(tmp_path):
    """Some file systems may leave one; nothing tells it from tampering. What was reserved is still counted."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=6)
    session.open()
    session.reserve(0, 5)
    sure = path.read_bytes()
    for query in range(4):
        session.spend(query, "tag")
    lost = path.read_bytes()
    hole = sure + bytes(200) + lost[len(sure) + 200 :]
    ledger.close()
    path.write_bytes(hole)
    with pytest.raises(LedgerError, match=r"line 4 of the ledger is not one that tacita wrote"):
        Ledger(path, **WORDS)
    assert path.read_bytes() == hole


# --- a run ---------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_every_state(whole, tmp_path):
    def job(folder, released):
        with runs.telling(released):
            runs.train(folder)

    recorded = tmp_path / "recorded"
    recorded.mkdir()
    states = states_of(recorded, job)
    assert len(states) > 120
    for number, (tree, released) in list(enumerate(states))[1 :: 1 if AUDIT else 5]:
        put(tree, tmp_path / f"state{number}")
        folder = tmp_path / f"state{number}" / "run"
        runs.check_covers(folder, released)
        if not runs.finished(folder):
            runs.train(folder)
        runs.check_finished(folder, whole)


# --- a run on a table ----------------------------------------------------------------------------------------------


def test_a_run_on_a_table_goes_on_from_every_state(settings, table, tmp_path):
    """A few of the states; make audit tries one in eight."""

    def job(folder, released):
        with runs.telling(released):
            train_table(settings(output=str(folder), queries=2), randomness=Randomness.insecure(0))

    train_table(settings(output="whole", queries=2), randomness=Randomness.insecure(0))
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    states = states_of(recorded, job)
    assert len(states) > 150
    for number in range(3, len(states), 8 if AUDIT else 41):
        put(states[number][0], tmp_path / f"state{number}")
        folder = tmp_path / f"state{number}" / "run"
        if not runs.finished(folder):
            train_table(settings(output=str(folder), queries=2), randomness=Randomness.insecure(0))
        assert check_run(folder).faults == ()
        for name in ("model.safetensors", "preprocessing.json"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), number
        assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}
